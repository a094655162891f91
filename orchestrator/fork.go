package orchestrator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// fork makes a new sandbox of a checkpoint, in the transaction that records it. The
// checkpoint's row is share-locked, so that it is READY, and named as a user of its
// layers, until the fork is one too (trap T53). All that the fork has of the source is
// what was on its disk, and the settings that it was not given anew (contract: E4).
func fork(ctx context.Context, tx store.Tx, in holdfast.CreateSandbox, r *row) error {
	c, found, err := oneCheckpoint(ctx, tx, in.Source, tx.ForShare())
	if err != nil {
		return err
	}
	if !found || c.Project != r.Project {
		return noCheckpoint(in.Source)
	}
	if err := forkable(c, in); err != nil {
		return err
	}
	r.Source, r.Environment, r.Spec.Image, r.Spec.Layers = c.ID, c.Environment, c.Spec.Image, c.Spec.Layers
	r.Resources = inherited(in.Resources, c.Spec.Resources).WithDefaults()
	if in.Egress == "" {
		r.Egress = c.Spec.Egress
	}
	r.Env = over(c.Spec.Env, in.Env)
	r.Workdir, r.User = c.Spec.Workdir, c.Spec.User
	r.Spec.Resources, r.Spec.Egress, r.Spec.Env = r.Resources, r.Egress, r.Env
	return useLayers(ctx, tx, string(r.ID), r.Spec.Layers)
}

// forkable says why nothing can be made of a checkpoint, or not what was asked for.
func forkable(c checkpoint, in holdfast.CreateSandbox) error {
	switch {
	case c.State != holdfast.CheckpointReady:
		e := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s: only a READY checkpoint can be forked", c.ID, c.State).
			On(string(c.ID)).With("state", string(c.State))
		if c.State == holdfast.CheckpointCreating {
			e.Message += "; finish it first, by repeating its create"
		}
		return e
	case in.Environment != "" && in.Environment != c.Environment:
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "environment is %q, and %s is of %q: leave it out", in.Environment, c.ID, c.Environment).
			On(string(c.ID)).With("field", "environment")
	case len(c.Spec.Layers) > holdfast.MaxLayers:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooLarge, "%s has %d layers, of at most %d", c.ID, len(c.Spec.Layers), holdfast.MaxLayers).
			On(string(c.ID))
	}
	return nil
}

// over puts variables that were given above those of what is made from; nil where
// there are none.
func over(below, given map[string]string) map[string]string {
	if len(below) == 0 && len(given) == 0 {
		return nil
	}
	env := make(map[string]string, len(below)+len(given))
	maps.Copy(env, below)
	maps.Copy(env, given)
	return env
}

// inherited fills what was not given with what the source had.
func inherited(given, source holdfast.Resources) holdfast.Resources {
	return holdfast.Resources{CPUMillis: orDefault(given.CPUMillis, source.CPUMillis), MemoryBytes: orDefault(given.MemoryBytes, source.MemoryBytes),
		PIDs: orDefault(given.PIDs, source.PIDs)}
}

// goBack lets a locked sandbox that is booted anew begin from the newest of its own
// checkpoints. Without one it begins from what it was made from, or last went back to.
func (r *row) goBack(ctx context.Context, tx store.Tx) error {
	list, err := checkpointsWhere(ctx, tx, `WHERE sandbox = $1 AND state = 'READY' ORDER BY id DESC LIMIT 1`+tx.ForShare(), string(r.ID))
	if err != nil || len(list) == 0 {
		return err
	}
	c := list[0]
	if c.Unreadable != nil {
		return c.Unreadable
	}
	r.Spec.Layers = c.Spec.Layers
	if err := useLayers(ctx, tx, string(r.ID), r.Spec.Layers); err != nil {
		return err
	}
	spec, err := json.Marshal(r.stored())
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE sandbox SET spec = $2 WHERE id = $1`, string(r.ID), string(spec))
	}
	if err != nil {
		return fmt.Errorf("let %s go back to %s: %w", r.ID, c.ID, err)
	}
	return nil
}
