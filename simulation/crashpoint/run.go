package crashpoint

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation"
	"github.com/holdfast-dev/holdfast/simulation/step"
)

// Base is what every run needs.
type Base struct {
	Templates *simulation.Templates
	Directory string // of the run's own, empty
}

// Case is one run in progress, as a scenario's functions see it.
type Case struct {
	*simulation.World
	Client  *simulation.Client
	Sandbox holdfast.Sandbox // as Prepare left it
	Began   time.Time        // when Act began
	Repeats bool             // the client goes on until it knows; else it is gone with the first crash

	// What Act got. A scenario without a client's call has no error.
	Got     holdfast.Sandbox
	Process holdfast.Process
	Told    Told // of what is made of sandboxes; Prepare may have put something there
	Err     error
	// Final is every sandbox there is, at rest.
	Final []holdfast.Sandbox
}

// Result is what a run showed.
type Result struct {
	Steps      []step.Step // of the scenario's window, from its beginning or from the last crash that happened
	Happened   int         // how many of the crashes
	Violations []string
	Trace      *simulation.Trace
}

// The times of a run, in virtual time.
const (
	calm      = 3 * time.Second  // before the window: what Prepare left on its way arrives
	window    = 15 * time.Second // after Act: deliveries and outboxes
	restEvery = 30 * time.Second
	restFor   = 12 * time.Minute // at the most, until everything rests
)

// timing is how long things take: short enough that rest comes soon.
func timing() simulation.Timing {
	return simulation.Timing{ClaimTTL: 10 * time.Second, Sweep: 20 * time.Second, Health: 10 * time.Second, Heartbeat: 10 * time.Second,
		Suspect: 15 * time.Second, Lost: time.Minute, Loss: 3 * time.Minute, OrphanGrace: 30 * time.Second, OutboxPoll: 10 * time.Second,
		Telemetry: -1, Retention: 24 * time.Hour}
}

// Run runs a scenario with crashes, in the calling bubble, which it leaves empty.
// An error is none of the product's: the world could not be made.
func Run(ctx context.Context, base Base, s Scenario, crashes []Point, repeats bool) (_ *Result, err error) {
	r := &recorder{}
	config := simulation.Config{Templates: base.Templates, Directory: base.Directory, Seed: 1, Timing: timing(), Hook: r.hook()}
	if s.Config != nil {
		s.Config(&config)
	}
	w, err := simulation.New(ctx, config)
	if err != nil {
		return nil, err
	}
	result := &Result{Trace: w.Trace}
	var back sync.WaitGroup
	defer func() {
		back.Wait()
		if closing := w.Close(); err == nil && closing != nil {
			err = fmt.Errorf("close the world: %w", closing)
		}
	}()
	if err := w.Start(ctx); err != nil {
		return nil, err
	}
	c := &Case{World: w, Client: w.Clients[0], Repeats: repeats}
	if s.Prepare != nil {
		if err := s.Prepare(ctx, c); err != nil {
			return nil, fmt.Errorf("%s: prepare: %w", s.Name, err)
		}
	}
	pass(ctx, calm)

	acting, gone := context.WithCancel(ctx)
	defer gone()
	after := 0 // of the recorded steps, those behind the last crash
	for _, p := range crashes {
		w.Party(p.Party).At(p.Number, p.After, func(*step.Step) {
			result.Happened, after = result.Happened+1, r.count()
			w.Trace.Note(p.Party, "dies: %s", p)
			die(ctx, w, p, &back)
			if !repeats {
				gone()
			}
		})
	}
	r.switchOn(true)
	c.Began = time.Now()
	s.Act(acting, c)
	pass(ctx, window)
	r.switchOn(false)
	result.Steps = r.steps[after:]
	result.Violations = c.rest(ctx, s)
	return result, nil
}

// pass lets virtual time pass, no longer than ctx lasts.
func pass(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// rest waits until nothing is broken any more, and looks once more after that. What
// is broken still after restFor is what the run shows.
func (c *Case) rest(ctx context.Context, s Scenario) (broken []string) {
	clean := 0
	for waited := time.Duration(0); waited < restFor; waited += restEvery {
		pass(ctx, restEvery)
		if broken = c.look(ctx, s); len(broken) > 0 {
			clean = 0
			continue
		}
		if clean++; clean == 2 {
			return nil
		}
	}
	return broken
}

// look holds the world against the invariants and the verb's promise.
func (c *Case) look(ctx context.Context, s Scenario) []string {
	broken := c.Check(ctx)
	judge, err := c.ClientOf("client-judge", "")
	if err != nil {
		return append(broken, err.Error())
	}
	page, err := judge.ListSandboxes(ctx, holdfast.ListSandboxes{States: []holdfast.SandboxState{holdfast.SandboxCreating, holdfast.SandboxReady,
		holdfast.SandboxSuspended, holdfast.SandboxFailed, holdfast.SandboxDeleting, holdfast.SandboxDeleted}})
	if err != nil {
		return append(broken, "the sandboxes cannot be listed: "+err.Error())
	}
	c.Final = page.Sandboxes
	if err := s.Want(ctx, c); err != nil {
		broken = append(broken, s.Name+": "+err.Error())
	}
	return broken
}
