package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// taskRow is a task as it is stored.
type taskRow struct {
	holdfast.Task
	Position    int64              // in its session's queue
	TimedOut    bool               // its process ran past the limit, and is being ended
	Signals     int64              // that its process was sent
	Log         *taskLog           // nil: its output is where its process wrote it
	LogAttempts int64              // names the objects of the next copy
	LookAt      time.Time          // when a sweep looks at it next; zero: never
	was         holdfast.TaskState // as it was read or saved last
	sandbox     holdfast.SandboxID // of its session, which keeps it, where that is known already; not stored
}

// taskLog is where the output of a task that ended is kept: the row names the
// objects, so that a copy which came second is nobody's.
type taskLog struct {
	Lost   bool    `json:"lost,omitempty"` // it went with its instance before it was copied
	Stdout keptLog `json:"stdout"`
	Stderr keptLog `json:"stderr"`
}

// sameCopy reports whether both name the objects of one attempt.
func (l *taskLog) sameCopy(other *taskLog) bool {
	return l != nil && other != nil && l.Stdout.Key == other.Stdout.Key && l.Stderr.Key == other.Stderr.Key
}

// keptLog is one stream: Size bytes from offset Base on. An empty one has no object.
type keptLog struct {
	Key  string `json:"key,omitempty"`
	Base int64  `json:"base,omitempty"`
	Size int64  `json:"size,omitempty"`
}

func (t taskRow) ended() bool {
	return t.State != holdfast.TaskQueued && t.State != holdfast.TaskRunning
}

// start is how its process is started: under its own id, so that it starts once.
func (t taskRow) start() holdfast.StartProcess {
	return holdfast.StartProcess{RequestID: string(t.ID), Command: t.Command, Args: t.Args, Cwd: t.Cwd, Env: t.Env, Report: holdfast.ReportTask}
}

const taskColumns = `id, session, project, creator, system, position, state, command, task_limit, incarnation, process, process_ended, exit_code, failure,
	contrary, cancel_asked, timed_out, signals, log, log_attempts, look_at, created_at, updated_at, started_at, finished_at`

func scanTask(scan func(...any) error) (taskRow, error) {
	var t taskRow
	var command, failure, contrary, log string
	var limit, look, created, updated, started, finished int64
	err := scan(&t.ID, &t.Session, &t.Project, &t.Creator, &t.System, &t.Position, &t.State, &command, &limit, &t.Incarnation, &t.Process,
		&t.ProcessEnded, &t.ExitCode, &failure, &contrary, &t.CancelAsked, &t.TimedOut, &t.Signals, &log, &t.LogAttempts, &look, &created, &updated, &started, &finished)
	if err != nil {
		return taskRow{}, err
	}
	t.was = t.State
	t.Limit = time.Duration(limit) * time.Microsecond
	t.LookAt, t.CreatedAt, t.UpdatedAt = store.FromMicros(look), store.FromMicros(created), store.FromMicros(updated)
	t.StartedAt, t.FinishedAt = store.FromMicros(started), store.FromMicros(finished)
	var process holdfast.StartProcess
	for _, column := range []struct {
		text string
		into any
	}{{command, &process}, {failure, &t.Failure}, {contrary, &t.Contrary}, {log, &t.Log}} {
		if column.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(column.text), column.into); err != nil {
			return taskRow{}, fmt.Errorf("task %s: %w", t.ID, err)
		}
	}
	t.Command, t.Args, t.Cwd, t.Env = process.Command, process.Args, process.Cwd, process.Env
	return t, nil
}

// oneTask reads one; found is false when there is none.
func oneTask(ctx context.Context, tx store.Tx, where string, args ...any) (taskRow, bool, error) {
	t, err := scanTask(tx.QueryRowContext(ctx, `SELECT `+taskColumns+` FROM task `+where, args...).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return taskRow{}, false, nil
	}
	if err != nil {
		return taskRow{}, false, fmt.Errorf("read task: %w", err)
	}
	return t, true, nil
}

// lockTask reads a task for a decision. Its sandbox's and session's rows, where they
// are locked too, were locked before.
func lockTask(ctx context.Context, tx store.Tx, id holdfast.TaskID) (taskRow, bool, error) {
	return oneTask(ctx, tx, `WHERE id = $1`+tx.ForUpdate(), string(id))
}

func tasks(ctx context.Context, tx store.Tx, where string, args ...any) (list []taskRow, err error) {
	rs, err := tx.QueryContext(ctx, `SELECT `+taskColumns+` FROM task `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		t, err := scanTask(rs.Scan)
		if err != nil {
			return nil, fmt.Errorf("read tasks: %w", err)
		}
		list = append(list, t)
	}
	if err := rs.Err(); err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	return list, nil
}

// insert writes a new task at the end of its session's queue, and tells those who
// subscribed. The session's row is locked, so that no two take one position.
func (t *taskRow) insert(ctx context.Context, tx store.Tx) error {
	command, err := json.Marshal(holdfast.StartProcess{Command: t.Command, Args: t.Args, Cwd: t.Cwd, Env: t.Env})
	if err != nil {
		return fmt.Errorf("insert task: %w", err)
	}
	err = tx.QueryRowContext(ctx, `INSERT INTO task (id, session, project, creator, system, position, state, command, task_limit,
			look_at, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, COALESCE((SELECT MAX(position) + 1 FROM task WHERE session = $2), 1), $6, $7, $8, $9, $10, $10)
		RETURNING position`,
		string(t.ID), string(t.Session), string(t.Project), t.Creator, t.System, string(t.State), string(command), t.Limit.Microseconds(),
		store.Micros(t.LookAt), store.Micros(t.CreatedAt)).Scan(&t.Position)
	if err != nil {
		return fmt.Errorf("insert task: %w", err)
	}
	t.was = "" // also where the transaction is tried again
	return t.tell(ctx, tx, t.CreatedAt)
}

// save writes what may change of a locked task, and tells those who subscribed.
func (t *taskRow) save(ctx context.Context, tx store.Tx, now time.Time) error {
	failure, err := optionalJSON(t.Failure, t.Failure == nil)
	if err != nil {
		return fmt.Errorf("save task %s: %w", t.ID, err)
	}
	contrary, err := optionalJSON(t.Contrary, t.Contrary == nil)
	if err != nil {
		return fmt.Errorf("save task %s: %w", t.ID, err)
	}
	log, err := optionalJSON(t.Log, t.Log == nil)
	if err != nil {
		return fmt.Errorf("save task %s: %w", t.ID, err)
	}
	t.UpdatedAt = now
	_, err = tx.ExecContext(ctx, `UPDATE task SET state = $2, incarnation = $3, process = $4, exit_code = $5, failure = $6, contrary = $7,
		cancel_asked = $8, timed_out = $9, log = $10, log_attempts = $11, look_at = $12, updated_at = $13, started_at = $14, finished_at = $15,
		signals = $16, process_ended = $17 WHERE id = $1`,
		string(t.ID), string(t.State), t.Incarnation, string(t.Process), t.ExitCode, failure, contrary,
		t.CancelAsked, t.TimedOut, log, t.LogAttempts, store.Micros(t.LookAt), store.Micros(now), store.Micros(t.StartedAt), store.Micros(t.FinishedAt), t.Signals, t.ProcessEnded)
	if err != nil {
		return fmt.Errorf("save task %s: %w", t.ID, err)
	}
	return t.tell(ctx, tx, now)
}
