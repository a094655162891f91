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

// The names of the sessions' sweeps.
const (
	SweepSessionOperations = "session-operations" // pending, and nobody has looked at it for a while
	SweepSessionWaiting    = "session-waiting"    // WAITING, and its build has ended
	SweepSessionPurge      = "session-purge"      // tombstones that were kept long enough
)

// dueSessions finds sessions' operations that nobody has touched for a while. Those
// that wait for a build are the other sweep's.
func (s *Service) dueSessions(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	idle := holdfast.OperationUnclaimedAfter
	if s.config.SweepEvery > 0 {
		idle = min(idle, s.config.SweepEvery)
	}
	err = s.view(ctx, "due operations of sessions", func(tx store.Tx, now time.Time) error {
		items, next = nil, ""
		due, err := operation.Due(ctx, tx, now, operation.DueFilter{ResourceKind: kindSession, Idle: idle, After: after, Limit: limit})
		if err != nil {
			return err
		}
		for _, op := range due {
			if op.WaitsFor == string(stageBuild) {
				continue
			}
			id := holdfast.SessionID(op.Resource.ID)
			items = append(items, reconcile.Item{Key: op.ID, Act: func(ctx context.Context) error { return s.carrySession(ctx, id) }})
		}
		if len(due) == limit {
			next = due[len(due)-1].DueKey()
		}
		return nil
	})
	return items, next, err
}

// oldSessions finds sessions that were deleted longer ago than tombstones are kept.
func (s *Service) oldSessions(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	ids, next, err := s.overdue(ctx, `SELECT id, deleted_at FROM session WHERE deleted_at > 0 AND deleted_at <= $1
		AND (deleted_at, id) > ($2, $3) ORDER BY deleted_at, id LIMIT $4`, after, limit)
	for _, id := range ids {
		items = append(items, reconcile.Item{Key: string(id), Act: func(ctx context.Context) error {
			return s.purgeSession(ctx, holdfast.SessionID(id))
		}})
	}
	return items, next, err
}

// purgeSession removes a tombstone with its tasks, journal and labels, in small transactions;
// the request key stays (contract: A3).
func (s *Service) purgeSession(ctx context.Context, id holdfast.SessionID) error {
	if err := s.purgeTasks(ctx, id); err != nil {
		return err
	}
	for more := true; more; {
		err := s.update(ctx, "purge session", func(tx store.Tx, now time.Time) error {
			more = false
			r, found, err := oneSession(ctx, tx, `WHERE id = $1`+tx.ForUpdate(), string(id))
			if err != nil || !found || r.DeletedAt.IsZero() || r.DeletedAt.After(now.Add(-holdfast.TombstoneKept)) {
				return err
			}
			if _, has, err := operation.Pending(ctx, tx, r.resource()); err != nil || has {
				return errPendingOn(id, err)
			}
			n, err := operation.Purge(ctx, tx, r.resource(), purgeRows)
			if more = n == purgeRows; err != nil || more {
				return err
			}
			for _, query := range []string{`DELETE FROM session_label WHERE session = $1`, `DELETE FROM session WHERE id = $1`} {
				if _, err := tx.ExecContext(ctx, query, string(id)); err != nil {
					return fmt.Errorf("purge session %s: %w", id, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func errPendingOn(id holdfast.SessionID, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("session %s is deleted, and an operation is pending on it, so it is kept", id)
}
