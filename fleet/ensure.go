package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// EnsureInstance implements holdfast.FleetService (H2). It records the level and
// where its incarnation is placed in one transaction, passes it on to the host
// outside of any, and stores what the host answers. It tries each once: its
// caller retries, and a repeat joins (T22). An end is answered once earlier boots
// that hosts still have are ended too.
func (s *Service) EnsureInstance(ctx context.Context, level holdfast.Level) (holdfast.Observation, error) {
	seen, err := s.ensure(ctx, level)
	if err == nil && level.Incarnation > 1 && ending(level.Desired) && final(seen.State) {
		err = s.endEarlier(ctx, level.Instance)
	}
	if err != nil {
		return holdfast.Observation{}, err
	}
	return seen, nil
}

func (s *Service) ensure(ctx context.Context, level holdfast.Level) (holdfast.Observation, error) {
	hash, err := s.checkLevel(&level)
	if err == nil {
		err = s.obey(ctx, level)
	}
	if err != nil {
		return holdfast.Observation{}, err
	}
	r, recorded := s.recordAtOnce(ctx, level, hash)
	if !recorded {
		err = s.db.Update(ctx, func(tx store.Tx) (err error) {
			r, err = s.record(ctx, tx, level, hash)
			return err
		})
	}
	if err != nil {
		return holdfast.Observation{}, storage("record the level of "+string(level.Instance), err)
	}
	if !r.call {
		return r.next.observation(), nil
	}
	s.endFirst(ctx, r)
	if r.next.hostGone {
		return s.endOnGoneHost(ctx, r.next.id)
	}
	seen, err := s.tell(ctx, r.next, level.Wait)
	if err != nil {
		return holdfast.Observation{}, err
	}
	return s.storeAnswer(ctx, r.next, seen)
}

// checkLevel holds a level's form, before anything is recorded (T7), and returns its spec's hash.
func (s *Service) checkLevel(l *holdfast.Level) (string, error) {
	if err := holdfast.CheckID("instance", holdfast.PrefixInstance, string(l.Instance)); err != nil {
		return "", err
	}
	if l.Incarnation < 1 {
		return "", bad("incarnation", "incarnation %d: it begins at 1", l.Incarnation)
	}
	if l.Generation < 1 {
		return "", bad("generation", "generation %d: it begins at 1", l.Generation)
	}
	switch l.Desired {
	case holdfast.DesiredRunning, holdfast.DesiredSuspended, holdfast.DesiredExited, holdfast.DesiredAbsent:
	default:
		return "", bad("desired", "desired %q is none of RUNNING, SUSPENDED, EXITED and ABSENT", l.Desired)
	}
	if l.Spec != nil {
		if r := l.Spec.Resources; r.CPUMillis < 0 || r.MemoryBytes < 0 || r.PIDs < 0 {
			return "", bad("spec.resources", "resources are not negative")
		}
	}
	l.Wait = min(max(l.Wait, 0), holdfast.MaxLevelWait)
	return hashSpec(l.Spec)
}

// record decides on the level under the instance's lock. Of a level that is
// refused, or finds no room, nothing is recorded.
func (s *Service) record(ctx context.Context, tx store.Tx, level holdfast.Level, hash string) (ruling, error) {
	if level.Incarnation == 1 && level.Generation == 1 {
		r, done, err := s.recordFirst(ctx, tx, level, hash)
		if err != nil || done {
			return r, err
		}
	}
	for range 2 {
		cur, found, err := getInstance(ctx, tx, level.Instance, tx.ForUpdate())
		if err != nil {
			return ruling{}, err
		}
		now, err := tx.Now(ctx) // after the wait for the lock (T41)
		if err != nil {
			return ruling{}, fmt.Errorf("read the clock: %w", err)
		}
		var known *row
		if found {
			known = &cur
		}
		r, err := judge(known, level, hash, clock{now: now, tooOld: s.limits.TooOldAfter})
		if err != nil || !r.write {
			return r, err
		}
		if r.place {
			if err := s.limits.lost(*s.lineage.Load(), level, now); err != nil { // read when the order was obeyed
				return ruling{}, err
			}
		}
		done, err := s.writeRuling(ctx, tx, &r, found, now)
		if err != nil || done {
			return r, err
		}
	}
	return ruling{}, errors.New("the instance was inserted and deleted by others")
}

// recordFirst is record for the first level of an instance, which is mostly not
// recorded yet: it looks for no row, and reports false where there is one, or where
// a fresh row is not the answer.
func (s *Service) recordFirst(ctx context.Context, tx store.Tx, level holdfast.Level, hash string) (ruling, bool, error) {
	now, err := tx.Now(ctx)
	if err != nil {
		return ruling{}, false, fmt.Errorf("read the clock: %w", err)
	}
	s.saw(now)
	r, refused := judge(nil, level, hash, clock{now: now, tooOld: s.limits.TooOldAfter})
	if refused != nil || !r.write || !r.place {
		return ruling{}, false, nil
	}
	if s.limits.lost(*s.lineage.Load(), level, now) != nil {
		return ruling{}, false, nil
	}
	likely, err := s.roster.hosts(ctx, tx, now)
	if err != nil {
		return ruling{}, false, err
	}
	hosts := roomy(likely, r.next)
	if len(hosts) == 0 {
		return ruling{}, false, nil // one that is recorded needs no room
	}
	done, err := insertPlaced(ctx, tx, &r.next, hosts)
	return r, done, err
}

// writeRuling reports false when another transaction recorded the instance first.
// Locks are taken in one order: the instance, then its host (contract: D3).
func (s *Service) writeRuling(ctx context.Context, tx store.Tx, r *ruling, found bool, now time.Time) (bool, error) {
	switch {
	case !found && r.place:
		likely, err := s.roster.hosts(ctx, tx, now)
		if err != nil {
			return false, err
		}
		return insertPlaced(ctx, tx, &r.next, roomy(likely, r.next))
	case !found:
		return insertInstance(ctx, tx, r.next)
	}
	if r.left != nil {
		if err := insertLeftover(ctx, tx, *r.left, r.next.generation, now); err != nil {
			return false, err
		}
	}
	if r.place {
		if err := place(ctx, tx, &r.next); err != nil {
			return false, err
		}
	}
	return true, updateInstance(ctx, tx, &r.next)
}

// tell passes the recorded level on to its host (H3), once.
func (s *Service) tell(ctx context.Context, r row, wait time.Duration) (holdfast.Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+s.limits.CallTimeout)
	defer cancel()
	seen, err := s.order(ctx, r.hostURL, r.level(wait))
	return seen, s.checkAnswer(ctx, r, seen, err)
}

// checkAnswer tells an answer of the instance's host from no answer: a host that
// is silent, or another one at its address, says nothing about it (T32).
func (s *Service) checkAnswer(ctx context.Context, r row, seen holdfast.Observation, err error) error {
	if err == nil && seen.Host != "" && seen.Host != r.host {
		err = holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "%s answers at its address", seen.Host)
	}
	if err == nil && seen.Instance != r.id {
		err = holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "it answered about %q", seen.Instance)
	}
	if err == nil {
		return nil
	}
	if reason := holdfast.ReasonOf(err); reason == holdfast.ReasonCluster || reason == holdfast.ReasonStaleEpoch {
		return holdfast.E(holdfast.Unavailable, reason, "host %s refuses this fleet's orders", r.host).On(string(r.id)).Because(err)
	}
	if answers(err) {
		return fmt.Errorf("host %s: %w", r.host, err)
	}
	if cause := ctx.Err(); cause != nil && errors.Is(cause, context.Canceled) {
		return fmt.Errorf("host %s: %w", r.host, err)
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable,
		"host %s does not answer; what it does is not known", r.host).On(string(r.id)).With("host", string(r.host)).Because(err)
}

// answers reports whether an error is a host's answer. One that does not take
// this fleet for its own says nothing about the instance either.
func answers(err error) bool {
	var own *holdfast.Error
	if !errors.As(err, &own) {
		return false
	}
	switch own.Code {
	case holdfast.Unauthenticated, holdfast.PermissionDenied:
		return false
	}
	return own.Reason != holdfast.ReasonUnreachable && own.Reason != holdfast.ReasonCluster && own.Reason != holdfast.ReasonStaleEpoch
}

// storeAnswer stores what a host answered to the level that told says, unless
// something newer is known, and returns what is known then. It finishes for a
// caller that has left (T46): the host has done it.
func (s *Service) storeAnswer(ctx context.Context, told row, seen holdfast.Observation) (holdfast.Observation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.CallTimeout)
	defer cancel()
	if known, done := s.answerAtOnce(ctx, told, seen); done {
		return known.observation(), nil
	}
	var known row
	var found bool
	err := s.settle(ctx, func(tx store.Tx, now time.Time) (c change, err error) {
		// Most often nothing has happened since the level was recorded, and one
		// conditional write does. An end has consequences: it goes the long way.
		if c := fold(told, seen, answered, now); c.changed && !final(c.next.state) {
			known = c.next
			found, err = updateFacts(ctx, tx, &known)
			if err != nil || found {
				return change{}, err
			}
		}
		known, found, err = getInstance(ctx, tx, seen.Instance, tx.ForUpdate())
		if err != nil || !found {
			return change{}, err
		}
		c = fold(known, seen, answered, now)
		known = c.next
		return c, nil
	})
	if err != nil {
		return holdfast.Observation{}, storage("store the answer about "+string(seen.Instance), err)
	}
	if !found || known.incarnation != seen.Incarnation {
		return seen, nil
	}
	return known.observation(), nil
}
