package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// oldEvents finds the projects that have events: each is an item that purges what is
// kept no longer, and ends the recording that nobody asked for lately. One item more
// is what is queued for webhooks. While there is any, the dispatcher runs.
func (s *Service) oldEvents(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	var projects []holdfast.ProjectID
	var queued *string
	err = s.view(ctx, "projects with events", func(tx store.Tx, _ time.Time) (err error) {
		projects, err = gather(ctx, tx, scanProjectID, `SELECT project FROM event_project WHERE project > $1 ORDER BY project LIMIT $2`, after, limit)
		if err == nil && after == "" {
			err = tx.QueryRowContext(ctx, `SELECT MIN(destination) FROM outbox`).Scan(&queued)
		}
		return err
	})
	for _, project := range projects {
		items = append(items, reconcile.Item{Key: string(project), Act: func(ctx context.Context) error { return s.purgeEvents(ctx, project) }})
	}
	if queued != nil {
		s.outbox.begin()
		items = append(items, reconcile.Item{Key: "outbox", Act: s.purgeOutbox})
	}
	if len(projects) == limit {
		next = string(projects[limit-1])
	}
	return items, next, err
}

// purgeEvents numbers what nobody numbered, so that the purge leaves no gap that a
// cursor could fall into, and purges up to the last event that is too old.
func (s *Service) purgeEvents(ctx context.Context, project holdfast.ProjectID) error {
	for more := true; more; {
		var err error
		if more, err = s.numberEvents(ctx, project); err != nil {
			return err
		}
	}
	old := false
	err := s.view(ctx, "old events", func(tx store.Tx, now time.Time) error {
		upTo, err := lastOld(ctx, tx, now, project)
		old = upTo > 0
		return err
	})
	for full := old; full && err == nil; {
		err = s.update(ctx, "purge events", func(tx store.Tx, _ time.Time) (err error) {
			full, err = purgeSomeEvents(ctx, tx, project)
			return err
		})
	}
	if err != nil {
		return err
	}
	stopped, err := s.stopRecording(ctx, project)
	return skippedIf(!old && !stopped, err)
}

// lastOld is the number up to which one batch of a project's events is too old; 0 when
// none is.
func lastOld(ctx context.Context, tx store.Tx, now time.Time, project holdfast.ProjectID) (upTo int64, err error) {
	err = tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(sequence), 0) FROM (SELECT sequence FROM event WHERE project = $1 AND at < $2
		AND sequence > 0 ORDER BY at LIMIT $3) AS old`, string(project), store.Micros(now.Add(-holdfast.EventsKept)), purgeRows).Scan(&upTo)
	if err != nil {
		return 0, fmt.Errorf("old events of %s: %w", project, err)
	}
	return upTo, nil
}

// purgeSomeEvents purges one batch, and reports whether that was a whole one.
func purgeSomeEvents(ctx context.Context, tx store.Tx, project holdfast.ProjectID) (full bool, err error) {
	n, err := lockEvents(ctx, tx, project)
	if err != nil {
		return false, err
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return false, err
	}
	upTo, err := lastOld(ctx, tx, now, project)
	if err != nil || upTo == 0 {
		return false, err
	}
	deleted, err := affected(tx.ExecContext(ctx, `DELETE FROM event WHERE project = $1 AND sequence > 0 AND sequence <= $2`, string(project), upTo))
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE event_project SET purged = $2 WHERE project = $1`, string(project), max(n.purged, upTo))
	}
	if err != nil {
		return false, fmt.Errorf("purge events of %s: %w", project, err)
	}
	return deleted >= purgeRows, nil
}

// stopRecording ends the recording of a project that has no webhook and whose events
// nobody asked for lately. Servers that have not heard record a little longer.
func (s *Service) stopRecording(ctx context.Context, project holdfast.ProjectID) (stopped bool, err error) {
	due := false
	err = s.view(ctx, "who listens", func(tx store.Tx, now time.Time) (err error) {
		due, err = nobodyListens(ctx, tx, now, project, "")
		return err
	})
	if err != nil || !due {
		return false, err
	}
	defer s.listeners.forget() // also where the commit failed: others may have read it meanwhile
	err = s.update(ctx, "stop recording events", func(tx store.Tx, _ time.Time) error {
		stopped = false
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		still, err := nobodyListens(ctx, tx, now, project, tx.ForUpdate())
		if err != nil || !still {
			return err
		}
		if _, err = tx.ExecContext(ctx, `UPDATE event_project SET recording = FALSE WHERE project = $1`, string(project)); err != nil {
			return fmt.Errorf("stop recording events of %s: %w", project, err)
		}
		stopped = true
		return nil
	})
	return stopped, err
}

func nobodyListens(ctx context.Context, tx store.Tx, now time.Time, project holdfast.ProjectID, lock string) (bool, error) {
	n, err := readEvents(ctx, tx, project, lock)
	if err != nil || !n.recording || now.Sub(n.asked) < holdfast.EventsKept {
		return false, err
	}
	var webhooks bool
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM webhook WHERE project = $1)`, string(project)).Scan(&webhooks)
	if err != nil {
		return false, fmt.Errorf("webhooks of %s: %w", project, err)
	}
	return !webhooks, nil
}

// purgeOutbox purges what was sent as long ago as its event is kept, dead letters
// later, and what is queued for webhooks that are gone.
func (s *Service) purgeOutbox(ctx context.Context) error {
	did := false
	for _, p := range []struct {
		state outbox.State
		kept  time.Duration
	}{{outbox.Sent, holdfast.EventsKept}, {outbox.Dead, holdfast.DeadKept}} {
		n, err := s.batches(ctx, func(tx store.Tx, now time.Time) (int, error) {
			return outbox.Purge(ctx, tx, p.state, now.Add(-p.kept), purgeRows)
		})
		if err != nil {
			return err
		}
		did = did || n > 0
	}
	var gone []string
	err := s.view(ctx, "webhooks that are gone", func(tx store.Tx, _ time.Time) error {
		gone = nil
		for after := ""; ; {
			page, err := outbox.Destinations(ctx, tx, after, 100)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, id := range page {
				_, err := oneWebhook(ctx, tx, "", holdfast.WebhookID(id))
				if holdfast.CodeOf(err) == holdfast.NotFound {
					gone = append(gone, id)
				} else if err != nil {
					return err
				}
			}
			after = page[len(page)-1]
		}
	})
	for _, id := range gone {
		if err == nil {
			_, err = s.batches(ctx, func(tx store.Tx, _ time.Time) (int, error) { return outbox.Forget(ctx, tx, id, purgeRows) })
		}
	}
	return skippedIf(!did && len(gone) == 0, err)
}

// batches runs transactions that purge up to purgeRows rows each, until one finds
// fewer, and returns how many were purged.
func (s *Service) batches(ctx context.Context, one func(tx store.Tx, now time.Time) (int, error)) (purged int, err error) {
	for {
		var n int
		err := s.update(ctx, "purge", func(tx store.Tx, now time.Time) (err error) {
			n, err = one(tx, now)
			return err
		})
		if err != nil {
			return purged, err
		}
		if purged += n; n < purgeRows {
			return purged, nil
		}
	}
}
