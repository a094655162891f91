package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// endsAtOnce bounds the ends that a returning host is asked for at the same time.
const endsAtOnce = 8

// pageReturns finds the hosts that are heard again: LOST ones that beat, and
// others with instances that are still UNKNOWN.
func (s *Service) pageReturns(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	return s.hostItems(ctx, limit, `WHERE id > $1 AND (health = 'LOST' AND seen_at > $3
		OR health = 'READY' AND EXISTS (SELECT 1 FROM instance i WHERE i.host = host.id AND i.state = 'UNKNOWN'))`,
		func(now time.Time) []any {
			return []any{after, limit, store.Micros(now.Add(-s.limits.SuspectAfter))}
		}, func(ctx context.Context, h hostRow) error {
			if h.Health == holdfast.HostLost {
				return s.takeBack(ctx, h)
			}
			return s.compare(ctx, h)
		})
}

// planReturn says what a host must end before it gets work again: what was
// replaced, failed or deleted while it was away. What the fleet does not know at
// all is not among it: that is for the orphans' sweep, with its grace and its
// guard (T52). Nor are leftovers, which have levels of their own. It is pure.
func planReturn(host holdfast.HostID, observed []holdfast.Observation, rows map[holdfast.InstanceID]row, lefts map[holdfast.InstanceRef]bool) []doomed {
	var out []doomed
	for _, o := range observed {
		ref := holdfast.InstanceRef{Instance: o.Instance, Incarnation: o.Incarnation}
		r, found := rows[o.Instance]
		switch {
		case o.State == holdfast.InstanceAbsent, !found, lefts[ref]:
		case unwanted(r, found, o, host):
			out = append(out, doomed{ref: ref, generation: max(r.generation, o.Generation+1), desired: holdfast.DesiredAbsent})
		case r.incarnation == o.Incarnation && r.host == host && ending(r.desired) && !reached(o, r.desired):
			out = append(out, doomed{ref: ref, generation: r.generation, desired: r.desired})
		}
	}
	return out
}

// reached reports whether an instance has ended as far as is desired.
func reached(o holdfast.Observation, desired holdfast.Desired) bool {
	return o.State == holdfast.InstanceAbsent || desired == holdfast.DesiredExited && o.State == holdfast.InstanceExited
}

// takeBack lets a host that was LOST have work again, once it has ended what is
// no longer its own (contract: C5). Whatever is not done yet, the next run does.
func (s *Service) takeBack(ctx context.Context, h hostRow) error {
	asking, cancel := context.WithTimeout(ctx, s.limits.CallTimeout)
	observed, err := s.list(asking, h)
	cancel()
	if err != nil {
		return fmt.Errorf("host %s beats and does not answer: %w", h.ID, err)
	}
	lefts, plan, err := s.returnPlan(ctx, h, observed)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range lefts {
		errs = append(errs, s.clearLeftover(ctx, l))
	}
	errs = append(errs, s.endAll(ctx, h, plan))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("host %s is back, and not rid of what is no longer its own: %w", h.ID, err)
	}
	ended := map[holdfast.InstanceRef]bool{}
	for _, d := range plan {
		ended[d.ref] = true
	}
	kept := slices.DeleteFunc(observed, func(o holdfast.Observation) bool {
		return ended[holdfast.InstanceRef{Instance: o.Instance, Incarnation: o.Incarnation}]
	})
	welcome, err := s.welcome(ctx, h, kept)
	if err != nil {
		return err
	}
	if !welcome {
		return reconcile.ErrSkipped
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "host is back", slog.String("host", string(h.ID)), slog.Int("ended", len(plan)+len(lefts)))
	h.Health = holdfast.HostReady
	return s.compare(ctx, h)
}

// returnPlan reads what is recorded about what the host has, after the host was asked.
func (s *Service) returnPlan(ctx context.Context, h hostRow, observed []holdfast.Observation) (lefts []leftover, plan []doomed, err error) {
	err = s.db.View(ctx, func(tx store.Tx) (err error) {
		lefts, plan, err = readReturn(ctx, tx, h.ID, observed)
		return err
	})
	return lefts, plan, err
}

func readReturn(ctx context.Context, tx store.Tx, host holdfast.HostID, observed []holdfast.Observation) ([]leftover, []doomed, error) {
	lefts, err := queryLeftovers(ctx, tx, host)
	if err != nil {
		return nil, nil, err
	}
	rows, err := instancesOn(ctx, tx, host)
	if err == nil {
		err = addNamed(ctx, tx, rows, observed)
	}
	return lefts, planReturn(host, observed, rows, refsOf(lefts)), err
}

func refsOf(lefts []leftover) map[holdfast.InstanceRef]bool {
	refs := make(map[holdfast.InstanceRef]bool, len(lefts))
	for _, l := range lefts {
		refs[l.ref] = true
	}
	return refs
}

// endAll ends what was planned, a few at once. It fails unless the host confirmed each.
func (s *Service) endAll(ctx context.Context, h hostRow, plan []doomed) error {
	var mu sync.Mutex
	var errs []error
	var ends sync.WaitGroup
	room := make(chan struct{}, endsAtOnce)
	for _, d := range plan {
		room <- struct{}{}
		ends.Go(func() {
			defer func() { <-room }()
			if err := s.endReturned(ctx, h, d); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	ends.Wait()
	return errors.Join(errs...)
}

func (s *Service) endReturned(ctx context.Context, h hostRow, d doomed) error {
	calling, cancel := context.WithTimeout(ctx, holdfast.MaxLevelWait+s.limits.CallTimeout)
	defer cancel()
	o, err := s.order(calling, h.URL, holdfast.Level{Instance: d.ref.Instance, Incarnation: d.ref.Incarnation, Generation: d.generation,
		Desired: d.desired, Wait: holdfast.MaxLevelWait})
	switch {
	case err != nil:
		return fmt.Errorf("end %s/%d: %w", d.ref.Instance, d.ref.Incarnation, err)
	case o.Host != "" && o.Host != h.ID, o.Incarnation != d.ref.Incarnation:
		return fmt.Errorf("end %s/%d: the answer is about %s/%d of %s", d.ref.Instance, d.ref.Incarnation, o.Instance, o.Incarnation, o.Host)
	case !reached(o, d.desired):
		return fmt.Errorf("end %s/%d: it is %s", d.ref.Instance, d.ref.Incarnation, o.State)
	}
	return s.storeEnd(ctx, h, o)
}

// storeEnd stores that an incarnation ended, if it is the one that is recorded.
func (s *Service) storeEnd(ctx context.Context, h hostRow, o holdfast.Observation) error {
	return s.settle(ctx, func(tx store.Tx, now time.Time) (change, error) {
		cur, found, err := getInstance(ctx, tx, o.Instance, tx.ForUpdate())
		if err != nil || !found || cur.host != h.ID || cur.incarnation != o.Incarnation {
			return change{}, err
		}
		return fold(cur, o, answered, now), nil
	})
}

// welcome makes a returned host READY if it is still as it was when it was asked,
// and nothing that it kept has been failed, replaced or deleted since: whoever
// gives its instances up locks the same row.
func (s *Service) welcome(ctx context.Context, h hostRow, kept []holdfast.Observation) (welcome bool, err error) {
	err = s.db.Update(ctx, func(tx store.Tx) error {
		welcome = false
		cur, found, err := getHost(ctx, tx, h.ID, tx.ForUpdate())
		if err != nil || !found || cur.Health != holdfast.HostLost || cur.Duty != h.Duty || !cur.GoneAt.Equal(h.GoneAt) || cur.BootID != h.BootID {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		lefts, more, err := readReturn(ctx, tx, h.ID, kept)
		if err != nil || len(lefts) > 0 || len(more) > 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE host SET health = 'READY', health_at = $2, seen_at = $2,
			gone_at = CASE WHEN duty = 'RETIRED' THEN gone_at ELSE 0 END WHERE id = $1`, string(h.ID), store.Micros(now))
		welcome = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("welcome %s back: %w", h.ID, err)
	}
	return welcome, nil
}
