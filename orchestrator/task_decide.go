package orchestrator

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// taskEnd is how a task ended, as somebody who may know tells it.
type taskEnd struct {
	state      holdfast.TaskState
	failure    *holdfast.Failure
	exitCode   int
	finishedAt time.Time // of the process; zero where it has none
	process    holdfast.ProcessID
	startedAt  time.Time
}

// endingTask is a locked task with its end.
type endingTask struct {
	task *taskRow
	end  taskEnd
}

// endOfProcess is what the end of its process makes of a task. A task that was to be
// cancelled, or that still ran at its limit, ended so whatever its code: whether it
// would have ended by itself nobody can tell.
func endOfProcess(t taskRow, p holdfast.Process, tail string) taskEnd {
	e := taskEnd{state: holdfast.TaskSucceeded, exitCode: p.ExitCode, finishedAt: p.FinishedAt, process: p.ID, startedAt: p.StartedAt}
	switch {
	case p.Lost:
		return lostEnd(fmt.Sprintf("its process ended with incarnation %d of its sandbox", t.Incarnation))
	case t.CancelAsked:
		e.state, e.failure = holdfast.TaskCancelled, &holdfast.Failure{Reason: holdfast.ReasonCancelled,
			Message: fmt.Sprintf("cancelled; its process ended with code %d", p.ExitCode)}
	case t.TimedOut:
		e.state, e.failure = holdfast.TaskTimedOut, &holdfast.Failure{Reason: holdfast.ReasonTimeLimit,
			Message: fmt.Sprintf("it still ran at its limit of %s, and was ended; its process ended with code %d", t.Limit, p.ExitCode)}
	case p.ExitCode != 0:
		e.state, e.failure = holdfast.TaskFailed, &holdfast.Failure{Reason: holdfast.ReasonExitCode,
			Message: fmt.Sprintf("its process ended with code %d", p.ExitCode), LogTail: tail}
	}
	return e
}

// lostEnd is the end of a task whose boot is over: it never runs again (contract: E3).
func lostEnd(why string) taskEnd {
	return taskEnd{state: holdfast.TaskFailed, failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost,
		Message: why + "; whether it had finished its work is not known, and it is not run again"}}
}

// sameEnd reports whether an end is the one that is recorded, told again: a process
// ends at one instant. What is no process's own end adds nothing to any; where none is
// recorded, the instant is that at which the task was given up, and says nothing.
func sameEnd(t taskRow, e taskEnd) bool {
	return e.finishedAt.IsZero() || t.ProcessEnded && t.ExitCode == e.exitCode && t.FinishedAt.UnixMicro() == e.finishedAt.UnixMicro()
}

// started is what became of a call that starts a task's process.
type started string

const (
	startedRuns  started = "RUNS"  // or ran: the answer is the process
	startedAgain started = "AGAIN" // not known, or not now: the same call again, later
	startedEnds  started = "ENDS"  // it will never run
)

// judgeStart reads the answer to a start. A request id starts once per boot, so that
// a start which may have happened is safe to ask for again; a boot that is over
// refuses it, and then it is never asked of another.
func judgeStart(t taskRow, err error) (started, taskEnd) {
	e := holdfast.AsError(err)
	switch {
	case err == nil:
		return startedRuns, taskEnd{}
	case e.Reason == holdfast.ReasonIncarnation || e.Reason == holdfast.ReasonStaleIncarnation:
		return startedEnds, lostEnd(fmt.Sprintf("incarnation %d of its sandbox is gone", t.Incarnation))
	case e.Reason == holdfast.ReasonState, holdfast.Transient(err), e.Code == holdfast.NotFound:
		// Of a sandbox that is not READY now its own transitions tell.
		return startedAgain, taskEnd{}
	}
	return startedEnds, taskEnd{state: holdfast.TaskFailed, failure: &holdfast.Failure{Reason: e.Reason, Message: "its process could not be started: " + e.Message}}
}

// taskGrace is how long a process that is to end has between TERM and KILL.
const taskGrace = 5 * time.Second

// overdueTask reports whether a task that runs is past its limit.
func overdueTask(t taskRow, now time.Time) bool {
	return t.Limit > 0 && !t.StartedAt.IsZero() && !now.Before(t.StartedAt.Add(t.Limit))
}

// nextLook is when a sweep looks at a task next.
func nextLook(t taskRow, now time.Time) time.Time {
	switch t.State {
	case holdfast.TaskQueued:
		return now.Add(holdfast.TaskQueuedAfter)
	case holdfast.TaskRunning:
		if t.CancelAsked || t.TimedOut {
			return now.Add(taskGrace)
		}
		at := now.Add(holdfast.TaskSilence)
		if limit := t.StartedAt.Add(t.Limit); limit.Before(at) && limit.After(now) {
			at = limit
		}
		return at
	}
	return time.Time{}
}
