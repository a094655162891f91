package clienttest

import (
	"cmp"
	"context"
	"slices"

	"github.com/holdfast-dev/holdfast"
)

// CreateCheckpoint makes a READY checkpoint, once for each request id.
func (f *Fake) CreateCheckpoint(ctx context.Context, caller holdfast.Caller, in holdfast.CreateCheckpoint) (out holdfast.Checkpoint, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateCheckpoint", in}, func() error {
		if id, ok := f.taken[in.RequestID]; ok {
			out = *f.checkpoints[id]
			return nil
		}
		s, ok := f.sandboxes[holdfast.SandboxID(in.Source)]
		if session, is := f.sessions[holdfast.SessionID(in.Source)]; is {
			s, ok = f.sandboxes[session.Sandbox]
		}
		if !ok {
			return unknown("sandbox", in.Source)
		}
		now := f.now()
		c := &holdfast.Checkpoint{ID: holdfast.CheckpointID(f.ids.New(holdfast.PrefixCheckpoint)), Project: caller.Project, Creator: caller.Name,
			Source: in.Source, Sandbox: s.ID, Environment: s.Environment, State: holdfast.CheckpointReady, Labels: in.Labels,
			Size: 4096, CreatedAt: now, UpdatedAt: now}
		f.checkpoints[c.ID], f.taken[in.RequestID] = c, c.ID
		out = *c
		return nil
	})
	return out, err
}

// GetCheckpoint reads a record.
func (f *Fake) GetCheckpoint(ctx context.Context, _ holdfast.Caller, id holdfast.CheckpointID) (out holdfast.Checkpoint, err error) {
	err = f.do(ctx, Call{"GetCheckpoint", id}, func() error {
		c, ok := f.checkpoints[id]
		if !ok {
			return unknown("checkpoint", string(id))
		}
		out = *c
		return nil
	})
	return out, err
}

// ListCheckpoints lists all that are not deleted, or in the states asked for, on one
// page.
func (f *Fake) ListCheckpoints(ctx context.Context, _ holdfast.Caller, in holdfast.ListCheckpoints) (out holdfast.CheckpointPage, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"ListCheckpoints", in}, func() error {
		for _, c := range f.checkpoints {
			wanted := slices.Contains(in.States, c.State) || len(in.States) == 0 && c.State != holdfast.CheckpointDeleted
			if wanted && (in.Source == "" || in.Source == c.Source) {
				out.Checkpoints = append(out.Checkpoints, *c)
			}
		}
		slices.SortFunc(out.Checkpoints, func(a, b holdfast.Checkpoint) int { return cmp.Compare(b.ID, a.ID) })
		return nil
	})
	return out, err
}

// DeleteCheckpoint deletes a record, which stays as a tombstone.
func (f *Fake) DeleteCheckpoint(ctx context.Context, _ holdfast.Caller, in holdfast.MutateCheckpoint) (out holdfast.Checkpoint, err error) {
	err = f.do(ctx, Call{"DeleteCheckpoint", in}, func() error {
		c, ok := f.checkpoints[in.ID]
		if !ok {
			return unknown("checkpoint", string(in.ID))
		}
		c.State, c.DeletedAt = holdfast.CheckpointDeleted, f.now()
		out = *c
		return nil
	})
	return out, err
}
