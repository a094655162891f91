package injection

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/transport"
)

// killed is the code of a process that was ended for good.
const killed = 128 + 9

// taskReports are what guests report of the ends of tasks (H5).
func taskReports() []experiment {
	complete := reported(holdfast.DeliveryTaskComplete)
	return []experiment{
		{hop: "H5", message: "task.complete", cell: Twice, does: "the report of a task's end arrives twice at the same time, and another task waits for that end", run: func(l *lab) (string, error) {
			fault := overlap(l.wire, complete)
			se, t, err := l.runs()
			if err != nil {
				return "", err
			}
			next, err := l.client.SubmitTask(l, holdfast.SubmitTask{RequestID: "next", Session: se.ID, Command: "true"})
			if err = errors.Join(err, l.client.SignalProcess(l, se.Sandbox, t.Process, "KILL")); err != nil {
				return "", err
			}
			if t, err = l.taskIs(t.ID, holdfast.TaskFailed); err != nil {
				return "", err
			}
			if _, err = l.taskIs(next.ID, holdfast.TaskSucceeded); err != nil {
				return "", err
			}
			again, err := l.client.GetTask(l, t.ID)
			if err == nil && (again.Contrary != nil || again.ExitCode != killed || !again.FinishedAt.Equal(t.FinishedAt)) {
				err = fmt.Errorf("it was changed again: %+v", again)
			}
			return seen(errors.Join(err, l.fired(fault), l.started(se, 2)), "FAILED once, with code %d; the next one started once", t.ExitCode)
		}},
		{hop: "H5", message: "task.complete", cell: Late, does: "the report of a task's end is lost, its boot ends, and it arrives when the second runs, twice", run: lateTask(complete)},
		{hop: "H5", message: "task.complete", cell: Never, does: "every report of a task's end is lost, and 15 s pass", trustHosts: true, run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Drop, complete)
			se, t, err := l.runs()
			if err == nil {
				err = l.client.SignalProcess(l, se.Sandbox, t.Process, "KILL")
			}
			if err == nil {
				err = l.until("a report was lost", func() (bool, error) { return fault.count() > 0, nil })
			}
			if err != nil {
				return "", err
			}
			l.clock.forward(holdfast.TaskSilence)
			began := time.Now()
			t, err = l.taskIs(t.ID, holdfast.TaskFailed)
			if err == nil && (t.ExitCode != killed || !t.ProcessEnded) {
				err = fmt.Errorf("it ended with code %d: %+v", t.ExitCode, t.Failure)
			}
			return seen(errors.Join(err, l.started(se, 1)), "FAILED %s later with its code %d, by asking its host", since(began), t.ExitCode)
		}},
	}
}

// lateTask lets a task's report come when its boot is over, and it was given up.
func lateTask(complete about) func(*lab) (string, error) {
	return func(l *lab) (string, error) {
		kept := l.wire.tape(complete)
		l.wire.always(transport.Drop, complete)
		se, t, err := l.runs()
		if err == nil {
			err = l.client.SignalProcess(l, se.Sandbox, t.Process, "KILL")
		}
		if err == nil {
			err = l.until("a report was lost", func() (bool, error) { return kept.count() > 0, nil })
		}
		if err == nil {
			err = l.boots(se)
		}
		if err == nil {
			t, err = l.taskIs(t.ID, holdfast.TaskFailed)
		}
		if err != nil {
			return "", err
		}
		for range 2 {
			status, answer, err := l.wire.again(l, kept, 0)
			if err == nil && (status < 200 || status > 299) {
				err = fmt.Errorf("answered %d %s", status, answer)
			}
			if err != nil {
				return "", err
			}
			is, err := l.client.GetTask(l, t.ID)
			if err != nil {
				return "", err
			}
			if is.State != holdfast.TaskFailed || is.Failure.Reason != holdfast.ReasonInstanceLost || is.Contrary == nil || is.Contrary.ExitCode != killed {
				return "", fmt.Errorf("it is %s, %+v; beside that %+v", is.State, is.Failure, is.Contrary)
			}
		}
		return seen(l.started(se, 0), "FAILED with INSTANCE_LOST as before, its code %d kept beside that; nothing runs on incarnation 2", killed)
	}
}

// session is a session that is READY, and is made anew when its boot is lost.
func (l *lab) session() (holdfast.Session, error) {
	return l.client.CreateSession(l, holdfast.CreateSession{RequestID: "session", Environment: "base", Restart: holdfast.RestartFresh})
}

// submit queues a task that ends by itself only after the experiment.
func (l *lab) submit(se holdfast.Session) (holdfast.Task, error) {
	return l.client.SubmitTask(l, holdfast.SubmitTask{RequestID: "task", Session: se.ID, Command: "sleep", Args: []string{"60"}})
}

// runs is a session with a task whose process runs and is known.
func (l *lab) runs() (holdfast.Session, holdfast.Task, error) {
	var t holdfast.Task
	se, err := l.session()
	if err == nil {
		t, err = l.submit(se)
	}
	if err != nil {
		return se, t, err
	}
	return se, t, l.until("the task's process runs", func() (bool, error) {
		var err error
		t, err = l.client.GetTask(l, t.ID)
		return err == nil && t.State == holdfast.TaskRunning && t.Process != "", err
	})
}

// taskIs waits for a task's state.
func (l *lab) taskIs(id holdfast.TaskID, state holdfast.TaskState) (t holdfast.Task, err error) {
	err = l.until(fmt.Sprintf("%s is %s", id, state), func() (bool, error) {
		var err error
		t, err = l.client.GetTask(l, id)
		return err == nil && t.State == state, err
	})
	if err != nil {
		err = fmt.Errorf("%w (it is %s)", err, t.State)
	}
	return t, err
}

// boots ends a session's first boot behind its host's back, and waits for the second.
func (l *lab) boots(se holdfast.Session) error {
	sb, err := l.client.GetSandbox(l, se.Sandbox)
	if err = errors.Join(err, l.machine.kill(l, ref(sb))); err != nil {
		return err
	}
	return l.until("the session is READY on its second boot", func() (bool, error) {
		is, err := l.client.GetSession(l, se.ID)
		return err == nil && is.State == holdfast.SessionReady && is.Incarnation == 2, err
	})
}

// started holds that so many processes were started on a session's current boot.
func (l *lab) started(se holdfast.Session, want int) error {
	list, err := l.client.ListProcesses(l, se.Sandbox)
	if err == nil && len(list) != want {
		err = fmt.Errorf("%d processes were started: %+v", len(list), list)
	}
	return err
}
