package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/simulated"
	"github.com/holdfast-dev/holdfast/simulation/step"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/transport"
)

// Report is what a run showed.
type Report struct {
	Schedule   Schedule
	Violations []string // of invariants; empty is well
	Trace      *Trace
	Sum        uint64           // of the trace
	Fired      map[string]int64 // faults, by kind
	Outcomes   []Outcome
	Took       time.Duration // virtual
}

// Outcome is what a client got for a call.
type Outcome struct {
	Op      Op
	Project holdfast.ProjectID
	ID      holdfast.SandboxID // whom it was about, as far as known
	Began   time.Time
	Ended   time.Time
	Sandbox holdfast.Sandbox
	Process holdfast.Process
	Answer  answer // of calls about anything but a sandbox
	Err     error
}

// runner is one run in progress.
type runner struct {
	world    *World
	schedule Schedule
	troubled sync.WaitGroup // troubles that have a time
	watchers sync.WaitGroup
	rules    *rules

	mu         sync.Mutex
	ids        map[string]holdfast.SandboxID // by project and slot, as acknowledged
	made       map[string]string             // by kind, project and slot: sessions, tasks, builds and checkpoints
	outcomes   []Outcome
	violations []string
	other      holdfast.ProjectID // of the third client
	watched    map[holdfast.SandboxID]holdfast.Sandbox
	watching   bool
	busy       map[holdfast.SandboxID]*activity
}

// rules is what hops, calls and transactions suffer, by where they are.
type rules struct {
	mu     sync.Mutex
	off    bool
	hops   map[string]map[int]Trouble // by party
	calls  map[string]map[int]Trouble // by host; the index counts from the arming on
	looks  map[string]map[int]Trouble
	losses map[string]map[int]bool // transactions whose answer is lost
	mute   map[string]int          // hosts whose telemetry gets nowhere
	base   map[string]int          // what had been taken when the rules were armed
	guests int                     // hops of guests so far
	called map[string]int
	looked map[string]int
}

// retention is short, so that suspended sandboxes give their room back within a run.
const retention = 12 * time.Minute

// Base says what a run needs besides its schedule.
type Base struct {
	Templates *Templates
	Directory string // of the run's own
	Logger    *slog.Logger
}

// Run runs a schedule in the calling bubble, which it leaves empty.
func Run(ctx context.Context, base Base, s Schedule) (*Report, error) {
	r := &runner{schedule: s, ids: map[string]holdfast.SandboxID{}, made: map[string]string{}, watched: map[holdfast.SandboxID]holdfast.Sandbox{},
		busy: map[holdfast.SandboxID]*activity{}, watching: s.Watched}
	r.rules = newRules(s)
	w, err := New(ctx, Config{
		Templates: base.Templates, Directory: base.Directory, Seed: s.Seed, Logger: base.Logger,
		Orchestrators: s.Orchestrators, Fleets: s.Fleets, Hosts: s.Hosts, Clients: s.Clients, Skews: s.Skews,
		Capacity: holdfast.Capacity{CPUMillis: 64_000, MemoryBytes: 64 << 30, Instances: s.Room},
		Timing:   Timing{Retention: retention},
		Hook:     step.Hooks{OnAfter: r.afterStep}, Faults: r.hopFault,
	})
	if err != nil {
		return nil, err
	}
	r.world = w
	begin := time.Now()
	err = w.Start(ctx)
	if err == nil {
		err = r.project(ctx)
	}
	if err == nil && s.Profile.works() {
		err = r.environments(ctx)
	}
	if err == nil && s.Profile == Webhooks {
		err = w.Webhooks(ctx, w.Clients[0])
	}
	if err == nil {
		watching, stop := context.WithCancel(ctx)
		r.watch(watching)
		r.troubles(ctx)
		r.clients(ctx)
		r.heal(ctx)
		r.settle(ctx)
		w.Trace.end()
		stop()
		r.watchers.Wait()
	}
	report := &Report{Schedule: s, Violations: r.violations, Trace: w.Trace, Sum: w.Trace.Sum(), Fired: w.Fired(),
		Outcomes: r.outcomes, Took: time.Since(begin)}
	if closing := w.Close(); err == nil && closing != nil {
		err = fmt.Errorf("simulation: close the world: %w", closing)
	}
	return report, err
}

// project gives the third client a project of its own, where request ids mean
// something else (trap T4).
func (r *runner) project(ctx context.Context) error {
	if r.schedule.Clients < 3 {
		return nil
	}
	p, err := r.world.Clients[0].CreateProject(ctx, holdfast.CreateProject{Name: "other"})
	if err != nil {
		return fmt.Errorf("simulation: create a project: %w", err)
	}
	r.other = p.ID
	r.world.Clients[2], err = r.world.newClient(r.world.Clients[2].Party, p.ID)
	return err
}

// environments are made before anything goes wrong, in each project.
func (r *runner) environments(ctx context.Context) error {
	err := r.define(ctx, r.world.Clients[0])
	if err == nil && r.other != "" {
		err = r.define(ctx, r.world.Clients[2])
	}
	return err
}

func (r *runner) projectOf(client int) holdfast.ProjectID {
	if client == 2 {
		return r.other
	}
	return holdfast.ProjectDefault
}

// violated notes a broken invariant.
func (r *runner) violated(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := step.Short(fmt.Sprintf(format, args...))
	if !slices.Contains(r.violations, text) {
		r.violations = append(r.violations, text)
		r.world.Trace.Note("VIOLATION", "%s", text)
	}
}

func newRules(s Schedule) *rules {
	x := &rules{off: true, hops: map[string]map[int]Trouble{}, calls: map[string]map[int]Trouble{}, looks: map[string]map[int]Trouble{},
		losses: map[string]map[int]bool{}, mute: map[string]int{}, base: map[string]int{}, called: map[string]int{}, looked: map[string]int{}}
	put := func(to map[string]map[int]Trouble, t Trouble) {
		if to[t.Party] == nil {
			to[t.Party] = map[int]Trouble{}
		}
		to[t.Party][t.N] = t
	}
	for _, t := range s.Troubles {
		switch t.Kind {
		case BadHop:
			put(x.hops, t)
		case BadCall, StallCall:
			put(x.calls, t)
		case LieCall:
			put(x.looks, t)
		case Unknown:
			if x.losses[t.Party] == nil {
				x.losses[t.Party] = map[int]bool{}
			}
			x.losses[t.Party][t.N] = true
		}
	}
	return x
}

// troubles arms what is to go wrong, from now on.
func (r *runner) troubles(ctx context.Context) {
	w := r.world
	r.rules.mu.Lock()
	r.rules.off = false
	for _, p := range append(w.Parties(), clientParties(w)...) {
		for _, kind := range []step.Kind{step.Hop, step.Update} {
			r.rules.base[p.Name+string(kind)] = p.Taken(kind)
		}
	}
	r.rules.mu.Unlock()
	for _, h := range w.Hosts {
		h.machine.SetFaults(r.callFaults(h.Name))
	}
	for _, t := range r.schedule.Troubles {
		r.arm(ctx, t)
	}
}

func clientParties(w *World) []*Party {
	var all []*Party
	for _, c := range w.Clients {
		all = append(all, c.Party)
	}
	return all
}

// arm makes one trouble happen, at its step or at its time.
func (r *runner) arm(ctx context.Context, t Trouble) {
	w := r.world
	p, h := w.Party(t.Party), w.host(t.Party)
	if p == nil {
		return
	}
	// At its step, or at its time; what it begins ends after its length.
	during := func(begin, end func()) {
		trouble := func() {
			begin()
			r.troubled.Go(func() {
				wait(ctx, t.For)
				end()
			})
		}
		if t.Of != "" {
			p.AtKind(t.Of, p.Taken(t.Of)+t.N, t.After, func(*step.Step) { trouble() })
			return
		}
		r.troubled.Go(func() {
			wait(ctx, t.At)
			trouble()
		})
	}
	switch t.Kind {
	case Crash:
		p.AtKind(t.Of, p.Taken(t.Of)+t.N, t.After, func(*step.Step) { p.Bounce(t.For) })
	case Restart:
		during(func() { p.Stop(); w.count(string(Restart)) }, func() { _ = p.Start(w.ctx) }) // it is tried until the world ends
	case Pause:
		during(p.Pause, p.Resume)
	case LoseHost:
		if h != nil {
			lost := make(chan struct{})
			during(func() {
				h.Crash() // at this very step; what is on the machine may take a moment to end
				go func() {
					defer close(lost)
					w.apart(t, "loses")
					_ = h.Lose(ctx)
				}()
			}, func() {
				<-lost
				_ = h.Start(w.ctx)
			})
		}
	case Partition:
		during(func() { w.Cut(t.Party, t.To) }, func() { w.mend(t.Party, t.To) })
	case GuestDies:
		if h != nil {
			during(func() {
				r.troubled.Go(func() {
					w.apart(t, "dies")
					if h.KillGuest() {
						w.count(string(GuestDies))
					}
				})
			}, func() {})
		}
	case BootFails:
		if h != nil {
			h.mu.Lock()
			h.failing[h.booted+t.N] = true
			h.mu.Unlock()
		}
	case Mute:
		during(func() { r.rules.muted(t.Party, 1) }, func() { r.rules.muted(t.Party, -1) })
	}
}

// apart waits until an instant of a trouble's own. What a step sets off must not
// happen in the step's instant: the step goes on in it, and which of both is seen
// first would be chance.
func (w *World) apart(t Trouble, what string) {
	wait(w.ctx, between(hash(w.config.Seed, "apart", what, t.Party, string(t.Of), strconv.Itoa(t.N)), time.Microsecond, 200*time.Microsecond))
}

func (x *rules) muted(host string, by int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mute[host] += by
}

// hopFault is what a request suffers.
func (r *runner) hopFault(s *step.Step, _ string) Fault {
	x := r.rules
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.off {
		return Fault{}
	}
	if x.mute[s.Party] > 0 && (strings.HasSuffix(s.Name, "/heartbeat") || strings.HasSuffix(s.Name, "/telemetry")) {
		r.world.count(string(Mute))
		return Fault{Fault: transport.Fault{Kind: transport.Hang}}
	}
	party, n := s.Party, s.OfKind-x.base[s.Party+string(step.Hop)]
	if strings.HasPrefix(party, "guest-") {
		x.guests++
		party, n = "guests", x.guests
	}
	t, ok := x.hops[party][n]
	if !ok {
		return Fault{}
	}
	return t.fault()
}

// fault is a hop's trouble as the transport knows it.
func (t Trouble) fault() Fault {
	kinds := []transport.Kind{transport.Drop, transport.LoseAnswer, transport.Duplicate, transport.CutRequest, transport.CutResponse,
		transport.Hang, transport.Refuse, transport.Replace}
	for _, kind := range kinds {
		if kind.String() == t.Hop {
			return Fault{Fault: transport.Fault{Kind: kind, Bytes: t.Bytes}}
		}
	}
	if t.Hop == "late copy" {
		return Fault{Copy: t.For}
	}
	return Fault{Fault: transport.Fault{Delay: t.For}}
}

// afterStep loses the answer of transactions that are to lose it, and keeps what the
// runtimes did.
func (r *runner) afterStep(_ context.Context, s *step.Step, err error) error {
	x := r.rules
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil || x.off || s.Kind != step.Update || !x.losses[s.Party][s.OfKind-x.base[s.Party+string(step.Update)]] {
		return err
	}
	r.world.count(string(Unknown))
	return fmt.Errorf("simulation: %w", store.ErrUnknownOutcome)
}

// errRuntime is what a runtime's failing calls say.
var errRuntime = fmt.Errorf("simulation: the runtime failed")

// callFaults is what a host's runtime suffers.
func (r *runner) callFaults(host string) simulated.Faults {
	x := r.rules
	return func(c simulated.Call) simulated.Fault {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.off || c.Method == simulated.MethodOpen {
			return simulated.Fault{}
		}
		x.called[host]++
		if c.Method == simulated.MethodInspect || c.Method == simulated.MethodList {
			x.looked[host]++
			if _, lie := x.looks[host][x.looked[host]]; lie {
				r.world.count(string(LieCall))
				return simulated.Fault{Lie: &runtime.Status{Ref: c.Ref, Phase: runtime.PhaseAbsent}, LieList: []runtime.Status{}}
			}
		}
		t, ok := x.calls[host][x.called[host]]
		switch {
		case !ok:
			return simulated.Fault{}
		case t.Kind == StallCall:
			goOn := make(chan struct{})
			r.troubled.Go(func() { // before all is well: not even its caller's end ends a dial
				wait(r.world.ctx, t.For)
				close(goOn)
			})
			r.world.count(string(StallCall))
			return simulated.Fault{Stall: goOn, AfterEffect: t.After}
		}
		r.world.count(string(BadCall))
		return simulated.Fault{Err: errRuntime, AfterEffect: t.After}
	}
}

// heal ends what goes wrong: everything runs again.
func (r *runner) heal(ctx context.Context) {
	w := r.world
	if left := faultsFor - time.Since(w.Trace.begin); left > 0 {
		wait(ctx, left)
	}
	r.rules.mu.Lock()
	r.rules.off = true
	clear(r.rules.mute)
	r.rules.mu.Unlock()
	for _, p := range w.Parties() {
		p.forget()
		p.Resume()
	}
	w.Mend()
	r.troubled.Wait()
	w.later.Wait()
	w.Mend()
	for _, p := range w.Parties() {
		p.Resume()
		_ = p.Start(w.ctx) // tried until it succeeds
	}
	w.Trace.Note("world", "all is well again")
	r.activate(ctx)
}

// activate gives every host its work back, so that what waits for room gets it.
func (r *runner) activate(ctx context.Context) {
	hosts, err := r.world.Clients[0].ListHosts(ctx)
	if err != nil {
		r.violated("hosts cannot be listed though all is well: %s", outcome(err))
	}
	for _, h := range hosts {
		if h.Duty == holdfast.HostRetired || h.Duty == holdfast.HostActive {
			continue
		}
		if _, err := r.world.Clients[0].SetHostDuty(ctx, holdfast.SetHostDuty{Host: h.ID, Duty: holdfast.HostActive}); err != nil {
			r.violated("host %s cannot be activated though all is well: %s", h.Name, outcome(err))
		}
	}
}

// The time that a world has to come to rest.
const (
	firstLook = 75 * time.Second
	nextLook  = 45 * time.Second
	lastLook  = 50 * time.Minute
)

// settle lets time pass until every invariant of rest holds, or too much has passed.
func (r *runner) settle(ctx context.Context) {
	wait(ctx, firstLook)
	for waited := firstLook; ; waited += nextLook {
		broken := r.check(ctx)
		if len(broken) == 0 {
			return
		}
		if waited >= lastLook {
			for _, b := range broken {
				r.violated("%s", b)
			}
			return
		}
		wait(ctx, nextLook)
	}
}

func (w *World) host(name string) *Host {
	for _, h := range w.Hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

func slotKey(project holdfast.ProjectID, slot int) string {
	return string(project) + " " + strconv.Itoa(slot)
}
