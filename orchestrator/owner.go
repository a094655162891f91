package orchestrator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// unit is a transaction of this service, with what is to be done once it is
// committed. It is made anew whenever the transaction's function runs again.
type unit struct {
	store.Tx
	service *Service
	after   []func()
}

// soon asks for something to be done when the transaction is committed. It is a
// hint: a process that dies in between loses it, and a sweep finds what it was about.
func (u *unit) soon(do func()) { u.after = append(u.after, do) }

func (u *unit) committed() {
	if u == nil {
		return
	}
	for _, do := range u.after {
		do()
	}
}

// tellOwner lets what a sandbox belongs to follow it, in the same transaction: a
// sandbox's end is its session's (lifecycle.md, "Session").
func (r *row) tellOwner(ctx context.Context, tx store.Tx, now time.Time) error {
	if r.Owner == "" {
		return nil
	}
	u, ok := tx.(*unit)
	if !ok {
		return fmt.Errorf("sandbox %s belongs to %s, which would not hear of this transaction", r.ID, r.Owner)
	}
	return u.service.ownerFollows(ctx, u, now, *r)
}

// ownerFollows is what the owner's own record makes of its sandbox as it is now.
// The sandbox's row is locked, and the owner's is locked after it.
func (s *Service) ownerFollows(ctx context.Context, u *unit, now time.Time, r row) error {
	if r.ofSession() {
		return s.sessionFollows(ctx, u, now, r)
	}
	if strings.HasPrefix(r.Owner, holdfast.PrefixBuild+"-") {
		return s.buildFollows(ctx, u, now, r)
	}
	return fmt.Errorf("sandbox %s belongs to %s, which is of no kind that has sandboxes", r.ID, r.Owner)
}

// ofSession reports whether a sandbox belongs to a session.
func (r row) ofSession() bool { return strings.HasPrefix(r.Owner, holdfast.PrefixSession+"-") }

// ownerIssued tells the owner, in the transaction that claims its sandbox's operation,
// that an attempt begins.
func (s *Service) ownerIssued(ctx context.Context, tx store.Tx, now time.Time, r row) error {
	if r.ofSession() {
		return s.sessionIssued(ctx, tx, now, r)
	}
	return nil
}

// ownerReleased tells the owner what an attempt met that ended without an end, in the
// transaction that releases its claim.
func (s *Service) ownerReleased(ctx context.Context, tx store.Tx, now time.Time, r row, j judgement) error {
	if u, ok := tx.(*unit); ok && r.ofSession() && j.err != nil && j.err.Reason == holdfast.ReasonNoCapacity {
		return s.sessionNotIssued(ctx, u, now, r, j.waitsFor)
	}
	return nil
}

// livesAsOwner takes away the end of its own that a sandbox has otherwise: what it
// belongs to decides (contract: A11).
func (r *row) livesAsOwner() {
	if r.Owner != "" {
		r.ExpiresAt, r.Retained = time.Time{}, false
	}
}

// owned refuses a lifecycle call to what belongs to another resource.
func owned(r row) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonOwned, "%s belongs to %s: ask for that instead", r.ID, r.Owner).
		On(string(r.ID)).With("owner", r.Owner)
}
