package crashpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// lifetimes are extensions, settings, and the end of a lifetime.
func lifetimes() []Scenario {
	short := func(in *holdfast.CreateSandbox) { in.TTL = 10 * time.Second }
	shortThenSuspended := func(in *holdfast.CreateSandbox) { in.TTL, in.OnExpiry = 10*time.Second, holdfast.ExpirySuspend }
	return []Scenario{
		{Name: "extend", Prepare: created(), Act: extends, Want: wantExtended},
		{Name: "set lifetime", Prepare: created(), Act: sets, Want: wantSet},
		{Name: "expiry, delete", Prepare: created(short), Act: expires, Want: wantState(holdfast.SandboxDeleted)},
		{Name: "expiry, suspend", Prepare: created(shortThenSuspended), Act: expires, Want: wantState(holdfast.SandboxSuspended)},
	}
}

const extension = 5 * time.Hour

func extends(ctx context.Context, c *Case) {
	c.Got, c.Err = insist(ctx, func(ctx context.Context) (holdfast.Sandbox, error) {
		return c.Client.ExtendSandbox(ctx, holdfast.ExtendSandbox{ID: c.Sandbox.ID, TTL: extension})
	})
}

func wantExtended(ctx context.Context, c *Case) error {
	if err := ends(holdfast.SandboxReady)(ctx, c); err != nil {
		return err
	}
	until := c.Final[0].ExpiresAt
	switch {
	case !until.Before(c.Began.Add(extension)):
		if c.Repeats && until.Before(c.Got.ExpiresAt) {
			return fmt.Errorf("the client was told %s, and it ends at %s", c.Got.ExpiresAt, until)
		}
		return nil
	case !c.Repeats && until.Equal(c.Sandbox.ExpiresAt):
		return nil
	}
	return fmt.Errorf("it ends at %s; extended at %s by %s", until, c.Began, extension)
}

const newTTL = 2 * time.Hour

func sets(ctx context.Context, c *Case) {
	c.Got, c.Err = insist(ctx, func(ctx context.Context) (holdfast.Sandbox, error) {
		return c.Client.SetSandboxLifetime(ctx, holdfast.SetSandboxLifetime{ID: c.Sandbox.ID, TTL: newTTL, OnExpiry: holdfast.ExpirySuspend})
	})
}

// wantSet: all of the setting, or nothing of it.
func wantSet(ctx context.Context, c *Case) error {
	if err := ends(holdfast.SandboxReady)(ctx, c); err != nil {
		return err
	}
	s := c.Final[0]
	whole := s.TTL == newTTL && s.OnExpiry == holdfast.ExpirySuspend && !s.ExpiresAt.Before(c.Began.Add(newTTL))
	none := s.TTL == c.Sandbox.TTL && s.OnExpiry == c.Sandbox.OnExpiry && s.ExpiresAt.Equal(c.Sandbox.ExpiresAt)
	if !whole && (c.Repeats || !none) {
		return fmt.Errorf("its lifetime is %s, until %s, then %s", s.TTL, s.ExpiresAt, s.OnExpiry)
	}
	return nil
}

// expires waits until the prepared lifetime is over and a sweep has seen it.
func expires(ctx context.Context, c *Case) {
	pass(context.WithoutCancel(ctx), time.Until(c.Sandbox.ExpiresAt)+timing().Sweep) // nobody waits for it, and it ends all the same
}

// wantState wants the sandbox in a state that no client asked for.
func wantState(state holdfast.SandboxState) func(context.Context, *Case) error {
	return func(_ context.Context, c *Case) error {
		s, err := c.only()
		if err == nil && s.State != state {
			err = fmt.Errorf("it is %s, not %s", s.State, state)
		}
		return err
	}
}
