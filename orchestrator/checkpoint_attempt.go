package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// actCheckpoint is steps 2 and 3 of a checkpoint: the level downstream until it is
// answered for good, then the transaction that makes it READY.
func (s *Service) actCheckpoint(ctx context.Context, b begun) (row, error) {
	for {
		level := s.checkpointLevel(ctx, b)
		seen, err := s.config.Fleet.EnsureCheckpoint(ctx, level)
		j := judgeCheckpoint(b.row.Spec.Layers, level, seen, err)
		if j.outcome == outcomeReached {
			j = s.checkBlob(ctx, seen)
		}
		switch j.outcome {
		case outcomeReached:
			return s.finishCheckpoint(ctx, b, level.Checkpoint, seen)
		case outcomeRefused:
			return row{}, s.refused(ctx, b, j)
		case outcomeRaise:
			if err := s.raise(ctx, &b, j); err != nil {
				return row{}, s.fenced(ctx, b, err)
			}
			continue
		case outcomeWait, outcomeRetry:
			return row{}, s.releaseWith(ctx, b, j)
		}
		stop, err := s.lookUp(ctx, b)
		if err != nil && ctx.Err() == nil {
			return row{}, s.fenced(ctx, b, err)
		}
		if stop || ctx.Err() != nil {
			return row{}, s.releaseWith(ctx, b, judgement{outcome: outcomeRetry, answered: true, waitsFor: "copy",
				err: holdfast.E(holdfast.Unavailable, holdfast.ReasonPreparing, "the disk is being copied; the operation goes on when it is repeated").
					Retry(2 * time.Second)})
		}
	}
}

// checkpointLevel is the command that the claimed operation issues. A sandbox that is
// booted anew ends it, so the boot is the one that it was begun of.
func (s *Service) checkpointLevel(ctx context.Context, b begun) holdfast.CheckpointLevel {
	level := s.levelOf(ctx, checkpoint{Checkpoint: holdfast.Checkpoint{ID: originOf(*b.op).Checkpoint, CreatedAt: b.op.EnteredAt},
		Instance: b.row.Instance, Incarnation: b.row.Incarnation}, holdfast.CheckpointPresent)
	level.Generation, level.Claim = b.op.Generation, b.claim.Number
	return level
}

func (s *Service) levelOf(ctx context.Context, c checkpoint, desired holdfast.CheckpointDesired) holdfast.CheckpointLevel {
	at := s.lineage.Load()
	return holdfast.CheckpointLevel{
		Cluster: at.Cluster, Epoch: at.Epoch, Checkpoint: c.ID, Instance: c.Instance, Incarnation: c.Incarnation, Generation: c.Generation,
		Claim: c.Claim, Desired: desired, MintedAt: c.CreatedAt, Wait: patienceOf(ctx),
	}
}

// judgeCheckpoint reads the fleet's answer to PRESENT; below is what the sandbox is
// made of. It is pure.
func judgeCheckpoint(below []holdfast.Layer, level holdfast.CheckpointLevel, seen holdfast.CheckpointObservation, err error) judgement {
	if err != nil {
		return judgeCheckpointError(level, holdfast.AsError(err))
	}
	refused := func(reason holdfast.Reason, format string, args ...any) judgement {
		return judgement{outcome: outcomeRefused, answered: true, err: holdfast.E(holdfast.FailedPrecondition, reason, format, args...)}
	}
	switch seen.State {
	case holdfast.CopyPresent:
		if why := unsound(below, level.Checkpoint, seen.Layers); why != "" {
			return refused(holdfast.ReasonCheckpointFailed, "the host's answer is not believed: %s", why)
		}
		return judgement{outcome: outcomeReached, answered: true}
	case holdfast.CopyFailed:
		f := seen.Failure
		if f == nil {
			f = &holdfast.Failure{Reason: holdfast.ReasonCheckpointFailed, Message: "the host did not say why"}
		}
		return refused(f.Reason, "the copy failed: %s", f.Message)
	case holdfast.CopyAbsent:
		return refused(holdfast.ReasonCheckpointFailed, "the host was told that this checkpoint is not wanted any more")
	}
	return judgement{outcome: outcomeAgain, answered: true}
}

// judgeCheckpointError is judgeError where the boot is given: another one's disk is
// not what was asked for.
func judgeCheckpointError(level holdfast.CheckpointLevel, e *holdfast.Error) judgement {
	j := judgeError(e)
	if j.outcome == outcomeRaise && j.seen >= level.Generation && j.incarnation == 0 {
		return j
	}
	switch j.outcome {
	case outcomeRaise, outcomeReplace, outcomeRefused:
		return judgement{outcome: outcomeRefused, answered: true, err: holdfast.E(holdfast.FailedPrecondition, e.Reason, "%s", e.Message).Because(e)}
	}
	return j
}

// unsound is what is wrong with the layers of a finished copy: those that were there
// before, and one of this checkpoint's own above them.
func unsound(below []holdfast.Layer, id holdfast.CheckpointID, layers []holdfast.Layer) string {
	if len(layers) == 0 || len(layers) > holdfast.MaxLayers {
		return fmt.Sprintf("it has %d layers, of at most %d", len(layers), holdfast.MaxLayers)
	}
	known := make(map[holdfast.Layer]bool, len(below))
	for _, l := range below {
		known[l] = true
	}
	for _, l := range layers {
		if known[l] {
			continue
		}
		if blob.CheckKey(l.Key) != nil || !strings.HasPrefix(l.Key, blobPrefix(id)) {
			return fmt.Sprintf("the layer %q is none of this checkpoint's, and none that its source is made of", l.Key)
		}
		if l.Size < 0 || len(l.SHA256) != 64 {
			return fmt.Sprintf("the layer %q has %d bytes with the sum %q", l.Key, l.Size, l.SHA256)
		}
	}
	return ""
}

// checkBlob looks whether what the host has put is where this server's blob store
// is too: a host with a store of its own would make checkpoints that nobody else has.
func (s *Service) checkBlob(ctx context.Context, seen holdfast.CheckpointObservation) judgement {
	if s.config.Blobs == nil {
		return judgement{outcome: outcomeRetry, err: errNoBlobs()}
	}
	top := seen.Layers[len(seen.Layers)-1]
	info, err := s.config.Blobs.Stat(ctx, top.Key)
	switch {
	case errors.Is(err, blob.ErrNotFound), err == nil && info.Size != top.Size:
		return judgement{outcome: outcomeRefused, answered: true, err: holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonBlobGone,
			"the host says that %s is copied, and this server's blob store does not have it: every server and host needs the same --blobs", top.Key)}
	case err != nil:
		return judgement{outcome: outcomeRetry, err: blobError(err)}
	}
	return judgement{outcome: outcomeReached, answered: true}
}

func errNoBlobs() *holdfast.Error {
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "this server was started without a blob store: start it with --blobs").Retry(time.Minute)
}

func blobError(err error) *holdfast.Error {
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "the blob store did not do it: %v", err).Retry(time.Second).Because(err)
}

// finishCheckpoint makes a checkpoint READY and its operation done, in one fenced
// transaction: it names the copy that won, and whatever another attempt copied is
// named by nothing (contract: E4). The sandbox stays what it is.
func (s *Service) finishCheckpoint(ctx context.Context, b begun, id holdfast.CheckpointID, seen holdfast.CheckpointObservation) (row, error) {
	r, _, err := s.settle(ctx, b, "finish a checkpoint", func(ctx context.Context, tx store.Tx, now time.Time, r *row) error {
		if err := operation.Finish(ctx, tx, now, *b.claim, operation.Outcome{State: operation.StateDone}); err != nil {
			return err
		}
		c, found, err := oneCheckpoint(ctx, tx, id, tx.ForUpdate())
		if err != nil {
			return err
		}
		if !found || c.State != holdfast.CheckpointCreating { // only this operation could end it
			return fmt.Errorf("checkpoint %s is %q while its operation is pending", id, c.State)
		}
		c.State, c.Spec.Layers, c.Size, c.Claim = holdfast.CheckpointReady, seen.Layers, seen.Added, seen.Claim
		c.SHA256 = seen.Layers[len(seen.Layers)-1].SHA256
		if err := useLayers(ctx, tx, string(id), seen.Layers); err != nil {
			return err
		}
		if err := c.save(ctx, tx, now); err != nil {
			return err
		}
		return r.touch(ctx, tx)
	})
	if err != nil {
		return row{}, s.fenced(ctx, b, err)
	}
	return r, nil
}

// supersede ends what is pending and unclaimed in favour of an intent, and with it
// the checkpoint that it would have made.
func (s *Service) supersede(ctx context.Context, tx store.Tx, now time.Time, pending operation.Operation, in intent) error {
	if err := operation.Supersede(ctx, tx, now, pending.ID, in.id); err != nil {
		return err
	}
	return s.dropCheckpoint(ctx, tx, now, pending, &holdfast.Failure{Reason: holdfast.ReasonSuperseded,
		Message: fmt.Sprintf("a %s of %s took its place", in.verb, pending.Resource.ID)})
}

// dropCheckpoint makes the checkpoint of an operation that has ended without it
// FAILED, in the same transaction. Its host is told to end the copy.
func (s *Service) dropCheckpoint(ctx context.Context, tx store.Tx, now time.Time, ended operation.Operation, why *holdfast.Failure) error {
	id := originOf(ended).Checkpoint
	if ended.Kind != string(holdfast.OperationCheckpoint) || id == "" {
		return nil
	}
	c, found, err := oneCheckpoint(ctx, tx, id, tx.ForUpdate())
	if err != nil || !found || c.State != holdfast.CheckpointCreating {
		return err
	}
	c.State, c.Copying = holdfast.CheckpointFailed, true
	c.Failure = &holdfast.Failure{Reason: why.Reason, Message: why.Message}
	if u, ok := tx.(*unit); ok {
		u.soon(func() { s.endCopySoon(id) })
	}
	return c.save(ctx, tx, now)
}

func (s *Service) endCopySoon(id holdfast.CheckpointID) {
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, operation.MaxClaim)
		defer cancel()
		if err := s.endCopy(ctx, id); err != nil {
			s.config.Logger.Info("a copy may go on; a sweep ends it", "checkpoint", id, "error", err)
		}
	})
}

// endCopy tells the host of a FAILED checkpoint that it shall not be made.
func (s *Service) endCopy(ctx context.Context, id holdfast.CheckpointID) error {
	var c checkpoint
	err := s.view(ctx, "read a checkpoint", func(tx store.Tx, _ time.Time) (err error) {
		c, _, err = oneCheckpoint(ctx, tx, id, "")
		return err
	})
	if err != nil || !c.Copying {
		return err
	}
	if j := s.absent(ctx, c); j.outcome != outcomeReached {
		return j.err
	}
	return s.update(ctx, "end a copy", func(tx store.Tx, _ time.Time) error {
		_, err := tx.ExecContext(ctx, `UPDATE checkpoint SET copying = FALSE WHERE id = $1`, string(id))
		if err != nil {
			return fmt.Errorf("end the copy of %s: %w", id, err)
		}
		return nil
	})
}

// absent tells the host that a checkpoint shall not be made, or need not be kept
// there, until it says so or the time is over.
func (s *Service) absent(ctx context.Context, c checkpoint) judgement {
	level := s.levelOf(ctx, c, holdfast.CheckpointAbsent)
	for {
		level.Wait = patienceOf(ctx)
		seen, err := s.config.Fleet.EnsureCheckpoint(ctx, level)
		if err == nil && seen.State == holdfast.CopyAbsent {
			return judgement{outcome: outcomeReached, answered: true}
		}
		if err != nil {
			e := holdfast.AsError(err)
			j := judgeError(e)
			switch {
			case e.Reason == holdfast.ReasonNotCapable || e.Code == holdfast.NotFound: // nobody makes it
				return judgement{outcome: outcomeReached, answered: true}
			case j.outcome == outcomeRaise && j.seen >= level.Generation: // an end is an end, whatever came later
				level.Generation = j.seen + 1
				continue
			case j.outcome != outcomeWait:
				j.outcome = outcomeRetry // never given up
			}
			j.err = e
			return j
		}
		if ctx.Err() != nil {
			return judgement{outcome: outcomeRetry, answered: true, err: holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable,
				"the copy is %s; the operation goes on when it is repeated", seen.State).Retry(time.Second)}
		}
	}
}
