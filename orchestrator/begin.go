package orchestrator

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// begun is what the first transaction of a lifecycle call decided.
type begun struct {
	row   row
	op    *operation.Operation // pending, if any; the claimed one when there is an attempt to make
	claim *operation.Claim     // nil: nothing to do, the answer is the row
}

// deadlineOf is how long an operation may stay pending before it counts as overdue.
func deadlineOf(verb holdfast.OperationKind) time.Duration {
	if verb == holdfast.OperationCreate || verb == holdfast.OperationReplace {
		return holdfast.InstancePrepareAfter
	}
	if verb == holdfast.OperationCheckpoint {
		return holdfast.CheckpointAfter
	}
	return time.Minute
}

// beginCreate is step 1 of a create: the key, the resource and the claimed
// operation in one transaction, or the resource that the key already has
// (contract: A1, A3).
func (s *Service) beginCreate(ctx context.Context, caller holdfast.Caller, in holdfast.CreateSandbox, f fingerprint, fresh row) (begun, error) {
	if b, done := s.createAtOnce(ctx, in, f, fresh); done {
		return b, nil
	}
	b, err := s.tryCreate(ctx, caller, in, f, fresh, row.take)
	if errors.Is(err, errShardFull) {
		return s.tryCreate(ctx, caller, in, f, fresh, row.takeFromAll)
	}
	return b, err
}

// tryCreate counts the sandbox last, so that others wait for its shard no longer
// than for its commit.
func (s *Service) tryCreate(ctx context.Context, caller holdfast.Caller, in holdfast.CreateSandbox, f fingerprint, fresh row,
	count func(row, context.Context, store.Tx) error) (begun, error) {
	key := requestKey{project: caller.Project, method: methodCreateSandbox, id: in.RequestID}
	var b begun
	err := s.update(ctx, "create sandbox", func(tx store.Tx, now time.Time) error {
		b = begun{}
		fresh.CreatedAt, fresh.MintedAt, fresh.UpdatedAt = now, now, now
		existing, err := reserve(ctx, tx, now, key, f, string(fresh.ID))
		if err != nil {
			return err
		}
		if existing != "" {
			b, err = s.beginRepeat(ctx, tx, caller, holdfast.SandboxID(existing))
			return err
		}
		if err := s.checkTTL(in.TTL); err != nil {
			return err // and with it the key
		}
		b.row = fresh
		b.row.Generation = 1
		if err := s.made(ctx, tx, in, &b.row); err != nil {
			return err
		}
		if err := b.row.insert(ctx, tx); err != nil {
			return err
		}
		if err := s.intend(ctx, tx, now, &b, s.intent(holdfast.OperationCreate)); err != nil {
			return err
		}
		return count(b.row, ctx, tx)
	})
	return b, err
}

// made says what a new sandbox is made of, where that is decided with its key: a
// checkpoint, or a build of an environment.
func (s *Service) made(ctx context.Context, tx store.Tx, in holdfast.CreateSandbox, r *row) error {
	if in.Source != "" {
		return fork(ctx, tx, in, r)
	}
	if r.Spec.Image != "" {
		return nil
	}
	of, err := s.resolve(ctx, tx, lookup{project: r.Project, reference: in.Environment})
	if err != nil {
		return err
	}
	of.apply(r, in)
	return useLayers(ctx, tx, string(r.ID), r.Spec.Layers)
}

// beginRepeat is a create whose key is known already.
func (s *Service) beginRepeat(ctx context.Context, tx store.Tx, caller holdfast.Caller, id holdfast.SandboxID) (begun, error) {
	r, found, now, err := lockRow(ctx, tx, id)
	if err != nil {
		return begun{}, err
	}
	if !found { // purged: the key alone is kept (contract: A3, trap T5)
		return begun{row: row{Sandbox: holdfast.Sandbox{ID: id, Project: caller.Project, State: holdfast.SandboxDeleted}}}, nil
	}
	b := begun{row: r}
	err = s.proceed(ctx, tx, now, &b, holdfast.OperationCreate)
	return b, err
}

// beginMutation is step 1 of a suspend, resume or delete.
func (s *Service) beginMutation(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSandbox, verb holdfast.OperationKind) (begun, error) {
	var b begun
	err := s.update(ctx, "begin", func(tx store.Tx, _ time.Time) error {
		b = begun{}
		r, found, now, err := lockRow(ctx, tx, in.ID)
		if err != nil {
			return err
		}
		if !found || r.Project != caller.Project {
			return notFound(in.ID)
		}
		if r.Owner != "" {
			return owned(r)
		}
		b.row = r
		pending, has, err := operation.Pending(ctx, tx, r.resource())
		if err != nil {
			return err
		}
		if in.IfGeneration != 0 && !generationFits(r, pending, has, verb, in.IfGeneration) {
			return otherGeneration(r, in.IfGeneration)
		}
		return s.proceed(ctx, tx, now, &b, verb)
	})
	return b, err
}

// goOn begins nothing: it takes up the operation that a call has begun and whose claim
// it gave up meanwhile, unless that has ended.
func (s *Service) goOn(of begun) func(context.Context) (begun, error) {
	return func(ctx context.Context) (begun, error) {
		var b begun
		var ended *operation.FencedError
		err := s.update(ctx, "go on", func(tx store.Tx, _ time.Time) error {
			b, ended = begun{}, nil
			r, found, now, err := lockRow(ctx, tx, of.row.ID)
			if err != nil {
				return err
			}
			if !found {
				return notFound(of.row.ID)
			}
			op, err := operation.Get(ctx, tx, of.op.ID)
			if err != nil {
				return err
			}
			b.row = r
			switch {
			case op.State.Ended():
				ended = &operation.FencedError{Claim: *of.claim, Operation: op}
				return nil
			case op.Claimed(now):
				return &heldError{op: op, now: now}
			}
			b.op = &op
			return s.join(ctx, tx, now, &b)
		})
		if err == nil && ended != nil {
			err = s.fenced(ctx, of, ended)
		}
		return b, err
	}
}

func otherGeneration(r row, want int64) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonGeneration,
		"%s is at generation %d, not %d: look at what changed, then decide anew", r.ID, r.Generation, want).On(string(r.ID))
}

// generationFits lets a conditional call through when it is the first, or a
// repeat of the one that raised the generation.
func generationFits(r row, pending operation.Operation, has bool, verb holdfast.OperationKind, want int64) bool {
	if r.Generation == want {
		return true
	}
	repeat := r.Generation == want+1
	if has {
		return repeat && pending.Kind == string(verb)
	}
	return repeat && r.State == target(verb)
}

// proceed decides and acts on the decision, inside the transaction.
func (s *Service) proceed(ctx context.Context, tx store.Tx, now time.Time, b *begun, verb holdfast.OperationKind) error {
	pending, has, err := operation.Pending(ctx, tx, b.row.resource())
	if err != nil {
		return err
	}
	if has {
		b.op = &pending
	}
	switch decide(b.row.State, b.op, now, verb) {
	case verdictDone:
		return nil
	case verdictBegin:
		return s.record(ctx, tx, now, b, s.intent(verb))
	case verdictJoin:
		return s.join(ctx, tx, now, b)
	case verdictReplace:
		return s.replace(ctx, tx, now, b, s.intent(verb))
	case verdictStop:
		// Committed although the call goes on to wait: the attempt looks for it at
		// its next step, wherever it runs.
		if !b.row.DeleteWanted {
			b.row.DeleteWanted = true
			return b.row.save(ctx, tx, now)
		}
		return nil
	case verdictHeld:
		return &heldError{op: pending, now: now}
	}
	return refuse(b.row, b.op, verb)
}

// intent is a verb with the id of the operation that it becomes.
type intent struct {
	id    string
	verb  holdfast.OperationKind
	cause holdfast.Reason       // why it began where no caller asked for it
	takes holdfast.CheckpointID // of a CHECKPOINT
	force bool                  // of a session's: the running task is cancelled, not waited for
}

func (s *Service) intent(verb holdfast.OperationKind) intent {
	return intent{id: s.config.IDs.New(holdfast.PrefixOperation), verb: verb}
}

// raiseFor prepares a sandbox's row for a new intent: generation + 1, and for a
// delete the state that says so.
func (r *row) raiseFor(ctx context.Context, tx store.Tx, now time.Time, verb holdfast.OperationKind) error {
	r.Generation++
	if verb == holdfast.OperationDelete {
		r.State, r.DeleteWanted = holdfast.SandboxDeleting, false
		r.ExpiresAt, r.Retained = time.Time{}, false
	}
	return r.save(ctx, tx, now)
}

// record writes a new intent on an existing sandbox down and claims it.
func (s *Service) record(ctx context.Context, tx store.Tx, now time.Time, b *begun, in intent) error {
	if err := b.row.raiseFor(ctx, tx, now, in.verb); err != nil {
		return err
	}
	return s.intend(ctx, tx, now, b, in)
}

// intend records the operation at the row's generation and claims it.
func (s *Service) intend(ctx context.Context, tx store.Tx, now time.Time, b *begun, in intent) error {
	op, claim, err := operation.RecordTaken(ctx, tx, now, in.on(b.row, now), s.newAttempt())
	if err != nil {
		return err
	}
	b.op, b.claim = &op, &claim
	return nil
}

// newAttempt is one on an operation that is yet to be named.
func (s *Service) newAttempt() operation.Attempt {
	return operation.Attempt{Holder: operation.NewHolder(s.config.Process), TTL: s.config.ClaimTTL}
}

// on is the intent as it is recorded of a sandbox.
func (in intent) on(r row, now time.Time) operation.Intent {
	return in.as(r.resource(), r.Generation, now)
}

func (in intent) as(of operation.Resource, generation int64, now time.Time) operation.Intent {
	out := operation.Intent{ID: in.id, Resource: of, Kind: string(in.verb), Generation: generation, Deadline: now.Add(deadlineOf(in.verb))}
	if in.cause != "" || in.takes != "" {
		out.Input = origin{Cause: in.cause, Checkpoint: in.takes}.json()
	}
	return out
}

// replace supersedes what is pending and unclaimed, then records the intent.
func (s *Service) replace(ctx context.Context, tx store.Tx, now time.Time, b *begun, in intent) error {
	if err := s.supersede(ctx, tx, now, *b.op, in); err != nil {
		return err
	}
	return s.record(ctx, tx, now, b, in)
}

// join takes the claim on what is pending already: watchers see that it is.
func (s *Service) join(ctx context.Context, tx store.Tx, now time.Time, b *begun) error {
	if err := s.take(ctx, tx, now, b); err != nil {
		return err
	}
	return b.row.touch(ctx, tx)
}

func (s *Service) take(ctx context.Context, tx store.Tx, now time.Time, b *begun) error {
	op, claim, err := operation.Take(ctx, tx, now, operation.Attempt{
		Operation: b.op.ID, Holder: operation.NewHolder(s.config.Process), TTL: s.config.ClaimTTL})
	if err != nil {
		var held *operation.HeldError
		if errors.As(err, &held) {
			return &heldError{op: *b.op, now: now}
		}
		return err
	}
	b.op, b.claim = &op, &claim
	return nil
}

// beginWanted records the delete that met a live claim, now that the claim ends:
// in the transaction that ends it (lifecycle.md). It returns whether there was one.
func (s *Service) beginWanted(ctx context.Context, tx store.Tx, now time.Time, r *row) (bool, error) {
	if !r.DeleteWanted {
		return false, nil
	}
	if r.State == holdfast.SandboxDeleting || r.State == holdfast.SandboxDeleted {
		r.DeleteWanted = false
		return false, r.save(ctx, tx, now)
	}
	err := s.begin(ctx, tx, now, r, s.intent(holdfast.OperationDelete))
	return err == nil, err
}

func notFound(id holdfast.SandboxID) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no sandbox %s in this project", id).On(string(id))
}

// refuse says why a verb does not fit, and what would.
func refuse(r row, pending *operation.Operation, verb holdfast.OperationKind) error {
	e := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s, which %s does not fit", r.ID, r.State, verb).On(string(r.ID)).
		With("state", string(r.State))
	switch r.State {
	case holdfast.SandboxCreating:
		e.Message += ": finish the create first, by repeating it, or delete the sandbox"
		if pending != nil && pending.Kind == string(holdfast.OperationReplace) {
			e.Message = string(r.ID) + " is being replaced after its instance was lost: wait until it is READY, or delete the sandbox"
		}
	case holdfast.SandboxFailed:
		e.Message += ": it can only be deleted"
	case holdfast.SandboxDeleting, holdfast.SandboxDeleted:
		e.Message += ": create another one"
	}
	if pending != nil {
		e = e.During(pending.ID)
	}
	return e
}
