package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// descend reads whose database this is; an empty one becomes a new cluster's. Of two
// replicas that start on it, one decides.
func (s *Service) descend(ctx context.Context) error {
	return s.config.DB.Update(ctx, func(tx store.Tx) error {
		l, err := lineage.Read(ctx, tx)
		if err == nil && l.Cluster == "" {
			id := s.config.Cluster
			if id == "" {
				id = s.config.IDs.New("cl")
			}
			l, err = lineage.Follow(ctx, tx, id, l.Epoch)
		}
		s.lineage.Store(&l)
		return err
	})
}

// readLineage reads it anew: an operator may have recovered the database.
func (s *Service) readLineage(ctx context.Context, tx store.Tx) error {
	l, err := lineage.Read(ctx, tx)
	if err == nil {
		s.lineage.Store(&l)
	}
	return err
}

// Cluster is the id of the cluster whose database this is.
func (s *Service) Cluster() string { return s.lineage.Load().Cluster }

// ahead reports that the fleet has seen more of a resting sandbox's instance than
// is recorded. The fleet was asked first and every intent is recorded before it is
// issued, so this database is an older one than the one that issued it (trap T52).
func ahead(r row, seen holdfast.Observation) bool {
	return resting(r) && (seen.Incarnation > r.Incarnation || seen.Incarnation == r.Incarnation && seen.Generation > r.Generation)
}

// unknown decides about an instance that no sandbox has: it returns the level that
// removes it, if nobody has said anything and it is old enough.
func (p *instancePlan) unknown(seen holdfast.Observation, at lineage.Lineage, now time.Time) []holdfast.Level {
	born, err := holdfast.BornAt(string(seen.Instance))
	if err != nil {
		return nil
	}
	level := holdfast.Level{Instance: seen.Instance, Incarnation: seen.Incarnation,
		Generation: seen.Generation + 1, Desired: holdfast.DesiredAbsent, MintedAt: now}
	switch {
	case at.Keeps(born):
		p.kept = append(p.kept, seen)
	case at.Forgets(born):
		p.levels = append(p.levels, level)
	case now.Sub(born) > holdfast.OrphanGrace:
		return []holdfast.Level{level}
	}
	return nil
}

// guard takes out of a plan what a wrong, empty or restored database, on either
// side, would destroy; of is how many were recorded and how many observed.
func (p *instancePlan) guard(gone []holdfast.Observation, unwanted []holdfast.Level, behind []holdfast.Observation, at lineage.Lineage, of [2]int) {
	var alarms []error
	if err := reconcile.Guard(of[0], len(gone)); err != nil {
		alarms = append(alarms, fmt.Errorf("the fleet lacks instances, and no sandbox is failed for it: is its database the right one? %w", err))
	} else {
		p.ended = append(p.ended, gone...)
	}
	switch err := reconcile.Guard(of[1], len(unwanted)); {
	case err != nil:
		alarms = append(alarms, fmt.Errorf("no sandbox wants these instances, and they are left alone: %w", err))
	case len(behind) > 0 && at.RecoveredAt.IsZero(): // restored, and nobody said so yet: left alone, with the alarm below
	default:
		p.levels = append(p.levels, unwanted...)
	}
	switch {
	case len(behind) == 0:
	case at.RecoveredAt.IsZero():
		alarms = append(alarms, fmt.Errorf("the fleet has seen more of %d instances than this database has recorded (%s first): it was restored from an older backup; run holdfast recover",
			len(behind), behind[0].Instance))
	default:
		p.behind = behind
	}
	p.alarm = errors.Join(alarms...)
}

// tell says what was left for a person to decide.
func (s *Service) tell(p instancePlan) {
	if p.alarm != nil {
		s.config.Logger.Error("nothing is destroyed", "alarm", p.alarm)
	}
	for _, seen := range p.kept {
		s.config.Logger.Warn("an instance that the restored database does not know is kept: holdfast recover --forget-unknown ends it",
			"instance", seen.Instance, "owner", seen.Owner, "host", seen.Host, "state", seen.State)
	}
}

// catchUp issues the recorded state of a sandbox anew above what the fleet has
// seen, in a database that was recovered: its word is the intent, the boot that
// is there is the boot. What has an operation pending is caught up by that.
func (s *Service) catchUp(ctx context.Context, seen holdfast.Observation) error {
	var r row
	var stands bool
	err := s.view(ctx, "catch up", func(tx store.Tx, _ time.Time) (err error) {
		r, stands, err = s.stillBehind(ctx, tx, seen)
		return err
	})
	if err != nil || !stands {
		return errors.Join(err, skipped(stands))
	}
	at := s.lineage.Load()
	level := levelFor(r, seen, recordedLevel(r.State))
	level.Cluster, level.Epoch, level.Wait = at.Cluster, at.Epoch, time.Second
	if _, err := s.config.Fleet.EnsureInstance(ctx, level); err != nil {
		return err
	}
	return s.update(ctx, "catch up", func(tx store.Tx, _ time.Time) error {
		cur, found, now, err := lockByInstance(ctx, tx, seen.Instance)
		if err != nil || !found || !ahead(cur, seen) {
			return err
		}
		if _, pending, err := operation.Pending(ctx, tx, cur.resource()); err != nil || pending {
			return err
		}
		cur.Incarnation, cur.Generation = level.Incarnation, level.Generation
		return cur.save(ctx, tx, now)
	})
}

func skipped(stands bool) error {
	if stands {
		return nil
	}
	return reconcile.ErrSkipped
}

func (s *Service) stillBehind(ctx context.Context, tx store.Tx, seen holdfast.Observation) (row, bool, error) {
	r, found, err := oneRow(ctx, tx, `WHERE instance = $1`, string(seen.Instance))
	if err != nil || !found || !ahead(r, seen) {
		return r, false, err
	}
	_, pending, err := operation.Pending(ctx, tx, r.resource())
	return r, !pending, err
}

// missing remembers which instances the fleet did not know, and since when: it is
// believed only when it says so twice, some time apart (trap T27).
type missing struct {
	mu    sync.Mutex
	since map[holdfast.InstanceID]time.Time
}

// missedAgainWithin is how long a fleet's "not found" is remembered.
const missedAgainWithin = 10 * time.Minute

// missingFor is how far apart two such answers have to be: half a minute, or two
// sweeps where these come sooner.
func (s *Service) missingFor() time.Duration {
	if every := s.config.SweepEvery; every > 0 {
		return min(every/2, 30*time.Second)
	}
	return 30 * time.Second
}

// confirmed notes a "not found", and reports whether an earlier one is old enough.
func (m *missing) confirmed(id holdfast.InstanceID, now time.Time, apart time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, noted := m.since[id]
	if !noted || now.Sub(since) > missedAgainWithin {
		if m.since == nil {
			m.since = map[holdfast.InstanceID]time.Time{}
		}
		m.since[id] = now
		return false
	}
	if now.Sub(since) < apart {
		return false
	}
	delete(m.since, id)
	return true
}

// seen forgets it of instances that the fleet knows after all.
func (m *missing) seen(observed []holdfast.Observation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range observed {
		delete(m.since, o.Instance)
	}
}
