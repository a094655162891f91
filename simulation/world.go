package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	"github.com/holdfast-dev/holdfast/simulation/step"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
	"github.com/holdfast-dev/holdfast/transport"
)

// Templates are migrated databases, of which every world gets copies. They are made
// outside of bubbles and may be used in any number of them at once.
type Templates struct {
	orchestrator, fleet *sqlite.DB
	names               step.Names
}

// NewTemplates migrates them; Close them after the last world.
func NewTemplates(ctx context.Context) (*Templates, error) {
	o, err := sqlite.Open(ctx, sqlite.Config{Memory: true}, orchestrator.Migrations()...)
	if err != nil {
		return nil, fmt.Errorf("simulation: %w", err)
	}
	f, err := sqlite.Open(ctx, sqlite.Config{Memory: true}, fleet.Migrations()...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("simulation: %w", err), o.Close())
	}
	if err := errors.Join(guard(ctx, o, ofOrchestrators()), guard(ctx, f, ofFleets())); err != nil {
		return nil, errors.Join(err, o.Close(), f.Close())
	}
	return &Templates{orchestrator: o, fleet: f}, nil
}

// Close gives them up.
func (t *Templates) Close() error { return errors.Join(t.orchestrator.Close(), t.fleet.Close()) }

// Config says what a world is made of. Zero fields have defaults.
type Config struct {
	Templates *Templates // required
	Directory string     // of the hosts' files, empty; a file system in memory makes it fast. Required
	Seed      uint64

	Orchestrators, Fleets, Hosts, Clients int // default 1 each

	Capacity holdfast.Capacity // of each host; default 8 instances of 1 processor and 1 GiB
	Timing   Timing
	// Skews are the parties' clocks before the world's, by name.
	Skews map[string]time.Duration
	// Delay says how long a step takes, before and after it ("before", "after").
	// nil: a hash of what it is.
	Delay func(s *step.Step, when string) time.Duration
	// Hook is told of every step once it is about to happen, after its delay. It may
	// hold it or make it fail, and crash parties.
	Hook step.Hook
	// Faults says what a request suffers; nil: nothing. The step's Number is set.
	Faults func(s *step.Step, to string) Fault
	Logger *slog.Logger // nil: discarded
}

// Timing is how long things take in a world. The defaults are production's where
// that costs little, and longer where a party would only poll.
type Timing struct {
	ClaimTTL    time.Duration // default 30 s
	Sweep       time.Duration // of every party; default 1 min
	Health      time.Duration // between looks at silent hosts; default 30 s
	Heartbeat   time.Duration // default 20 s
	Suspect     time.Duration // default 45 s
	Lost        time.Duration // default 2 min
	Loss        time.Duration // default 8 min
	OrphanGrace time.Duration // default 3 min
	OutboxPoll  time.Duration // default 30 s
	Telemetry   time.Duration // of guests; default 5 min; negative: none
	WatchPoll   time.Duration // default 15 s
	Retention   time.Duration // of suspended sandboxes; default the product's
}

func (t Timing) withDefaults() Timing {
	t.ClaimTTL = cmp.Or(t.ClaimTTL, 30*time.Second)
	t.Sweep = cmp.Or(t.Sweep, time.Minute)
	t.Health = cmp.Or(t.Health, 30*time.Second)
	t.Heartbeat = cmp.Or(t.Heartbeat, 20*time.Second)
	t.Suspect = cmp.Or(t.Suspect, 45*time.Second)
	t.Lost = cmp.Or(t.Lost, 2*time.Minute)
	t.Loss = cmp.Or(t.Loss, 8*time.Minute)
	t.OrphanGrace = cmp.Or(t.OrphanGrace, 3*time.Minute)
	t.OutboxPoll = cmp.Or(t.OutboxPoll, 30*time.Second)
	t.WatchPoll = cmp.Or(t.WatchPoll, 15*time.Second)
	t.Telemetry = cmp.Or(t.Telemetry, 5*time.Minute)
	return t
}

// World is the whole system in one bubble. New it inside the bubble, Start it, and
// Close it before the bubble ends.
type World struct {
	Trace         *Trace
	Orchestrators []*Party
	Fleets        []*Party
	Hosts         []*Host
	Clients       []*Client

	config       Config
	key          hop.ClusterKey
	orchestrator *sqlite.DB
	fleet        *sqlite.DB
	blobs        *blobs // that hosts and orchestrators share
	network      *transport.Network
	faulty       *transport.Faulty
	boots        boots
	records      records
	receiver     *receiver // nil: there are no webhooks

	mu    sync.Mutex
	cut   map[[2]string]bool // from, to: nothing gets through
	fired map[string]int64   // faults, by kind
	late  sync.WaitGroup     // copies of requests on their way

	ctx   context.Context // ends with Close
	end   context.CancelFunc
	later sync.WaitGroup // what was begun without anybody waiting
}

// Client is one client with its party, whose hops are steps too.
type Client struct {
	*Party
	*client.Client
}

// New makes a world in which nothing runs yet.
func New(ctx context.Context, config Config) (*World, error) {
	for _, n := range []*int{&config.Orchestrators, &config.Fleets, &config.Hosts, &config.Clients} {
		*n = max(*n, 1)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Capacity == (holdfast.Capacity{}) {
		config.Capacity = holdfast.Capacity{CPUMillis: 8000, MemoryBytes: 8 << 30, Instances: 8}
	}
	config.Timing = config.Timing.withDefaults()
	w := &World{
		Trace: newTrace(), config: config, key: hop.ClusterKey("the key of a simulated cluster, 32 bytes or more"),
		network: &transport.Network{Log: config.Logger}, blobs: newBlobs(), boots: newBoots(), records: records{last: map[string]recordSeen{}},
		cut: map[[2]string]bool{}, fired: map[string]int64{},
	}
	w.ctx, w.end = context.WithCancel(context.WithoutCancel(ctx))
	w.faulty = &transport.Faulty{Next: w.network.RoundTripper(), Plan: plannedFault}
	var err error
	if w.orchestrator, err = sqlite.Open(ctx, sqlite.Config{Memory: true, From: config.Templates.orchestrator, MaxGroup: 1}); err != nil {
		return nil, fmt.Errorf("simulation: %w", err)
	}
	if w.fleet, err = sqlite.Open(ctx, sqlite.Config{Memory: true, From: config.Templates.fleet, MaxGroup: 1}); err != nil {
		return nil, errors.Join(fmt.Errorf("simulation: %w", err), w.orchestrator.Close())
	}
	return w, w.populate()
}

func (w *World) populate() error {
	for i := range w.config.Orchestrators {
		w.Orchestrators = append(w.Orchestrators, w.party("orchestrator-"+strconv.Itoa(i), w.runOrchestrator))
	}
	for i := range w.config.Fleets {
		w.Fleets = append(w.Fleets, w.party("fleet-"+strconv.Itoa(i), w.runFleet))
	}
	for i := range w.config.Hosts {
		h, err := w.newHost(i)
		if err != nil {
			return err
		}
		w.Hosts = append(w.Hosts, h)
	}
	for i := range w.config.Clients {
		p := w.party("client-"+strconv.Itoa(i), func(context.Context, *life) error { return nil })
		c, err := w.newClient(p, "")
		if err != nil {
			return err
		}
		w.Clients = append(w.Clients, c)
	}
	return nil
}

func (w *World) party(name string, run func(context.Context, *life) error) *Party {
	return &Party{Name: name, world: w, run: run, skew: w.config.Skews[name], counts: map[likeness]int{},
		kinds: map[step.Kind]int{}, plans: map[place]func(*step.Step){}}
}

// newClient makes the SDK's client over the network in memory, for a project; "" is
// the default one, as its admin.
func (w *World) newClient(p *Party, project holdfast.ProjectID) (*Client, error) {
	n := 0
	var mu sync.Mutex
	c, err := client.New("http://orchestrators.sim",
		client.WithHTTPClient(&http.Client{Transport: &step.Transport{Next: &wire{world: w}, Party: p.Name, Hook: clientHook{p}}}),
		client.WithAPIKey("project:"+string(cmp.Or(project, holdfast.ProjectDefault))),
		client.WithRandom(func() float64 {
			mu.Lock()
			defer mu.Unlock()
			n++
			return p.jitter("client", n)
		}))
	if err != nil {
		return nil, fmt.Errorf("simulation: %w", err)
	}
	return &Client{Party: p, Client: c}, nil
}

// ClientOf makes another client, whose calls are a project's.
func (w *World) ClientOf(name string, project holdfast.ProjectID) (*Client, error) {
	return w.newClient(w.party(name, func(context.Context, *life) error { return nil }), project)
}

// clientHook gives a client's hops the life that no client has of its own.
type clientHook struct{ *Party }

// Before implements step.Hook.
func (h clientHook) Before(ctx context.Context, s *step.Step) error { return h.always().Before(ctx, s) }

// After implements step.Hook.
func (h clientHook) After(ctx context.Context, s *step.Step, err error) error {
	return h.always().After(ctx, s, err)
}

// always is a life that nobody started and that ends with its crash alone.
func (p *Party) always() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == nil {
		p.life = &life{party: p, number: 1, closed: make(chan struct{})}
		p.life.ctx, p.life.end = context.WithCancel(context.Background())
	}
	return p.life
}

// Parties are the servers: orchestrators, fleets, hosts.
func (w *World) Parties() []*Party {
	all := append(append([]*Party(nil), w.Orchestrators...), w.Fleets...)
	for _, h := range w.Hosts {
		all = append(all, h.Party)
	}
	return all
}

// Party finds one by its name; nil if there is none.
func (w *World) Party(name string) *Party {
	for _, p := range w.Parties() {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Start starts every party, one after the other, as an operator would.
func (w *World) Start(ctx context.Context) error {
	for _, p := range w.Parties() {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close ends everything, so that the bubble can end.
func (w *World) Close() error {
	w.Trace.end()
	w.end()
	w.later.Wait()
	for _, p := range w.Parties() {
		p.Resume()
		p.Crash()
	}
	var errs []error
	for _, h := range w.Hosts {
		errs = append(errs, h.machine.CrashHost(context.Background()))
	}
	for _, p := range w.Parties() {
		p.mu.Lock()
		l := p.life
		p.mu.Unlock()
		if l != nil {
			<-l.closed
		}
	}
	w.late.Wait()
	errs = append(errs, w.network.Close(context.Background()), w.orchestrator.Close(), w.fleet.Close())
	for _, h := range w.Hosts {
		errs = append(errs, os.RemoveAll(h.directory), os.RemoveAll(h.layers))
	}
	return errors.Join(errs...)
}

// OrchestratorDB is the orchestrators' database, as its disk would show it.
func (w *World) OrchestratorDB() store.DB { return w.orchestrator }

// Blobs is the blob store that hosts and orchestrators share, as nobody's step.
func (w *World) Blobs() blob.Store { return w.blobs }

// FleetDB is the fleets' database.
func (w *World) FleetDB() store.DB { return w.fleet }

// Fired says how often each kind of fault has happened.
func (w *World) Fired() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[string]int64, len(w.fired))
	for kind, n := range w.fired {
		out[kind] = n
	}
	return out
}

func (w *World) count(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fired[kind]++
}

// delay is how long a step takes.
func (w *World) delay(s *step.Step, when string) time.Duration {
	if w.config.Delay != nil {
		return w.config.Delay(s, when)
	}
	h := hash(w.config.Seed, "delay", when, s.Party, string(s.Kind), s.Name, s.Key, s.Actor, strconv.Itoa(s.N))
	switch s.Kind {
	case step.Update:
		return between(h, 200*time.Microsecond, 4*time.Millisecond)
	case step.View:
		return between(h, 50*time.Microsecond, time.Millisecond)
	case step.Hop, step.Call, step.Blob:
		return between(h, 300*time.Microsecond, 12*time.Millisecond)
	}
	return 0
}

func (w *World) directory(name string) string { return filepath.Join(w.config.Directory, name) }
