package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// What sessions ask of their tasks. The session's row is locked, and its sandbox's
// before it; the tasks' are locked here, behind both (contract: D3).

// enqueueSystemTask puts a session's own preparation into its queue, which is still
// empty. Its failure fails the session (contract: E2).
func (s *Service) enqueueSystemTask(ctx context.Context, tx store.Tx, now time.Time, se sessionRow, script string, limit time.Duration) error {
	return s.queueTask(ctx, tx.(*unit), now, &taskRow{Task: holdfast.Task{
		ID: holdfast.TaskID(s.config.IDs.New(holdfast.PrefixTask)), Session: se.ID, Project: se.Project, Creator: se.Creator, System: true,
		State: holdfast.TaskQueued, Command: "/bin/sh", Args: []string{"-c", script}, Limit: limit,
	}})
}

// runningTask is the task that runs in a session; "" when none does.
func (s *Service) runningTask(ctx context.Context, tx store.Tx, session holdfast.SessionID) (holdfast.TaskID, error) {
	t, _, err := oneTask(ctx, tx, `WHERE session = $1 AND state = 'RUNNING'`, string(session))
	return t.ID, err
}

// cancelTasks ends what is QUEUED in a session for a reason, and asks the running
// task to end; repeating it is harmless.
func (s *Service) cancelTasks(ctx context.Context, u *unit, now time.Time, session holdfast.SessionID, why *holdfast.Failure) error {
	waiting, err := tasks(ctx, u, `WHERE session = $1 AND state = 'QUEUED' ORDER BY position`+u.ForUpdate(), string(session))
	if err != nil {
		return err
	}
	for i := range waiting {
		if _, err := s.endTask(ctx, u, now, nil, endingTask{&waiting[i], taskEnd{state: holdfast.TaskCancelled, failure: why}}); err != nil {
			return err
		}
	}
	return s.cancelRunning(ctx, u, now, session)
}

// cancelRunning asks the running task of a session to end; repeating it is harmless.
func (s *Service) cancelRunning(ctx context.Context, u *unit, now time.Time, session holdfast.SessionID) error {
	running, err := tasks(ctx, u, `WHERE session = $1 AND state = 'RUNNING'`+u.ForUpdate(), string(session))
	for i := range running {
		err = errors.Join(err, s.cancelTask(ctx, u, now, nil, &running[i]))
	}
	return err
}

// tasksOfLostBoot ends the running task of a boot before the one given, which is
// lost; with none given every task of the session ends: it never runs again.
func (s *Service) tasksOfLostBoot(ctx context.Context, u *unit, now time.Time, session holdfast.SessionID, incarnation int64) error {
	open, err := tasks(ctx, u, `WHERE session = $1 AND (state = 'RUNNING' OR state = 'QUEUED') ORDER BY position`+u.ForUpdate(), string(session))
	if err != nil {
		return err
	}
	for i := range open {
		t := &open[i]
		end := lostEnd(fmt.Sprintf("incarnation %d of its sandbox is gone", t.Incarnation))
		switch {
		case t.State == holdfast.TaskRunning && (incarnation == 0 || t.Incarnation < incarnation):
		case incarnation == 0:
			end = taskEnd{state: holdfast.TaskFailed, failure: &holdfast.Failure{Reason: holdfast.ReasonState, Message: "its session ended before it started"}}
		default:
			continue
		}
		if _, err := s.endTask(ctx, u, now, nil, endingTask{t, end}); err != nil {
			return err
		}
	}
	return nil
}

// queue is what a session shows of its tasks.
type queue struct {
	waiting int
	running holdfast.TaskID
}

// queueOf is how many tasks wait in each of some sessions, and which run.
func (s *Service) queueOf(ctx context.Context, tx store.Tx, ids []holdfast.SessionID) (all map[holdfast.SessionID]queue, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	args := make([]any, len(ids))
	marks := make([]string, len(ids))
	for i, id := range ids {
		args[i], marks[i] = string(id), fmt.Sprintf("$%d", i+1)
	}
	rs, err := tx.QueryContext(ctx, `SELECT session, state, COUNT(*), MAX(id) FROM task
		WHERE (state = 'RUNNING' OR state = 'QUEUED') AND session IN (`+strings.Join(marks, ", ")+`) GROUP BY session, state`, args...)
	if err != nil {
		return nil, fmt.Errorf("read the queues of sessions: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	all = map[holdfast.SessionID]queue{}
	for rs.Next() {
		var session holdfast.SessionID
		var state holdfast.TaskState
		var id holdfast.TaskID
		var count int
		if err := rs.Scan(&session, &state, &count, &id); err != nil {
			return nil, fmt.Errorf("read the queues of sessions: %w", err)
		}
		q := all[session]
		if state == holdfast.TaskRunning {
			q.running = id
		} else {
			q.waiting = count
		}
		all[session] = q
	}
	return all, rs.Err()
}

// resumeFor wakes a session that sleeps, for a task that is being submitted.
func (s *Service) resumeFor(ctx context.Context, u *unit, now time.Time, h *held) error {
	if h.State != holdfast.SessionSuspended {
		return nil
	}
	if h.pending == nil {
		if err := s.beginSession(ctx, u, now, h, s.intent(holdfast.OperationResume)); err != nil {
			return err
		}
	}
	id := h.ID
	u.soon(func() { s.carrySessionSoon(id) })
	return nil
}

// preparationFailed fails a session whose preparation did not succeed.
func (s *Service) preparationFailed(ctx context.Context, u *unit, now time.Time, h *held, t taskRow) error {
	if h.State != holdfast.SessionReady && h.State != holdfast.SessionSuspended && h.State != holdfast.SessionCreating {
		return nil
	}
	failure := holdfast.Failure{Reason: holdfast.ReasonPreparation, Message: "its preparation ended as " + string(t.State)}
	if t.Failure != nil {
		failure.Message, failure.LogTail = "its preparation failed: "+t.Failure.Message, t.Failure.LogTail
	}
	return s.failSession(ctx, u, now, h, &failure)
}

// beginIdleSuspend begins the suspension of a session that nothing was done with.
func (s *Service) beginIdleSuspend(ctx context.Context, u *unit, now time.Time, h *held) error {
	in := s.intent(holdfast.OperationSuspend)
	in.cause = holdfast.ReasonIdle
	if err := s.beginSession(ctx, u, now, h, in); err != nil {
		return err
	}
	id := h.ID
	u.soon(func() { s.carrySessionSoon(id) })
	return nil
}

// prepareLimit is how long a session's preparation may take.
const prepareLimit = 30 * time.Minute

// prepareScript fetches a repository into the workspace, at a branch, tag or commit.
// What fails says why on standard error, which the session's failure shows.
func prepareScript(r holdfast.Repository) string {
	ref := r.Ref
	if ref == "" {
		ref = "HEAD"
	}
	return fmt.Sprintf(`set -eu
command -v git >/dev/null || { echo "this environment has no git, which fetching a repository needs" >&2; exit 127; }
export GIT_TERMINAL_PROMPT=0
url=%s ref=%s
mkdir -p %s && cd %s
git init -q .
git remote add origin "$url"
if git fetch -q --depth 1 origin "$ref" 2>fetch.log; then
	rm -f fetch.log && git checkout -q --detach FETCH_HEAD
else # a commit that the server does not hand out by itself, or nothing of that name
	cat fetch.log >&2 && rm -f fetch.log
	git fetch -q --tags origin '+refs/heads/*:refs/remotes/origin/*' && git checkout -q --detach "$ref" --
fi
`, quoted(r.URL), quoted(ref), holdfast.Workspace, holdfast.Workspace)
}

// quoted is a word as a shell takes it, whatever it holds.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
