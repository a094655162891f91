package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

// rosterAge is how old a roster may be before a placement reads the hosts again.
const rosterAge = time.Second

// roster is the hosts as read a moment ago: a hint for placement, so that not
// every create reads them all. Nothing is decided by it: a reservation is
// conditional on the host's row, and a placement that fails by it reads afresh.
type roster struct {
	mu   sync.Mutex
	list []hostRow
	at   time.Time
}

// hosts returns the roster, read in the transaction if it is too old. The slice
// is shared and not changed.
func (r *roster) hosts(ctx context.Context, tx store.Tx, now time.Time) ([]hostRow, error) {
	if list := r.recent(now); len(list) > 0 {
		return list, nil
	}
	list, err := queryHosts(ctx, tx, `ORDER BY id`)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.list, r.at = list, now
	r.mu.Unlock()
	return list, nil
}

// recent is the roster unless it is too old; then it is empty.
func (r *roster) recent(now time.Time) []hostRow {
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := now.Sub(r.at); age < 0 || age >= rosterAge {
		return nil
	}
	return r.list
}
