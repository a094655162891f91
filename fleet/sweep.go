package fleet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// The sweeps, by the names that Sweep and the registry use.
const (
	SweepHosts     = "fleet-hosts"     // silent hosts
	SweepReturns   = "fleet-returns"   // hosts that are heard again
	SweepLosses    = "fleet-losses"    // hosts to give up, and those given up or retired
	SweepDraining  = "fleet-draining"  // draining hosts
	SweepOverdue   = "fleet-overdue"   // instances past a deadline
	SweepInstances = "fleet-instances" // each host's instances, both ways
	SweepPurge     = "fleet-purge"     // tombstones, inbox and outbox rows kept long enough
)

// backlogPace is the least time between the beginnings of two items where a long
// downtime leaves very many: callers are served meanwhile (trap T30).
const backlogPace = 2 * time.Millisecond

// Sweeps are the fleet's loops. Run runs them; a simulation may run them itself.
func (s *Service) Sweeps() []reconcile.Sweep {
	return []reconcile.Sweep{
		{Name: SweepHosts, Every: s.limits.HealthEvery, Page: s.pageSilentHosts, ItemTimeout: s.limits.CallTimeout, Concurrency: 16},
		{Name: SweepReturns, Every: s.limits.HealthEvery, Page: s.pageReturns, ItemTimeout: 2 * time.Minute, Concurrency: 8},
		{Name: SweepLosses, Every: s.limits.SweepEvery, Page: s.pageLosses, ItemTimeout: 2 * time.Minute, Concurrency: 8},
		{Name: SweepDraining, Every: s.limits.SweepEvery, Page: s.pageDraining},
		{Name: SweepOverdue, Every: s.limits.SweepEvery, Page: s.pageOverdue, ItemTimeout: 2 * s.limits.CallTimeout,
			Concurrency: 8, Pace: backlogPace},
		{Name: SweepInstances, Every: s.limits.SweepEvery, Page: s.pageHosts, ItemTimeout: 2 * time.Minute, Concurrency: 8},
		{Name: SweepPurge, Every: time.Hour, Page: s.pagePurges, ItemTimeout: time.Minute},
	}
}

// pageOverdue pages by (due_at, id), the index's order: its cost follows what is
// overdue, and what was looked at goes to the end (T29).
func (s *Service) pageOverdue(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	dueText, id, _ := strings.Cut(after, " ")
	due, err := strconv.ParseInt("0"+dueText, 10, 64)
	if err != nil {
		return nil, "", fmt.Errorf("page key %q: %w", after, err)
	}
	var rows []row
	err = s.view(ctx, func(tx store.Tx, now time.Time) (err error) {
		rows, err = queryInstances(ctx, tx, `WHERE due_at > 0 AND due_at <= $1 AND (due_at > $2 OR due_at = $2 AND id > $3)
			ORDER BY due_at, id LIMIT $4`, store.Micros(now), due, id, limit)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	for _, r := range rows {
		items = append(items, reconcile.Item{Key: string(r.id), Act: func(ctx context.Context) error { return s.resolve(ctx, r.id) }})
	}
	if len(rows) == limit {
		last := rows[limit-1]
		next = strconv.FormatInt(store.Micros(last.dueAt), 10) + " " + string(last.id)
	}
	return items, next, nil
}

// resolve asks the host about an instance past its deadline, or tells it again
// that an end is wanted, and stores what it says. What that leaves overdue is
// looked at again in a while; its deadline stays where it was (T31).
func (s *Service) resolve(ctx context.Context, id holdfast.InstanceID) error {
	var r row
	var found bool
	var now time.Time
	err := s.view(ctx, func(tx store.Tx, at time.Time) (err error) {
		now = at
		r, found, err = getInstance(ctx, tx, id, "")
		return err
	})
	if err != nil {
		return err
	}
	if !found || r.dueAt.IsZero() || r.dueAt.After(now) {
		return reconcile.ErrSkipped
	}
	return errors.Join(s.resolveRow(ctx, r), s.postpone(ctx, r, now))
}

func (s *Service) resolveRow(ctx context.Context, r row) error {
	if r.hostGone {
		_, err := s.endOnGoneHost(ctx, r.id)
		return err
	}
	if ending(r.desired) {
		o, err := s.tell(ctx, r, 0)
		if err == nil {
			_, err = s.storeAnswer(ctx, r, o)
		} else {
			err = s.doubt(ctx, r, err)
		}
		return err
	}
	return s.inquire(ctx, r)
}

// inquire asks the host about one instance and stores its word.
func (s *Service) inquire(ctx context.Context, r row) error {
	asking, cancel := context.WithTimeout(ctx, s.limits.CallTimeout)
	defer cancel()
	answer, err := s.ask(asking, r)
	switch {
	case err == nil:
		_, err = s.storeAsked(ctx, r.revision, answer)
		return err
	case errors.Is(err, reconcile.ErrNotFound):
		return s.declareLost(ctx, r)
	}
	return s.doubt(ctx, r, err)
}

// doubt records that a host did not answer about an instance: UNKNOWN, never
// gone (T27, T32). One that is only PLACED has nothing that could be unknown.
func (s *Service) doubt(ctx context.Context, r row, cause error) error {
	if holdfast.ReasonOf(cause) != holdfast.ReasonHostUnreachable || !expected(r.state) || r.state == holdfast.InstanceUnknown {
		return cause
	}
	err := s.settle(ctx, func(tx store.Tx, now time.Time) (change, error) {
		cur, found, err := getInstance(ctx, tx, r.id, tx.ForUpdate())
		if err != nil || !found || cur.revision != r.revision {
			return change{}, err
		}
		cur.state, cur.enteredAt = holdfast.InstanceUnknown, now
		cur.dueAt = dueAt(cur)
		return change{next: cur, changed: true}, nil
	})
	return errors.Join(cause, err)
}

// declareLost ends an incarnation that its own host does not know. The host gets
// a tombstone first, so that an order still on its way boots nothing (T49); if
// one has just arrived, that is a conflict, and nothing is lost.
func (s *Service) declareLost(ctx context.Context, r row) error {
	l := r.level(0)
	l.Desired, l.Spec = holdfast.DesiredAbsent, nil
	calling, cancel := context.WithTimeout(ctx, s.limits.CallTimeout)
	defer cancel()
	o, err := s.order(calling, r.hostURL, l)
	if err := s.checkAnswer(calling, r, o, err); err != nil {
		switch holdfast.ReasonOf(err) {
		case holdfast.ReasonLevelConflict, holdfast.ReasonStaleGeneration, holdfast.ReasonStaleIncarnation:
			return reconcile.ErrSkipped
		}
		return err
	}
	if o.State != holdfast.InstanceAbsent || o.Incarnation != r.incarnation {
		return reconcile.ErrSkipped
	}
	return s.settle(ctx, func(tx store.Tx, now time.Time) (change, error) {
		cur, found, err := getInstance(ctx, tx, r.id, tx.ForUpdate())
		if err != nil || !found || cur.revision != r.revision {
			return change{}, err
		}
		return lose(cur, now), nil
	})
}

// postpone moves a row that is still due behind the others.
func (s *Service) postpone(ctx context.Context, r row, now time.Time) error {
	ctx = context.WithoutCancel(ctx)
	err := s.db.Update(ctx, func(tx store.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE instance SET due_at = $1 WHERE id = $2 AND due_at > 0 AND due_at <= $3`,
			store.Micros(now.Add(s.limits.SweepEvery)), string(r.id), store.Micros(now))
		return err
	})
	if err != nil {
		return fmt.Errorf("postpone instance %s: %w", r.id, err)
	}
	return nil
}

// view reads with the database's clock.
func (s *Service) view(ctx context.Context, fn func(store.Tx, time.Time) error) error {
	return s.db.View(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		return fn(tx, now)
	})
}
