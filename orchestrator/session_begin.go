package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// A session's operation is carried on by whoever looks at it: each step is one
// transaction under the locks of its rows. What calls the runtime is the operation of
// its sandbox, under a claim of that one's own, and a hook is a process that starts
// once by its request id, so that two who look at the same time do no more than one.

// ruling is what the first transaction of a session's lifecycle call decided.
type ruling struct {
	row    sessionRow
	op     *operation.Operation // pending, as it is to be shown; nil for nothing
	follow string               // the operation to see through; "": the answer is the row
	wanted bool                 // it is not the caller's own: its delete begins when that has ended
}

// beginSession records an intent on a locked session, in place of whatever is
// pending and yields. A suspend or delete closes the door to new tasks (contract: A13).
func (s *Service) beginSession(ctx context.Context, u *unit, now time.Time, h *held, in intent) error {
	if h.pending != nil {
		if err := operation.Supersede(ctx, u, now, h.pending.ID, in.id); err != nil {
			return err
		}
	}
	h.Generation++
	h.HookAt, h.Forced = time.Time{}, in.force
	h.DoorClosed = in.verb == holdfast.OperationSuspend || in.verb == holdfast.OperationDelete
	if in.verb == holdfast.OperationDelete {
		h.State, h.DeleteWanted = holdfast.SessionDeleting, false
	}
	recorded := in.as(h.sessionRow.resource(), h.Generation, now)
	if in.verb == holdfast.OperationReplace {
		recorded.Issued, recorded.WaitsFor = true, string(stageSandbox)
	}
	op, err := operation.Record(ctx, u, now, recorded)
	if err != nil {
		return err
	}
	h.pending = &op
	if err := h.save(ctx, u, now); err != nil {
		return err
	}
	s.ringSoon(u, h.ID)
	if in.verb != holdfast.OperationDelete {
		return nil
	}
	return s.cancelTasks(ctx, u, now, h.ID, &holdfast.Failure{Reason: holdfast.ReasonCancelled, Message: "its session is being deleted"})
}

// step does what a session's pending operation needs next, as far as the database can
// do it, and says what it waits for then.
func (s *Service) step(ctx context.Context, u *unit, now time.Time, h *held) (stage, error) {
	f, err := s.factsOf(ctx, u, *h)
	if err != nil {
		return "", err
	}
	at := nextStage(f)
	if at == stageDrive && h.boxed != nil && h.boxed.Claimed(now) && f.verb != holdfast.OperationDelete {
		at = stageSandbox
	}
	switch at {
	case stageFinish:
		return at, s.apply(ctx, u, now, h, h.reached())
	case stageDrive:
		return stageSandbox, s.driveBox(ctx, u, now, h)
	case stageTask:
		if h.Forced {
			if err := s.cancelRunning(ctx, u, now, h.ID); err != nil {
				return "", err
			}
		}
	case stageHook:
		if h.HookAt.IsZero() {
			h.HookAt = now
			if err := h.save(ctx, u, now); err != nil {
				return "", err
			}
		}
	}
	if h.pending.WaitsFor == string(at) {
		return at, nil
	}
	_, err = operation.Entrust(ctx, u, now, operation.Progress{Issued: h.pending.Issued, WaitsFor: string(at)}, h.pending.ID)
	h.pending.WaitsFor = string(at)
	return at, err
}

func (s *Service) factsOf(ctx context.Context, tx store.Tx, h held) (facts, error) {
	verb := holdfast.OperationKind(h.pending.Kind)
	f := facts{verb: verb, waiting: h.State == holdfast.SessionWaiting, hook: h.hookOf(verb) != "" && h.Hooked != h.pending.ID}
	if h.box != nil {
		f.box = h.box.State
	}
	if h.boxed != nil {
		f.boxed = holdfast.OperationKind(h.boxed.Kind)
	}
	task, err := s.runningTask(ctx, tx, h.ID)
	f.task = task != ""
	return f, err
}

// reached is the end of an operation that has what it wants.
func (h held) reached() following {
	f := following{state: h.State, ends: operation.StateDone}
	switch holdfast.OperationKind(h.pending.Kind) {
	case holdfast.OperationDelete:
		f.state, f.lost = holdfast.SessionDeleted, true
	case holdfast.OperationSuspend:
		f.state = holdfast.SessionSuspended
	default:
		f.state = holdfast.SessionReady
	}
	return f
}

// driveBox begins the sandbox's own operation: the session's counts as issued from
// this transaction on, so that nothing is begun that is not recorded as uncertain, and
// nothing for an intent that is no longer the pending one (contract: A7).
func (s *Service) driveBox(ctx context.Context, u *unit, now time.Time, h *held) error {
	n, err := operation.Entrust(ctx, u, now, operation.Progress{Issued: true, WaitsFor: string(stageSandbox)}, h.pending.ID)
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("drive %s: its operation %s is not pending", h.ID, h.pending.ID)
	}
	h.pending.Issued, h.pending.WaitsFor = true, string(stageSandbox)
	verb := holdfast.OperationKind(h.pending.Kind)
	if verb == holdfast.OperationDelete && h.boxed != nil && h.boxed.Claimed(now) {
		h.box.DeleteWanted = true // whoever ends the claim begins it
		return h.box.save(ctx, u, now)
	}
	in := intent{id: carrierOf(h.pending.ID), verb: verb, cause: causeOf(*h.pending)}
	return s.begin(ctx, u, now, h.box, in)
}

// carrierOf is the id of the sandbox's operation that carries a session's out.
func carrierOf(op string) string {
	return holdfast.DeriveID(holdfast.PrefixOperation, op, "sandbox")
}

// apply records what becomes of a locked session: its end of an operation, its state,
// and what follows of it, in this transaction (contract: B4).
func (s *Service) apply(ctx context.Context, u *unit, now time.Time, h *held, f following) error {
	was := h.sessionRow
	ended := f.ends != "" && h.pending != nil
	if ended {
		if _, err := operation.End(ctx, u, now, h.pending.ID, operation.Outcome{State: f.ends, Failure: f.why}); err != nil {
			return err
		}
		h.DoorClosed, h.Forced = false, false
	}
	h.become(f, now, ended)
	if err := s.tellTasks(ctx, u, now, h, f); err != nil {
		return err
	}
	if ended {
		h.pending = nil
	}
	next := holdfast.OperationKind("")
	switch {
	case h.DeleteWanted && h.pending == nil && h.State != holdfast.SessionDeleted:
		next = holdfast.OperationDelete
	case f.replace:
		next = holdfast.OperationReplace
	}
	if next == "" {
		if sameSession(was, h.sessionRow) {
			return nil
		}
		s.ringSoon(u, h.ID)
		if h.State == holdfast.SessionReady {
			u.soon(func() { s.startNext(h.ID) })
		}
		return h.save(ctx, u, now)
	}
	in := s.intent(next)
	if next == holdfast.OperationReplace {
		in.cause = holdfast.ReasonInstanceLost
	} else {
		u.soon(func() { s.carrySessionSoon(h.ID) })
	}
	return s.beginSession(ctx, u, now, h, in)
}

// become is what a session's own record shows afterwards.
func (h *held) become(f following, now time.Time, ended bool) {
	if h.box != nil {
		h.Incarnation = h.box.Incarnation
	}
	if h.State == f.state {
		return
	}
	h.State = f.state
	switch f.state {
	case holdfast.SessionFailed:
		h.Failure = f.failure
	case holdfast.SessionReady:
		h.SuspendedBy, h.ActiveAt = "", now
	case holdfast.SessionCreating:
		h.SuspendedBy = ""
	case holdfast.SessionSuspended:
		if ended {
			h.SuspendedBy = causeOf(*h.pending)
		}
	case holdfast.SessionDeleted:
		h.DeletedAt, h.DeleteWanted = now, false
	}
}

// tellTasks ends the tasks that have nowhere to run any more.
func (s *Service) tellTasks(ctx context.Context, u *unit, now time.Time, h *held, f following) error {
	if f.lost {
		before := h.Incarnation // what ran on it runs on
		if h.box == nil || !holds(h.box.State) {
			before++
		}
		if err := s.tasksOfLostBoot(ctx, u, now, h.ID, before); err != nil {
			return err
		}
	}
	if f.failure == nil {
		return nil
	}
	return s.cancelTasks(ctx, u, now, h.ID, f.failure)
}

func sameSession(a, b sessionRow) bool {
	return a.State == b.State && a.Incarnation == b.Incarnation && a.DoorClosed == b.DoorClosed && a.Forced == b.Forced &&
		a.DeleteWanted == b.DeleteWanted && a.SuspendedBy == b.SuspendedBy && a.Failure == b.Failure
}

// ringSoon wakes who waits for a session here.
func (s *Service) ringSoon(u *unit, id holdfast.SessionID) {
	u.soon(func() { s.done.ring(string(id)) })
}
