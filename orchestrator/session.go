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

// GetSession observes (contract: A5).
func (s *Service) GetSession(ctx context.Context, caller holdfast.Caller, id holdfast.SessionID) (holdfast.Session, error) {
	if err := holdfast.CheckID("id", holdfast.PrefixSession, string(id)); err != nil {
		return holdfast.Session{}, err
	}
	out, found, err := s.readSession(ctx, caller, id)
	if err == nil && !found {
		err = noSession(id)
	}
	return out, err
}

// readSession reads a session as its callers see it.
func (s *Service) readSession(ctx context.Context, caller holdfast.Caller, id holdfast.SessionID) (out holdfast.Session, found bool, err error) {
	err = s.view(ctx, "get session", func(tx store.Tx, _ time.Time) error {
		list, err := sessions(ctx, tx, `WHERE id = $1 AND project = $2`, string(id), string(caller.Project))
		if found = len(list) == 1; err != nil || !found {
			return err
		}
		shown, err := s.showSessions(ctx, tx, list)
		if err == nil {
			out = shown[0]
		}
		return err
	})
	return out, found, err
}

// ListSessions pages the project's sessions, newest first.
func (s *Service) ListSessions(ctx context.Context, caller holdfast.Caller, in holdfast.ListSessions) (holdfast.SessionPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.SessionPage{}, err
	}
	if err := checkToken(in.PageToken, holdfast.PrefixSession); err != nil {
		return holdfast.SessionPage{}, err
	}
	states := make([]string, len(in.States))
	for i, state := range in.States {
		states[i] = string(state)
	}
	where, args, size := listing{kind: kindSession, project: caller.Project, after: in.PageToken, size: in.PageSize, states: states, labels: in.Labels}.where()
	var page holdfast.SessionPage
	err := s.view(ctx, "list sessions", func(tx store.Tx, _ time.Time) error {
		page = holdfast.SessionPage{}
		list, err := sessions(ctx, tx, "WHERE "+where, args...)
		if err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		page.Sessions, err = s.showSessions(ctx, tx, list)
		return err
	})
	return page, err
}

// SuspendSession lets the running task end, runs the hook, and stops the sandbox
// (contract: A13).
func (s *Service) SuspendSession(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return s.mutateSession(ctx, caller, in, holdfast.OperationSuspend)
}

// ResumeSession lets a suspended one go on; its hook runs before it is READY.
func (s *Service) ResumeSession(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return s.mutateSession(ctx, caller, in, holdfast.OperationResume)
}

// DeleteSession ends it in any state. What was issued is finished first; the delete is
// recorded as wanted meanwhile (contract: A7).
func (s *Service) DeleteSession(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return s.mutateSession(ctx, caller, in, holdfast.OperationDelete)
}

func (s *Service) mutateSession(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSession, verb holdfast.OperationKind) (holdfast.Session, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Session{}, err
	}
	return s.pursueSession(ctx, caller, func(ctx context.Context) (ruling, error) {
		return s.askSession(ctx, caller, in, verb)
	})
}

// pursueSession begins or joins an operation and sees it through. An operation that
// it has seen through is never begun again: that could undo what came after it.
func (s *Service) pursueSession(ctx context.Context, caller holdfast.Caller, ask func(context.Context) (ruling, error)) (holdfast.Session, error) {
	patience := time.NewTimer(s.sessionPatience(ctx))
	defer patience.Stop()
	held := time.NewTimer(s.config.HeldWait)
	defer held.Stop()
	for {
		a, err := ask(ctx)
		var other *heldError
		switch {
		case errors.As(err, &other):
			id := other.op.Resource.ID
			if s.done.await(ctx, s.done.on(id), held.C) {
				continue
			}
			return holdfast.Session{}, aborted(row{Sandbox: holdfast.Sandbox{ID: holdfast.SandboxID(id)}}, other.op, other.now)
		case err != nil:
			return holdfast.Session{}, err
		}
		if a.follow == "" {
			return s.showSession(ctx, caller, a.row)
		}
		err = s.see(ctx, patience.C, a.row.ID, a.follow)
		switch {
		case err != nil && a.wanted:
			return holdfast.Session{}, wantedLater(a).Because(err)
		case err != nil:
			return holdfast.Session{}, err
		case a.wanted:
			continue
		}
		if err := s.outcome(ctx, a.row.ID, a.follow); err != nil {
			return holdfast.Session{}, err
		}
		return s.showSession(ctx, caller, a.row)
	}
}

// sessionPatience is how long a call waits for a task, a hook or a build: as long as
// its caller does, and so long that the caller hears what it waited for.
func (s *Service) sessionPatience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return s.config.HeldWait
	}
	left := time.Until(deadline)
	return max(left-max(left/10, 500*time.Millisecond), 0)
}

// outcome is the error of an operation that has ended otherwise than DONE.
func (s *Service) outcome(ctx context.Context, id holdfast.SessionID, op string) error {
	var ended operation.Operation
	err := s.view(ctx, "outcome", func(tx store.Tx, _ time.Time) (err error) {
		ended, err = operation.Get(ctx, tx, op)
		return err
	})
	if isNotFound(err) {
		return noSession(id) // purged meanwhile
	}
	if err != nil {
		return err
	}
	switch ended.State {
	case operation.StateSuperseded:
		return holdfast.E(holdfast.Aborted, holdfast.ReasonSuperseded, "the %s of %s gave way to a newer intent", ended.Kind, id).
			On(string(id)).During(op).With("kind", ended.Kind)
	case operation.StateFailed:
		f := ended.LastError
		e := holdfast.E(holdfast.Code(f.Code), holdfast.Reason(f.Reason), "%s", f.Message).On(string(id)).During(op)
		if ended.Kind == string(holdfast.OperationCreate) {
			e.Reason, e.Message = holdfast.ReasonCreateFailed, string(id)+" failed: "+e.Message
			e = e.With("failure", f.Reason)
		}
		return e
	}
	return nil
}

// showSession is the session as it is now; as it was where it is purged by now.
func (s *Service) showSession(ctx context.Context, caller holdfast.Caller, was sessionRow) (holdfast.Session, error) {
	out, found, err := s.readSession(ctx, caller, was.ID)
	if err == nil && !found {
		out = was.Session
	}
	return out, err
}

// askSession is the first transaction of a suspend, resume or delete.
func (s *Service) askSession(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSession, verb holdfast.OperationKind) (ruling, error) {
	var a ruling
	err := s.update(ctx, "begin", func(tx store.Tx, _ time.Time) error {
		a = ruling{}
		h, found, now, err := lockSession(ctx, tx, in.ID)
		if err != nil {
			return err
		}
		if !found || h.Project != caller.Project {
			return noSession(in.ID)
		}
		if in.IfGeneration != 0 && !h.fits(verb, in.IfGeneration) {
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonGeneration,
				"%s is at generation %d, not %d: look at what changed, then decide anew", h.ID, h.Generation, in.IfGeneration).On(string(h.ID))
		}
		a, err = s.decideAsked(ctx, tx.(*unit), now, &h, intent{verb: verb, force: in.Force})
		return err
	})
	return a, err
}

// fits lets a conditional call through when it is the first, or a repeat of the one
// that raised the generation.
func (h held) fits(verb holdfast.OperationKind, want int64) bool {
	if h.Generation == want {
		return true
	}
	if h.pending != nil {
		return h.Generation == want+1 && h.pending.Kind == string(verb)
	}
	return h.Generation == want+1 && h.State == holdfast.SessionState(target(verb))
}

// decideAsked decides on a call, and acts on the decision, inside its transaction.
func (s *Service) decideAsked(ctx context.Context, u *unit, now time.Time, h *held, in intent) (ruling, error) {
	shown, err := h.claimedPending(ctx, u)
	if err != nil {
		return ruling{}, err
	}
	a := ruling{row: h.sessionRow, op: shown}
	switch decideSession(h.State, shown, now, in.verb) {
	case verdictDone:
		return a, nil
	case verdictBegin, verdictReplace:
		in.id = s.config.IDs.New(holdfast.PrefixOperation)
		if err := s.beginSession(ctx, u, now, h, in); err != nil {
			return a, err
		}
		a.follow = in.id
		_, err := s.step(ctx, u, now, h)
		a.row = h.sessionRow
		return a, err
	case verdictJoin, verdictHeld:
		a.follow = h.pending.ID
		if shown.Kind != string(in.verb) && in.verb != holdfast.OperationCreate {
			return a, &heldError{op: *shown, now: now}
		}
		if in.force && !h.Forced {
			h.Forced = true
			return a, h.save(ctx, u, now)
		}
		return a, nil
	case verdictStop, verdictUncertain:
		if in.verb != holdfast.OperationDelete {
			return a, conflicting(a)
		}
		a.follow, a.wanted = h.pending.ID, true
		if h.DeleteWanted {
			return a, nil
		}
		h.DeleteWanted = true
		return a, h.save(ctx, u, now)
	}
	return a, refuseSession(a, in.verb)
}

// claimedPending is what is pending on a session, with the claim of what carries it
// out: while that is live, an attempt executes.
func (h held) claimedPending(ctx context.Context, tx store.Tx) (*operation.Operation, error) {
	if h.pending == nil || h.boxed == nil {
		return h.pending, nil
	}
	carried, err := carrierOn(ctx, tx, h.pending)
	if err != nil {
		return nil, err
	}
	return withClaimOf(*h.pending, carried), nil
}

// withClaimOf is a session's operation with what is known of the one on its sandbox
// that carries it out: who is at it, what that waits for, and what it met.
func withClaimOf(op operation.Operation, carried *operation.Operation) *operation.Operation {
	if carried == nil || carried.State != operation.StatePending {
		return &op
	}
	op.Claim, op.Holder, op.ClaimedAt, op.ClaimExpires = carried.Claim, carried.Holder, carried.ClaimedAt, carried.ClaimExpires
	op.Attempts, op.LastError = carried.Attempts, carried.LastError
	if carried.WaitsFor != "" {
		op.WaitsFor = carried.WaitsFor
	}
	return &op
}

func noSession(id holdfast.SessionID) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no session %s in this project", id).On(string(id))
}

// wantedLater is what the caller of a delete hears that begins when what was issued is
// finished.
func wantedLater(a ruling) *holdfast.Error {
	return holdfast.E(holdfast.Aborted, holdfast.ReasonClaimed, "the %s of %s was issued and has to be finished first; the delete is recorded, and begins then",
		a.op.Kind, a.row.ID).On(string(a.row.ID)).During(a.op.ID).With("kind", a.op.Kind).With("delete_wanted", "true").Retry(time.Second)
}

// conflicting is what a call hears that another operation is in the way of.
func conflicting(a ruling) error {
	return holdfast.E(holdfast.Aborted, holdfast.ReasonConflict, "the %s of %s was issued, and it is not known how far it came: it is finished first, by repeating it or by the reconciler",
		a.op.Kind, a.row.ID).On(string(a.row.ID)).During(a.op.ID).With("kind", a.op.Kind).Retry(time.Second)
}

// refuseSession says why a verb does not fit, and what would.
func refuseSession(a ruling, verb holdfast.OperationKind) error {
	e := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s, which %s does not fit", a.row.ID, a.row.State, verb).
		On(string(a.row.ID)).With("state", string(a.row.State))
	switch a.row.State {
	case holdfast.SessionWaiting:
		e.Message += ": wait for its environment's build, or delete it"
	case holdfast.SessionCreating:
		e.Message += ": wait until it is READY, or delete it"
	case holdfast.SessionFailed:
		e.Message += ": it can only be deleted"
	case holdfast.SessionDeleting, holdfast.SessionDeleted:
		e.Message += ": create another one"
	}
	if a.op != nil {
		e = e.During(a.op.ID)
	}
	return e
}

// RenameSession sets the name for people; a repeat is harmless, and no operation is
// in its way.
func (s *Service) RenameSession(ctx context.Context, caller holdfast.Caller, in holdfast.RenameSession) (holdfast.Session, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Session{}, err
	}
	var renamed sessionRow
	err := s.update(ctx, "rename session", func(tx store.Tx, now time.Time) error {
		r, found, err := oneSession(ctx, tx, `WHERE id = $1`+tx.ForUpdate(), string(in.ID))
		if err != nil {
			return err
		}
		if !found || r.Project != caller.Project || r.State == holdfast.SessionDeleted {
			return noSession(in.ID)
		}
		renamed = r
		if r.Name == in.Name {
			return nil
		}
		renamed.Name = in.Name
		return renamed.save(ctx, tx, now)
	})
	if err != nil {
		return holdfast.Session{}, err
	}
	return s.showSession(ctx, caller, renamed)
}

// showSessions is sessions as their callers see them, with what is pending.
func (s *Service) showSessions(ctx context.Context, tx store.Tx, list []sessionRow) ([]holdfast.Session, error) {
	ids := make([]holdfast.SessionID, len(list))
	for i, r := range list {
		ids[i] = r.ID
	}
	queues, err := s.queueOf(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	out := make([]holdfast.Session, len(list))
	for i, r := range list {
		pending, err := pendingOn(ctx, tx, r.resource())
		if err != nil {
			return nil, err
		}
		carried, err := carrierOn(ctx, tx, pending)
		if err != nil {
			return nil, err
		}
		out[i] = r.Session
		out[i].Queued, out[i].Running = queues[r.ID].waiting, queues[r.ID].running
		if r.Unreadable != nil && r.Failure == nil {
			out[i].Failure = &holdfast.Failure{Reason: holdfast.ReasonBug, Message: fmt.Sprintf("its record cannot be read: %v", r.Unreadable)}
		}
		if pending != nil {
			op := showOperation(*withClaimOf(*pending, carried), s.databaseClock(), r.DeleteWanted)
			out[i].Operation = &op
		}
	}
	return out, nil
}
