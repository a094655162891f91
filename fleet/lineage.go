package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// Join reads whom the fleet's database obeys, and makes an empty one the
// configured cluster's. Another cluster's database is an error that says what to do.
func (s *Service) Join(ctx context.Context) error {
	l, err := s.descent(ctx)
	if err != nil || s.cluster == "" || l.Cluster == s.cluster {
		return err
	}
	if l.Cluster != "" {
		return fmt.Errorf("the fleet's database is cluster %s's, the orchestrator's is %s's: restore both from one backup, or use the databases that belong together", l.Cluster, s.cluster)
	}
	_, err = s.follow(ctx, s.cluster, 0)
	return err
}

// descent is the database's lineage as this process last saw it.
func (s *Service) descent(ctx context.Context) (lineage.Lineage, error) {
	if l := s.lineage.Load(); l != nil {
		return *l, nil
	}
	return s.refreshDescent(ctx)
}

// refreshDescent reads it anew: another replica may have followed a higher epoch,
// or an operator have recovered the database.
func (s *Service) refreshDescent(ctx context.Context) (l lineage.Lineage, err error) {
	err = s.db.View(ctx, func(tx store.Tx) (err error) {
		l, err = lineage.Read(ctx, tx)
		return err
	})
	if err == nil {
		s.lineage.Store(&l)
	}
	return l, err
}

func (s *Service) follow(ctx context.Context, cluster string, epoch int64) (l lineage.Lineage, err error) {
	err = s.db.Update(ctx, func(tx store.Tx) (err error) {
		l, err = lineage.Follow(ctx, tx, cluster, epoch)
		return err
	})
	if err == nil {
		s.lineage.Store(&l)
	}
	return l, err
}

// obey holds an order against whom the fleet obeys: the cluster of the first order
// it took, and of its databases those that were recovered last (trap T52).
func (s *Service) obey(ctx context.Context, order holdfast.Level) error {
	if l := s.lineage.Load(); l != nil && l.Cluster == order.Cluster && l.Epoch == order.Epoch {
		return nil
	}
	l, err := s.refreshDescent(ctx)
	if err == nil && order.Cluster != "" {
		first := order.Cluster
		if l.Cluster == "" && s.cluster != "" {
			first = s.cluster
		}
		if l.Cluster == "" || l.Cluster == order.Cluster && l.Epoch < order.Epoch {
			l, err = s.follow(ctx, first, order.Epoch)
		}
	}
	switch {
	case err != nil:
		return storage("hold the order against the database's lineage", err)
	case l.Cluster != order.Cluster:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCluster,
			"this fleet is of cluster %q, the order of %q", l.Cluster, order.Cluster).On(string(order.Instance))
	case order.Epoch < l.Epoch:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleEpoch,
			"this fleet has obeyed epoch %d and refuses orders of %d: run holdfast recover on the database that was restored", l.Epoch, order.Epoch).
			On(string(order.Instance)).With("seen", strconv.FormatInt(l.Epoch, 10))
	}
	return nil
}

// recognize decides whether a host's heartbeat is one of this cluster's. A host
// that obeys nobody yet is welcome; one that does is not before the fleet itself
// knows whose it is.
func (s *Service) recognize(ctx context.Context, cluster string) error {
	l, err := s.descent(ctx)
	if err == nil && l.Cluster != cluster && cluster != "" {
		l, err = s.refreshDescent(ctx)
	}
	known := l.Cluster
	if known == "" {
		known = s.cluster
	}
	switch {
	case err != nil:
		return storage("recognize a host", err)
	case cluster == "" || cluster == known:
		return nil
	case known == "":
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonCluster,
			"this fleet's database is empty and no orchestrator was heard yet: it does not know cluster %q", cluster)
	}
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCluster,
		"this fleet is of cluster %q, not %q: give the fleet the database that belongs to the host's instances, or start the host with an empty directory", known, cluster)
}

// order sends a level down to a host, in the name of whom the fleet obeys.
func (s *Service) order(ctx context.Context, hostURL string, l holdfast.Level) (holdfast.Observation, error) {
	at, err := s.descent(ctx)
	if err != nil {
		return holdfast.Observation{}, storage("read the database's lineage", err)
	}
	l.Cluster, l.Epoch = at.Cluster, at.Epoch
	if l.Cluster == "" {
		l.Cluster = s.cluster
	}
	return s.dial(hostURL).EnsureInstance(ctx, l)
}

// asking is how long after a recovery the hosts are asked what they have, before
// anything that the database has lost is taken for gone.
func (l Limits) asking() time.Duration { return 2*l.SweepEvery + l.OrphanGrace }

// lost judges an order for something that this restored database may have lost:
// it is older than the recovery and not recorded. While hosts are being asked it
// waits; then its incarnation is given up, which never boots a second time (trap T49).
func (l Limits) lost(at lineage.Lineage, order holdfast.Level, now time.Time) error {
	switch {
	case at.RecoveredAt.IsZero() || ending(order.Desired) || !order.MintedAt.Before(at.RecoveredAt):
		return nil
	case now.Sub(at.RecoveredAt) < l.asking():
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonBehind,
			"incarnation %d is older than the database's recovery and not recorded: the hosts are being asked for it", order.Incarnation).
			On(string(order.Instance)).Retry(5 * time.Second)
	}
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooOld,
		"incarnation %d is older than the database's recovery, and no host has it: raise the incarnation", order.Incarnation).On(string(order.Instance))
}

// adoptable is what a host has and a restored database has lost: an instance, or a
// later incarnation of one, from before the recovery. It is pure.
func adoptable(at lineage.Lineage, r row, found bool, o holdfast.Observation) bool {
	born, err := holdfast.BornAt(string(o.Instance))
	return err == nil && born.Before(at.RecoveredAt) && (!found || o.Incarnation > r.incarnation)
}

// adopt takes a host's word for what the database has lost (contract: D1). Room is
// not counted for an instance whose spec is lost with it.
func (s *Service) adopt(ctx context.Context, host holdfast.HostID, o holdfast.Observation) error {
	err := s.db.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		cur, found, err := getInstance(ctx, tx, o.Instance, tx.ForUpdate())
		switch {
		case err != nil:
			return err
		case !found:
			_, err = insertInstance(ctx, tx, adopted(row{id: o.Instance, mintedAt: now}, host, o, now))
			return err
		case o.Incarnation <= cur.incarnation:
			return reconcile.ErrSkipped
		case cur.held && cur.host != host:
			if err := giveBack(ctx, tx, cur.host, cur.cpu, cur.memory); err != nil {
				return err
			}
			cur.held = false
		}
		next := adopted(cur, host, o, now)
		return updateInstance(ctx, tx, &next)
	})
	if err != nil {
		return fmt.Errorf("adopt %s/%d: %w", o.Instance, o.Incarnation, err)
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "adopted what the restored database had lost", slog.String("host", string(host)),
		slog.String("instance", string(o.Instance)), slog.Int64("incarnation", o.Incarnation), slog.String("state", string(o.State)))
	return nil
}

// adopted is the row of such an instance. It is pure.
func adopted(r row, host holdfast.HostID, o holdfast.Observation, now time.Time) row {
	r.incarnation, r.generation, r.observed, r.desired = o.Incarnation, o.Generation, o.Generation, o.Desired
	r.host, r.owner, r.state, r.known = host, o.Owner, o.State, o.State
	r.settled, r.failure, r.progress, r.ports, r.address, r.bootID = true, o.Failure, o.Progress, o.Ports, o.Address, o.BootID
	r.placedAt, r.leveledAt, r.enteredAt, r.observedAt, r.tombstoneAt = now, now, now, o.At, time.Time{}
	r.dueAt = dueAt(r)
	return r
}
