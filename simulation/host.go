package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
	"github.com/holdfast-dev/holdfast/hostagent"
	"github.com/holdfast-dev/holdfast/image"
	rpcguest "github.com/holdfast-dev/holdfast/rpc/guest"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	rpchost "github.com/holdfast-dev/holdfast/rpc/host"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/simulated"
	"github.com/holdfast-dev/holdfast/simulation/step"
)

// Host is a machine and the agent on it. The machine has the instances; they
// outlive the agent.
type Host struct {
	*Party
	world     *World
	index     int
	directory string
	layers    string // directory of the unpacked ones

	mu      sync.Mutex
	machine *simulated.Driver // of the agent that lives
	reboots int
	booted  int          // boots that began
	failing map[int]bool // boots, by number, that die before their agent
	refused map[int]bool // boots, by number, whose setup fails
	guests  []*guest     // that run, oldest first
	disk    disk
}

func (w *World) newHost(i int) (*Host, error) {
	h := &Host{world: w, index: i, failing: map[int]bool{}, refused: map[int]bool{}, directory: w.directory("host-" + strconv.Itoa(i)), layers: w.directory("layers-" + strconv.Itoa(i))}
	if err := os.MkdirAll(filepath.Join(h.directory, "image"), 0o700); err != nil {
		return nil, fmt.Errorf("simulation: %w", err)
	}
	h.Party = w.party("host-"+strconv.Itoa(i), h.runAgent)
	h.machine = simulated.New(simulated.Config{NewGuest: func(_ context.Context, b runtime.Bundle) (simulated.Guest, error) {
		w.boots.began(h.Name, b.Ref)
		w.Trace.Note(h.Name, "boots %s/%d", step.Short(string(b.Ref.Instance)), b.Ref.Incarnation)
		if h.fails() {
			w.count(string(BootFails))
			return nil, errors.New("kernel panic")
		}
		g, err := w.newGuest(h, b)
		if err == nil {
			h.mu.Lock()
			h.guests = append(h.guests, g)
			h.mu.Unlock()
		}
		return g, err
	}})
	return h, nil
}

// Machine is the runtime as it is, without an agent between: what is true.
func (h *Host) Machine() *simulated.Driver {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machine
}

// Lose crashes the agent and the machine under it: every instance is gone. The
// agent finds another boot of the machine when it is started again, and on its disk
// what was synced.
func (h *Host) Lose(ctx context.Context) error {
	h.Crash()
	h.world.Trace.Note(h.Name, "loses its machine")
	h.world.count("host loss")
	h.mu.Lock()
	h.reboots++
	machine := h.machine
	h.mu.Unlock()
	h.world.records.lostPower(h)
	return errors.Join(machine.CrashHost(ctx), h.disk.losePower())
}

// fails counts a boot and reports whether it is to die.
func (h *Host) fails() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.booted++
	return h.failing[h.booted]
}

// FailBoot lets the n-th boot of the host's machine die before its guest agent, from 1.
func (h *Host) FailBoot(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing[n] = true
}

// FailSetup lets the setup of the n-th boot fail, from 1: its guest says so.
func (h *Host) FailSetup(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused[n] = true
}

// setUp is the setup of the newest boot.
func (h *Host) setUp() func(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.refused[h.booted] {
		return nil
	}
	return func(context.Context) error { return errors.New("the setup failed") }
}

// KillGuest ends the newest guest that runs, as if its PID 1 had died; false if
// there is none.
func (h *Host) KillGuest() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.guests) - 1; i >= 0; i-- {
		if g := h.guests[i]; g.ctx.Err() == nil {
			g.kill(errGuestDied)
			return true
		}
	}
	return false
}

var errGuestDied = errors.New("killed")

// bootID is the machine's present boot.
func (h *Host) bootID() (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("boot-%d-of-%s", h.reboots, h.Name), nil
}

func (h *Host) gateway() string { return "gateway-" + strconv.Itoa(h.index) + ".sim" }

func (h *Host) runAgent(ctx context.Context, l *life) error {
	w, hops := h.world, h.world.client(l)
	h.mu.Lock()
	if l.number > 1 {
		h.machine = h.machine.Restart()
	}
	machine := h.machine
	h.mu.Unlock()
	unpacked := &layers{directory: h.layers, config: image.LayersConfig{Blobs: w.blobs, Now: h.Clock}}
	agent, err := hostagent.New(hostagent.Config{
		Layers: unpacked, Blobs: &step.Blobs{Store: w.blobs, Party: h.Name, Hook: l},
		Directory: h.directory, Images: images{filepath.Join(h.directory, "image")},
		Driver:     &step.Driver{Next: timeless{machine, w.boots}, Party: h.Name, Hook: l, GatewayURL: "http://" + h.gateway()},
		ClusterKey: w.key, Name: h.Name, URL: "http://" + h.Name + ".sim", Capacity: w.config.Capacity,
		Fleet: hostagent.FleetLink{URL: "http://fleets.sim", Client: hops, Token: w.key.Token(hop.HostAgent, hop.Fleet),
			Secret: func(id holdfast.HostID) []byte { return w.key.Secret("host:" + string(id)) }},
		Orchestrator: hostagent.OrchestratorLink{URL: "http://orchestrators.sim", Client: hops},
		DialGuest:    dialGuest, Clock: h.Clock, BootID: h.bootID, Logger: w.config.Logger.With("party", h.Name),
		Timing: hostagent.Timing{Sweep: w.config.Timing.Sweep, Heartbeat: w.config.Timing.Heartbeat, OrphanGrace: w.config.Timing.OrphanGrace},
		IDs:    holdfast.IDs{Now: h.Clock, Rand: &chance{seed: w.config.Seed, who: h.Name}}, Jitter: h.jitter,
		AroundRecord: h.disk.around(h.directory, step.Records(h.Name, l)), BlindOutput: true,
	})
	if err != nil {
		return err
	}
	l.onClose(unpacked.Close)
	l.onClose(agent.Close)
	l.serve(h.Name+".sim", rpchost.Handler(agent, agent.Guest, w.key))
	l.serve(h.gateway(), agent.GatewayHandler())
	return agent.Start(ctx)
}

// dialGuest makes a guest's client, as a server does.
func dialGuest(dial func(context.Context) (net.Conn, error)) holdfast.Guest {
	return rpcguest.Dial(hop.Client{URL: "http://guest", HTTP: &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives: true,
	}}})
}

// images is an empty directory for every name.
type images struct{ directory string }

// Ensure implements hostagent.Images.
func (i images) Ensure(_ context.Context, ref, _ string, _ func(string)) (holdfast.BaseImage, error) {
	return holdfast.BaseImage{ID: ref, RootFS: i.directory}, nil
}

// timeless is a machine whose checkpoints do not tell when their files were written:
// files have the real clock's times, which no run shares with another.
type timeless struct {
	*simulated.Driver
	boots boots
}

// Checkpoint implements runtime.Driver.
func (t timeless) Checkpoint(ctx context.Context, ref holdfast.InstanceRef, w io.Writer) error {
	root, known := t.boots.root(ref)
	if !known {
		return t.Driver.Checkpoint(ctx, ref, w)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("simulation: %w", err)
	}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0)))
	})
	if err != nil {
		return fmt.Errorf("simulation: %w", err)
	}
	return t.Driver.Checkpoint(ctx, ref, w)
}

// layers is a host's store of them, made with the first that an instance boots from:
// most runs have none.
type layers struct {
	directory string
	config    image.LayersConfig

	mu     sync.Mutex
	store  *image.Layers
	closed bool
}

func (l *layers) open() (*image.Layers, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errDead
	}
	var err error
	if l.store == nil {
		l.store, err = image.NewLayers(l.directory, l.config)
	}
	return l.store, err
}

// Ensure implements hostagent.Layers.
func (l *layers) Ensure(ctx context.Context, one holdfast.Layer, progress func(string)) (string, error) {
	store, err := l.open()
	if err != nil {
		return "", err
	}
	return store.Ensure(ctx, one, progress)
}

// Prune implements hostagent.Layers.
func (l *layers) Prune(ctx context.Context, needed func(sha256 string) bool) (int, error) {
	if _, err := os.Stat(l.directory); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	store, err := l.open()
	if err != nil {
		return 0, err
	}
	return store.Prune(ctx, needed)
}

// Close ends what is being fetched.
func (l *layers) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.store != nil {
		l.store.Close()
	}
	return nil
}

// guest is a real guest agent, in this process.
type guest struct {
	agent *guestagent.Agent
	http  *http.Server
	ctx   context.Context // while it runs
	kill  context.CancelCauseFunc
}

func (w *World) newGuest(h *Host, b runtime.Bundle) (*guest, error) {
	p := w.party(fmt.Sprintf("guest-%s/%d", step.Short(string(b.Ref.Instance)), b.Ref.Incarnation), nil)
	home := &http.Client{Transport: &step.Transport{Party: p.Name, Hook: clientHook{p},
		Next: homeward{host: h, ref: b.Ref, next: &wire{world: w, life: p.always()}}}}
	agent, err := guestagent.New(guestagent.Config{
		Guest: b.Guest, Spool: b.Spool, Executor: &shell{Executor: guestagent.NewSimulatedExecutor(nil), boots: w.boots, ref: b.Ref, root: simulated.Files(b)}, HTTP: home, Telemetry: home,
		Root: simulated.Files(b), Late: true, TelemetryEvery: w.config.Timing.Telemetry, Setup: h.setUp(),
		IDs: holdfast.IDs{Rand: &chance{seed: w.config.Seed, who: p.Name}}, Jitter: p.jitter,
	})
	if err != nil {
		return nil, fmt.Errorf("simulation: %w", err)
	}
	w.boots.rooted(b.Ref, simulated.Files(b))
	g := &guest{agent: agent, http: &http.Server{Handler: rpcguest.Handler(agent.Guest())}}
	g.ctx, g.kill = context.WithCancelCause(context.Background())
	return g, nil
}

// Serve implements simulated.Guest.
func (g *guest) Serve(l net.Listener) error {
	if err := g.http.Serve(l); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Run implements simulated.Guest.
func (g *guest) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { g.kill(ctx.Err()) })()
	err := g.agent.Run(g.ctx)
	if errors.Is(context.Cause(g.ctx), errGuestDied) {
		return errGuestDied
	}
	return err
}

// Close implements simulated.Guest.
func (g *guest) Close() error { return errors.Join(g.http.Close(), g.agent.Close()) }

// homeward is a guest's way to its host agent: nothing passes while it is frozen.
type homeward struct {
	host *Host
	ref  holdfast.InstanceRef
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (h homeward) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := h.reach(r); err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, err
	}
	res, err := h.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := h.reach(r); err != nil {
		return nil, errors.Join(err, res.Body.Close())
	}
	return res, nil
}

// reach waits while the guest is frozen. That it thaws, that it ends and that its
// network is gone may be one instant: it goes on in another, which knows all of it.
func (h homeward) reach(r *http.Request) error {
	began := time.Now()
	err := h.host.Machine().Reach(r.Context(), h.ref)
	if s, ok := step.Of(r); ok && !time.Now().Equal(began) {
		h.host.world.moment(s, "thaws")
	}
	if over := r.Context().Err(); over != nil {
		return over
	}
	return err
}

// truth is what the machine has, whatever faults its agent suffers.
func (h *Host) truth() []runtime.Status { return h.Machine().Truth() }

// phase is what the machine itself has of a boot.
func (h *Host) phase(ref holdfast.InstanceRef) runtime.Phase {
	for _, one := range h.truth() {
		if one.Ref == ref {
			return one.Phase
		}
	}
	return runtime.PhaseAbsent
}
