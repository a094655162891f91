package crashpoint

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-dev/holdfast"
)

// verbs are the lifecycle requests and the start of a process.
func verbs() []Scenario {
	suspend := func(c *Case) mutation { return c.Client.SuspendSandbox }
	resume := func(c *Case) mutation { return c.Client.ResumeSandbox }
	remove := func(c *Case) mutation { return c.Client.DeleteSandbox }
	return []Scenario{
		{Name: "create", Act: creates, Want: wantCreated, Power: wantCreatedOrLost, Machine: true},
		{Name: "suspend", Prepare: created(), Act: mutates(suspend), Want: ends(holdfast.SandboxSuspended, holdfast.SandboxReady),
			Power: lostOr(ends(holdfast.SandboxSuspended, holdfast.SandboxReady)), Machine: true},
		{Name: "resume", Prepare: createdSuspended, Act: mutates(resume), Want: ends(holdfast.SandboxReady, holdfast.SandboxSuspended),
			Power: lostOr(ends(holdfast.SandboxReady, holdfast.SandboxSuspended)), Machine: true},
		{Name: "delete", Prepare: created(), Act: mutates(remove), Want: ends(holdfast.SandboxDeleted, holdfast.SandboxReady),
			Power: lostOr(ends(holdfast.SandboxDeleted, holdfast.SandboxReady)), Machine: true},
		{Name: "delete of a suspended one", Prepare: createdSuspended, Act: mutates(remove), Want: ends(holdfast.SandboxDeleted, holdfast.SandboxSuspended)},
		{Name: "delete during the create", Act: createsAndDeletes, Want: wantDeletedOrNothing},
		{Name: "process start", Prepare: created(), Act: starts, Want: wantOneProcess},
	}
}

func creates(ctx context.Context, c *Case) { c.Got, c.Err = create(ctx, c) }

func wantCreated(ctx context.Context, c *Case) error {
	if !c.Repeats && len(c.Final) == 0 {
		return nil // it was never recorded
	}
	if err := ends(holdfast.SandboxReady)(ctx, c); err != nil {
		return err
	}
	if c.Repeats && c.Got.ID != c.Final[0].ID {
		return fmt.Errorf("the client was told of %s, and there is %s", c.Got.ID, c.Final[0].ID)
	}
	return nil
}

// lost is what becomes of a sandbox whose machine's power was cut.
func lost(c *Case) bool {
	return len(c.Final) == 1 && c.Final[0].State == holdfast.SandboxFailed && c.Final[0].Failure != nil &&
		(c.Final[0].Failure.Reason == holdfast.ReasonHostRebooted || c.Final[0].Failure.Reason == holdfast.ReasonInstanceLost)
}

func lostOr(want func(context.Context, *Case) error) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		if lost(c) {
			return nil
		}
		return want(ctx, c)
	}
}

func wantCreatedOrLost(ctx context.Context, c *Case) error { return lostOr(wantCreated)(ctx, c) }

// createsAndDeletes lists until the create is recorded, and deletes at once.
func createsAndDeletes(ctx context.Context, c *Case) {
	var both sync.WaitGroup
	both.Go(func() { _, _ = create(ctx, c) }) // what it is told depends on who came first
	both.Go(func() {
		c.Got, c.Err = insist(ctx, func(ctx context.Context) (holdfast.Sandbox, error) {
			page, err := c.Client.ListSandboxes(ctx, holdfast.ListSandboxes{})
			if err != nil {
				return holdfast.Sandbox{}, err
			}
			if len(page.Sandboxes) == 0 {
				return holdfast.Sandbox{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnknown, "nothing is recorded yet")
			}
			return c.Client.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: page.Sandboxes[0].ID})
		})
	})
	both.Wait()
}

func wantDeletedOrNothing(ctx context.Context, c *Case) error {
	if !c.Repeats && len(c.Final) == 0 {
		return nil
	}
	return ends(holdfast.SandboxDeleted, holdfast.SandboxReady)(ctx, c)
}

// starts starts a process by request id, as often as it takes.
func starts(ctx context.Context, c *Case) {
	c.Process, c.Err = insist(ctx, func(ctx context.Context) (holdfast.Process, error) {
		return c.Client.StartProcess(ctx, c.Sandbox.ID, holdfast.StartProcess{RequestID: "p", Command: "true"})
	})
}

// wantOneProcess: one request id, one process on an incarnation, whatever died
// (contract: A14).
func wantOneProcess(ctx context.Context, c *Case) error {
	s, err := c.only()
	if err != nil {
		return err
	}
	if s.State != holdfast.SandboxReady {
		return fmt.Errorf("it is %s", s.State)
	}
	judge, err := c.ClientOf("client-judge", "")
	if err != nil {
		return err
	}
	all, err := judge.ListProcesses(ctx, s.ID)
	switch {
	case err != nil:
		return fmt.Errorf("its processes cannot be listed: %w", err)
	case c.Repeats && c.Err != nil:
		return fmt.Errorf("the client repeated until it knew, and got %w", c.Err)
	case len(all) > 1 || c.Repeats && len(all) == 0:
		return fmt.Errorf("%d processes have one request id", len(all))
	case c.Repeats && all[0].ID != c.Process.ID:
		return fmt.Errorf("the client was told of %s, and there is %s", c.Process.ID, all[0].ID)
	}
	return nil
}
