package crashpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// endings are instances that end by themselves, and what reports them: the host's
// facts, the fleet's outbox, the deliveries at the orchestrator.
func endings() []Scenario {
	return []Scenario{
		{Name: "an instance exits", Prepare: created(), Act: kills, Want: wantFailed(holdfast.ReasonExited)},
		{Name: "an instance exits, suspended", Prepare: createdSuspended, Act: kills, Want: wantFailed(holdfast.ReasonExited)},
		{Name: "an instance exits and is replaced", Prepare: created(fresh), Act: kills, Want: wantReplaced},
		{Name: "an instance does not boot", Prepare: unbootable, Act: creates, Want: wantNotCreated},
		{Name: "a guest's setup fails", Prepare: unready, Act: creates, Want: wantNotCreated},
		{Name: "a machine loses power", Prepare: created(), Act: losesPower, Want: wantFailed(holdfast.ReasonHostRebooted)},
		{Name: "a machine loses power, and what it had is replaced", Prepare: created(fresh), Act: losesPower, Want: wantReplaced},
	}
}

func kills(_ context.Context, c *Case) { c.Hosts[0].KillGuest() }

func wantFailed(reason holdfast.Reason) func(context.Context, *Case) error {
	return func(_ context.Context, c *Case) error {
		s, err := c.only()
		switch {
		case err != nil:
			return err
		case s.State != holdfast.SandboxFailed || s.Failure == nil:
			return fmt.Errorf("it is %s", s.State)
		case s.Failure.Reason != reason:
			return fmt.Errorf("it failed for %s: %s", s.Failure.Reason, s.Failure.Message)
		}
		return nil
	}
}

// wantReplaced: one more incarnation, and READY again.
func wantReplaced(_ context.Context, c *Case) error {
	s, err := c.only()
	if err == nil && (s.State != holdfast.SandboxReady || s.Incarnation != 2) {
		err = fmt.Errorf("it is %s at incarnation %d", s.State, s.Incarnation)
	}
	return err
}

// unbootable lets the first boot die before its guest agent (contract: C2).
func unbootable(_ context.Context, c *Case) error {
	c.Hosts[0].FailBoot(1)
	return nil
}

// unready lets the first boot's setup fail, which its guest delivers.
func unready(_ context.Context, c *Case) error {
	c.Hosts[0].FailSetup(1)
	return nil
}

// wantNotCreated: FAILED with the reason, for those who repeat too; nothing where
// nothing was recorded.
func wantNotCreated(ctx context.Context, c *Case) error {
	if !c.Repeats && len(c.Final) == 0 {
		return nil
	}
	s, err := c.only()
	switch {
	case err != nil:
		return err
	case s.State != holdfast.SandboxFailed || s.Failure == nil:
		return fmt.Errorf("it is %s", s.State)
	case c.Repeats && holdfast.ReasonOf(c.Err) != holdfast.ReasonCreateFailed && (c.Err != nil || c.Got.State != holdfast.SandboxFailed):
		return fmt.Errorf("the client was told %w", c.Err)
	}
	return nil
}

func losesPower(ctx context.Context, c *Case) {
	h := c.Hosts[0]
	if err := errors.Join(h.Lose(context.WithoutCancel(ctx)), h.Start(context.WithoutCancel(ctx))); err != nil {
		c.Trace.Note(h.Name, "does not come back: %v", err)
	}
}

// operators are what operators ask of hosts.
func operators() []Scenario {
	two := func(c *simulation.Config) { c.Hosts = 2 }
	return []Scenario{
		{Name: "drain", Config: two, Prepare: created(fresh), Act: duty(holdfast.HostDraining), Want: unlessUnheard(wantReplaced)},
		{Name: "retire", Config: two, Prepare: created(), Act: duty(holdfast.HostRetired), Want: unlessUnheard(wantFailed(holdfast.ReasonInstanceLost))},
		{Name: "recover", Prepare: created(), Act: recovers, Want: ends(holdfast.SandboxSuspended, holdfast.SandboxReady)},
	}
}

// duty says what the host that has the sandbox is for.
func duty(d holdfast.HostDuty) func(context.Context, *Case) {
	return func(ctx context.Context, c *Case) {
		_, c.Err = insist(ctx, func(ctx context.Context) (holdfast.Host, error) {
			hosts, err := c.Client.ListHosts(ctx)
			if err != nil {
				return holdfast.Host{}, err
			}
			for _, h := range hosts {
				if h.Used.Instances > 0 && h.Duty == holdfast.HostActive {
					return c.Client.SetHostDuty(ctx, holdfast.SetHostDuty{Host: h.ID, Duty: d, Force: d == holdfast.HostRetired})
				}
			}
			return holdfast.Host{}, nil
		})
		pass(context.WithoutCancel(ctx), timing().Sweep) // what is on the host leaves it with a sweep
	}
}

// recovers says to both databases that they were restored, as holdfast recover does
// while nobody uses them, and then suspends the sandbox: the hosts have to follow
// the new epoch first (trap T52).
func recovers(ctx context.Context, c *Case) {
	always := context.WithoutCancel(ctx)
	parties := []*simulation.Party{c.Orchestrators[0], c.Fleets[0]}
	for _, p := range parties {
		p.Stop()
	}
	for _, db := range []store.DB{c.OrchestratorDB(), c.FleetDB()} {
		err := db.Update(always, func(tx store.Tx) error {
			_, err := lineage.Recover(always, tx, time.Now(), time.Now().Unix())
			return err
		})
		if err != nil {
			c.Err = err
			return
		}
	}
	for _, p := range parties {
		if err := p.Start(always); err != nil {
			c.Trace.Note(p.Name, "does not come back: %v", err)
		}
	}
	mutates(func(c *Case) mutation { return c.Client.SuspendSandbox })(ctx, c)
}

// unlessUnheard wants what an operator asked for, or nothing where the operator was
// gone before it was heard.
func unlessUnheard(want func(context.Context, *Case) error) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		if s, err := c.only(); err == nil && !c.Repeats && s.State == holdfast.SandboxReady && s.Incarnation == 1 {
			return nil
		}
		if c.Repeats && c.Err != nil {
			return fmt.Errorf("the operator repeated until it was known, and got %w", c.Err)
		}
		return want(ctx, c)
	}
}
