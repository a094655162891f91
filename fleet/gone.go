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

// goneBatch bounds the instances read at once of a host that is given up.
const goneBatch = 500

// overdueLoss reports whether a silent host has been LOST for so long that its
// instances are given up. As with planHost, the suspicion itself must have
// lasted (T30).
func overdueLoss(h hostRow, now time.Time, l Limits) bool {
	return h.Health == holdfast.HostLost && h.GoneAt.IsZero() &&
		now.Sub(h.SeenAt) >= l.LossAfter && now.Sub(h.healthAt) >= l.LossAfter-l.LostAfter
}

// giveUp is what becomes of an incarnation whose host is given up, by time or by
// the operators' word: it is lost, and one that was to be removed is. It is pure.
func giveUp(cur row, why string, now time.Time) change {
	o := holdfast.Observation{
		Instance: cur.id, Incarnation: cur.incarnation, Generation: cur.generation, State: holdfast.InstanceExited, At: now,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: why},
	}
	if cur.desired == holdfast.DesiredAbsent {
		o.State = holdfast.InstanceAbsent
	}
	return fold(cur, o, asked, now)
}

// whyGone says for a person why an instance's host was given up.
func whyGone(r row) string {
	if r.hostDuty == holdfast.HostRetired {
		return fmt.Sprintf("host %s, which had it, was retired", r.host)
	}
	return fmt.Sprintf("host %s, which had it, was silent for too long", r.host)
}

// pageLosses finds hosts to give up, and those given up that still have something.
func (s *Service) pageLosses(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	// The LIMIT keeps the planner from reading every host's instances for it.
	return s.hostItems(ctx, limit, `WHERE id > $1 AND (gone_at = 0 AND health = 'LOST' AND seen_at <= $3
		OR gone_at > 0 AND (used_instances > 0 OR (SELECT i.id FROM instance i WHERE i.host = host.id AND i.state <> 'ABSENT'
			AND (i.state <> 'EXITED' OR i.desired = 'ABSENT') LIMIT 1) IS NOT NULL))`,
		func(now time.Time) []any {
			return []any{after, limit, store.Micros(now.Add(-s.limits.LossAfter))}
		}, s.giveUpHost)
}

// giveUpHost gives a host up whose time is over, unless it answers after all, and
// ends what it had (contract: C5).
func (s *Service) giveUpHost(ctx context.Context, h hostRow) error {
	if h.GoneAt.IsZero() {
		asking, cancel := context.WithTimeout(ctx, s.limits.AskTimeout)
		_, silence := s.list(asking, h)
		cancel()
		done, err := s.recordLoss(ctx, h, silence == nil)
		if err != nil {
			return err
		}
		if !done {
			return reconcile.ErrSkipped
		}
		s.log.LogAttrs(ctx, slog.LevelError, "host is given up: what it had is lost", slog.String("host", string(h.ID)),
			slog.Time("seen_at", h.SeenAt), slog.Any("error", silence))
	}
	return s.giveUpInstances(ctx, h)
}

// recordLoss marks a host as given up, or as heard when it answered. It changes
// nothing if the host was heard meanwhile.
func (s *Service) recordLoss(ctx context.Context, h hostRow, answered bool) (lost bool, err error) {
	err = s.db.Update(ctx, func(tx store.Tx) error {
		lost = false
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		set, value := `gone_at`, now
		if answered {
			set = `seen_at`
		} else if !overdueLoss(h, now, s.limits) {
			return nil
		}
		n, err := affected(tx.ExecContext(ctx, `UPDATE host SET `+set+` = $2 WHERE id = $1 AND seen_at = $3 AND health = 'LOST' AND gone_at = 0`,
			string(h.ID), store.Micros(value), store.Micros(h.SeenAt)))
		lost = n == 1 && !answered
		return err
	})
	if err != nil {
		return false, fmt.Errorf("give up %s: %w", h.ID, err)
	}
	return lost, nil
}

// giveUpInstances ends what a host had that is given up, and gives its room back.
// One that fails stops nothing else.
func (s *Service) giveUpInstances(ctx context.Context, h hostRow) error {
	var errs []error
	for after := holdfast.InstanceID(""); ; {
		var rows []row
		err := s.db.View(ctx, func(tx store.Tx) (err error) {
			rows, err = queryInstances(ctx, tx, `WHERE host = $1 AND id > $2 AND state <> 'ABSENT' AND (state <> 'EXITED' OR desired = 'ABSENT')
				ORDER BY id LIMIT $3`, string(h.ID), string(after), goneBatch)
			return err
		})
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, r := range rows {
			if _, err := s.endOnGoneHost(ctx, r.id); err != nil && len(errs) < 10 {
				errs = append(errs, err)
			}
			after = r.id
		}
		if len(rows) < goneBatch {
			return errors.Join(append(errs, s.giveUpLeftovers(ctx, h))...)
		}
	}
}

// giveUpLeftovers gives back what superseded incarnations held on such a host.
func (s *Service) giveUpLeftovers(ctx context.Context, h hostRow) error {
	var lefts []leftover
	err := s.db.View(ctx, func(tx store.Tx) (err error) {
		lefts, err = queryLeftovers(ctx, tx, h.ID)
		return err
	})
	var errs []error
	for _, l := range lefts {
		errs = append(errs, s.db.Update(ctx, func(tx store.Tx) error {
			_, err := freeLeftover(ctx, tx, l.ref, l.host)
			return err
		}))
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("leftovers of %s: %w", h.ID, err)
	}
	return nil
}

// endOnGoneHost ends one instance of a host that is given up, and returns what is
// known of it then. It changes nothing once the host is back: the host's row is
// locked behind the instance's, as everywhere, so that a return is before or after.
func (s *Service) endOnGoneHost(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	var known row
	err := s.settle(ctx, func(tx store.Tx, now time.Time) (change, error) {
		cur, found, err := getInstance(ctx, tx, id, tx.ForUpdate())
		if err != nil || !found {
			return change{}, err
		}
		known = cur
		h, found, err := getHost(ctx, tx, cur.host, tx.ForUpdate())
		if err != nil || !found || h.GoneAt.IsZero() {
			return change{}, err
		}
		c := giveUp(cur, whyGone(cur), now)
		known = c.next
		return c, nil
	})
	if err != nil {
		return holdfast.Observation{}, storage("end "+string(id)+", whose host is given up", err)
	}
	return known.observation(), nil
}
