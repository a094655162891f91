package orchestrator

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// taskObject is what an event says of a task. Its arguments are not in it, as its env
// is not: people put secrets into both.
type taskObject struct {
	ID          holdfast.TaskID    `json:"id"`
	Session     holdfast.SessionID `json:"session"`
	System      bool               `json:"system,omitempty"`
	State       holdfast.TaskState `json:"state"`
	Command     string             `json:"command"`
	Incarnation int64              `json:"incarnation,omitempty"`
	ExitCode    *int               `json:"exit_code,omitempty"` // of a process that ended
	Failure     *holdfast.Failure  `json:"failure,omitempty"`
}

// taskEvent is the kind of a change between two recorded states, of which the first is
// "" for a new task; "" when it is none. It is pure.
func taskEvent(from, to holdfast.TaskState) holdfast.EventKind {
	if from == to {
		return ""
	}
	switch to {
	case holdfast.TaskQueued:
		return holdfast.EventTaskQueued
	case holdfast.TaskRunning:
		return holdfast.EventTaskRunning
	case holdfast.TaskSucceeded:
		return holdfast.EventTaskSucceeded
	case holdfast.TaskFailed:
		return holdfast.EventTaskFailed
	case holdfast.TaskCancelled:
		return holdfast.EventTaskCancelled
	case holdfast.TaskTimedOut:
		return holdfast.EventTaskTimedOut
	}
	return ""
}

// tell emits the change since the task was read or saved last, if it is one.
func (t *taskRow) tell(ctx context.Context, tx store.Tx, now time.Time) error {
	kind := taskEvent(t.was, t.State)
	t.was = t.State
	object := taskObject{ID: t.ID, Session: t.Session, System: t.System, State: t.State, Command: t.Command, Incarnation: t.Incarnation, Failure: t.Failure}
	if t.ProcessEnded {
		object.ExitCode = &t.ExitCode
	}
	return emitIn(ctx, tx, now, news{project: t.Project, kind: kind, resource: string(t.ID), object: object})
}
