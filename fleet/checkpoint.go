package fleet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// EnsureCheckpoint implements holdfast.FleetService (H2): it passes the level on to
// the host that has the boot it is about, once, and records nothing of it. PRESENT
// needs a boot that is there; ABSENT is answered without a host only where nobody is
// left who could make the copy (contract: E4).
func (s *Service) EnsureCheckpoint(ctx context.Context, level holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	if err := checkCheckpoint(&level); err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	err := s.obey(ctx, holdfast.Level{Cluster: level.Cluster, Epoch: level.Epoch, Instance: level.Instance})
	if err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	at, now, err := s.whereabouts(ctx, level)
	if err != nil {
		return holdfast.CheckpointObservation{}, storage("find the host of "+string(level.Instance), err)
	}
	host, err := route(at, level, s.limits.asking(), now)
	if err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	if host == nil {
		return holdfast.CheckpointObservation{Checkpoint: level.Checkpoint, Instance: level.Instance, State: holdfast.CopyAbsent, At: now}, nil
	}
	return s.tellCheckpoint(ctx, *host, level)
}

func checkCheckpoint(l *holdfast.CheckpointLevel) error {
	err := errors.Join(holdfast.CheckID("checkpoint", holdfast.PrefixCheckpoint, string(l.Checkpoint)),
		holdfast.CheckID("instance", holdfast.PrefixInstance, string(l.Instance)))
	switch {
	case err != nil:
		return err
	case l.Incarnation < 1:
		return bad("incarnation", "incarnation %d: it begins at 1", l.Incarnation)
	case l.Generation < 1:
		return bad("generation", "generation %d: it begins at 1", l.Generation)
	case l.Desired != holdfast.CheckpointPresent && l.Desired != holdfast.CheckpointAbsent:
		return bad("desired", "desired %q is neither PRESENT nor ABSENT", l.Desired)
	}
	l.Wait = min(max(l.Wait, 0), holdfast.MaxLevelWait)
	return nil
}

// whereabouts is what is recorded of the boot that a checkpoint is of.
type whereabouts struct {
	instance *row      // its newest incarnation; nil: unknown
	left     *leftover // the boot itself, where a later one has replaced it and its end is not confirmed
	lineage  lineage.Lineage
}

func (s *Service) whereabouts(ctx context.Context, l holdfast.CheckpointLevel) (at whereabouts, now time.Time, err error) {
	if at.lineage, err = s.descent(ctx); err != nil {
		return at, now, err
	}
	err = s.db.View(ctx, func(tx store.Tx) error {
		at.instance, at.left = nil, nil
		cur, found, err := getInstance(ctx, tx, l.Instance, "")
		if err != nil {
			return err
		}
		if found {
			at.instance = &cur
		}
		lefts, err := leftoversWhere(ctx, tx, `instance = $1 AND incarnation = $2`, string(l.Instance), l.Incarnation)
		if err != nil {
			return err
		}
		if len(lefts) > 0 {
			at.left = &lefts[0]
		}
		now, err = tx.Now(ctx)
		return err
	})
	return at, now, err
}

// route decides which host a level goes to; nil: none, it is ABSENT for good. An
// instance that the fleet does not know, or whose host confirmed that it is ABSENT or
// was given up, makes no copy any more: what a lost host still uploads has a key that
// nothing names, and is swept. It is pure.
func route(at whereabouts, l holdfast.CheckpointLevel, asking time.Duration, now time.Time) (*row, error) {
	cur, present := at.instance, l.Desired == holdfast.CheckpointPresent
	switch {
	case cur == nil && present:
		return nil, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such instance").On(string(l.Instance))
	case cur == nil && l.MintedAt.Before(at.lineage.RecoveredAt) && now.Sub(at.lineage.RecoveredAt) < asking:
		return nil, behind(l, "the instance is not recorded, and the hosts are being asked for it")
	case cur == nil:
		return nil, nil
	case l.Incarnation > cur.incarnation:
		return nil, behind(l, fmt.Sprintf("incarnation %d is the last that is recorded", cur.incarnation))
	case l.Incarnation < cur.incarnation && present:
		return nil, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation,
			"incarnation %d is older than %d, which was seen", l.Incarnation, cur.incarnation).
			On(string(l.Instance)).With("seen", strconv.FormatInt(cur.incarnation, 10))
	case l.Incarnation < cur.incarnation && at.left == nil:
		return nil, nil
	case l.Incarnation < cur.incarnation:
		return &row{id: l.Instance, incarnation: l.Incarnation, host: at.left.host, hostURL: at.left.hostURL}, nil
	case present:
		return cur, copyable(*cur, l)
	case cur.host == "" || cur.hostGone || cur.state == holdfast.InstanceAbsent:
		return nil, nil
	}
	return cur, nil
}

func behind(l holdfast.CheckpointLevel, why string) error {
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonBehind, "checkpoint of incarnation %d of %s: %s", l.Incarnation, l.Instance, why).
		On(string(l.Instance)).Retry(5 * time.Second)
}

// copyable refuses a copy of what has ended, or is ending, and an intent that is not
// the newest.
func copyable(cur row, l holdfast.CheckpointLevel) error {
	switch {
	case l.Generation < cur.generation:
		return holdfast.E(holdfast.Aborted, holdfast.ReasonStaleGeneration,
			"generation %d is lower than %d, which was seen: look, and issue the intent above it", l.Generation, cur.generation).
			On(string(l.Instance)).With("seen", strconv.FormatInt(cur.generation, 10))
	case final(cur.state) || ending(cur.desired):
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonExited,
			"the instance has ended, or is ending: it is %s", cur.state).On(string(l.Instance))
	case cur.hostGone || cur.host == "":
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonInstanceLost,
			"the instance is lost with its host").On(string(l.Instance))
	}
	return nil
}

// tellCheckpoint passes a level on to a host (H3), once, in the name of whom the
// fleet obeys.
func (s *Service) tellCheckpoint(ctx context.Context, r row, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	at, err := s.descent(ctx)
	if err != nil {
		return holdfast.CheckpointObservation{}, storage("read the database's lineage", err)
	}
	if l.Cluster, l.Epoch = at.Cluster, at.Epoch; l.Cluster == "" {
		l.Cluster = s.cluster
	}
	ctx, cancel := context.WithTimeout(ctx, l.Wait+s.limits.CallTimeout)
	defer cancel()
	seen, err := s.dial(r.hostURL).EnsureCheckpoint(ctx, l)
	if err == nil && seen.Checkpoint != l.Checkpoint {
		err = holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "it answered about %q", seen.Checkpoint)
	}
	if err := s.checkAnswer(ctx, r, holdfast.Observation{Instance: seen.Instance}, err); err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	return seen, nil
}
