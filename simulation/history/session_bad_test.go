package history

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// held is what a call on a session answered.
func (c Call) held(state holdfast.SessionState, generation int64) Call {
	c.ID, c.Session = "", holdfast.Session{ID: "se-1", State: state, Generation: generation}
	return c
}

// during adds the operation that the answer showed.
func (c Call) during(kind holdfast.OperationKind) Call {
	c.Session.Operation = &holdfast.Operation{Kind: kind}
	return c
}

// task is what a call on the session's first task answered.
func (c Call) task(id holdfast.TaskID, state holdfast.TaskState) Call {
	c.ID, c.Request, c.Task = "", "task-0", holdfast.Task{ID: id, State: state}
	return c
}

func (c Call) inputOf(n int) Call { c.Input, c.ID, c.Request = n, "", "task-0"; return c }

// Known-bad histories of sessions and tasks, each with a twin that differs in what is
// wrong with it alone. contract: A3, A5, A7, A13, E3
func TestHistoriesThatNoSessionMayHaveAreRejected(t *testing.T) {
	opened := did(0, 10, Open, OK).held(holdfast.SessionReady, 1)
	asleep := did(20, 30, Rest, OK).held(holdfast.SessionSuspended, 2)
	closed := did(20, 30, Close, OK).held(holdfast.SessionDeleted, 2)
	look := func(from int) Call { return did(from, from+1, Look, OK) }
	submitted := did(40, 50, Submit, OK).task("tk-1", holdfast.TaskRunning)
	read := func(from int) Call { return did(from, from+1, LookAtTask, OK) }
	const ready, deleting, deleted = holdfast.SessionReady, holdfast.SessionDeleting, holdfast.SessionDeleted
	const running, succeeded, cancelled, queued = holdfast.TaskRunning, holdfast.TaskSucceeded, holdfast.TaskCancelled, holdfast.TaskQueued
	other := opened
	other.Session.ID = "se-2"
	other.Called, other.Ended = at(20), at(30)
	for name, tc := range map[string]struct{ bad, good []Call }{
		"one request id, two sessions": {
			bad:  []Call{opened, other},
			good: []Call{opened, did(20, 30, Open, OK).held(ready, 1)},
		},
		"a suspend was acknowledged, and it runs without a resume": {
			bad:  []Call{opened, asleep, look(40).held(ready, 2)},
			good: []Call{opened, asleep, did(31, 35, Wake, OK).held(ready, 3), look(40).held(ready, 3)},
		},
		"it sleeps, and nobody asked for it": {
			bad:  []Call{opened, look(40).held(holdfast.SessionSuspended, 2)},
			good: []Call{opened, did(20, 60, Rest, Unknown).by(2), look(40).held(holdfast.SessionSuspended, 2)},
		},
		"a task does not wake what sleeps": {
			bad:  []Call{opened, asleep, submitted, look(60).held(holdfast.SessionSuspended, 2)},
			good: []Call{opened, asleep, did(40, 50, Submit, OK).task("tk-1", queued), look(60).held(ready, 3)},
		},
		"a task is taken while a suspend closes the door": {
			bad: []Call{opened, did(20, 200, Rest, Unknown).by(2), look(30).held(ready, 2).during(holdfast.OperationSuspend), submitted,
				look(60).held(ready, 2).during(holdfast.OperationSuspend)},
			good: []Call{opened, did(20, 200, Rest, Unknown).by(2), look(30).held(ready, 2).during(holdfast.OperationSuspend),
				did(40, 50, Submit, Aborted).task("", ""), look(60).held(ready, 2).during(holdfast.OperationSuspend)},
		},
		"resurrected after its delete": {
			bad:  []Call{opened, closed, look(40).held(ready, 1)},
			good: []Call{opened, closed, look(25).held(ready, 1)},
		},
		"a delete that was recorded is forgotten": {
			bad:  []Call{opened, did(20, 30, Close, Recorded).held("", 0), look(40).held(ready, 1)},
			good: []Call{opened, did(20, 30, Close, Unknown).held("", 0), look(40).held(ready, 1)},
		},
		"a delete is acknowledged before it is finished": {
			bad:  []Call{opened, closed, look(40).held(deleting, 2).during(holdfast.OperationDelete)},
			good: []Call{opened, did(20, 30, Close, Recorded).held("", 0), look(40).held(deleting, 2).during(holdfast.OperationDelete)},
		},
		"a read goes back in time": {
			bad: []Call{opened, did(20, 100, Rest, Unknown).by(2), look(40).held(holdfast.SessionSuspended, 2), look(50).held(ready, 1)},
			good: []Call{opened, did(20, 100, Rest, Unknown).by(2), look(40).held(ready, 1),
				look(50).held(holdfast.SessionSuspended, 2)},
		},
		"a task is taken by what is deleted": {
			bad:  []Call{opened, closed, submitted},
			good: []Call{opened, closed, did(40, 50, Submit, Refused).task("", "")},
		},
		"one request id, two tasks": {
			bad:  []Call{opened, submitted, did(60, 70, Submit, OK).task("tk-2", running)},
			good: []Call{opened, submitted, did(60, 70, Submit, OK).task("tk-1", succeeded)},
		},
		"a submit whose answer was lost makes a second task": {
			bad:  []Call{opened, did(20, 30, Submit, Unknown).task("", ""), submitted, did(60, 70, Submit, OK).task("tk-2", running)},
			good: []Call{opened, did(20, 30, Submit, Unknown).task("", ""), submitted, did(60, 70, Submit, OK).task("tk-1", running)},
		},
		"the request id is taken for another task": {
			bad:  []Call{opened, submitted, did(60, 70, Submit, OK).inputOf(1).task("tk-1", running)},
			good: []Call{opened, submitted, did(60, 70, Submit, Reused).inputOf(1)},
		},
		"a task that ended runs again": {
			bad:  []Call{opened, submitted, read(60).task("tk-1", succeeded), read(70).task("tk-1", running)},
			good: []Call{opened, submitted, read(60).task("tk-1", running), read(70).task("tk-1", succeeded)},
		},
		"a task ends twice": {
			bad: []Call{opened, submitted, did(52, 54, Cancel, Unknown).task("", "").by(2), read(60).task("tk-1", succeeded), read(70).task("tk-1", cancelled)},
			good: []Call{opened, submitted, did(52, 54, Cancel, Unknown).task("", "").by(2), read(60).task("tk-1", succeeded),
				read(70).task("tk-1", succeeded)},
		},
		"it is cancelled, and nobody asked for it": {
			bad:  []Call{opened, submitted, read(60).task("tk-1", cancelled)},
			good: []Call{opened, submitted, did(52, 54, Cancel, OK).task("tk-1", running), read(60).task("tk-1", cancelled)},
		},
		"a cancel was acknowledged, and it succeeds all the same": {
			bad:  []Call{opened, submitted, did(52, 54, Cancel, OK).task("tk-1", running), read(60).task("tk-1", succeeded)},
			good: []Call{opened, submitted, did(52, 54, Cancel, OK).task("tk-1", succeeded), read(60).task("tk-1", succeeded)},
		},
		"it fails though its instance lives": {
			bad:  []Call{opened, submitted, read(60).task("tk-1", holdfast.TaskFailed)},
			good: []Call{opened, submitted, read(60).task("tk-1", succeeded)},
		},
	} {
		if v := Check(tc.good, 3*time.Second, time.Minute); !v.OK {
			t.Errorf("%s: the twin that is right is rejected: %s", name, v.Report)
		}
		if v := Check(tc.bad, 3*time.Second, time.Minute); v.OK || !v.Decided {
			t.Errorf("%s: accepted", name)
		}
	}
}
