package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// deletion is the delete of a checkpoint, as far as it was begun.
type deletion struct {
	checkpoint checkpoint
	op         *operation.Operation // pending, if any; the claimed one when there is an attempt to make
	claim      *operation.Claim     // nil: nothing to do
}

// DeleteCheckpoint makes a checkpoint unusable for new forks at once. Its host is
// told, and what nothing else is made of is removed, before it is DELETED; what forks
// and later checkpoints need stays until they are gone (contract: A4, E4).
func (s *Service) DeleteCheckpoint(ctx context.Context, caller holdfast.Caller, in holdfast.MutateCheckpoint) (holdfast.Checkpoint, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Checkpoint{}, err
	}
	patience := time.NewTimer(s.config.HeldWait)
	defer patience.Stop()
	for {
		d, err := s.beginDeletion(ctx, caller, in.ID)
		var held *heldError
		switch {
		case errors.As(err, &held):
			if s.done.await(ctx, s.done.on(string(in.ID)), patience.C) {
				continue
			}
			return holdfast.Checkpoint{}, aborted(row{Sandbox: holdfast.Sandbox{ID: holdfast.SandboxID(in.ID)}}, held.op, held.now)
		case err != nil:
			return holdfast.Checkpoint{}, err
		case d.claim == nil:
			return d.checkpoint.Checkpoint, nil
		}
		if err := s.attemptDeletion(ctx, d); err != nil {
			return holdfast.Checkpoint{}, err
		}
		return s.GetCheckpoint(ctx, caller, in.ID)
	}
}

// beginDeletion is step 1. A checkpoint that is being taken ends with it, whoever is
// at it: nothing of a later copy is named by anything.
func (s *Service) beginDeletion(ctx context.Context, caller holdfast.Caller, id holdfast.CheckpointID) (deletion, error) {
	var d deletion
	err := s.update(ctx, "delete checkpoint", func(tx store.Tx, _ time.Time) error {
		d = deletion{}
		known, found, err := oneCheckpoint(ctx, tx, id, "")
		if err != nil {
			return err
		}
		if !found || known.Project != caller.Project {
			return noCheckpoint(id)
		}
		// The sandbox's lock comes first, as everywhere; it may be purged.
		r, there, _, err := lockRow(ctx, tx, known.Sandbox)
		if err != nil {
			return err
		}
		c, found, err := oneCheckpoint(ctx, tx, id, tx.ForUpdate())
		if err != nil || !found {
			return errors.Join(err, noCheckpoint(id))
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		d.checkpoint = c
		switch c.State {
		case holdfast.CheckpointDeleted:
			return nil
		case holdfast.CheckpointDeleting:
			return s.joinDeletion(ctx, tx, now, &d)
		case holdfast.CheckpointCreating:
			if there {
				if err := endTaking(ctx, tx, now, r, id); err != nil {
					return err
				}
			}
		}
		return s.recordDeletion(ctx, tx, now, &d)
	})
	return d, err
}

// endTaking ends the operation that takes a checkpoint, whatever its claim.
func endTaking(ctx context.Context, tx store.Tx, now time.Time, r row, id holdfast.CheckpointID) error {
	pending, has, err := operation.Pending(ctx, tx, r.resource())
	if err != nil || !has || originOf(pending).Checkpoint != id {
		return err
	}
	why := recordable(holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCancelled, "%s was deleted while it was being taken", id), nil)
	if _, err := operation.End(ctx, tx, now, pending.ID, operation.Outcome{State: operation.StateFailed, Failure: why}); err != nil {
		return err
	}
	return r.touch(ctx, tx)
}

func (s *Service) recordDeletion(ctx context.Context, tx store.Tx, now time.Time, d *deletion) error {
	d.checkpoint.State, d.checkpoint.Copying = holdfast.CheckpointDeleting, false
	if err := d.checkpoint.save(ctx, tx, now); err != nil {
		return err
	}
	op, claim, err := operation.RecordTaken(ctx, tx, now, operation.Intent{
		ID: s.config.IDs.New(holdfast.PrefixOperation), Resource: d.checkpoint.resource(), Kind: string(holdfast.OperationDelete),
		Generation: 1, Deadline: now.Add(holdfast.CheckpointAfter),
	}, operation.Attempt{Holder: operation.NewHolder(s.config.Process), TTL: s.config.ClaimTTL})
	if err != nil {
		return err
	}
	d.op, d.claim = &op, &claim
	return nil
}

// joinDeletion takes the claim on a delete that is pending.
func (s *Service) joinDeletion(ctx context.Context, tx store.Tx, now time.Time, d *deletion) error {
	pending, has, err := operation.Pending(ctx, tx, d.checkpoint.resource())
	if err != nil {
		return err
	}
	if !has {
		return fmt.Errorf("checkpoint %s is DELETING, and no delete is pending", d.checkpoint.ID)
	}
	op, claim, err := operation.Take(ctx, tx, now, operation.Attempt{
		Operation: pending.ID, Holder: operation.NewHolder(s.config.Process), TTL: s.config.ClaimTTL})
	if errors.Is(err, operation.ErrHeld) {
		return &heldError{op: pending, now: now}
	}
	if err != nil {
		return err
	}
	d.op, d.claim = &op, &claim
	return nil
}

// attemptDeletion makes the claimed attempt, which outlives a caller that leaves.
func (s *Service) attemptDeletion(ctx context.Context, d deletion) error {
	on := begun{row: row{Sandbox: holdfast.Sandbox{ID: holdfast.SandboxID(d.checkpoint.ID)}}, op: d.op, claim: d.claim}
	err := s.runner.Do(ctx, *d.claim, func(ctx context.Context) error { return s.actDeletion(ctx, d) })
	var panicked *operation.PanicError
	switch {
	case errors.Is(err, operation.ErrDetached):
		e := holdfast.AsError(ctx.Err())
		return holdfast.E(e.Code, e.Reason, "%s; the attempt goes on", e.Message).On(string(d.checkpoint.ID)).During(d.op.ID)
	case errors.Is(err, operation.ErrNotStarted):
		return s.releaseDeletion(ctx, d, judgement{err: notStarted(on, err)})
	case errors.As(err, &panicked):
		return s.releaseDeletion(ctx, d, judgement{err: holdfast.E(holdfast.Internal, holdfast.ReasonBug,
			"the attempt failed in a way that it should not; see the server's log").Because(err)})
	}
	if f := new(operation.FencedError); errors.As(err, &f) {
		if f.FinishedHere() || f.Operation.State == operation.StateDone {
			return nil
		}
		return aborted(on.row, f.Operation, s.databaseClock())
	}
	return err
}

// actDeletion is steps 2 and 3: nobody copies any more, what only this checkpoint
// needs is gone, and then that is recorded.
func (s *Service) actDeletion(ctx context.Context, d deletion) error {
	defer s.done.ring(string(d.checkpoint.ID))
	if j := s.absent(ctx, d.checkpoint); j.outcome != outcomeReached {
		return s.releaseDeletion(ctx, d, j)
	}
	if err := s.removeBlobs(ctx, d.checkpoint.ID); err != nil {
		return s.releaseDeletion(ctx, d, judgement{answered: true, err: holdfast.AsError(err)})
	}
	ctx, cancel := operation.Closing(ctx, closing)
	defer cancel()
	return s.update(ctx, "finish the delete of a checkpoint", func(tx store.Tx, _ time.Time) error {
		c, found, err := oneCheckpoint(ctx, tx, d.checkpoint.ID, tx.ForUpdate())
		if err != nil || !found {
			return errors.Join(err, noCheckpoint(d.checkpoint.ID))
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if err := operation.Finish(ctx, tx, now, *d.claim, operation.Outcome{State: operation.StateDone}); err != nil {
			return err
		}
		if err := dropLayers(ctx, tx, string(c.ID)); err != nil {
			return err
		}
		c.State, c.DeletedAt = holdfast.CheckpointDeleted, now
		return c.save(ctx, tx, now)
	})
}

// releaseDeletion leaves a delete pending, for ever if need be (contract: A15), and
// returns what the caller hears.
func (s *Service) releaseDeletion(ctx context.Context, d deletion, j judgement) error {
	ctx, cancel := operation.Closing(ctx, closing)
	defer cancel()
	err := s.update(ctx, "release", func(tx store.Tx, _ time.Time) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		return operation.Release(ctx, tx, now, *d.claim, operation.Report{
			Failure: recordable(j.err, nil), WaitsFor: j.waitsFor, Answered: j.answered, Backoff: backoff(d.op.Attempts)})
	})
	if err != nil {
		return err
	}
	e := j.err.On(string(d.checkpoint.ID)).During(d.op.ID)
	switch e.Code {
	case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Aborted, holdfast.Internal:
		return e
	}
	return holdfast.E(holdfast.Unavailable, e.Reason, "%s; the delete stays pending: repeat it", e.Message).
		On(string(d.checkpoint.ID)).During(d.op.ID).Retry(time.Second).Because(e)
}

// removeBlobs removes what a checkpoint that nobody can fork any more has in the blob
// store, and what it alone is made of. What anything else needs stays; once that is
// gone too, a sweep removes it.
func (s *Service) removeBlobs(ctx context.Context, id holdfast.CheckpointID) error {
	if s.config.Blobs == nil {
		return errNoBlobs()
	}
	keys, err := s.copiesOf(ctx, id)
	if err != nil {
		return err
	}
	var needed map[string]bool
	err = s.view(ctx, "who needs the layers of "+string(id), func(tx store.Tx, _ time.Time) error {
		own, err := layersOf(ctx, tx, string(id))
		if err != nil {
			return err
		}
		keys = append(keys, own...)
		needed, err = used(ctx, tx, keys, string(id))
		return err
	})
	if err != nil {
		return err
	}
	for _, key := range keys {
		if needed[key] {
			continue
		}
		if err := s.config.Blobs.Delete(ctx, key); err != nil {
			return blobError(err)
		}
	}
	return nil
}

// copiesOf lists every copy of a checkpoint that is in the blob store: that which it
// names, and those of attempts that lost.
func (s *Service) copiesOf(ctx context.Context, id holdfast.CheckpointID) (keys []string, err error) {
	for after := ""; ; {
		var infos []blob.Info
		infos, after, err = s.config.Blobs.List(ctx, blobPrefix(id), after, listBlobs)
		if err != nil {
			return nil, blobError(err)
		}
		for _, info := range infos {
			keys = append(keys, info.Key)
		}
		if after == "" {
			return keys, nil
		}
	}
}

// listBlobs is how many objects are listed at a time.
const listBlobs = 100
