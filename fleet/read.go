package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// Bounds of a page of instances.
const (
	defaultPage = 100
	maxPage     = 1000
)

// seen is a row with the observation that a repair asked for, nil for none.
type seen struct {
	row row
	obs *holdfast.Observation
}

// lacks reports whether a fact is missing that the host can say: where an
// instance that should have reported by now is, and how it is reached.
func lacks(r row) bool {
	switch r.state {
	case holdfast.InstancePlaced, holdfast.InstancePreparing, holdfast.InstanceBooting,
		holdfast.InstanceStopping, holdfast.InstanceUnknown:
		return true
	case holdfast.InstanceRunning:
		return !r.settled
	}
	return false
}

// GetInstance implements holdfast.FleetService. The usual case, where the host's
// delivery came first, makes no call; otherwise the host is asked, and its
// answer stored (contract: D1). When it does not answer, what was last known is
// returned, marked stale (contract: D2).
func (s *Service) GetInstance(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	answer, err := s.repair.Get(ctx, id)
	if err == nil {
		o := answer.Value.row.observation()
		o.Stale = o.Stale || answer.Stale
		return o, nil
	}
	if errors.Is(err, reconcile.ErrNotFound) || errors.Is(err, reconcile.ErrUnavailable) {
		return s.recorded(ctx, id, errors.Is(err, reconcile.ErrUnavailable))
	}
	return holdfast.Observation{}, storage("read instance "+string(id), err)
}

// recorded is what the fleet knows by itself. A host that has not heard of an
// instance contradicts nothing here: the sweep judges that.
func (s *Service) recorded(ctx context.Context, id holdfast.InstanceID, stale bool) (holdfast.Observation, error) {
	r, err := s.load(ctx, id)
	if err != nil {
		return holdfast.Observation{}, storage("read instance "+string(id), err)
	}
	o := r.observation()
	o.Stale = o.Stale || stale
	return o, nil
}

func (s *Service) load(ctx context.Context, id holdfast.InstanceID) (r row, err error) {
	var found bool
	err = s.db.View(ctx, func(tx store.Tx) (err error) {
		r, found, err = getInstance(ctx, tx, id, "")
		return err
	})
	if err == nil && !found {
		err = holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such instance").On(string(id))
	}
	return r, err
}

func (s *Service) newRepair() *reconcile.Repair[holdfast.InstanceID, seen] {
	return &reconcile.Repair[holdfast.InstanceID, seen]{
		Timeout: s.limits.AskTimeout,
		Load: func(ctx context.Context, id holdfast.InstanceID) (reconcile.Known[seen], error) {
			r, err := s.load(ctx, id)
			return reconcile.Known[seen]{Value: seen{row: r}, Present: true, Current: !lacks(r), Generation: r.revision}, err
		},
		Ask: func(ctx context.Context, id holdfast.InstanceID, _ int64) (seen, error) {
			r, err := s.load(ctx, id)
			if err != nil {
				return seen{}, err
			}
			return s.ask(ctx, r)
		},
		Store: func(ctx context.Context, _ holdfast.InstanceID, read int64, v seen) (bool, error) {
			return s.storeAsked(ctx, read, v)
		},
	}
}

// ask puts the question to the row's host. The host's own word that it knows no
// such incarnation is reconcile.ErrNotFound; every other error is no answer.
func (s *Service) ask(ctx context.Context, r row) (seen, error) {
	if r.host == "" {
		return seen{row: r}, nil
	}
	o, err := s.dial(r.hostURL).GetInstance(ctx, r.id)
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return seen{}, fmt.Errorf("host %s: %w", r.host, reconcile.ErrNotFound)
	}
	if err := s.checkAnswer(ctx, r, o, err); err != nil {
		return seen{}, err
	}
	if o.Incarnation < r.incarnation {
		return seen{}, fmt.Errorf("host %s has incarnation %d: %w", r.host, o.Incarnation, reconcile.ErrNotFound)
	}
	return seen{row: fold(r, o, asked, r.enteredAt).next, obs: &o}, nil
}

// storeAsked stores the answer to a question put about revision read, and says
// whether that revision still stood (T34).
func (s *Service) storeAsked(ctx context.Context, read int64, v seen) (stood bool, err error) {
	if v.obs == nil {
		return true, nil
	}
	err = s.settle(ctx, func(tx store.Tx, now time.Time) (change, error) {
		cur, found, err := getInstance(ctx, tx, v.row.id, tx.ForUpdate())
		stood = found && cur.revision == read
		if err != nil || !stood {
			return change{}, err
		}
		return fold(cur, *v.obs, asked, now), nil
	})
	if err != nil {
		return false, fmt.Errorf("store the host's word on %s: %w", v.row.id, err)
	}
	return stood, nil
}

// ListInstances implements holdfast.FleetService: what is recorded, tombstones
// included, by id. A limit of 0 means 100, and 1000 is the most. It asks no host.
func (s *Service) ListInstances(ctx context.Context, after string, limit int) (holdfast.InstancePage, error) {
	if limit <= 0 {
		limit = defaultPage
	}
	limit = min(limit, maxPage)
	var rows []row
	err := s.db.View(ctx, func(tx store.Tx) (err error) {
		rows, err = queryInstances(ctx, tx, `WHERE id > $1 ORDER BY id LIMIT $2`, after, limit+1)
		return err
	})
	if err != nil {
		return holdfast.InstancePage{}, storage("list instances", err)
	}
	return pageOf(rows, limit), nil
}

// pageOf is the page that rows are, of which one more than limit was read.
func pageOf(rows []row, limit int) holdfast.InstancePage {
	var page holdfast.InstancePage
	if len(rows) > limit {
		rows = rows[:limit]
		page.Next = string(rows[limit-1].id)
	}
	for _, r := range rows {
		page.Instances = append(page.Instances, r.observation())
	}
	return page
}
