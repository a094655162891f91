package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// hostItems makes a page of hosts, by id, into items.
func (s *Service) hostItems(ctx context.Context, limit int, where string, args func(now time.Time) []any, act func(context.Context, hostRow) error) ([]reconcile.Item, string, error) {
	var hosts []hostRow
	err := s.view(ctx, func(tx store.Tx, now time.Time) (err error) {
		hosts, err = queryHosts(ctx, tx, where+` ORDER BY id LIMIT $2`, args(now)...)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	items := make([]reconcile.Item, len(hosts))
	for i, h := range hosts {
		items[i] = reconcile.Item{Key: string(h.ID), Act: func(ctx context.Context) error { return act(ctx, h) }}
	}
	next := ""
	if len(hosts) == limit {
		next = string(hosts[limit-1].ID)
	}
	return items, next, nil
}

func (s *Service) pageSilentHosts(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	return s.hostItems(ctx, limit, `WHERE id > $1 AND health <> 'LOST' AND seen_at <= $3`, func(now time.Time) []any {
		return []any{after, limit, store.Micros(now.Add(-s.limits.SuspectAfter))}
	}, s.judgeSilence)
}

// judgeSilence asks a silent host itself before anything is held against it.
func (s *Service) judgeSilence(ctx context.Context, h hostRow) error {
	asking, cancel := context.WithTimeout(ctx, s.limits.AskTimeout)
	defer cancel()
	_, silence := s.list(asking, h)
	var health holdfast.HostHealth
	err := s.db.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		health = planHost(h, silence == nil, now, s.limits)
		return writeHealth(ctx, tx, h, health, now)
	})
	if err != nil {
		return err
	}
	if health != h.Health {
		s.log.LogAttrs(ctx, slog.LevelWarn, "host health changed", slog.String("host", string(h.ID)),
			slog.String("from", string(h.Health)), slog.String("to", string(health)), slog.Any("error", silence))
	}
	return nil
}

// writeHealth changes nothing if the host was heard meanwhile. Its instances
// come first, as everywhere (contract: D3).
func writeHealth(ctx context.Context, tx store.Tx, h hostRow, health holdfast.HostHealth, now time.Time) error {
	seenAt := h.SeenAt
	switch health {
	case holdfast.HostReady:
		seenAt = now
	case h.Health:
		return reconcile.ErrSkipped
	default:
		if err := doubtAll(ctx, tx, h.ID, now); err != nil {
			return err
		}
	}
	healthAt := h.healthAt
	if health != h.Health {
		healthAt = now
	}
	n, err := affected(tx.ExecContext(ctx, `UPDATE host SET health = $1, health_at = $2, seen_at = $3 WHERE id = $4 AND seen_at = $5`,
		string(health), store.Micros(healthAt), store.Micros(seenAt), string(h.ID), store.Micros(h.SeenAt)))
	if err != nil {
		return fmt.Errorf("set the health of %s: %w", h.ID, err)
	}
	if n == 0 {
		return reconcile.ErrSkipped // a heartbeat came: roll back
	}
	return nil
}

// doubtAll makes a silent host's instances UNKNOWN; what they were is kept.
func doubtAll(ctx context.Context, tx store.Tx, host holdfast.HostID, now time.Time) error {
	_, err := tx.ExecContext(ctx, `UPDATE instance SET known = state, state = 'UNKNOWN', revision = revision + 1, entered_at = $1,
		due_at = CASE WHEN desired IN ('EXITED', 'ABSENT') THEN due_at ELSE 0 END
		WHERE host = $2 AND state <> 'ABSENT' AND state IN ('PREPARING', 'BOOTING', 'RUNNING', 'SUSPENDED', 'STOPPING')`, store.Micros(now), string(host))
	if err != nil {
		return fmt.Errorf("doubt the instances of %s: %w", host, err)
	}
	return nil
}

// list is a host's own list. A host whose address another one has taken since
// cannot be asked; what answers there is that other one.
func (s *Service) list(ctx context.Context, h hostRow) ([]holdfast.Observation, error) {
	if h.shadowed {
		return nil, errors.New("another host answers at its address")
	}
	observed, err := s.dial(h.URL).ListInstances(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range observed {
		if o.Host != "" && o.Host != h.ID {
			return nil, fmt.Errorf("host %s answers at its address", o.Host)
		}
	}
	return observed, nil
}
