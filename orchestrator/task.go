package orchestrator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// methodSubmitTask scopes the request ids of submits.
const methodSubmitTask = "SubmitTask"

// taskFingerprint hashes the explicit list of fields of a submit, as sent (contract: A3).
func taskFingerprint(in holdfast.SubmitTask) (fingerprint, error) {
	return fingerprintOfFields(
		field{"session", true, in.Session},
		field{"command", true, in.Command},
		field{"args", len(in.Args) > 0, in.Args},
		field{"cwd", in.Cwd != "", in.Cwd},
		field{"env", len(in.Env) > 0, in.Env},
		field{"limit", in.Limit != 0, int64(in.Limit)},
	)
}

// SubmitTask queues a task, and lets a session that sleeps wake up for it, in one
// transaction under the session's lock: a suspend that closed the door before is
// seen, and one that comes after sees the task (contract: A13, E3).
func (s *Service) SubmitTask(ctx context.Context, caller holdfast.Caller, in holdfast.SubmitTask) (holdfast.Task, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Task{}, err
	}
	f, err := taskFingerprint(in)
	if err != nil {
		return holdfast.Task{}, err
	}
	fresh := taskRow{Task: holdfast.Task{
		ID: holdfast.TaskID(s.config.IDs.New(holdfast.PrefixTask)), Session: in.Session, Project: caller.Project, Creator: caller.Name,
		State: holdfast.TaskQueued, Command: in.Command, Args: in.Args, Cwd: in.Cwd, Env: in.Env, Limit: in.Limit,
	}}
	if fresh.Limit == 0 {
		fresh.Limit = holdfast.DefaultTaskLimit
	}
	key := requestKey{project: caller.Project, method: methodSubmitTask, id: in.RequestID}
	var t taskRow
	err = s.update(ctx, "submit task", func(tx store.Tx, now time.Time) error {
		existing, err := reserve(ctx, tx, now, key, f, string(fresh.ID))
		if err != nil {
			return err
		}
		if existing != "" {
			t, err = taskAgain(ctx, tx, caller, holdfast.TaskID(existing))
			return err
		}
		t = fresh
		return s.enqueue(ctx, tx.(*unit), &t)
	})
	if err != nil {
		return holdfast.Task{}, err
	}
	return t.Task, nil
}

// taskAgain is a repeated submit's answer: the task as it is now. A purged one is
// known by its id alone.
func taskAgain(ctx context.Context, tx store.Tx, caller holdfast.Caller, id holdfast.TaskID) (taskRow, error) {
	t, found, err := oneTask(ctx, tx, `WHERE id = $1`, string(id))
	if err == nil && !found {
		err = noTask(id)
	}
	if err == nil && t.Project != caller.Project {
		err = noTask(id)
	}
	return t, err
}

func noTask(id holdfast.TaskID) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no task %s in this project", id).On(string(id))
}

// enqueue puts a caller's task at the end of its session's queue, and lets a session
// that sleeps wake up for it.
func (s *Service) enqueue(ctx context.Context, u *unit, t *taskRow) error {
	h, found, now, err := lockSession(ctx, u, t.Session)
	if err != nil {
		return err
	}
	if !found || h.Project != t.Project {
		return noSession(t.Session)
	}
	if err := takesTasks(h.sessionRow); err != nil {
		return err
	}
	var waiting int
	err = u.QueryRowContext(ctx, `SELECT COUNT(*) FROM task WHERE session = $1 AND state = 'QUEUED'`, string(t.Session)).Scan(&waiting)
	if err != nil {
		return fmt.Errorf("count queued tasks: %w", err)
	}
	if waiting >= holdfast.MaxQueuedTasks {
		return holdfast.E(holdfast.ResourceExhausted, holdfast.ReasonQuota, "%d tasks wait in %s already, which is as many as may: wait for some to end", waiting, t.Session).
			On(string(t.Session)).With("quota", "tasks")
	}
	if err := s.resumeFor(ctx, u, now, &h); err != nil {
		return err
	}
	t.CreatedAt, t.UpdatedAt, t.LookAt = now, now, nextLook(*t, now)
	if err := t.insert(ctx, u); err != nil {
		return err
	}
	// Where nothing is before it, it starts in the transaction that records it.
	first, err := choose(ctx, u, now, h)
	if err != nil || first == nil {
		return err
	}
	started := *first
	if t.ID == started.ID {
		*t = started
	}
	u.soon(func() { s.launchSoon(started) })
	return nil
}

// takesTasks refuses what a session as it stands would never run.
func takesTasks(se sessionRow) error {
	switch se.State {
	case holdfast.SessionFailed, holdfast.SessionDeleting, holdfast.SessionDeleted:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s: it runs no more tasks", se.ID, se.State).
			On(string(se.ID)).With("state", string(se.State))
	}
	if se.DoorClosed {
		return holdfast.E(holdfast.Aborted, holdfast.ReasonDoorClosed, "%s is about to be suspended or deleted and takes no new task: look at its operation, then retry", se.ID).
			On(string(se.ID)).Retry(time.Second)
	}
	return nil
}

// queueTask inserts a session's own task and lets it start as soon as it can.
func (s *Service) queueTask(ctx context.Context, u *unit, now time.Time, t *taskRow) error {
	t.CreatedAt, t.UpdatedAt = now, now
	t.LookAt = nextLook(*t, now)
	if err := t.insert(ctx, u); err != nil {
		return err
	}
	session := t.Session
	u.soon(func() { s.startNext(session) })
	return nil
}

// GetTask observes.
func (s *Service) GetTask(ctx context.Context, caller holdfast.Caller, id holdfast.TaskID) (holdfast.Task, error) {
	t, err := s.readTask(ctx, caller, id)
	return t.Task, err
}

func (s *Service) readTask(ctx context.Context, caller holdfast.Caller, id holdfast.TaskID) (t taskRow, err error) {
	if err := holdfast.CheckID("id", holdfast.PrefixTask, string(id)); err != nil {
		return taskRow{}, err
	}
	err = s.view(ctx, "get task", func(tx store.Tx, _ time.Time) error {
		t, err = taskAgain(ctx, tx, caller, id)
		return err
	})
	return t, err
}

// ListTasks pages a session's tasks, newest first.
func (s *Service) ListTasks(ctx context.Context, caller holdfast.Caller, in holdfast.ListTasks) (holdfast.TaskPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.TaskPage{}, err
	}
	if err := checkToken(in.PageToken, holdfast.PrefixTask); err != nil {
		return holdfast.TaskPage{}, err
	}
	size := in.PageSize
	if size == 0 {
		size = holdfast.DefaultPageSize
	}
	args := []any{string(in.Session), string(caller.Project)}
	where := `WHERE session = $1 AND project = $2`
	if in.PageToken != "" {
		args = append(args, in.PageToken)
		where += fmt.Sprintf(` AND id < $%d`, len(args))
	}
	if len(in.States) > 0 {
		var marks []string
		for _, state := range in.States {
			args = append(args, string(state))
			marks = append(marks, fmt.Sprintf("$%d", len(args)))
		}
		where += ` AND state IN (` + strings.Join(marks, ", ") + `)`
	}
	args = append(args, size+1)
	where += fmt.Sprintf(` ORDER BY id DESC LIMIT $%d`, len(args))
	var page holdfast.TaskPage
	err := s.view(ctx, "list tasks", func(tx store.Tx, _ time.Time) error {
		page = holdfast.TaskPage{}
		list, err := tasks(ctx, tx, where, args...)
		if err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		for _, t := range list {
			page.Tasks = append(page.Tasks, t.Task)
		}
		return nil
	})
	return page, err
}

// CancelTask ends a queued task at once; of a running one it records durably that it
// is to end, and has its process ended.
func (s *Service) CancelTask(ctx context.Context, caller holdfast.Caller, id holdfast.TaskID) (holdfast.Task, error) {
	if err := holdfast.CheckID("id", holdfast.PrefixTask, string(id)); err != nil {
		return holdfast.Task{}, err
	}
	var t taskRow
	err := s.update(ctx, "cancel task", func(tx store.Tx, _ time.Time) error {
		known, err := taskAgain(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		h, _, now, err := lockSession(ctx, tx, known.Session)
		if err != nil {
			return err
		}
		if t, _, err = lockTask(ctx, tx, id); err != nil {
			return err
		}
		return s.cancelTask(ctx, tx.(*unit), now, &h, &t)
	})
	if err != nil {
		return holdfast.Task{}, err
	}
	return t.Task, nil
}

// cancel is what a caller's word, or a session's end, does to a locked task.
func (s *Service) cancelTask(ctx context.Context, u *unit, now time.Time, h *held, t *taskRow) error {
	switch {
	case t.State == holdfast.TaskQueued:
		_, err := s.endTask(ctx, u, now, h, endingTask{t, taskEnd{state: holdfast.TaskCancelled,
			failure: &holdfast.Failure{Reason: holdfast.ReasonCancelled, Message: "cancelled before it started"}}})
		return err
	case t.State == holdfast.TaskRunning && !t.CancelAsked:
		t.CancelAsked, t.LookAt = true, now
		id := t.ID
		u.soon(func() { s.lookAtTaskSoon(id) })
		return t.save(ctx, u, now)
	}
	return nil
}
