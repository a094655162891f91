package kill

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// environment is built while sessions wait for it.
const environment = "work"

// made is a build that was acknowledged.
type made struct {
	in     holdfast.BuildEnvironment
	id     holdfast.BuildID
	deaths int64 // of host agents, when it was asked for
}

// build builds the environment, again and again: half of the builds are superseded.
func (c *caller) build(ctx context.Context) {
	nobody := &life{}
	err := c.ask(ctx, nobody, "create environment", func(ctx context.Context, api *client.Client) error {
		_, err := api.CreateEnvironment(ctx, holdfast.CreateEnvironment{Name: environment, Recipe: holdfast.Recipe{Base: "base",
			Setup: "echo made >/srv/made && sleep 1", Resources: holdfast.Resources{MemoryBytes: 64 << 20}}})
		return err
	})
	for n := 1; err == nil && n <= builds && (n == 1 || !c.round.over.Load()); n++ {
		b := &made{in: holdfast.BuildEnvironment{RequestID: fmt.Sprintf("build-%d", n), Environment: environment}, deaths: c.round.hostDeaths.Load()}
		err = c.ask(ctx, nobody, "build", func(ctx context.Context, api *client.Client) error {
			got, err := api.BuildEnvironment(ctx, b.in)
			b.id = got.ID
			return err
		})
		if err == nil {
			c.round.building(b)
		}
		if err == nil && n%2 == 0 {
			_, err = c.built(ctx, b)
		}
	}
	if err != nil {
		c.round.violate("the environment: %v", err)
	}
}

// builds is how many there are in a round at most.
const builds = 4

// built waits for a build's end.
func (c *caller) built(ctx context.Context, b *made) (got holdfast.Build, err error) {
	began := time.Now()
	for {
		err := c.ask(ctx, &life{}, "get build", func(ctx context.Context, api *client.Client) (err error) {
			got, err = api.GetBuild(ctx, b.id)
			return err
		})
		if err != nil || got.State != holdfast.BuildBuilding {
			return got, err
		}
		if time.Since(began) > unhurried(holdfast.BuildSilence+patience) {
			return got, fmt.Errorf("%s is %s for %s, %+v", b.id, got.State, time.Since(began), got.Operation)
		}
		wait(200 * time.Millisecond)
	}
}

// verifyBuild holds a build against what its client was told.
func (c *caller) verifyBuild(ctx context.Context, b *made, newest bool) error {
	got, err := c.built(ctx, b)
	if err != nil {
		return err
	}
	var again holdfast.Build
	err = c.ask(ctx, &life{}, "build at the end", func(ctx context.Context, api *client.Client) (err error) {
		again, err = api.BuildEnvironment(ctx, b.in)
		return err
	})
	switch {
	case err != nil:
		return err
	case again.ID != b.id:
		return fmt.Errorf("its request id is %s's", again.ID)
	case got.State == holdfast.BuildReady, got.State == holdfast.BuildSuperseded && !newest:
		return nil
	case got.State != holdfast.BuildFailed || got.Failure == nil || got.Failure.Reason == "":
		return fmt.Errorf("it is %s, %+v", got.State, got.Failure)
	}
	l := &life{}
	if got.Sandbox != "" {
		err = c.ask(ctx, l, "get its builder", func(ctx context.Context, api *client.Client) error {
			sb, err := api.GetSandbox(ctx, got.Sandbox)
			l.instance = sb.Instance
			return err
		})
	}
	if err == nil && !c.round.wasStruck(l) && c.round.hostDeaths.Load() == b.deaths {
		err = fmt.Errorf("it failed though neither its builder nor a host was struck: %+v", got.Failure)
	}
	return err
}
