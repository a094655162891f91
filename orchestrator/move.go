package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// leaving says why a sandbox is to be booted anew on another host, by its policy:
// its host is lost, or is being drained; nil when it stays (contract: C5).
func leaving(r row, seen holdfast.Observation) *holdfast.Failure {
	if !replaces(r.Restart) || r.DeleteWanted || seen.Incarnation != r.Incarnation {
		return nil
	}
	switch {
	case seen.State == holdfast.InstanceUnknown && seen.HostHealth == holdfast.HostLost:
		return &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: fmt.Sprintf("host %s, which had it, is lost", seen.Host)}
	case seen.HostDuty == holdfast.HostDraining && !seen.Stale && resting(r):
		return &holdfast.Failure{Reason: holdfast.ReasonHostDraining, Message: fmt.Sprintf("host %s, which has it, is being drained", seen.Host)}
	}
	return nil
}

// move begins the replacement of a sandbox that leaves its host, if the fleet
// still says so and no attempt is at it. Off a draining host only what has
// nothing pending moves; a lost one ends what it keeps waiting.
func (s *Service) move(ctx context.Context, id holdfast.InstanceID) error {
	seen, err := s.config.Fleet.GetInstance(ctx, id)
	if err != nil {
		return err
	}
	var e exit
	err = s.update(ctx, "move", func(tx store.Tx, _ time.Time) error {
		e = exit{}
		r, found, now, err := lockByInstance(ctx, tx, id)
		if err != nil || !found {
			return err
		}
		why := leaving(r, seen)
		if why == nil {
			return nil
		}
		pending, has, err := operation.Pending(ctx, tx, r.resource())
		if err != nil || has && (pending.Claimed(now) || why.Reason == holdfast.ReasonHostDraining) ||
			!replaceable(r, holdfast.OperationKind(pending.Kind), why) {
			return err
		}
		e.sandbox = r.ID
		e.replaced, err = s.lostRow(ctx, tx, now, &r, why)
		return err
	})
	s.exited(e, err)
	if err == nil && !e.replaced {
		err = reconcile.ErrSkipped
	}
	return err
}
