package hostagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/spool"
)

// Images prepares what instances boot from. A refusal (no such image) is a
// *holdfast.Error with a code that is not transient.
type Images interface {
	// Ensure returns the image that a reference names now or, where an id is given,
	// the very image of that id, or refuses. It may take minutes, tells a person how
	// far it is, and stops with ctx.
	Ensure(ctx context.Context, ref, id string, progress func(string)) (holdfast.BaseImage, error)
}

// Layers keeps the unpacked layers that instances boot from above their image
// (image.Layers).
type Layers interface {
	// Ensure returns a layer's directory. Its errors are as those of Images; it may
	// take minutes.
	Ensure(ctx context.Context, one holdfast.Layer, progress func(string)) (directory string, err error)
	// Prune removes layers that were not used for long, and are not needed.
	Prune(ctx context.Context, needed func(sha256 string) bool) (removed int, err error)
}

// HeldImages is implemented by Images that can say which references are ready, so
// that the fleet prefers this host for them.
type HeldImages interface {
	Held() ([]string, error)
}

// FleetLink is how a host reaches the fleet: facts as signed deliveries, and
// heartbeats (H7). An empty URL sends nothing.
type FleetLink struct {
	URL    string                               // without a trailing slash
	Client *http.Client                         // nil: http.DefaultClient
	Token  string                               // bearer token of the heartbeats
	Secret func(host holdfast.HostID) []byte    // signs this host's deliveries (contract: B8)
	After  func(time.Duration) <-chan time.Time // times the pauses between attempts; nil: time.After
}

// OrchestratorLink is where the callbacks of guests go (H5, H6).
type OrchestratorLink struct {
	URL    string       // without a trailing slash
	Client *http.Client // nil: http.DefaultClient
}

// Timing is every duration that the agent decides by. Zero means the default,
// which is what lifecycle.md says.
type Timing struct {
	Heartbeat      time.Duration // between heartbeats; 5 s
	Boot           time.Duration // from the start of guest code to readiness; 2 min
	Prepare        time.Duration // from the first level to the start; 15 min
	Resume         time.Duration // until a thawed guest answers; 30 s
	Ask            time.Duration // for one answer of a guest about itself; 2 s
	Sweep          time.Duration // between sweeps; 1 min
	OrphanGrace    time.Duration // before what nobody recorded is destroyed; 5 min
	Copy           time.Duration // from a checkpoint's first level to its end; 10 min
	TombstoneKept  time.Duration // 7 days
	LevelTooOld    time.Duration // since the placement of an unknown incarnation; 6 days
	ForwardTimeout time.Duration // for one callback passed on; 10 s
}

// Config is what an agent is made of.
type Config struct {
	Directory string // of this host's instances, durable; locked while the agent lives
	Driver    runtime.Driver
	Images    Images
	Layers    Layers     // nil: instances above layers are refused, NOT_CAPABLE
	Blobs     blob.Store // that all hosts share, where checkpoints go; nil: none are taken
	// Volatile says that the instances live in this process's memory and die with
	// it, as the simulated runtime's do. Their records are then kept there too, and
	// what an earlier process began is answered as lost.
	Volatile   bool
	ClusterID  string // that the host must belong to; "": it learns it from the first order
	ClusterKey []byte // guests' secrets are derived from it (contract: B8)

	Name     string            // of the host, for a person; default: the machine's
	URL      string            // at which the others reach this agent
	Capacity holdfast.Capacity // zero fields: what the machine has

	MaxChain      int   // layers above an image that a checkpoint's may be one more of; a longer chain is merged into one; default 16
	MaxCheckpoint int64 // bytes of one; default 16 GiB, as much as a host unpacks

	Fleet        FleetLink
	Orchestrator OrchestratorLink

	// DialGuest makes a guest's client from a dialer of its own listener (H11);
	// cmd wires rpc/guest here.
	DialGuest func(dial func(context.Context) (net.Conn, error)) holdfast.Guest

	Clock  func() time.Time       // nil: time.Now
	BootID func() (string, error) // nil: the kernel's
	Logger *slog.Logger           // nil: slog.Default
	Timing Timing

	// What a simulation replaces. Zero values: at random, and nothing.
	IDs    holdfast.IDs                     // the host's, and this life's
	Jitter func(what string, n int) float64 // in [0, 1), of sweeps, heartbeats and pauses between attempts
	// AroundRecord is called before and after each durable write, with "before" and
	// then "after", or "written" where only the process's death is survived and not the
	// machine's, and with the record's state. Its error stands for the write's; it must not
	// block, since an instance's lock is held.
	AroundRecord func(when string, ref holdfast.InstanceRef, state holdfast.InstanceState) error
	// BlindOutput makes followers of output look at intervals instead of being woken
	// by the kernel, which knows no virtual time.
	BlindOutput bool

	// hook is called around every durable write, for crash tests.
	hook func(point string) error
}

func (c Config) withDefaults() (Config, error) {
	var missing []error
	for name, absent := range map[string]bool{
		"Directory": c.Directory == "", "Driver": c.Driver == nil, "Images": c.Images == nil,
		"ClusterKey": len(c.ClusterKey) == 0, "DialGuest": c.DialGuest == nil,
	} {
		if absent {
			missing = append(missing, fmt.Errorf("hostagent: %s is missing", name))
		}
	}
	if c.Fleet.URL != "" && c.Fleet.Secret == nil {
		missing = append(missing, errors.New("hostagent: Fleet.Secret is missing"))
	}
	if len(missing) > 0 {
		return c, errors.Join(missing...)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.BootID == nil {
		c.BootID = kernelBootID
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Fleet.Client == nil {
		c.Fleet.Client = http.DefaultClient
	}
	if c.Orchestrator.Client == nil {
		c.Orchestrator.Client = http.DefaultClient
	}
	if c.hook == nil {
		c.hook = func(string) error { return nil }
	}
	if c.Jitter == nil {
		c.Jitter = func(string, int) float64 { return rand.Float64() }
	}
	if c.AroundRecord == nil {
		c.AroundRecord = func(string, holdfast.InstanceRef, holdfast.InstanceState) error { return nil }
	}
	if c.IDs.Now == nil {
		c.IDs.Now = c.Clock
	}
	if c.MaxChain == 0 {
		c.MaxChain = 16
	}
	if c.MaxCheckpoint == 0 {
		c.MaxCheckpoint = 16 << 30
	}
	c.Timing = c.Timing.withDefaults()
	var err error
	if c.Name == "" {
		if c.Name, err = os.Hostname(); err != nil {
			return c, fmt.Errorf("hostagent: the host's name: %w", err)
		}
	}
	c.Capacity, err = withMachine(c.Capacity)
	return c, err
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Heartbeat, 5 * time.Second},
		{&t.Boot, holdfast.InstanceBootAfter},
		{&t.Prepare, holdfast.InstancePrepareAfter},
		{&t.Resume, 30 * time.Second},
		{&t.Ask, 2 * time.Second},
		{&t.Sweep, time.Minute},
		{&t.OrphanGrace, holdfast.OrphanGrace},
		{&t.Copy, holdfast.CheckpointAfter},
		{&t.TombstoneKept, holdfast.TombstoneKept},
		{&t.LevelTooOld, holdfast.LevelTooOldAfter},
		{&t.ForwardTimeout, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return t
}

func kernelBootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// What a host offers where its operator did not say. Processors are shared, since
// sandboxes mostly wait; memory is not, since it cannot be taken back.
const (
	defaultInstances = 1000
	cpuShare         = 8 // sandboxes' processors for each of the machine's
)

// withMachine fills what the operator left open with what the machine has.
func withMachine(c holdfast.Capacity) (holdfast.Capacity, error) {
	if c.CPUMillis == 0 {
		c.CPUMillis = int64(goruntime.NumCPU()) * 1000 * cpuShare
	}
	if c.Instances == 0 {
		c.Instances = defaultInstances
	}
	if c.MemoryBytes != 0 {
		return c, nil
	}
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return c, fmt.Errorf("hostagent: the machine's memory: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 {
			c.MemoryBytes = kib << 10
			return c, nil
		}
	}
	return c, errors.New("hostagent: /proc/meminfo names no MemTotal")
}

// notifier wakes the followers of output; nil when they look by themselves.
func (c Config) notifier() (*spool.Notifier, error) {
	if c.BlindOutput {
		return nil, nil
	}
	return spool.NewNotifier()
}

func closeNotifier(n *spool.Notifier) error {
	if n == nil {
		return nil
	}
	return n.Close()
}
