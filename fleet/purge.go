package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// purgeBatch bounds the rows that one transaction deletes.
const purgeBatch = 500

// pagePurges has one item for tombstones and one for sent outbox rows, on the
// first page, and one for each source of deliveries.
func (s *Service) pagePurges(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	if after == "" {
		items = append(items, s.purge("tombstones", purgeTombstones),
			s.purge("outbox", func(ctx context.Context, tx store.Tx, before time.Time) (int, error) {
				return outbox.Purge(ctx, tx, outbox.Sent, before, purgeBatch)
			}))
	}
	var sources []string
	err = s.db.View(ctx, func(tx store.Tx) (err error) {
		sources, err = inbox.Sources(ctx, tx, after, limit)
		return err
	})
	if err != nil {
		return items, "", fmt.Errorf("page the inbox's sources: %w", err)
	}
	for _, source := range sources {
		items = append(items, s.purge(source, func(ctx context.Context, tx store.Tx, before time.Time) (int, error) {
			return inbox.Purge(ctx, tx, source, before, purgeBatch)
		}))
	}
	if len(sources) == limit {
		next = sources[limit-1]
	}
	return items, next, nil
}

// purge deletes what is past its time, a batch a transaction, until none is left.
func (s *Service) purge(key string, batch func(context.Context, store.Tx, time.Time) (int, error)) reconcile.Item {
	return reconcile.Item{Key: key, Act: func(ctx context.Context) error {
		for total := 0; ; {
			var n int
			err := s.db.Update(ctx, func(tx store.Tx) error {
				now, err := tx.Now(ctx)
				if err != nil {
					return fmt.Errorf("read the clock: %w", err)
				}
				n, err = batch(ctx, tx, now.Add(-s.limits.Kept))
				return err
			})
			if err != nil {
				return fmt.Errorf("purge %s: %w", key, err)
			}
			if total += n; total == 0 {
				return reconcile.ErrSkipped
			}
			if n < purgeBatch {
				return nil
			}
		}
	}}
}

func purgeTombstones(ctx context.Context, tx store.Tx, before time.Time) (int, error) {
	n, err := affected(tx.ExecContext(ctx, `DELETE FROM instance WHERE id IN (SELECT id FROM instance
		WHERE tombstone_at > 0 AND tombstone_at <= $1 AND held = 0 ORDER BY tombstone_at, id LIMIT $2)`,
		store.Micros(before), purgeBatch))
	return int(n), err
}
