package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// startNext starts what is first in a session's queue, in the background.
func (s *Service) startNext(session holdfast.SessionID) {
	s.background.Go(func() {
		if err := s.startQueued(s.ctx, session); err != nil {
			s.config.Logger.Info("a task is started by a sweep, later", "session", session, "error", err)
		}
	})
}

// startQueued makes the first queued task RUNNING, if nothing runs and the session can
// run it, and starts its process. The incarnation that it runs on is recorded before
// it starts (contract: E3); who comes second finds it RUNNING.
func (s *Service) startQueued(ctx context.Context, session holdfast.SessionID) error {
	var t *taskRow
	err := s.update(ctx, "start a task", func(tx store.Tx, _ time.Time) error {
		t = nil
		h, found, now, err := lockSession(ctx, tx, session)
		if err != nil || !found {
			return err
		}
		t, err = choose(ctx, tx, now, h)
		return err
	})
	if err != nil || t == nil {
		return err
	}
	s.done.ring(string(t.ID))
	return s.launch(ctx, *t)
}

// choose makes the first queued task of a locked session RUNNING, on the incarnation
// that its sandbox has; nil where none can run now.
func choose(ctx context.Context, tx store.Tx, now time.Time, h held) (*taskRow, error) {
	if h.State != holdfast.SessionReady || h.DoorClosed || h.box == nil || h.box.State != holdfast.SandboxReady {
		return nil, nil
	}
	if _, busy, err := oneTask(ctx, tx, `WHERE session = $1 AND state = 'RUNNING'`, string(h.ID)); err != nil || busy {
		return nil, err
	}
	next, found, err := oneTask(ctx, tx, `WHERE session = $1 AND state = 'QUEUED' ORDER BY position LIMIT 1`+tx.ForUpdate(), string(h.ID))
	if err != nil || !found {
		return nil, err
	}
	next.State, next.Incarnation, next.StartedAt = holdfast.TaskRunning, h.box.Incarnation, now
	next.LookAt, next.sandbox = nextLook(next, now), h.Sandbox
	return &next, next.save(ctx, tx, now)
}

// launchSoon starts the process of a task that is RUNNING, in the background.
func (s *Service) launchSoon(t taskRow) {
	s.background.Go(func() {
		if err := s.launch(s.ctx, t); err != nil {
			s.config.Logger.Info("a task's process is started by a sweep, later", "task", t.ID, "error", err)
		}
	})
}

// launches is how often a start whose answer did not come is asked for again at
// once; then a sweep does.
const launches = 3

// launch starts a RUNNING task's process on the incarnation recorded, and records
// what became of that. It may be called again at any time.
func (s *Service) launch(ctx context.Context, t taskRow) error {
	for n := 1; ; n++ {
		p, err := s.startTask(ctx, t)
		judged, end := judgeStart(t, err)
		switch judged {
		case startedRuns:
			return s.taskRuns(ctx, t, p)
		case startedEnds:
			return s.endRecorded(ctx, t, func(taskRow) taskEnd { return end })
		case startedAgain:
		}
		if n == launches || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-s.done.on(string(t.Session)): // it became READY, or ended
		case <-time.After(time.Duration(n) * lookAgain):
		}
	}
}

func (s *Service) startTask(ctx context.Context, t taskRow) (holdfast.Process, error) {
	at, err := s.guestOfTask(ctx, t, accessLive)
	if err != nil {
		return holdfast.Process{}, err
	}
	return guestCall(s, ctx, at, func(g holdfast.Guest) (holdfast.Process, error) {
		return g.Processes.StartProcess(ctx, t.start())
	})
}

// guestOfTask addresses the boot that a task runs on, and no other.
func (s *Service) guestOfTask(ctx context.Context, t taskRow, a access) (guestAddress, error) {
	at := guestAddress{caller: holdfast.Caller{Project: t.Project}, sandbox: t.sandbox, access: a, incarnation: t.Incarnation, quiet: true}
	if at.sandbox != "" {
		return at, nil
	}
	err := s.view(ctx, "find a task's sandbox", func(tx store.Tx, _ time.Time) error {
		se, found, err := oneSession(ctx, tx, `WHERE id = $1`, string(t.Session))
		if err == nil && !found {
			err = noSession(t.Session)
		}
		at.sandbox = se.Sandbox
		return err
	})
	return at, err
}

// taskRuns records the process of a task, and its end where it has ended already.
func (s *Service) taskRuns(ctx context.Context, t taskRow, p holdfast.Process) error {
	if p.State == holdfast.ProcessExited {
		return s.endAsked(ctx, t, p)
	}
	if t.Process == p.ID {
		return nil
	}
	// Who follows its output here need not wait until that is recorded.
	s.started.Store(t.ID, startedProcess{p.ID, t.sandbox})
	s.done.ring(string(t.ID))
	defer s.started.Delete(t.ID)
	return s.update(ctx, "record a task's process", func(tx store.Tx, now time.Time) error {
		row, found, err := lockTask(ctx, tx, t.ID)
		if err != nil || !found || row.State != holdfast.TaskRunning || row.Process != "" {
			return err
		}
		row.Process = p.ID
		return row.save(ctx, tx, now)
	})
}

// startedProcess is a process that runs, and is not recorded yet.
type startedProcess struct {
	process holdfast.ProcessID
	sandbox holdfast.SandboxID
}

// hasStarted fills in what this process of the server knows of a task that was read
// before its start was recorded; false where it knows nothing more.
func (s *Service) hasStarted(t *taskRow) bool {
	v, _ := s.started.Load(t.ID)
	p, ok := v.(startedProcess)
	if !ok || t.Process != "" || t.ended() {
		return false
	}
	t.Process, t.sandbox = p.process, p.sandbox
	return true
}

// endAsked records the end of a process that was asked for, with the last of what it
// wrote where it failed.
func (s *Service) endAsked(ctx context.Context, t taskRow, p holdfast.Process) error {
	tail := ""
	if p.ExitCode != 0 && !p.Lost {
		if at, err := s.guestOfTask(ctx, t, accessSpool); err == nil {
			tail = tidy(s.tailOf(ctx, at, p))
		}
	}
	return s.endRecorded(ctx, t, func(row taskRow) taskEnd { return endOfProcess(row, p, tail) })
}

// endRecorded records an end that was asked for, in a transaction of its own. What it
// makes of the task is judged by the row as it is then: that it was to end may have
// been recorded since t was read.
func (s *Service) endRecorded(ctx context.Context, t taskRow, end func(row taskRow) taskEnd) error {
	return s.update(ctx, "end a task", func(tx store.Tx, _ time.Time) error {
		h, _, now, err := lockSession(ctx, tx, t.Session)
		if err != nil {
			return err
		}
		row, found, err := lockTask(ctx, tx, t.ID)
		if err != nil || !found {
			return err
		}
		_, err = s.endTask(ctx, tx.(*unit), now, &h, endingTask{&row, end(row)})
		return err
	})
}

// endTask records a task's end, once; a later contrary one is kept beside it. What
// the end brings, the next task, is in the same transaction as far as it is durable,
// and begun behind it. The session is locked, and the task's row. It says what it did,
// for operators. h is nil where the session's own change ends the task.
func (s *Service) endTask(ctx context.Context, u *unit, now time.Time, h *held, ending endingTask) (string, error) {
	t, e := ending.task, ending.end
	if t.ended() {
		if sameEnd(*t, e) || t.Contrary != nil {
			return "ignored: the task is " + string(t.State), nil
		}
		t.Contrary = &holdfast.TaskReport{ExitCode: e.exitCode, FinishedAt: e.finishedAt, HeardAt: now}
		return "applied: kept beside the end that was recorded before, " + string(t.State), t.save(ctx, u, now)
	}
	t.State, t.Failure, t.ExitCode, t.FinishedAt = e.state, e.failure, e.exitCode, e.finishedAt
	if t.ProcessEnded = !e.finishedAt.IsZero(); !t.ProcessEnded {
		t.FinishedAt = now
	}
	if e.process != "" {
		t.Process, t.StartedAt = e.process, e.startedAt
	}
	t.LookAt = time.Time{}
	if t.Process != "" && s.config.Blobs != nil {
		t.LookAt = now // its output is to be kept
	}
	if err := t.save(ctx, u, now); err != nil {
		return "", err
	}
	if t.System && t.State != holdfast.TaskSucceeded && h != nil {
		if err := s.preparationFailed(ctx, u, now, h, *t); err != nil {
			return "", err
		}
	}
	id, session := t.ID, t.Session
	u.soon(func() {
		s.done.ring(string(id))
		s.lookAtTaskSoon(id)
		s.startNext(session)
		s.carrySessionSoon(session) // it may wait for this one's end
	})
	return "applied: " + string(t.State), nil
}

// taskReported is a guest's word that a task's process has ended (H5).
func (s *Service) taskReported(ctx context.Context, u *unit, e processEnd) (string, error) {
	known, found, err := oneTask(ctx, u, `WHERE id = $1`, e.report.RequestID)
	if err != nil || !found {
		return "ignored: there is no such task", err
	}
	if string(known.Session) != e.sandbox.Owner || known.Incarnation != e.report.Incarnation {
		return "ignored: the task is another session's, or runs on another incarnation", nil
	}
	h, _, now, err := lockSession(ctx, u, known.Session)
	if err != nil {
		return "", err
	}
	t, _, err := lockTask(ctx, u, known.ID)
	if err != nil {
		return "", err
	}
	p := holdfast.Process{ID: e.report.Process, State: holdfast.ProcessExited, ExitCode: e.report.ExitCode,
		StartedAt: e.report.StartedAt, FinishedAt: e.report.FinishedAt}
	return s.endTask(ctx, u, now, &h, endingTask{&t, endOfProcess(t, p, e.report.LogTail)})
}

// lookAtTaskSoon does at once what a sweep would do about a task later.
func (s *Service) lookAtTaskSoon(id holdfast.TaskID) {
	s.background.Go(func() {
		if err := s.lookAtTask(s.ctx, id); err != nil {
			s.config.Logger.Info("a task is looked at again by a sweep", "task", id, "error", err)
		}
	})
}

// lookAtTask does what is due about a task: a queued one is started if it can be, a
// running one's process is asked for, ended when it is to end, and started where it
// is not known whether it was; the output of one that has ended is kept.
func (s *Service) lookAtTask(ctx context.Context, id holdfast.TaskID) error {
	t, found, err := s.dueTask(ctx, id)
	if err != nil || !found {
		return err
	}
	switch {
	case t.ended():
		return s.keepLog(ctx, t)
	case t.State == holdfast.TaskQueued:
		return s.startQueued(ctx, t.Session)
	case t.Process == "":
		return s.launch(ctx, t)
	}
	p, err := s.askForTask(ctx, t)
	if err != nil {
		return fmt.Errorf("ask for the process of %s: %w", t.ID, err)
	}
	if p.State == holdfast.ProcessExited {
		return s.endAsked(ctx, t, p)
	}
	if t.CancelAsked || t.TimedOut {
		return s.endProcessOf(ctx, t)
	}
	return s.overrun(ctx, t)
}

// dueTask reads a task if a look at it is due, and says when it is looked at next: no
// two looks are at it at once for long, and what is to end has taskGrace to do so. A running one that is past its limit is marked so, if its
// guest says that it runs.
func (s *Service) dueTask(ctx context.Context, id holdfast.TaskID) (t taskRow, found bool, err error) {
	err = s.update(ctx, "look at a task", func(tx store.Tx, _ time.Time) error {
		if t, found, err = lockTask(ctx, tx, id); err != nil || !found {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if t.LookAt.IsZero() || t.LookAt.After(now) { // nothing is due, or somebody is at it
			found = false
			return nil
		}
		if t.ended() {
			t.LookAt = now.Add(backoff(int(t.LogAttempts)))
			return t.save(ctx, tx, now)
		}
		t.LookAt = nextLook(t, now)
		return t.save(ctx, tx, now)
	})
	return t, found, err
}

func (s *Service) askForTask(ctx context.Context, t taskRow) (holdfast.Process, error) {
	at, err := s.guestOfTask(ctx, t, accessSpool)
	if err != nil {
		return holdfast.Process{}, err
	}
	return guestCall(s, ctx, at, func(g holdfast.Guest) (holdfast.Process, error) {
		return g.Processes.GetProcess(ctx, t.Process)
	})
}

// overrun marks a task past its limit, whose own guest has just said that it runs:
// from then on its process is being ended.
func (s *Service) overrun(ctx context.Context, t taskRow) error {
	if !overdueTask(t, s.databaseClock()) {
		return nil
	}
	return s.update(ctx, "a task's limit", func(tx store.Tx, _ time.Time) error {
		row, found, err := lockTask(ctx, tx, t.ID)
		if err != nil || !found || row.State != holdfast.TaskRunning || row.TimedOut {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil || !overdueTask(row, now) {
			return err
		}
		row.TimedOut, row.LookAt = true, now
		tx.(*unit).soon(func() { s.lookAtTaskSoon(row.ID) })
		return row.save(ctx, tx, now)
	})
}

// endProcessOf signals a process that is to end: to stop, and when it was asked
// before and did not, for good.
func (s *Service) endProcessOf(ctx context.Context, t taskRow) error {
	signal, err := s.nextSignal(ctx, t.ID)
	if err != nil {
		return err
	}
	at, err := s.guestOfTask(ctx, t, accessLive)
	if err != nil {
		return err
	}
	_, err = guestCall(s, ctx, at, func(g holdfast.Guest) (nothing, error) {
		return noAnswer(g.Processes.SignalProcess(ctx, t.Process, signal))
	})
	if holdfast.ReasonOf(err) == holdfast.ReasonEnded {
		return nil // its end is on its way, and asked for next time
	}
	return err
}

// nextSignal is TERM the first time, and KILL from then on.
func (s *Service) nextSignal(ctx context.Context, id holdfast.TaskID) (signal string, err error) {
	err = s.update(ctx, "a task's signals", func(tx store.Tx, _ time.Time) error {
		signal = "TERM"
		t, found, err := lockTask(ctx, tx, id)
		if err != nil || !found {
			return err
		}
		if t.Signals++; t.Signals > 1 {
			signal = "KILL"
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		return t.save(ctx, tx, now)
	})
	return signal, err
}
