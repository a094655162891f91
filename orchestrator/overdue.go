package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// overdueQuery finds what is overdue, and what to do about one of it. $1 is the database's clock, ($2,
// $3) the instant and the id that the page before ended with, $4 how many. It selects
// an id and its instant, in the order of both, from an index that holds what will be
// overdue some day: a page costs what is overdue.
type overdueQuery struct {
	sql string
	act func(ctx context.Context, id string) error
}

// overduePage reads one page.
func (s *Service) overduePage(ctx context.Context, what string, q overdueQuery, after string, limit int) (items []reconcile.Item, next string, err error) {
	at, last, err := parseExpiryKey(after)
	if err != nil {
		return nil, "", err
	}
	err = s.view(ctx, what, func(tx store.Tx, now time.Time) (err error) {
		items, next = nil, ""
		rs, err := tx.QueryContext(ctx, q.sql, store.Micros(now), at, last, limit)
		if err != nil {
			return fmt.Errorf("read %s: %w", what, err)
		}
		defer func() { err = errors.Join(err, rs.Close()) }()
		for rs.Next() {
			var id string
			var since int64
			if err := rs.Scan(&id, &since); err != nil {
				return fmt.Errorf("read %s: %w", what, err)
			}
			next = fmt.Sprintf("%d/%s", since, id)
			items = append(items, reconcile.Item{Key: id, Act: func(ctx context.Context) error { return q.act(ctx, id) }})
		}
		if len(items) < limit {
			next = ""
		}
		return rs.Err()
	})
	return items, next, err
}
