package hostagent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// copyAction is what the checkpoints' sweep does about one.
type copyAction string

const (
	copyNothing copyAction = ""
	copyFail    copyAction = "fail"  // its time is over, or its instance
	copyPurge   copyAction = "purge" // it was told for long enough
	copyClear   copyAction = "clear" // what of its parts is left, if anything
)

// planCopy decides about one checkpoint that no attempt is at. It is pure.
func planCopy(r copyRecord, of subject, now time.Time, t Timing) (copyAction, *holdfast.Failure) {
	switch {
	case r.final() && now.Sub(r.EndedAt) >= t.TombstoneKept:
		return copyPurge, nil
	case r.final():
		return copyClear, nil
	case of.ended() != nil:
		return copyFail, of.ended()
	case now.Sub(r.StartedAt) >= t.Copy:
		return copyFail, &holdfast.Failure{Reason: holdfast.ReasonCheckpointFailed, Message: "it was not copied within " + t.Copy.String()}
	}
	return copyNothing, nil
}

// pageCopies pages by checkpoint. It never copies: who ordered a copy orders it again.
func (a *Agent) pageCopies(_ context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	all := a.allCopies()
	slices.SortFunc(all, func(x, y *copying) int { return cmp.Compare(x.id, y.id) })
	var items []reconcile.Item
	for i, c := range all {
		if string(c.id) <= after {
			continue
		}
		if c.plan() != copyNothing {
			items = append(items, reconcile.Item{Key: string(c.id), Act: func(context.Context) error { return c.sweep() }})
		}
		if len(items) >= limit && i+1 < len(all) {
			return items, string(c.id), nil
		}
	}
	return items, "", nil
}

func (c *copying) plan() copyAction {
	c.mu.Lock()
	defer c.mu.Unlock()
	do, _ := c.planned()
	return do
}

// planned is what is to be done now; c.mu is held.
func (c *copying) planned() (copyAction, *holdfast.Failure) {
	if c.attempt != nil || c.dropped || c.record.State == "" {
		return copyNothing, nil
	}
	do, failure := planCopy(c.record, c.agent.subject(c.record.Ref), c.agent.config.Clock(), c.agent.config.Timing)
	if do == copyClear && !c.littered() {
		return copyNothing, nil
	}
	return do, failure
}

// littered reports parts of what has ended; c.mu is held.
func (c *copying) littered() bool {
	left, err := c.agent.copyStore.parts(c.id)
	return err != nil || len(left) > 0
}

// sweep does what is to be done by now.
func (c *copying) sweep() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	do, failure := c.planned()
	switch do {
	case copyFail:
		if err := c.write(c.record.end(holdfast.CopyFailed, failure, c.agent.config.Clock())); err != nil {
			return err
		}
		return c.clear()
	case copyClear:
		return c.clear()
	case copyPurge:
		if err := c.agent.copyStore.purge(c.id); err != nil {
			return fmt.Errorf("forget checkpoint %s: %w", c.id, err)
		}
		c.agent.mu.Lock()
		defer c.agent.mu.Unlock()
		c.dropped = true
		delete(c.agent.copies, c.id)
		return nil
	}
	return reconcile.ErrSkipped
}

// pageLayers removes unpacked layers that no instance here was made from.
func (a *Agent) pageLayers(context.Context, string, int) ([]reconcile.Item, string, error) {
	if a.config.Layers == nil {
		return nil, "", nil
	}
	return []reconcile.Item{{Key: "layers", Act: func(ctx context.Context) error {
		removed, err := a.config.Layers.Prune(ctx, a.needsLayer)
		switch {
		case err != nil:
			return fmt.Errorf("prune layers: %w", err)
		case removed == 0:
			return reconcile.ErrSkipped
		}
		return nil
	}}}, "", nil
}

// needsLayer reports whether an instance that has not ended is recorded with it.
func (a *Agent) needsLayer(sha256 string) bool {
	for _, m := range a.all() {
		if m.needsLayer(sha256) {
			return true
		}
	}
	return false
}

func (m *machine) needsLayer(sha256 string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if r.final() || r.Spec == nil {
			continue
		}
		for _, one := range r.Spec.Layers {
			if one.SHA256 == sha256 {
				return true
			}
		}
	}
	return false
}
