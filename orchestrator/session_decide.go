package orchestrator

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
)

// verdictUncertain is a session's alone: what is pending was issued to the runtime
// and has to be finished first (contract: A7). A delete is noted as wanted.
const verdictUncertain verdict = "UNCERTAIN"

// decideSession is the table of lifecycle.md for a session. pending is its operation
// with the claim of the one on its sandbox that carries it out, where that is live.
func decideSession(state holdfast.SessionState, pending *operation.Operation, now time.Time, verb holdfast.OperationKind) verdict {
	switch verb {
	case holdfast.OperationCreate:
		if state != holdfast.SessionWaiting && state != holdfast.SessionCreating || pending == nil {
			return verdictDone
		}
		if pending.Claimed(now) {
			return verdictHeld
		}
		return verdictJoin
	case holdfast.OperationDelete:
		if state == holdfast.SessionDeleted {
			return verdictDone
		}
	default:
		if state != holdfast.SessionReady && state != holdfast.SessionSuspended {
			if state == holdfast.SessionCreating && pending != nil && pending.Claimed(now) {
				return verdictHeld
			}
			return verdictRefuse
		}
		if pending == nil && state == holdfast.SessionState(target(verb)) {
			return verdictDone
		}
	}
	w := wanted(verb)
	w.IssuedFirst = true
	switch operation.Decide(pending, now, w) {
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
	case operation.Uncertain:
		return verdictUncertain
	}
	return verdictRefuse
}

// stage is what a session's pending operation needs next.
type stage string

const (
	stageBuild      stage = "environment" // the build it waits for
	stageTask       stage = "task"        // the running task's end
	stageCheckpoint stage = "checkpoint"  // the end of the checkpoint being taken
	stageHook       stage = "hook"        // the hook in the guest
	stageDrive      stage = "drive"       // the sandbox's operation is to be begun
	stageSandbox    stage = "sandbox"     // the sandbox's operation is to be carried on
	stageFinish     stage = "finish"      // nothing: it has what it wants
)

// facts are what the next stage depends on.
type facts struct {
	verb    holdfast.OperationKind
	waiting bool                   // for a build
	box     holdfast.SandboxState  // "": it has none
	boxed   holdfast.OperationKind // what is pending on its sandbox; "": nothing
	task    bool                   // one runs
	hook    bool                   // there is one for the verb, and it has not ended for this operation
}

// nextStage is what a session's operation needs next: the door is closed, then the
// running task ends, then a checkpoint being taken, then the hook, then the sandbox's
// own operation is begun (contract: A13). What does not run has no task to wait for
// and no hook to run: a delete never resumes first.
func nextStage(f facts) stage {
	switch {
	case f.waiting && f.verb == holdfast.OperationCreate:
		return stageBuild
	case f.box == "" || f.box == holdfast.SandboxDeleted:
		return stageFinish
	case f.boxed == f.verb:
		return stageSandbox
	case f.verb != holdfast.OperationDelete && f.box != holdfast.SandboxReady && f.box != holdfast.SandboxSuspended:
		return stageSandbox // whatever it is doing, its end decides
	}
	switch f.verb {
	case holdfast.OperationSuspend, holdfast.OperationDelete:
		if f.verb == holdfast.OperationSuspend && f.box == holdfast.SandboxSuspended && f.boxed == "" {
			return stageFinish
		}
		return f.drain()
	case holdfast.OperationResume:
		switch {
		case f.box == holdfast.SandboxReady && f.boxed != holdfast.OperationSuspend:
			if f.hook {
				return stageHook
			}
			return stageFinish
		case f.boxed == holdfast.OperationCheckpoint:
			return stageCheckpoint
		}
		return stageDrive
	}
	return stageFinish
}

// drain is what comes before a sandbox is suspended or deleted.
func (f facts) drain() stage {
	switch {
	case f.box == holdfast.SandboxDeleting:
		return stageSandbox
	case f.box == holdfast.SandboxReady && f.boxed != holdfast.OperationSuspend && f.task:
		return stageTask
	case f.boxed == holdfast.OperationCheckpoint:
		return stageCheckpoint
	case f.box == holdfast.SandboxReady && f.boxed != holdfast.OperationSuspend && f.hook:
		return stageHook
	}
	return stageDrive
}

// following is what becomes of a session because of what its sandbox became.
type following struct {
	state   holdfast.SessionState
	failure *holdfast.Failure  // of a session that is FAILED
	ends    operation.State    // of what is pending; "": it stays
	why     *operation.Failure // of an operation that FAILED
	replace bool               // a REPLACE is pending from now on
	lost    bool               // what ran on an earlier boot is gone
}

// follow is what a sandbox's change makes of its session. carried is the operation of
// the sandbox that carries the session's pending one out, nil while there is none. It
// is pure.
func follow(s sessionRow, pending *operation.Operation, box row, carried *operation.Operation) following {
	out := following{state: s.State, lost: box.Incarnation > s.Incarnation || box.State == holdfast.SandboxFailed}
	switch s.State {
	case holdfast.SessionDeleted, holdfast.SessionWaiting:
		return following{state: s.State}
	case holdfast.SessionFailed:
		return out
	case holdfast.SessionDeleting:
		if box.State == holdfast.SandboxDeleted {
			out.state, out.ends, out.lost = holdfast.SessionDeleted, operation.StateDone, true
		}
		return out
	}
	switch box.State {
	case holdfast.SandboxFailed:
		return out.fail(box.Failure)
	case holdfast.SandboxDeleted:
		return out.fail(&holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "its sandbox was deleted"})
	case holdfast.SandboxCreating:
		if s.State != holdfast.SessionCreating {
			out.state, out.replace = holdfast.SessionCreating, true
			out.ends, out.why = operation.StateFailed, &operation.Failure{Code: string(holdfast.Aborted), Reason: string(holdfast.ReasonSuperseded),
				Message: "the instance was lost and is being replaced by another incarnation"}
		}
		return out
	}
	if s.State == holdfast.SessionCreating {
		if box.State == holdfast.SandboxReady {
			out.state, out.ends = holdfast.SessionReady, operation.StateDone
		}
		return out
	}
	return out.arrive(s, pending, box, carried)
}

// fail ends whatever is pending with the session.
func (f following) fail(failure *holdfast.Failure) following {
	if failure == nil {
		failure = &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "its sandbox failed"}
	}
	f.state, f.failure, f.lost = holdfast.SessionFailed, failure, true
	f.ends, f.why = operation.StateFailed, &operation.Failure{Code: string(holdfast.FailedPrecondition), Reason: string(failure.Reason), Message: failure.Message}
	return f
}

// arrive is what the end of a suspend or resume of the sandbox is to its session's.
func (f following) arrive(s sessionRow, pending *operation.Operation, box row, carried *operation.Operation) following {
	if pending == nil || carried == nil || carried.State == operation.StatePending {
		return f
	}
	if carried.State == operation.StateFailed {
		f.ends, f.why = operation.StateFailed, carried.LastError
		return f
	}
	verb := holdfast.OperationKind(pending.Kind)
	if carried.State != operation.StateDone || box.State != target(verb) {
		return f
	}
	if verb == holdfast.OperationResume && s.hookOf(verb) != "" && s.Hooked != pending.ID {
		return f // it is SUSPENDED to its callers until the hook has ended
	}
	f.state, f.ends = holdfast.SessionState(box.State), operation.StateDone
	return f
}

// hookOf is the script that belongs to a verb.
func (r sessionRow) hookOf(verb holdfast.OperationKind) string {
	switch verb {
	case holdfast.OperationSuspend:
		return r.Shape.Hooks.OnSuspend
	case holdfast.OperationResume:
		return r.Shape.Hooks.OnResume
	case holdfast.OperationDelete:
		return r.Shape.Hooks.OnDelete
	}
	return ""
}
