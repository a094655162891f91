package fleet

import (
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// ruling is what becomes of a level.
type ruling struct {
	next  row  // as it shall be recorded
	write bool // next differs from what is recorded
	place bool // a host is to be chosen first
	call  bool // its host is to be told; otherwise next answers the level
	left  *row // the superseded incarnation, if it still holds capacity
}

// judge decides on a level against what is recorded of its instance, nil for
// nothing (lifecycle.md, "Downward: levels"). The level's form was checked; hash
// is its spec's.
func judge(cur *row, l holdfast.Level, hash string, at clock) (ruling, error) {
	if cur == nil {
		return judgeNew(row{}, l, hash, at)
	}
	switch {
	case l.Incarnation < cur.incarnation:
		return ruling{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation,
			"incarnation %d is older than %d, which was seen", l.Incarnation, cur.incarnation).
			On(string(l.Instance)).With("seen", strconv.FormatInt(cur.incarnation, 10))
	case l.Generation < cur.generation:
		return ruling{}, holdfast.E(holdfast.Aborted, holdfast.ReasonStaleGeneration,
			"generation %d is lower than %d, which was seen: look, and issue the intent above it", l.Generation, cur.generation).
			On(string(l.Instance)).With("seen", strconv.FormatInt(cur.generation, 10))
	case l.Generation == cur.generation && l.Desired != cur.desired:
		return ruling{}, conflict(l, "generation %d was seen with other content: it said %s", l.Generation, cur.desired).
			With("seen", strconv.FormatInt(cur.generation, 10))
	case l.Generation == cur.generation && hash != "" && cur.specHash != "" && hash != cur.specHash:
		return ruling{}, conflict(l, "generation %d was seen with other content: it said %s", l.Generation, cur.desired)
	case l.Incarnation > cur.incarnation:
		r, err := judgeNew(*cur, l, hash, at)
		if cur.held {
			left := *cur
			r.left = &left
		}
		return r, err
	case hash != "" && cur.specHash != "" && hash != cur.specHash:
		// An incarnation boots once, so what it is made of is decided once.
		return ruling{}, conflict(l, "incarnation %d was placed with another spec: another one needs another incarnation", l.Incarnation)
	}
	return judgeKnown(*cur, l, at.now), nil
}

// clock is when a level is judged, and how old it may be.
type clock struct {
	now    time.Time
	tooOld time.Duration
}

func conflict(l holdfast.Level, format string, args ...any) *holdfast.Error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonLevelConflict, format, args...).On(string(l.Instance))
}

// judgeNew decides on an incarnation not seen before; old is what is recorded of an earlier one.
func judgeNew(old row, l holdfast.Level, hash string, at clock) (ruling, error) {
	next := row{
		id: l.Instance, incarnation: l.Incarnation, generation: l.Generation, observed: l.Generation, revision: old.revision,
		desired: l.Desired, mintedAt: l.MintedAt, leveledAt: at.now, enteredAt: at.now,
	}
	if l.Spec != nil {
		next.owner = l.Spec.Owner
	}
	switch l.Desired {
	case holdfast.DesiredAbsent: // a late RUNNING shall find the tombstone (T39)
		next.state, next.tombstoneAt = holdfast.InstanceAbsent, at.now
	case holdfast.DesiredExited:
		next.state = holdfast.InstanceExited
	case holdfast.DesiredSuspended:
		return ruling{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState,
			"incarnation %d was never placed: there is nothing to suspend", l.Incarnation).On(string(l.Instance))
	default:
		return judgePlacement(next, l, hash, at)
	}
	next.known = next.state
	return ruling{next: next, write: true}, nil
}

func judgePlacement(next row, l holdfast.Level, hash string, at clock) (ruling, error) {
	if l.MintedAt.IsZero() {
		return ruling{}, bad("minted_at", "minted_at is needed to run incarnation %d, which was not seen before", l.Incarnation)
	}
	// Its tombstone may have been purged: it must not come back to life (T40).
	if age := at.now.Sub(l.MintedAt); age > at.tooOld {
		return ruling{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooOld,
			"incarnation %d is unknown and was minted %s ago: raise the incarnation", l.Incarnation, age.Round(time.Second)).
			On(string(l.Instance))
	}
	if l.Spec == nil {
		return ruling{}, bad("spec", "spec is needed to run incarnation %d, which was not seen before", l.Incarnation)
	}
	need := l.Spec.Resources.WithDefaults()
	next.spec, next.specHash = l.Spec, hash
	next.cpu, next.memory = need.CPUMillis, need.MemoryBytes
	next.state, next.known = holdfast.InstancePlaced, holdfast.InstancePlaced
	next.placedAt = at.now
	next.dueAt = dueAt(next)
	return ruling{next: next, write: true, place: true, call: true}, nil
}

// judgeKnown decides on a level of the recorded incarnation that is not stale
// and conflicts with nothing.
func judgeKnown(next row, l holdfast.Level, now time.Time) ruling {
	r := ruling{next: next}
	if l.Generation > next.generation {
		r.next.generation, r.next.desired, r.next.leveledAt = l.Generation, l.Desired, now
		r.next.dueAt = dueAt(r.next)
		r.write = true
	}
	switch {
	case next.state == holdfast.InstanceAbsent:
	case next.state == holdfast.InstanceExited && l.Desired != holdfast.DesiredAbsent:
	case next.state == holdfast.InstanceExited && next.host == "": // nothing of it is anywhere
		r.next.state, r.next.known = holdfast.InstanceAbsent, holdfast.InstanceAbsent
		r.next.enteredAt, r.next.tombstoneAt = now, now
		r.write = true
	default:
		r.call = true
		return r
	}
	// What ended answers every level, for ever.
	r.next.observed = max(r.next.observed, r.next.generation)
	r.next.dueAt = time.Time{}
	return r
}
