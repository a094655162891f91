package orchestrator

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// sessionFollows lets a session follow its sandbox, in the transaction that changes
// that: a sandbox's end is its session's, and so is the end of what was done to it.
func (s *Service) sessionFollows(ctx context.Context, u *unit, now time.Time, box row) error {
	own, found, err := oneSession(ctx, u, `WHERE id = $1`+u.ForUpdate(), box.Owner)
	if err != nil || !found || own.Sandbox != box.ID {
		return err
	}
	h := held{sessionRow: own, box: &box}
	if h.pending, err = pendingOn(ctx, u, own.resource()); err != nil {
		return err
	}
	carried, err := carrierOn(ctx, u, h.pending)
	if err != nil {
		return err
	}
	if carried != nil && carried.State == operation.StateDone && h.hookOf(holdfast.OperationKind(h.pending.Kind)) != "" {
		u.soon(func() { s.carrySessionSoon(own.ID) }) // the hook on resuming comes next
	}
	return s.apply(ctx, u, now, &h, follow(own, h.pending, box, carried))
}

// carrierOn is the sandbox's operation that carries out what is pending on a session,
// nil while it was not begun.
func carrierOn(ctx context.Context, tx store.Tx, pending *operation.Operation) (*operation.Operation, error) {
	if pending == nil {
		return nil, nil
	}
	op, err := operation.Get(ctx, tx, carrierOf(pending.ID))
	if errors.Is(err, operation.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &op, nil
}

// sessionIssued notes, in the transaction that claims a sandbox's operation, that its
// session's is uncertain until that has ended (contract: A7).
func (s *Service) sessionIssued(ctx context.Context, tx store.Tx, now time.Time, box row) error {
	pending, err := pendingOn(ctx, tx, operation.Resource{Kind: kindSession, ID: box.Owner})
	if err != nil || pending == nil || pending.Issued {
		return err
	}
	_, err = operation.Entrust(ctx, tx, now, operation.Progress{Issued: true, WaitsFor: string(stageSandbox)}, pending.ID)
	return err
}

// sessionNotIssued notes, in the transaction that releases the claim, that nothing was
// begun: the session's operation yields again, and a delete that waited for it begins.
func (s *Service) sessionNotIssued(ctx context.Context, u *unit, now time.Time, box row, waitsFor string) error {
	own, found, err := oneSession(ctx, u, `WHERE id = $1`+u.ForUpdate(), box.Owner)
	if err != nil || !found {
		return err
	}
	h := held{sessionRow: own, box: &box}
	if h.pending, err = pendingOn(ctx, u, own.resource()); err != nil || h.pending == nil || h.pending.Kind == string(holdfast.OperationDelete) {
		return err
	}
	if _, err := operation.Entrust(ctx, u, now, operation.Progress{WaitsFor: waitsFor}, h.pending.ID); err != nil || !h.DeleteWanted {
		return err
	}
	u.soon(func() { s.carrySessionSoon(own.ID) })
	return s.beginSession(ctx, u, now, &h, s.intent(holdfast.OperationDelete))
}
