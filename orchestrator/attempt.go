package orchestrator

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// closing bounds the transaction that ends an attempt whose own time is over.
const closing = 10 * time.Second

// attempt makes the claimed attempt and returns the sandbox as it left it. The
// attempt outlives a caller that leaves (contract: A2).
func (s *Service) attempt(ctx context.Context, b begun) (row, error) {
	var out row
	err := s.runner.Do(ctx, *b.claim, func(attemptCtx context.Context) error {
		result, err := s.act(attemptCtx, b)
		if err == nil {
			out = result
		}
		return err
	})
	var panicked *operation.PanicError
	switch {
	case err == nil:
		return out, nil
	case errors.Is(err, operation.ErrDetached):
		e := holdfast.AsError(ctx.Err())
		return row{}, holdfast.E(e.Code, e.Reason, "%s; the attempt goes on", e.Message).On(string(b.row.ID)).During(b.op.ID)
	case errors.Is(err, operation.ErrNotStarted):
		return row{}, s.giveBack(ctx, b, notStarted(b, err))
	case errors.As(err, &panicked):
		return row{}, s.giveBack(ctx, b, holdfast.E(holdfast.Internal, holdfast.ReasonBug,
			"the attempt failed in a way that it should not; see the server's log").On(string(b.row.ID)).During(b.op.ID).Because(err))
	}
	return row{}, err
}

func notStarted(b begun, err error) *holdfast.Error {
	if errors.Is(err, operation.ErrDraining) {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonDraining, "this server is stopping; the operation is recorded").
			On(string(b.row.ID)).During(b.op.ID).Retry(time.Second)
	}
	return holdfast.E(holdfast.Aborted, holdfast.ReasonClaimed, "an earlier attempt has not returned yet").
		On(string(b.row.ID)).During(b.op.ID).With("kind", b.op.Kind).Retry(time.Second)
}

// giveBack releases a claim under which nothing is being done, and returns why.
func (s *Service) giveBack(ctx context.Context, b begun, why *holdfast.Error) error {
	if _, err := s.release(ctx, b, judgement{outcome: outcomeRetry, err: why}); err != nil {
		return errors.Join(why, err)
	}
	return why
}

// act is steps 2 and 3: the level downstream until it is answered for good, then
// the transaction that records what became of it.
func (s *Service) act(ctx context.Context, b begun) (row, error) {
	defer s.done.ring(string(b.row.ID))
	if b.op.Kind == string(holdfast.OperationCheckpoint) {
		return s.actCheckpoint(ctx, b)
	}
	if b.op.Kind == string(holdfast.OperationDelete) {
		if err := s.keepLogs(ctx, b); err != nil {
			return row{}, s.releaseWith(ctx, b, judgement{outcome: outcomeRetry, err: holdfast.AsError(err)})
		}
	}
	for {
		level := s.level(ctx, b)
		seen, err := s.config.Fleet.EnsureInstance(ctx, level)
		j := judge(level, seen, err)
		switch j.outcome {
		case outcomeReached:
			if seen.HostURL != "" { // the first call to its guest need not ask where it is
				s.hosts.put(b.row.ref(), seen.HostURL)
			}
			return s.finish(ctx, b, seen)
		case outcomeEnded:
			return row{}, s.end(ctx, b, j.failure)
		case outcomeRefused:
			return row{}, s.refused(ctx, b, j)
		case outcomeRaise, outcomeReplace:
			if err := s.raise(ctx, &b, j); err != nil {
				return row{}, s.fenced(ctx, b, err)
			}
			continue
		case outcomeWait, outcomeRetry:
			return row{}, s.releaseWith(ctx, b, j)
		}
		stop, err := s.lookUp(ctx, b)
		if err != nil && ctx.Err() == nil { // an attempt that is stopped meanwhile still releases its claim
			return row{}, s.fenced(ctx, b, err)
		}
		if stop || ctx.Err() != nil {
			return row{}, s.releaseWith(ctx, b, judgement{outcome: outcomeRetry, answered: true, err: holdfast.E(holdfast.Unavailable,
				holdfast.ReasonUnreachable, "the instance is %s; the operation goes on when it is repeated", seen.State)})
		}
	}
}

// level is the command that the claimed operation issues.
func (s *Service) level(ctx context.Context, b begun) holdfast.Level {
	spec := b.row.Spec
	at := s.lineage.Load()
	return holdfast.Level{
		Cluster: at.Cluster, Epoch: at.Epoch, Instance: b.row.Instance, Incarnation: b.row.Incarnation, Generation: b.op.Generation,
		Desired: desired(holdfast.OperationKind(b.op.Kind)), Spec: &spec, MintedAt: b.row.MintedAt, Wait: patienceOf(ctx),
	}
}

// patienceOf is how long a level may wait: half of what is left, so that an answer is
// heard before the claim ends.
func patienceOf(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, min(holdfast.MaxLevelWait, time.Until(deadline)/2))
	}
	return holdfast.MaxLevelWait
}

// lookUp is the look between two steps: is the claim still ours, and is a delete wanted?
func (s *Service) lookUp(ctx context.Context, b begun) (stop bool, err error) {
	err = s.view(ctx, "look between steps", func(tx store.Tx, _ time.Time) error {
		op, err := operation.Get(ctx, tx, b.op.ID)
		if err != nil {
			return err
		}
		if op.Claim != b.claim.Number || op.State.Ended() {
			return &operation.FencedError{Claim: *b.claim, Operation: op}
		}
		r, found, err := oneRow(ctx, tx, `WHERE id = $1`, string(b.row.ID))
		stop = found && r.DeleteWanted && op.Kind != string(holdfast.OperationDelete)
		return err
	})
	return stop, err
}

// settle runs one transaction that ends the attempt's claim: change does the
// fenced write on the operation and changes the row, which is then saved; a
// wanted delete is begun in it. The carrying on of that delete is started here.
func (s *Service) settle(ctx context.Context, b begun, what string, change func(ctx context.Context, tx store.Tx, now time.Time, r *row) error) (row, bool, error) {
	ctx, cancel := operation.Closing(ctx, closing)
	defer cancel()
	var r row
	var wanted bool
	err := s.update(ctx, what, func(tx store.Tx, _ time.Time) error {
		var found bool
		var now time.Time
		var err error
		if r, found, now, err = lockRow(ctx, tx, b.row.ID); err != nil {
			return err
		}
		if !found {
			return notFound(b.row.ID)
		}
		if err := change(ctx, tx, now, &r); err != nil {
			return err
		}
		wanted, err = s.beginWanted(ctx, tx, now, &r)
		return err
	})
	if err == nil && wanted {
		s.carryOnSoon(r.ID)
	}
	return r, wanted, err
}

// finish records success: the operation and the state in one fenced transaction
// (contract: A1).
func (s *Service) finish(ctx context.Context, b begun, seen holdfast.Observation) (row, error) {
	verb := holdfast.OperationKind(b.op.Kind)
	if r, done, err := s.finishUnchanged(ctx, b, seen); done || err != nil {
		return r, s.fenced(ctx, b, err)
	}
	r, wanted, err := s.settle(ctx, b, "finish", func(ctx context.Context, tx store.Tx, now time.Time, r *row) error {
		if err := operation.Finish(ctx, tx, now, *b.claim, operation.Outcome{State: operation.StateDone}); err != nil {
			return err
		}
		s.arrive(r, verb, seen, now)
		return r.save(ctx, tx, now)
	})
	if err != nil {
		return row{}, s.fenced(ctx, b, err)
	}
	if wanted && verb != holdfast.OperationDelete {
		return row{}, superseded(b)
	}
	return r, nil
}

// finishUnchanged is finish in the usual case, that nobody changed the sandbox
// since the attempt began: then it need not be read again. It reports whether that
// was so; if not, nothing was done.
func (s *Service) finishUnchanged(ctx context.Context, b begun, seen holdfast.Observation) (row, bool, error) {
	if b.row.Owner != "" {
		return row{}, false, nil
	}
	ctx, cancel := operation.Closing(ctx, closing)
	defer cancel()
	if r, done := s.finishAtOnce(ctx, b, seen); done {
		return r, true, nil
	}
	var r row
	var stood bool
	err := s.update(ctx, "finish", func(tx store.Tx, now time.Time) (err error) {
		r = b.row
		s.arrive(&r, holdfast.OperationKind(b.op.Kind), seen, now)
		if stood, err = r.saveOver(ctx, tx, now, b.row); err != nil || !stood {
			return err
		}
		return operation.Finish(ctx, tx, now, *b.claim, operation.Outcome{State: operation.StateDone})
	})
	return r, stood, err
}

// end records that the instance ended by itself: the sandbox is FAILED, or
// replaced where its policy says so.
func (s *Service) end(ctx context.Context, b begun, failure *holdfast.Failure) error {
	why := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonExited, "%s failed: %s", b.row.ID, failure.Message).
		On(string(b.row.ID)).During(b.op.ID).With("failure", string(failure.Reason))
	if b.op.Kind == string(holdfast.OperationCreate) {
		why.Reason = holdfast.ReasonCreateFailed
	}
	var replaced bool
	_, _, err := s.settle(ctx, b, "record a failure", func(ctx context.Context, tx store.Tx, now time.Time, r *row) error {
		replaced = replaceable(*r, holdfast.OperationKind(b.op.Kind), failure)
		recorded := recordable(why, failure)
		if replaced {
			recorded = recordable(beingReplaced(*r, failure), nil)
		}
		if err := operation.Finish(ctx, tx, now, *b.claim, operation.Outcome{State: operation.StateFailed, Failure: recorded}); err != nil {
			return err
		}
		if err := s.tellFailed(ctx, tx, now, *r, failedOperation{b.op.ID, b.op.Kind, recorded}); err != nil {
			return err
		}
		if replaced {
			return s.replaceRow(ctx, tx, now, r, failure)
		}
		r.fail(failure, now)
		return r.save(ctx, tx, now)
	})
	switch {
	case err != nil:
		return s.fenced(ctx, b, err)
	case replaced:
		s.carryOnSoon(b.row.ID)
		return beingReplaced(b.row, failure).During(b.op.ID)
	}
	return why
}

// refused records a permanent refusal. A create's or a replacement's makes the sandbox FAILED; after
// a suspend's or resume's it keeps its state.
func (s *Service) refused(ctx context.Context, b begun, j judgement) error {
	if b.op.Kind == string(holdfast.OperationCreate) || b.op.Kind == string(holdfast.OperationReplace) {
		return s.end(ctx, b, &holdfast.Failure{Reason: j.err.Reason, Message: j.err.Error()})
	}
	if b.op.Kind == string(holdfast.OperationDelete) { // never given up (contract: A15)
		return s.releaseWith(ctx, b, j)
	}
	_, _, err := s.settle(ctx, b, "record a refusal", func(ctx context.Context, tx store.Tx, now time.Time, r *row) error {
		r.Generation++ // the next intent is issued above whatever the refused one left behind
		recorded := recordable(j.err, nil)
		err := operation.Finish(ctx, tx, now, *b.claim, operation.Outcome{State: operation.StateFailed, Failure: recorded})
		if err == nil {
			err = s.dropCheckpoint(ctx, tx, now, *b.op, &holdfast.Failure{Reason: j.err.Reason, Message: j.err.Message})
		}
		if err != nil {
			return err
		}
		if err := r.save(ctx, tx, now); err != nil {
			return err
		}
		return s.tellFailed(ctx, tx, now, *r, failedOperation{b.op.ID, b.op.Kind, recorded})
	})
	if err != nil {
		return s.fenced(ctx, b, err)
	}
	return j.err.On(string(b.row.ID)).During(b.op.ID)
}

// raise issues the intent anew above a generation that was seen, or on a new
// incarnation where the old one can no longer be placed.
func (s *Service) raise(ctx context.Context, b *begun, j judgement) error {
	return s.update(ctx, "raise", func(tx store.Tx, _ time.Time) error {
		r, found, now, err := lockRow(ctx, tx, b.row.ID)
		if err != nil {
			return err
		}
		if !found {
			return notFound(b.row.ID)
		}
		if j.incarnation > r.Incarnation { // booted after the backup that this database was restored from
			r.Incarnation, r.GuestSaid = j.incarnation, ""
		}
		if j.outcome == outcomeReplace {
			r.Incarnation, r.MintedAt, r.GuestSaid = r.Incarnation+1, now, ""
		}
		op, err := operation.Raise(ctx, tx, now, *b.claim, max(r.Generation, j.seen)+1)
		if err != nil {
			return err
		}
		r.Generation = op.Generation
		b.row, b.op = r, &op
		return r.save(ctx, tx, now)
	})
}

// releaseWith ends the claim, leaves the operation pending and returns what the
// caller hears.
func (s *Service) releaseWith(ctx context.Context, b begun, j judgement) error {
	wanted, err := s.release(ctx, b, j)
	if err != nil {
		return s.fenced(ctx, b, err)
	}
	if wanted && b.op.Kind != string(holdfast.OperationDelete) {
		return superseded(b)
	}
	e := j.err.On(string(b.row.ID)).During(b.op.ID)
	switch e.Code {
	case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Aborted:
		return e
	}
	return holdfast.E(holdfast.Unavailable, e.Reason, "%s; the operation stays pending: repeat it", e.Message).
		On(string(b.row.ID)).During(b.op.ID).Retry(time.Second).Because(e)
}

func (s *Service) release(ctx context.Context, b begun, j judgement) (wanted bool, err error) {
	_, wanted, err = s.settle(ctx, b, "release", func(ctx context.Context, tx store.Tx, now time.Time, r *row) error {
		err := operation.Release(ctx, tx, now, *b.claim, operation.Report{
			Failure: recordable(j.err, nil), WaitsFor: j.waitsFor, Answered: j.answered, Backoff: backoff(b.op.Attempts)})
		if err != nil {
			return err
		}
		if err := s.ownerReleased(ctx, tx, now, *r, j); err != nil {
			return err
		}
		return r.touch(ctx, tx)
	})
	return wanted, err
}

// backoff is how long the sweep leaves an operation alone after its n-th attempt.
func backoff(attempts int) time.Duration {
	return min(time.Second<<min(attempts, 10), time.Minute)
}

// fenced answers for an attempt whose claim was no longer the current one: what
// became of the operation meanwhile is the answer (architecture.md, "One attempt").
func (s *Service) fenced(ctx context.Context, b begun, cause error) error {
	var f *operation.FencedError
	if !errors.As(cause, &f) {
		return cause
	}
	switch {
	case f.FinishedHere(), f.Operation.State == operation.StateDone:
		return errDoneElsewhere
	case f.Operation.State == operation.StateFailed:
		e := f.Operation.LastError
		return holdfast.E(holdfast.Code(e.Code), holdfast.Reason(e.Reason), "%s", e.Message).On(string(b.row.ID)).During(b.op.ID)
	case f.Operation.State == operation.StateSuperseded:
		return superseded(b)
	}
	return aborted(b.row, f.Operation, s.databaseClock())
}

// errDoneElsewhere says that the operation is done, by another: read the row.
var errDoneElsewhere = errors.New("the operation was finished by another")

func superseded(b begun) error {
	return holdfast.E(holdfast.Aborted, holdfast.ReasonSuperseded, "the %s of %s gave way to a newer intent", b.op.Kind, b.row.ID).
		On(string(b.row.ID)).During(b.op.ID).With("kind", b.op.Kind)
}

// aborted is the answer to a call that met another's live attempt.
func aborted(r row, op operation.Operation, now time.Time) *holdfast.Error {
	retry := min(max(op.ClaimExpires.Sub(now), 0)+50*time.Millisecond, time.Second)
	return holdfast.E(holdfast.Aborted, holdfast.ReasonClaimed, "an attempt of %s on %s is executing, until %s at the latest: look, then retry",
		op.Kind, r.ID, op.ClaimExpires.UTC().Format(time.RFC3339)).On(string(r.ID)).During(op.ID).Retry(retry).
		With("kind", op.Kind).With("claim_holder", op.Holder).With("claim_expires_at", op.ClaimExpires.UTC().Format(time.RFC3339Nano))
}

// recordable is an error as the journal keeps it.
func recordable(e *holdfast.Error, failure *holdfast.Failure) *operation.Failure {
	if e == nil {
		return nil
	}
	f := &operation.Failure{Code: string(e.Code), Reason: string(e.Reason), Message: e.Error()}
	if failure != nil && failure.Reason != "" && e.Reason != holdfast.ReasonCreateFailed {
		f.Reason = string(failure.Reason)
	}
	return f
}

func parseSeen(e *holdfast.Error) int64 {
	n, err := strconv.ParseInt(e.Details["seen"], 10, 64)
	if err != nil {
		return 0 // the raise still goes one above what is recorded
	}
	return n
}
