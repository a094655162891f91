package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// The names of the sweeps of tasks.
const (
	SweepTasks = "tasks"        // queued, running without news, or ended and their output not kept
	SweepIdle  = "session-idle" // sessions that nothing is done with
)

// The periods of those sweeps: a process without news is asked for within 15 s.
const (
	taskSweepEvery = 5 * time.Second
	idleSweepEvery = 15 * time.Second
)

// dueTasks finds tasks that are to be looked at: queued ones that something should
// have started, running ones without news, ended ones whose output is not kept yet.
func (s *Service) dueTasks(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	return s.overduePage(ctx, "due tasks", overdueQuery{`SELECT id, look_at FROM task
		WHERE look_at > 0 AND look_at <= $1 AND (look_at, id) > ($2, $3) ORDER BY look_at, id LIMIT $4`,
		func(ctx context.Context, id string) error { return s.lookAtTask(ctx, holdfast.TaskID(id)) }}, after, limit)
}

// purgeTasks removes the tasks of a session whose tombstone was kept long enough, and
// what was kept of their output, by whichever attempt. The request ids of their submits
// stay (contract: A3).
func (s *Service) purgeTasks(ctx context.Context, session holdfast.SessionID) error {
	for {
		var some []taskRow
		err := s.view(ctx, "a purged session's tasks", func(tx store.Tx, now time.Time) (err error) {
			some, err = tasks(ctx, tx, `WHERE session = $1 AND EXISTS (SELECT 1 FROM session s WHERE s.id = $1
				AND s.deleted_at > 0 AND s.deleted_at <= $2) ORDER BY id LIMIT 100`, string(session), store.Micros(now.Add(-holdfast.TombstoneKept)))
			return err
		})
		if err != nil || len(some) == 0 {
			return err
		}
		for _, t := range some {
			if err := s.removeObjects(ctx, taskPrefix(t.ID)); err != nil {
				return fmt.Errorf("remove the output of %s: %w", t.ID, err)
			}
			err := s.update(ctx, "purge a task", func(tx store.Tx, _ time.Time) error {
				_, err := tx.ExecContext(ctx, `DELETE FROM task WHERE id = $1`, string(t.ID))
				return err
			})
			if err != nil {
				return err
			}
		}
	}
}
