package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// expirySuspendRetry is how long expiry leaves a sandbox alone whose suspension
// at the lifetime's end was refused or given up: the journal says why.
const expirySuspendRetry = 5 * time.Minute

// expired finds what is over: lifetimes, retentions, and the time for which the
// record of a FAILED one is kept. The index holds what ends some day, so that a
// page costs what is overdue (contract: A11, C1).
func (s *Service) expired(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	at, last, err := parseExpiryKey(after)
	if err != nil {
		return nil, "", err
	}
	err = s.view(ctx, "overdue lifetimes", func(tx store.Tx, now time.Time) (err error) {
		items, next = nil, ""
		rs, err := tx.QueryContext(ctx, `SELECT id, expires_at FROM sandbox
			WHERE expires_at > 0 AND expires_at <= $1 AND (expires_at, id) > ($2, $3) ORDER BY expires_at, id LIMIT $4`,
			store.Micros(now), at, last, limit)
		if err != nil {
			return fmt.Errorf("read overdue sandboxes: %w", err)
		}
		defer func() { err = errors.Join(err, rs.Close()) }()
		for rs.Next() {
			var id holdfast.SandboxID
			var expires int64
			if err := rs.Scan(&id, &expires); err != nil {
				return fmt.Errorf("read overdue sandboxes: %w", err)
			}
			next = expiryKey(expires, id)
			items = append(items, reconcile.Item{Key: string(id), Act: func(ctx context.Context) error { return s.expire(ctx, id) }})
		}
		if len(items) < limit {
			next = ""
		}
		return rs.Err()
	})
	return items, next, err
}

func expiryKey(expires int64, id holdfast.SandboxID) string {
	return strconv.FormatInt(expires, 10) + "/" + string(id)
}

func parseExpiryKey(key string) (expires int64, id string, err error) {
	if key == "" {
		return 0, "", nil
	}
	n, id, ok := strings.Cut(key, "/")
	if expires, err = strconv.ParseInt(n, 10, 64); err != nil || !ok {
		return 0, "", fmt.Errorf("%q is no key of an overdue sandbox", key)
	}
	return expires, id, nil
}

// expire begins what the end brings, in one transaction where the row is overdue
// by the database's clock and no claim is live; then the operation is like any
// other. Beginning is quick and the carrying out is apart, so that a host that
// hangs keeps nobody else's lifetime from ending.
func (s *Service) expire(ctx context.Context, id holdfast.SandboxID) error {
	var began bool
	err := s.update(ctx, "expire", func(tx store.Tx, _ time.Time) error {
		began = false
		r, found, now, err := lockRow(ctx, tx, id)
		if err != nil || !found {
			return err
		}
		journal, err := operation.List(ctx, tx, operation.Filter{Resource: r.resource(), Newest: true, Limit: 1})
		if err != nil {
			return err
		}
		var last *operation.Operation
		if len(journal) > 0 {
			last = &journal[0]
		}
		verb := decideExpiry(r, last, now)
		if verb == "" {
			return nil
		}
		in := s.intent(verb)
		in.cause = holdfast.ReasonExpired
		if err := s.begin(ctx, tx, now, &r, in); err != nil {
			return err
		}
		began = true
		return nil
	})
	if err == nil && !began {
		return reconcile.ErrSkipped
	}
	if err == nil {
		s.carryOnIfRoom(id)
	}
	return err
}

// decideExpiry is the verb that a sandbox's end brings now, or "". last is the
// newest operation of its journal: the pending one, if one is pending.
func decideExpiry(r row, last *operation.Operation, now time.Time) holdfast.OperationKind {
	if r.ExpiresAt.IsZero() || r.ExpiresAt.After(now) {
		return ""
	}
	if r.State == holdfast.SandboxDeleting || r.State == holdfast.SandboxDeleted {
		return ""
	}
	pending := last != nil && last.State == operation.StatePending
	if pending && last.Claimed(now) {
		return ""
	}
	if r.Retained || r.OnExpiry != holdfast.ExpirySuspend {
		return holdfast.OperationDelete // whatever is pending
	}
	switch {
	case r.State != holdfast.SandboxReady: // a replacement is under way: the suspension waits for READY
		return ""
	case pending && last.Kind == string(holdfast.OperationSuspend): // on its way already
		return ""
	case last != nil && last.State == operation.StateFailed && causeOf(*last) == holdfast.ReasonExpired &&
		now.Sub(last.FinishedAt) < expirySuspendRetry:
		return ""
	}
	return holdfast.OperationSuspend
}

// begin records an intent that nobody claims yet, in place of whatever is
// pending and unclaimed.
func (s *Service) begin(ctx context.Context, tx store.Tx, now time.Time, r *row, in intent) error {
	pending, has, err := operation.Pending(ctx, tx, r.resource())
	if err != nil {
		return err
	}
	if has {
		if err := s.supersede(ctx, tx, now, pending, in); err != nil {
			return err
		}
	}
	if err := r.raiseFor(ctx, tx, now, in.verb); err != nil {
		return err
	}
	_, err = operation.Record(ctx, tx, now, in.on(*r, now))
	return err
}
