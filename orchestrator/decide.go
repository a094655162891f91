package orchestrator

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
)

// verdict is what a lifecycle call does to a sandbox as it stands.
type verdict string

const (
	verdictDone    verdict = "DONE"    // at the wanted state: the answer is the resource
	verdictBegin   verdict = "BEGIN"   // record a new intent
	verdictJoin    verdict = "JOIN"    // carry the pending operation on
	verdictReplace verdict = "REPLACE" // supersede what is pending, record the intent
	verdictHeld    verdict = "HELD"    // wait for the live attempt, then ABORTED
	verdictStop    verdict = "STOP"    // a delete that meets a live attempt: record that it is wanted
	verdictRefuse  verdict = "REFUSE"  // FAILED_PRECONDITION
)

// decide is the table of lifecycle.md for a sandbox: the state as last recorded,
// the pending operation (nil for none) and the verb give what to do.
func decide(state holdfast.SandboxState, pending *operation.Operation, now time.Time, verb holdfast.OperationKind) verdict {
	switch verb {
	case holdfast.OperationCreate:
		return decideRepeatedCreate(state, pending, now)
	case holdfast.OperationDelete:
		if state == holdfast.SandboxDeleted {
			return verdictDone
		}
	case holdfast.OperationSuspend, holdfast.OperationResume, holdfast.OperationCheckpoint:
		if state != holdfast.SandboxReady && state != holdfast.SandboxSuspended {
			if state == holdfast.SandboxCreating && pending != nil && pending.Claimed(now) {
				return verdictHeld
			}
			return verdictRefuse
		}
		if pending == nil && verb != holdfast.OperationCheckpoint && state == target(verb) {
			return verdictDone
		}
	}
	switch operation.Decide(pending, now, wanted(verb)) {
	case operation.Begin:
		return verdictBegin
	case operation.Join:
		return verdictJoin
	case operation.Replace:
		return verdictReplace
	case operation.Stop:
		return verdictStop
	case operation.Held:
		return verdictHeld
	}
	return verdictRefuse
}

func decideRepeatedCreate(state holdfast.SandboxState, pending *operation.Operation, now time.Time) verdict {
	if state != holdfast.SandboxCreating || pending == nil {
		return verdictDone
	}
	if pending.Claimed(now) {
		return verdictHeld
	}
	return verdictJoin
}

// wanted says what each verb supersedes (contract: A7, sandboxes).
func wanted(verb holdfast.OperationKind) operation.Wanted {
	w := operation.Wanted{Kind: string(verb)}
	switch verb {
	case holdfast.OperationSuspend:
		w.Supersedes = []string{string(holdfast.OperationResume), string(holdfast.OperationCheckpoint)}
	case holdfast.OperationResume:
		w.Supersedes = []string{string(holdfast.OperationSuspend), string(holdfast.OperationCheckpoint)}
	case holdfast.OperationDelete:
		w.Supersedes = []string{string(holdfast.OperationCreate), string(holdfast.OperationSuspend), string(holdfast.OperationResume),
			string(holdfast.OperationReplace), string(holdfast.OperationCheckpoint)}
		w.Outranks = true
	}
	return w
}

// target is the state that a finished operation leaves.
func target(verb holdfast.OperationKind) holdfast.SandboxState {
	switch verb {
	case holdfast.OperationSuspend:
		return holdfast.SandboxSuspended
	case holdfast.OperationDelete:
		return holdfast.SandboxDeleted
	}
	return holdfast.SandboxReady
}

// desired is the level that an operation issues.
func desired(verb holdfast.OperationKind) holdfast.Desired {
	switch verb {
	case holdfast.OperationSuspend:
		return holdfast.DesiredSuspended
	case holdfast.OperationDelete:
		return holdfast.DesiredAbsent
	}
	return holdfast.DesiredRunning
}

// recordedLevel is the level that matches a sandbox's recorded state.
func recordedLevel(state holdfast.SandboxState) holdfast.Desired {
	switch state {
	case holdfast.SandboxReady:
		return holdfast.DesiredRunning
	case holdfast.SandboxSuspended:
		return holdfast.DesiredSuspended
	}
	return holdfast.DesiredExited
}

// outcome is what an attempt makes of the fleet's answer to its level.
type outcome string

const (
	outcomeReached outcome = "REACHED" // finish the operation
	outcomeAgain   outcome = "AGAIN"   // on its way: ask again
	outcomeWait    outcome = "WAIT"    // it waits for something named: release the claim
	outcomeRetry   outcome = "RETRY"   // transient: release the claim, leave it pending
	outcomeRaise   outcome = "RAISE"   // a higher generation was seen: issue above it
	outcomeReplace outcome = "REBOOT"  // the incarnation is unknown and too old: mint another
	outcomeEnded   outcome = "ENDED"   // the instance ended by itself: the sandbox is FAILED
	outcomeRefused outcome = "REFUSED" // it will never succeed
)

// judgement is an outcome with what to record of it.
type judgement struct {
	outcome  outcome
	failure  *holdfast.Failure // ENDED
	err      *holdfast.Error   // WAIT, RETRY, REFUSED
	waitsFor string            // WAIT
	answered bool              // the authority answered (contract: A15)
	seen     int64             // RAISE
	// RAISE: a later boot than is recorded, of which a restored database knows nothing.
	incarnation int64
}

// judge reads the fleet's answer to a level.
func judge(level holdfast.Level, seen holdfast.Observation, err error) judgement {
	if err != nil {
		return judgeError(holdfast.AsError(err))
	}
	switch {
	case seen.Reached(level):
		return judgement{outcome: outcomeReached, answered: true}
	case seen.Incarnation != level.Incarnation:
		return judgement{outcome: outcomeRetry, answered: true, err: holdfast.E(holdfast.Unavailable, holdfast.ReasonStaleIncarnation,
			"the fleet answered for incarnation %d of %s, not %d", seen.Incarnation, level.Instance, level.Incarnation)}
	case seen.State == holdfast.InstanceExited && level.Desired != holdfast.DesiredAbsent:
		return judgement{outcome: outcomeEnded, answered: true, failure: failureOf(seen)}
	case seen.State == holdfast.InstanceAbsent:
		return judgement{outcome: outcomeEnded, answered: true, failure: &holdfast.Failure{
			Reason: holdfast.ReasonInstanceLost, Message: "the instance is gone from its host"}}
	case seen.State == holdfast.InstancePreparing:
		message := "the image is being prepared"
		if seen.Progress != "" {
			message = seen.Progress
		}
		return judgement{outcome: outcomeWait, answered: true, waitsFor: "image",
			err: holdfast.E(holdfast.Unavailable, holdfast.ReasonPreparing, "%s", message).Retry(2 * time.Second)}
	case seen.State == holdfast.InstanceUnknown:
		return judgement{outcome: outcomeWait, waitsFor: "host", err: holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable,
			"host %s does not answer; what it runs is not known", seen.Host).Retry(5 * time.Second)}
	}
	return judgement{outcome: outcomeAgain, answered: true}
}

func judgeError(e *holdfast.Error) judgement {
	switch e.Reason {
	case holdfast.ReasonStaleGeneration:
		return judgement{outcome: outcomeRaise, answered: true, seen: parseSeen(e), err: e}
	case holdfast.ReasonStaleIncarnation:
		if seen := parseSeen(e); seen > 0 {
			return judgement{outcome: outcomeRaise, answered: true, incarnation: seen, err: e}
		}
	case holdfast.ReasonLevelConflict:
		// The same generation said something else: a restored database issues its intent anew above it.
		if seen := parseSeen(e); seen > 0 {
			return judgement{outcome: outcomeRaise, answered: true, seen: seen, err: e}
		}
	case holdfast.ReasonCluster, holdfast.ReasonStaleEpoch, holdfast.ReasonBehind:
		return judgement{outcome: outcomeWait, waitsFor: "operator", err: e}
	case holdfast.ReasonTooOld:
		return judgement{outcome: outcomeReplace, answered: true, err: e}
	case holdfast.ReasonNoCapacity:
		return judgement{outcome: outcomeWait, answered: true, waitsFor: "capacity", err: e}
	case holdfast.ReasonPreparing:
		return judgement{outcome: outcomeWait, answered: true, waitsFor: "image", err: e}
	case holdfast.ReasonHostUnreachable:
		return judgement{outcome: outcomeWait, waitsFor: "host", err: e}
	}
	if holdfast.Transient(e) {
		answered := e.Reason != holdfast.ReasonUnreachable && e.Code != holdfast.Cancelled && e.Code != holdfast.DeadlineExceeded
		return judgement{outcome: outcomeRetry, answered: answered, err: e}
	}
	return judgement{outcome: outcomeRefused, answered: true, err: e}
}

func failureOf(seen holdfast.Observation) *holdfast.Failure {
	if seen.Failure != nil {
		return seen.Failure
	}
	return &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "the instance ended by itself"}
}
