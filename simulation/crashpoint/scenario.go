package crashpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/simulation"
)

// Scenario is one lifecycle verb or delivery, with what it promises.
type Scenario struct {
	Name    string
	Config  func(*simulation.Config)           // what is not usual of the world; nil: nothing
	Prepare func(context.Context, *Case) error // before the steps are numbered
	Act     func(context.Context, *Case)       // what happens; ctx ends when the client is gone
	Want    func(context.Context, *Case) error // holds at rest
	Power   func(context.Context, *Case) error // holds at rest where a machine's power was cut too; nil: as Want
	Machine bool                               // power is cut at the hosts' steps as well
	Pairs   uint64                             // of so many pairs of crashes one is made; 0: each
}

// Scenarios are all of them.
func Scenarios() []Scenario {
	return slices.Concat(verbs(), lifetimes(), endings(), operators(), replicated(), work())
}

// replicated are some of them where two orchestrators and two fleets share their
// databases: the other one goes on, and the claims of the dead are nobody's to
// release.
func replicated() []Scenario {
	var out []Scenario
	for _, s := range slices.Concat(verbs(), lifetimes(), endings()) {
		switch s.Name {
		case "create", "suspend", "delete", "process start", "expiry, delete", "an instance exits and is replaced":
			s.Name, s.Machine = s.Name+", two replicas", false
			s.Config = func(c *simulation.Config) { c.Orchestrators, c.Fleets = 2, 2 }
			out = append(out, s)
		}
	}
	return out
}

// request is the request id of the one sandbox.
const request = "one"

func create(ctx context.Context, c *Case, change ...func(*holdfast.CreateSandbox)) (holdfast.Sandbox, error) {
	in := holdfast.CreateSandbox{RequestID: request, Environment: "base", TTL: time.Hour}
	for _, f := range change {
		f(&in)
	}
	return c.Client.CreateSandbox(ctx, in)
}

// created prepares a sandbox that is READY.
func created(change ...func(*holdfast.CreateSandbox)) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) (err error) {
		c.Sandbox, err = create(ctx, c, change...)
		return err
	}
}

func createdSuspended(ctx context.Context, c *Case) (err error) {
	if c.Sandbox, err = create(ctx, c); err == nil {
		c.Sandbox, err = c.Client.SuspendSandbox(ctx, holdfast.MutateSandbox{ID: c.Sandbox.ID})
	}
	return err
}

func fresh(in *holdfast.CreateSandbox) { in.Restart = holdfast.RestartFresh }

// only is the one sandbox at rest.
func (c *Case) only() (holdfast.Sandbox, error) {
	if len(c.Final) != 1 {
		return holdfast.Sandbox{}, fmt.Errorf("there are %d sandboxes", len(c.Final))
	}
	return c.Final[0], nil
}

// ends wants the one sandbox in a state: in any of the states where the client did
// not repeat, in the first and with success where it did.
func ends(states ...holdfast.SandboxState) func(context.Context, *Case) error {
	return func(_ context.Context, c *Case) error {
		s, err := c.only()
		if err != nil {
			return err
		}
		if !c.Repeats {
			if !slices.Contains(states, s.State) {
				return fmt.Errorf("it is %s, not one of %v", s.State, states)
			}
			return nil
		}
		if c.Err != nil {
			return fmt.Errorf("the client repeated until it knew, and got %w", c.Err)
		}
		if s.State != states[0] || c.Got.State != states[0] {
			return fmt.Errorf("the client was told %s, and it is %s, not %s", c.Got.State, s.State, states[0])
		}
		return nil
	}
}

type mutation func(context.Context, holdfast.MutateSandbox) (holdfast.Sandbox, error)

// mutates is a suspend, resume or delete of the prepared sandbox. The client goes
// on through ABORTED too: nobody else is at it.
func mutates(of func(*Case) mutation) func(context.Context, *Case) {
	return func(ctx context.Context, c *Case) {
		c.Got, c.Err = insist(ctx, func(ctx context.Context) (holdfast.Sandbox, error) {
			return of(c)(ctx, holdfast.MutateSandbox{ID: c.Sandbox.ID})
		})
	}
}

// patience bounds how long a client insists.
const patience = 5 * time.Minute

// insist repeats a call as its caller would: while it is known to be incomplete or
// ABORTED.
func insist[T any](ctx context.Context, call func(context.Context) (T, error)) (out T, err error) {
	for until := time.Now().Add(patience); time.Now().Before(until) && ctx.Err() == nil; pass(ctx, time.Second) {
		out, err = call(ctx)
		var incomplete *client.IncompleteError
		code := holdfast.CodeOf(err)
		if err == nil || !errors.As(err, &incomplete) && code != holdfast.Aborted && code != holdfast.Unavailable && code != holdfast.DeadlineExceeded {
			return out, err
		}
	}
	return out, err
}
