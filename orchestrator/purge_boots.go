package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// oldBoots finds sandboxes of which an earlier boot left rows, and whose present
// boot was minted longer ago than those are kept.
func (s *Service) oldBoots(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	ids, next, err := s.overdue(ctx, `SELECT id, minted_at FROM sandbox WHERE incarnation > boots_purged + 1 AND minted_at <= $1
		AND (minted_at, id) > ($2, $3) ORDER BY minted_at, id LIMIT $4`, after, limit)
	for _, id := range ids {
		items = append(items, reconcile.Item{Key: string(id), Act: func(ctx context.Context) error { return s.purgeOldBoots(ctx, id) }})
	}
	return items, next, err
}

// purgeOldBoots purges the request ids of processes of boots that are over, and
// what those boots delivered. The rows of the present boot stay, however old.
func (s *Service) purgeOldBoots(ctx context.Context, id holdfast.SandboxID) error {
	for {
		more, done := false, false
		err := s.update(ctx, "purge old boots", func(tx store.Tx, _ time.Time) (err error) {
			more, done, err = purgeBootsBefore(ctx, tx, id)
			return err
		})
		if err != nil || !more {
			return skippedIf(!done, err)
		}
	}
}

// purgeBootsBefore is one transaction, of at most purgeRows rows of each kind.
func purgeBootsBefore(ctx context.Context, tx store.Tx, id holdfast.SandboxID) (more, done bool, err error) {
	r, found, now, err := lockRow(ctx, tx, id)
	if err != nil || !found || r.MintedAt.After(now.Add(-holdfast.TombstoneKept)) {
		return false, false, err
	}
	var purged int64
	if err := tx.QueryRowContext(ctx, `SELECT boots_purged FROM sandbox WHERE id = $1`, string(id)).Scan(&purged); err != nil {
		return false, false, fmt.Errorf("read what is purged of %s: %w", id, err)
	}
	if purged+1 >= r.Incarnation {
		return false, false, nil
	}
	n, err := purgeProcessRequests(ctx, tx, id, r.Incarnation, purgeRows)
	if err != nil || n == purgeRows {
		return true, true, err
	}
	over := purged + 1 // a boot a transaction: each has a source of its own
	if n, err = inbox.Purge(ctx, tx, delivery.InstanceSource(string(r.Instance), over), now, purgeRows); err != nil {
		return false, false, err
	}
	if n == purgeRows {
		return true, true, nil
	}
	if _, err = tx.ExecContext(ctx, `UPDATE sandbox SET boots_purged = $2 WHERE id = $1`, string(id), over); err != nil {
		return false, false, fmt.Errorf("note what is purged of %s: %w", id, err)
	}
	return over+1 < r.Incarnation, true, nil
}
