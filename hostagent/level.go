package hostagent

import (
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// checkLevel refuses what is malformed, before anything of it is looked at (trap T7).
func checkLevel(l holdfast.Level) error {
	if err := holdfast.CheckID("instance", holdfast.PrefixInstance, string(l.Instance)); err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, format, args...).With("field", field).On(string(l.Instance))
	}
	switch l.Desired {
	case holdfast.DesiredRunning, holdfast.DesiredSuspended, holdfast.DesiredExited, holdfast.DesiredAbsent:
	default:
		return bad("desired", "desired %q is none of RUNNING, SUSPENDED, EXITED, ABSENT", l.Desired)
	}
	if l.Incarnation < 1 {
		return bad("incarnation", "incarnation %d: the first is 1", l.Incarnation)
	}
	if l.Generation < 1 {
		return bad("generation", "generation %d: the first is 1", l.Generation)
	}
	if l.Spec != nil && boots(l.Desired) && len(l.Spec.Layers) > holdfast.MaxLayers {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooLarge, "%d layers above an image: at most %d can be mounted",
			len(l.Spec.Layers), holdfast.MaxLayers).With("field", "spec").On(string(l.Instance))
	}
	return nil
}

// boots reports whether the level wants guest code to have run.
func boots(d holdfast.Desired) bool {
	return d == holdfast.DesiredRunning || d == holdfast.DesiredSuspended
}

// judgement is what a level means for an instance.
type judgement struct {
	record  record // as it is to be, once the level is taken
	changed bool   // whether it must be written first
}

// judge decides on a level from what is recorded of its incarnation (nil: never
// seen) and the newest incarnation seen (0: none). It changes nothing.
func judge(l holdfast.Level, known *record, newest int64, now time.Time, tooOld time.Duration) (judgement, error) {
	if l.Incarnation < newest {
		return judgement{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation,
			"incarnation %d of %s was followed by incarnation %d", l.Incarnation, l.Instance, newest).
			On(string(l.Instance)).With("seen", strconv.FormatInt(newest, 10))
	}
	if known == nil {
		return judgeUnknown(l, now, tooOld)
	}
	next := known.clone()
	next.Orphan = false
	if l.Generation < known.Generation {
		return judgement{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration,
			"generation %d of %s was seen, %d came too late", known.Generation, l.Instance, l.Generation).
			On(string(l.Instance)).With("seen", strconv.FormatInt(known.Generation, 10))
	}
	if boots(l.Desired) && known.Spec == nil && !known.Started && !known.final() && l.Spec == nil {
		return judgement{}, specMissing(l)
	}
	if l.Spec != nil && known.Spec != nil && boots(l.Desired) {
		same, err := sameSpec(l.Spec, known.Spec)
		if err != nil {
			return judgement{}, fmt.Errorf("compare specs: %w", err)
		}
		if !same {
			return judgement{}, conflict(l, "another spec")
		}
	}
	if l.Generation == known.Generation {
		if l.Desired != known.Desired {
			return judgement{}, conflict(l, fmt.Sprintf("desired %s", known.Desired)).With("seen", strconv.FormatInt(known.Generation, 10))
		}
		return judgement{record: next, changed: known.Orphan}, nil
	}
	next.Generation, next.Desired = l.Generation, l.Desired
	if known.final() && l.Desired != holdfast.DesiredAbsent || known.State == holdfast.InstanceAbsent {
		return judgement{record: next, changed: true}, nil // answered for ever, never obeyed
	}
	if next.Spec == nil {
		next.Spec = l.Spec
	}
	switch l.Desired {
	case holdfast.DesiredAbsent:
		next.Removing = true
	case holdfast.DesiredExited:
		if next.Ending == nil {
			next.Ending = &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "it was ended as ordered"}
		}
	}
	return judgement{record: next, changed: true}, nil
}

func judgeUnknown(l holdfast.Level, now time.Time, tooOld time.Duration) (judgement, error) {
	next := record{
		Ref:        holdfast.InstanceRef{Instance: l.Instance, Incarnation: l.Incarnation},
		Generation: l.Generation, Desired: l.Desired, Spec: l.Spec,
		MintedAt: l.MintedAt, PlacedAt: l.PlacedAt, CreatedAt: now,
		State: holdfast.InstancePreparing,
	}
	switch l.Desired {
	case holdfast.DesiredAbsent:
		next.Spec, next.State, next.TombstoneAt = nil, holdfast.InstanceAbsent, now
	case holdfast.DesiredExited:
		next.State, next.EndedAt = holdfast.InstanceExited, now
		next.Failure = &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "it was ended before it was begun"}
	default:
		if age := now.Sub(l.PlacedAt); age > tooOld {
			return judgement{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooOld,
				"incarnation %d of %s is not known here and was placed %s ago: its tombstone may be gone; raise the incarnation",
				l.Incarnation, l.Instance, age.Round(time.Second)).On(string(l.Instance))
		}
		if l.Spec == nil {
			return judgement{}, specMissing(l)
		}
	}
	return judgement{record: next, changed: true}, nil
}

// judgeForgotten decides on an incarnation that an earlier process, whose records
// died with it, may have begun: it is never begun here (trap T49). The first
// level of all, a create's, is sent back for another incarnation; any other finds
// the instance lost. What only ends is as for an unknown one.
func judgeForgotten(l holdfast.Level, unknown judgement, now time.Time) (judgement, error) {
	switch {
	case !boots(l.Desired):
		return unknown, nil
	case l.Generation == 1:
		return judgement{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooOld,
			"incarnation %d of %s was placed before this host's memory begins; raise the incarnation", l.Incarnation, l.Instance).
			On(string(l.Instance))
	}
	lost := unknown.record
	lost.State, lost.Started, lost.EndedAt = holdfast.InstanceExited, true, now
	lost.Failure = &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the host restarted; what ran in its memory is gone"}
	return judgement{record: lost, changed: true}, nil
}

func specMissing(l holdfast.Level) error {
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField,
		"incarnation %d of %s was never seen here, so the level needs its spec", l.Incarnation, l.Instance).
		With("field", "spec").On(string(l.Instance))
}

func conflict(l holdfast.Level, had string) *holdfast.Error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonLevelConflict,
		"incarnation %d of %s has been ordered with %s; generation %d wants something else",
		l.Incarnation, l.Instance, had, l.Generation).On(string(l.Instance))
}
