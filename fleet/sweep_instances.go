package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// maxConfirms bounds the questions about missing instances in one run over a
// host; each is settled by its answer, so the next run goes on behind them.
const maxConfirms = 500

func (s *Service) pageHosts(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	// A silent host's instances are UNKNOWN already; it is asked by the other sweep.
	return s.hostItems(ctx, limit, `WHERE id > $1 AND health = 'READY'`, func(time.Time) []any {
		return []any{after, limit}
	}, s.compare)
}

// compare holds what is recorded of a host's instances against what it has: the
// record, then the host, then the record again, so that what happens meanwhile
// is seen as such.
func (s *Service) compare(ctx context.Context, h hostRow) error {
	c := comparison{host: h.ID, unwanted: s.sightingsOf(h.ID), grace: s.limits.OrphanGrace}
	var lefts []leftover
	var err error
	if c.lineage, err = s.refreshDescent(ctx); err != nil {
		return err
	}
	err = s.view(ctx, func(tx store.Tx, _ time.Time) (err error) {
		if lefts, err = queryLeftovers(ctx, tx, h.ID); err != nil {
			return err
		}
		c.before, err = instancesOn(ctx, tx, h.ID)
		return err
	})
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, s.limits.CallTimeout)
	c.lefts = refsOf(lefts)
	c.observed, err = s.list(asking, h)
	cancel()
	if err != nil {
		return errors.Join(fmt.Errorf("host %s: %w", h.ID, err), s.doubtHost(ctx, h))
	}
	err = s.view(ctx, func(tx store.Tx, now time.Time) (err error) {
		c.now = now
		if c.after, err = instancesOn(ctx, tx, h.ID); err != nil {
			return err
		}
		return addNamed(ctx, tx, c.after, c.observed)
	})
	if err != nil {
		return err
	}
	unreadable := c.leaveOutUnreadable()
	plan := planInstances(c)
	s.sighted(h.ID, plan.unwanted)
	return errors.Join(unreadable, s.carryOut(ctx, h, c, plan, lefts))
}

// leaveOutUnreadable takes instances whose rows cannot be read out of a comparison:
// they are known, nothing is decided on them, and they hide no other (trap T19).
func (c *comparison) leaveOutUnreadable() error {
	var errs []error
	for _, rows := range []map[holdfast.InstanceID]row{c.before, c.after} {
		for id, r := range rows {
			if r.unreadable == nil {
				continue
			}
			errs = append(errs, r.unreadable)
			delete(c.before, id)
			delete(c.after, id)
			c.observed = slices.DeleteFunc(c.observed, func(o holdfast.Observation) bool { return o.Instance == id })
		}
	}
	return errors.Join(errs...)
}

// carryOut does what was planned; one failure stops nothing else.
func (s *Service) carryOut(ctx context.Context, h hostRow, c comparison, p instancePlan, lefts []leftover) error {
	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, reconcile.ErrSkipped) {
			errs = append(errs, err)
		}
	}
	for _, o := range p.news {
		r := c.after[o.Instance]
		_, err := s.storeAsked(ctx, r.revision, seen{row: r, obs: &o})
		note(err)
	}
	for _, o := range p.adopt {
		note(s.adopt(ctx, h.ID, o))
	}
	for _, r := range p.confirm[:min(len(p.confirm), maxConfirms)] {
		note(s.inquire(ctx, r))
	}
	for _, l := range lefts {
		note(s.clearLeftover(ctx, l))
	}
	for _, d := range p.tidy {
		note(s.destroy(ctx, h, d))
	}
	if err := reconcile.Guard(p.total, len(p.destroy)); err != nil {
		s.log.LogAttrs(ctx, slog.LevelError, "orphans not destroyed", slog.String("host", string(h.ID)), slog.Any("error", err))
		note(fmt.Errorf("host %s: %w: look whether this is the right database, then raise the limit or destroy them by hand", h.ID, err))
	} else {
		for _, d := range p.destroy {
			note(s.destroy(ctx, h, d))
		}
	}
	return errors.Join(errs...)
}

// destroy ends what the fleet does not want on a host, after one more look.
func (s *Service) destroy(ctx context.Context, h hostRow, d doomed) error {
	var r row
	var found bool
	err := s.db.View(ctx, func(tx store.Tx) (err error) {
		r, found, err = getInstance(ctx, tx, d.ref.Instance, "")
		return err
	})
	if err != nil {
		return err
	}
	if !unwanted(r, found, holdfast.Observation{Instance: d.ref.Instance, Incarnation: d.ref.Incarnation}, h.ID) {
		return reconcile.ErrSkipped
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "destroying an orphan", slog.String("host", string(h.ID)),
		slog.String("instance", string(d.ref.Instance)), slog.Int64("incarnation", d.ref.Incarnation))
	calling, cancel := context.WithTimeout(ctx, s.limits.CallTimeout)
	defer cancel()
	o, err := s.order(calling, h.URL, holdfast.Level{Instance: d.ref.Instance, Incarnation: d.ref.Incarnation, Generation: d.generation, Desired: d.desired})
	if err != nil {
		return fmt.Errorf("destroy the orphan %s/%d on %s: %w", d.ref.Instance, d.ref.Incarnation, h.ID, err)
	}
	if found && r.incarnation == d.ref.Incarnation && r.host == h.ID {
		_, err = s.storeAnswer(ctx, r, o)
	}
	return err
}

func (s *Service) doubtHost(ctx context.Context, h hostRow) error {
	err := s.db.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		return doubtAll(ctx, tx, h.ID, now)
	})
	if err != nil {
		return fmt.Errorf("doubt the instances of %s: %w", h.ID, err)
	}
	return nil
}

func instancesOn(ctx context.Context, tx store.Tx, host holdfast.HostID) (map[holdfast.InstanceID]row, error) {
	rows, err := queryInstances(ctx, tx, `WHERE host = $1 AND state <> 'ABSENT'`, string(host))
	if err != nil {
		return nil, err
	}
	out := make(map[holdfast.InstanceID]row, len(rows))
	for _, r := range rows {
		out[r.id] = r
	}
	return out, nil
}

// addNamed reads what a host named and the fleet has not placed there.
func addNamed(ctx context.Context, tx store.Tx, rows map[holdfast.InstanceID]row, named []holdfast.Observation) error {
	for _, o := range named {
		if _, ok := rows[o.Instance]; ok {
			continue
		}
		its, err := queryInstances(ctx, tx, `WHERE id = $1`, string(o.Instance))
		if err != nil {
			return err
		}
		for _, r := range its {
			rows[r.id] = r
		}
	}
	return nil
}

func (s *Service) sightingsOf(host holdfast.HostID) sightings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unwanted[host]
}

// sighted keeps what a run saw for the next. It is in memory: a restart begins
// the grace period anew, which is the safe side.
func (s *Service) sighted(host holdfast.HostID, seen sightings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(seen) == 0 {
		delete(s.unwanted, host)
		return
	}
	s.unwanted[host] = seen
}
