package orchestrator

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// replaces reports whether a policy has lost instances booted anew.
func replaces(policy holdfast.Restart) bool {
	return policy == holdfast.RestartFresh || policy == holdfast.RestartFromCheckpoint
}

// replaceable reports whether a sandbox whose instance is confirmed gone is
// booted anew: by its policy, when it had been ready. A boot that fails is no
// loss; during a replacement only what the host did to it is.
func replaceable(r row, pending holdfast.OperationKind, failure *holdfast.Failure) bool {
	if !replaces(r.Restart) || r.DeleteWanted {
		return false
	}
	switch r.State {
	case holdfast.SandboxReady, holdfast.SandboxSuspended:
		return true
	case holdfast.SandboxCreating:
		return pending == holdfast.OperationReplace &&
			(failure.Reason == holdfast.ReasonInstanceLost || failure.Reason == holdfast.ReasonHostRebooted)
	}
	return false
}

// replaceRow begins the replacement of a lost instance. Nothing is pending any
// more. The generation rises, so that the fleet and the hosts take the level of
// the new incarnation for the newer one, and give back what the old one left.
func (s *Service) replaceRow(ctx context.Context, tx store.Tx, now time.Time, r *row, failure *holdfast.Failure) error {
	r.State, r.Ports, r.GuestSaid = holdfast.SandboxCreating, nil, ""
	r.Incarnation, r.MintedAt = r.Incarnation+1, now
	if r.Restart == holdfast.RestartFromCheckpoint {
		if err := r.goBack(ctx, tx); err != nil {
			return err
		}
	}
	in := s.intent(holdfast.OperationReplace)
	in.cause = failure.Reason
	if err := r.raiseFor(ctx, tx, now, in.verb); err != nil {
		return err
	}
	_, err := operation.Record(ctx, tx, now, in.on(*r, now))
	return err
}

// lostRow is the final fact that an instance is gone: it ends any operation but
// a delete, whatever the claim, and the sandbox is replaced or FAILED, as its
// policy says. It reports which.
func (s *Service) lostRow(ctx context.Context, tx store.Tx, now time.Time, r *row, failure *holdfast.Failure) (replaced bool, err error) {
	pending, has, err := operation.Pending(ctx, tx, r.resource())
	if err != nil {
		return false, err
	}
	if !replaceable(*r, holdfast.OperationKind(pending.Kind), failure) {
		return false, s.failRow(ctx, tx, now, r, failure)
	}
	if has {
		why := recordable(beingReplaced(*r, failure), nil)
		_, err := operation.End(ctx, tx, now, pending.ID, operation.Outcome{State: operation.StateFailed, Failure: why})
		if err == nil {
			err = s.dropCheckpoint(ctx, tx, now, pending, failure)
		}
		if err != nil {
			return false, err
		}
		if err := s.tellFailed(ctx, tx, now, *r, failedOperation{pending.ID, pending.Kind, why}); err != nil {
			return false, err
		}
	}
	return true, s.replaceRow(ctx, tx, now, r, failure)
}

// beingReplaced is what a call hears whose sandbox is being replaced.
func beingReplaced(r row, failure *holdfast.Failure) *holdfast.Error {
	return holdfast.E(holdfast.Aborted, holdfast.ReasonSuperseded,
		"the instance of %s was lost (%s: %s) and is being replaced by another incarnation", r.ID, failure.Reason, failure.Message).
		On(string(r.ID)).With("failure", string(failure.Reason))
}
