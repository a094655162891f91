package hostagent

import (
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// checkCopy refuses what is malformed, before anything of it is looked at (trap T7).
func checkCopy(l holdfast.CheckpointLevel) error {
	bad := func(field, format string, args ...any) error {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, format, args...).With("field", field).On(string(l.Checkpoint))
	}
	if err := holdfast.CheckID("checkpoint", holdfast.PrefixCheckpoint, string(l.Checkpoint)); err != nil {
		return err
	}
	if err := holdfast.CheckID("instance", holdfast.PrefixInstance, string(l.Instance)); err != nil {
		return err
	}
	switch {
	case l.Desired != holdfast.CheckpointPresent && l.Desired != holdfast.CheckpointAbsent:
		return bad("desired", "desired %q is neither PRESENT nor ABSENT", l.Desired)
	case l.Incarnation < 1:
		return bad("incarnation", "incarnation %d: the first is 1", l.Incarnation)
	case l.Generation < 1:
		return bad("generation", "generation %d: the first is 1", l.Generation)
	case l.Claim < 0:
		return bad("claim", "claim %d: it cannot be negative", l.Claim)
	}
	return nil
}

// subject is the boot that a checkpoint is of, as it is recorded here.
type subject struct {
	record record
	known  bool
	newest int64 // incarnation of the instance; 0: none
}

// ended says why nothing can be copied of it any more; nil while something can.
func (s subject) ended() *holdfast.Failure {
	r := s.record
	switch {
	case !s.known:
		return &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the instance is not on this host any more"}
	case s.newest > r.Ref.Incarnation:
		return &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the instance was followed by another incarnation"}
	case r.Failure != nil:
		return &holdfast.Failure{Reason: r.Failure.Reason, Message: "the instance ended: " + r.Failure.Message}
	case r.Ending != nil:
		return &holdfast.Failure{Reason: r.Ending.Reason, Message: "the instance ended: " + r.Ending.Message}
	case r.Removing || r.final():
		return &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the instance was removed"}
	}
	return nil
}

// still reports a state in which its disk can be copied.
func (s subject) still() bool {
	return s.record.State == holdfast.InstanceRunning || s.record.State == holdfast.InstanceSuspended
}

// situation is what a judgement of a level needs to know besides records.
type situation struct {
	now    time.Time
	tooOld time.Duration // since an unknown checkpoint was minted
	busy   bool          // an attempt is at it
	packed bool          // the part of this process's own copy is whole
}

// copyJudgement is what a level means for a checkpoint.
type copyJudgement struct {
	record  copyRecord // as it is to be, once the level is taken
	changed bool       // whether it must be written first
	begin   bool       // whether an attempt must be at it
}

// judgeCopy decides on a level from what is recorded of its checkpoint (nil: never
// seen) and of its instance. It changes nothing.
func judgeCopy(l holdfast.CheckpointLevel, known *copyRecord, of subject, s situation) (copyJudgement, error) {
	ref := holdfast.InstanceRef{Instance: l.Instance, Incarnation: l.Incarnation}
	next := copyRecord{Checkpoint: l.Checkpoint, Ref: ref, MintedAt: l.MintedAt, StartedAt: s.now}
	if known != nil {
		next = *known
		if next.Ref == (holdfast.InstanceRef{}) { // a damaged record has forgotten
			next.Ref = ref
		}
		if next.Ref != ref {
			return copyJudgement{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonLevelConflict,
				"checkpoint %s is of %s/%d, and not of %s/%d", l.Checkpoint, next.Ref.Instance, next.Ref.Incarnation, l.Instance, l.Incarnation).
				On(string(l.Checkpoint))
		}
	}
	switch {
	case l.Desired == holdfast.CheckpointAbsent: // whatever its generation and its claim: the end is the end
		if known != nil && known.State == holdfast.CopyAbsent {
			return copyJudgement{record: next}, nil
		}
		next.Claim = max(next.Claim, l.Claim)
		return copyJudgement{record: next.end(holdfast.CopyAbsent, nil, s.now), changed: true}, nil
	case known != nil && known.final():
		return copyJudgement{record: next}, nil
	}
	if err := judgeSubject(l, known != nil, of, s); err != nil {
		return copyJudgement{}, err
	}
	switch failure := of.ended(); {
	case failure != nil:
		return copyJudgement{record: next.end(holdfast.CopyFailed, failure, s.now), changed: true}, nil
	case known != nil && l.Claim < known.Claim && !s.busy:
		return copyJudgement{}, holdfast.E(holdfast.Aborted, holdfast.ReasonClaimed, "claim %d came, and asks for checkpoint %s no more than claim %d does",
			known.Claim, l.Checkpoint, l.Claim).On(string(l.Checkpoint)).With("seen", strconv.FormatInt(known.Claim, 10))
	case known == nil || !s.busy && !s.packed:
		return copyJudgement{record: next.begin(l.Claim), changed: true, begin: true}, nil
	case l.Claim > known.Claim:
		next.Claim = l.Claim
		return copyJudgement{record: next, changed: true, begin: !s.busy}, nil
	}
	return copyJudgement{record: next, begin: !s.busy}, nil
}

// judgeSubject refuses what is not of the newest intent, and what cannot be copied yet
// or for lack of a record.
func judgeSubject(l holdfast.CheckpointLevel, known bool, of subject, s situation) error {
	switch {
	case l.Incarnation < of.newest && !known:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation,
			"incarnation %d of %s was followed by incarnation %d", l.Incarnation, l.Instance, of.newest).
			On(string(l.Instance)).With("seen", strconv.FormatInt(of.newest, 10))
	case of.known && l.Generation < of.record.Generation:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration,
			"generation %d of %s was seen, %d came too late", of.record.Generation, l.Instance, l.Generation).
			On(string(l.Instance)).With("seen", strconv.FormatInt(of.record.Generation, 10))
	case known:
		return nil
	case s.now.Sub(l.MintedAt) > s.tooOld:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooOld,
			"checkpoint %s is not known here and was minted %s ago: its tombstone may be gone; take another",
			l.Checkpoint, s.now.Sub(l.MintedAt).Round(time.Second)).On(string(l.Checkpoint))
	case !of.known:
		return unknown(l.Instance)
	case of.ended() != nil:
		failure := of.ended()
		return holdfast.E(holdfast.FailedPrecondition, failure.Reason, "%s", failure.Message).On(string(l.Instance))
	case !of.still():
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonState, "the instance is %s: it can be copied once it runs", of.record.state()).
			On(string(l.Instance)).Retry(time.Second)
	}
	return nil
}
