package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

const methodCreateCheckpoint = "CreateCheckpoint"

// CreateCheckpoint takes one, carries an unfinished one on, or returns what the
// request id already stands for (contract: A3, E4).
func (s *Service) CreateCheckpoint(ctx context.Context, caller holdfast.Caller, in holdfast.CreateCheckpoint) (holdfast.Checkpoint, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Checkpoint{}, err
	}
	if s.config.Blobs == nil {
		return holdfast.Checkpoint{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable,
			"this server has no blob store, and so takes no checkpoints: start it with --blobs")
	}
	f, err := fingerprintOfFields(
		field{"source", true, in.Source},
		field{"labels", len(in.Labels) > 0, in.Labels},
	)
	if err != nil {
		return holdfast.Checkpoint{}, err
	}
	fresh := checkpoint{Checkpoint: holdfast.Checkpoint{
		ID: holdfast.CheckpointID(s.config.IDs.New(holdfast.PrefixCheckpoint)), Project: caller.Project, Creator: caller.Name,
		Source: in.Source, State: holdfast.CheckpointCreating, Labels: in.Labels,
	}}
	patience := time.NewTimer(s.config.HeldWait)
	defer patience.Stop()
	for {
		b, c, err := s.beginCheckpoint(ctx, caller, in, f, fresh)
		var held *heldError
		switch {
		case errors.As(err, &held):
			if s.done.await(ctx, s.done.on(held.op.Resource.ID), patience.C) {
				continue
			}
			return holdfast.Checkpoint{}, aborted(row{Sandbox: holdfast.Sandbox{ID: holdfast.SandboxID(held.op.Resource.ID)}}, held.op, held.now)
		case err != nil:
			return holdfast.Checkpoint{}, err
		case c.State == holdfast.CheckpointDeleted:
			return c.Checkpoint, nil
		case b.claim == nil:
			return s.GetCheckpoint(ctx, caller, c.ID)
		}
		if _, err := s.attempt(ctx, b); err != nil && !errors.Is(err, errDoneElsewhere) {
			return holdfast.Checkpoint{}, holdfast.AsError(err).With("checkpoint", string(c.ID))
		}
		return s.GetCheckpoint(ctx, caller, c.ID)
	}
}

// sourceOf is the sandbox whose disk a checkpoint of some source is. A session's is
// its own sandbox.
func (s *Service) sourceOf(ctx context.Context, tx store.Tx, caller holdfast.Caller, source string) (holdfast.SandboxID, error) {
	if holdfast.CheckID("source", holdfast.PrefixSandbox, source) == nil {
		return holdfast.SandboxID(source), nil
	}
	r, found, err := oneSession(ctx, tx, `WHERE id = $1`, source)
	switch {
	case err != nil:
		return "", err
	case !found || r.Project != caller.Project:
		return "", noSession(holdfast.SessionID(source))
	case r.Sandbox == "":
		return "", holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s: it has no disk yet", r.ID, r.State).
			On(source).With("state", string(r.State))
	}
	return r.Sandbox, nil
}

// settled refuses a checkpoint of a session on which something is pending: that closed
// its door, or is changing its sandbox. The sandbox is locked, as it is by whoever
// begins an operation of its session.
func settled(ctx context.Context, tx store.Tx, box row) error {
	if !box.ofSession() {
		return nil
	}
	pending, err := pendingOn(ctx, tx, operation.Resource{Kind: kindSession, ID: box.Owner})
	if err != nil || pending == nil {
		return err
	}
	return holdfast.E(holdfast.Aborted, holdfast.ReasonConflict, "the %s of %s is pending: finish it first, by repeating it, or wait", pending.Kind, box.Owner).
		On(box.Owner).During(pending.ID).With("kind", pending.Kind).Retry(time.Second)
}

// beginCheckpoint is step 1: the key, the checkpoint and the claimed operation on its
// sandbox in one transaction, or the checkpoint that the key already has.
func (s *Service) beginCheckpoint(ctx context.Context, caller holdfast.Caller, in holdfast.CreateCheckpoint, f fingerprint, fresh checkpoint) (begun, checkpoint, error) {
	key := requestKey{project: caller.Project, method: methodCreateCheckpoint, id: in.RequestID}
	var b begun
	var c checkpoint
	err := s.update(ctx, "create checkpoint", func(tx store.Tx, now time.Time) error {
		b, c = begun{}, fresh
		existing, err := reserve(ctx, tx, now, key, f, string(fresh.ID))
		if err != nil {
			return err
		}
		if existing != "" {
			c.ID = holdfast.CheckpointID(existing)
			return s.rejoin(ctx, tx, &b, &c)
		}
		id, err := s.sourceOf(ctx, tx, caller, in.Source)
		if err != nil {
			return err
		}
		var found bool
		if b.row, found, now, err = lockRow(ctx, tx, id); err != nil {
			return err
		}
		switch {
		case !found || b.row.Project != caller.Project:
			return notFound(id)
		case b.row.Owner != "" && in.Source == string(id):
			return owned(b.row)
		}
		if err := settled(ctx, tx, b.row); err != nil {
			return err
		}
		return s.recordCheckpoint(ctx, tx, now, &b, &c)
	})
	return b, c, err
}

// recordCheckpoint begins a checkpoint of a locked sandbox, in the caller's
// transaction, under the id and the labels that it is given.
func (s *Service) recordCheckpoint(ctx context.Context, tx store.Tx, now time.Time, b *begun, c *checkpoint) error {
	pending, has, err := operation.Pending(ctx, tx, b.row.resource())
	if err != nil {
		return err
	}
	if has {
		b.op = &pending
	}
	switch decide(b.row.State, b.op, now, holdfast.OperationCheckpoint) {
	case verdictBegin:
	case verdictHeld:
		return &heldError{op: pending, now: now}
	default:
		return refuseCheckpoint(b.row, b.op)
	}
	c.Sandbox, c.Instance, c.Incarnation, c.Environment, c.Spec = b.row.ID, b.row.Instance, b.row.Incarnation, b.row.Environment, b.row.stored()
	c.CreatedAt, c.UpdatedAt = now, now
	in := s.intent(holdfast.OperationCheckpoint)
	in.takes = c.ID
	if err := s.record(ctx, tx, now, b, in); err != nil {
		return err
	}
	c.Generation = b.op.Generation
	return c.insert(ctx, tx)
}

// refuseCheckpoint says why no checkpoint can begin now.
func refuseCheckpoint(r row, pending *operation.Operation) error {
	if pending == nil || !resting(r) {
		return refuse(r, pending, holdfast.OperationCheckpoint)
	}
	e := holdfast.E(holdfast.Aborted, holdfast.ReasonConflict, "the %s of %s is pending: finish it first, by repeating it, or wait", pending.Kind, r.ID).
		On(string(r.ID)).During(pending.ID).With("kind", pending.Kind).Retry(time.Second)
	if taken := originOf(*pending).Checkpoint; taken != "" {
		e = e.With("checkpoint", string(taken))
	}
	return e
}

// rejoin is a create whose key is known already: it carries on what is unfinished
// and unclaimed. The sandbox's row is locked before the checkpoint's.
func (s *Service) rejoin(ctx context.Context, tx store.Tx, b *begun, c *checkpoint) error {
	known, found, err := oneCheckpoint(ctx, tx, c.ID, "")
	if err != nil {
		return err
	}
	if !found { // purged: the key alone is kept (contract: A3, trap T5)
		*c = checkpoint{Checkpoint: holdfast.Checkpoint{ID: c.ID, Project: c.Project, State: holdfast.CheckpointDeleted}}
		return nil
	}
	if *c = known; known.State != holdfast.CheckpointCreating {
		return nil
	}
	r, found, now, err := lockRow(ctx, tx, known.Sandbox)
	if err != nil || !found {
		return err
	}
	pending, has, err := operation.Pending(ctx, tx, r.resource())
	if err != nil || !has || originOf(pending).Checkpoint != c.ID {
		return err
	}
	if pending.Claimed(now) {
		return &heldError{op: pending, now: now}
	}
	b.row, b.op = r, &pending
	return s.join(ctx, tx, now, b)
}

// GetCheckpoint observes (contract: A5).
func (s *Service) GetCheckpoint(ctx context.Context, caller holdfast.Caller, id holdfast.CheckpointID) (holdfast.Checkpoint, error) {
	if err := holdfast.CheckID("id", holdfast.PrefixCheckpoint, string(id)); err != nil {
		return holdfast.Checkpoint{}, err
	}
	var out holdfast.Checkpoint
	err := s.view(ctx, "get checkpoint", func(tx store.Tx, now time.Time) error {
		c, found, err := oneCheckpoint(ctx, tx, id, "")
		if err != nil {
			return err
		}
		if !found || c.Project != caller.Project {
			return noCheckpoint(id)
		}
		out, err = showCheckpoint(ctx, tx, now, c)
		return err
	})
	return out, err
}

func noCheckpoint(id holdfast.CheckpointID) *holdfast.Error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no checkpoint %s in this project", id).On(string(id))
}

// showCheckpoint is a checkpoint as its callers see it, with what is pending: the
// operation of its sandbox that takes it, or its delete.
func showCheckpoint(ctx context.Context, tx store.Tx, now time.Time, c checkpoint) (holdfast.Checkpoint, error) {
	out := c.Checkpoint
	if c.Unreadable != nil && out.Failure == nil {
		out.Failure = &holdfast.Failure{Reason: holdfast.ReasonBug, Message: "its record cannot be read: " + c.Unreadable.Error()}
	}
	of := c.resource()
	switch c.State {
	case holdfast.CheckpointReady, holdfast.CheckpointFailed, holdfast.CheckpointDeleted:
		return out, nil
	case holdfast.CheckpointCreating:
		of = operation.Resource{Kind: kindSandbox, ID: string(c.Sandbox)}
	}
	op, has, err := operation.Pending(ctx, tx, of)
	if err != nil || !has || c.State == holdfast.CheckpointCreating && originOf(op).Checkpoint != c.ID {
		return out, err
	}
	shown := showOperation(op, now, false)
	out.Operation = &shown
	return out, nil
}

// ListCheckpoints pages the project's checkpoints, newest first.
func (s *Service) ListCheckpoints(ctx context.Context, caller holdfast.Caller, in holdfast.ListCheckpoints) (holdfast.CheckpointPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.CheckpointPage{}, err
	}
	if err := checkToken(in.PageToken, holdfast.PrefixCheckpoint); err != nil {
		return holdfast.CheckpointPage{}, err
	}
	states := make([]string, len(in.States))
	for i, state := range in.States {
		states[i] = string(state)
	}
	q := listing{project: caller.Project, after: in.PageToken, size: in.PageSize, states: states, labels: in.Labels, kind: kindCheckpoint}
	where, args, size := q.where()
	if in.Source != "" {
		args = append(args, in.Source)
		where = fmt.Sprintf("source = $%d AND ", len(args)) + where
	}
	var page holdfast.CheckpointPage
	err := s.view(ctx, "list checkpoints", func(tx store.Tx, now time.Time) error {
		page = holdfast.CheckpointPage{}
		list, err := checkpointsWhere(ctx, tx, "WHERE "+where, args...)
		if err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		for _, c := range list {
			shown, err := showCheckpoint(ctx, tx, now, c)
			if err != nil {
				return err
			}
			page.Checkpoints = append(page.Checkpoints, shown)
		}
		return nil
	})
	return page, err
}
