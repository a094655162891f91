package holdfast

import (
	"context"
	"time"
)

// TaskState is the last recorded fact about a task.
type TaskState string

// The states of a task.
const (
	TaskQueued    TaskState = "QUEUED"
	TaskRunning   TaskState = "RUNNING"
	TaskSucceeded TaskState = "SUCCEEDED"
	TaskFailed    TaskState = "FAILED"
	TaskCancelled TaskState = "CANCELLED"
	TaskTimedOut  TaskState = "TIMED_OUT"
)

// TaskTransitions lists, for each state, the states that may follow it. An end is
// recorded once; a later contrary report is kept beside it (Task.Contrary).
func TaskTransitions() map[TaskState][]TaskState {
	return map[TaskState][]TaskState{
		TaskQueued:    {TaskRunning, TaskFailed, TaskCancelled},
		TaskRunning:   {TaskSucceeded, TaskFailed, TaskCancelled, TaskTimedOut},
		TaskSucceeded: {},
		TaskFailed:    {},
		TaskCancelled: {},
		TaskTimedOut:  {},
	}
}

// Times and limits of tasks.
const (
	DefaultTaskLimit = time.Hour
	MinTaskLimit     = time.Second
	MaxTaskLimit     = 7 * 24 * time.Hour
	TaskQueuedAfter  = time.Minute      // in a session that could run it
	TaskSilence      = 15 * time.Second // without news, before its process is asked for
	MaxQueuedTasks   = 1000             // of one session
)

// Task is one command of a session (contract: E3). Its id is the request id of its
// process, so that it runs at most once, and only on the incarnation recorded here.
type Task struct {
	ID           TaskID
	Session      SessionID
	Project      ProjectID
	Creator      string
	System       bool // the session's own preparation, first in its queue
	State        TaskState
	Failure      *Failure // why it FAILED, or was CANCELLED or TIMED_OUT
	Command      string
	Args         []string
	Cwd          string
	Env          map[string]string
	Limit        time.Duration
	Incarnation  int64     // that it runs on; recorded before it starts
	Process      ProcessID // "" until it started
	ProcessEnded bool      // and so ExitCode is known
	ExitCode     int       // 128 + signal where a signal ended it
	Contrary     *TaskReport
	CancelAsked  bool
	CreatedAt    time.Time
	UpdatedAt    time.Time
	StartedAt    time.Time
	FinishedAt   time.Time
}

// TaskReport is an end that was heard after another had been recorded: it changes
// nothing, and is not lost.
type TaskReport struct {
	ExitCode   int       `json:"exit_code"`
	FinishedAt time.Time `json:"finished_at"`
	HeardAt    time.Time `json:"heard_at"`
}

// SubmitTask is the input of a submit (contract: A3).
type SubmitTask struct {
	RequestID string
	Session   SessionID
	Command   string
	Args      []string
	Cwd       string
	Env       map[string]string
	Limit     time.Duration // zero: DefaultTaskLimit
}

// ListTasks pages a session's tasks, newest first.
type ListTasks struct {
	Session   SessionID
	States    []TaskState
	PageSize  int
	PageToken string
}

// TaskPage is one page; NextPageToken is "" on the last.
type TaskPage struct {
	Tasks         []Task
	NextPageToken string
}

// TaskOutput asks for a task's output by offset, in bytes; with Follow until the task
// ended and all was sent, from before it started on.
type TaskOutput struct {
	ID           TaskID
	StdoutOffset int64
	StderrOffset int64
	Follow       bool
}

// TaskService runs commands in sessions, one at a time, in order.
type TaskService interface {
	// SubmitTask queues, and resumes a session that sleeps.
	SubmitTask(ctx context.Context, caller Caller, in SubmitTask) (Task, error)
	GetTask(ctx context.Context, caller Caller, id TaskID) (Task, error)
	ListTasks(ctx context.Context, caller Caller, in ListTasks) (TaskPage, error)
	// CancelTask ends one; what has ended already is success, and nothing done.
	CancelTask(ctx context.Context, caller Caller, id TaskID) (Task, error)
	// StreamTaskOutput yields chunks in order per stream and returns the task as it
	// was when the last was read. It works from any replica, during and after.
	StreamTaskOutput(ctx context.Context, caller Caller, in TaskOutput, yield func(OutputChunk) error) (Task, error)
}

// Validate checks the command, its surroundings and the limit.
func (in SubmitTask) Validate() error {
	if in.Cwd != "" {
		if err := CheckPath("cwd", in.Cwd); err != nil {
			return err
		}
	}
	if in.Limit != 0 && (in.Limit < MinTaskLimit || in.Limit > MaxTaskLimit) {
		return bad("limit", "is %s; it must be between %s and %s", in.Limit, MinTaskLimit, MaxTaskLimit)
	}
	return firstError(
		CheckRequestID("request_id", in.RequestID),
		CheckID("session", PrefixSession, string(in.Session)),
		checkCommand(in.Command, in.Args),
		checkEnv(in.Env),
	)
}

// Validate checks the session, the states and the page.
func (in ListTasks) Validate() error {
	for _, state := range in.States {
		if _, known := TaskTransitions()[state]; !known {
			return bad("states", "has %q, which is no state of a task", shown(string(state)))
		}
	}
	return firstError(CheckID("session", PrefixSession, string(in.Session)), checkPage(in.PageSize, in.PageToken))
}

// Validate checks the form of the id and the offsets.
func (in TaskOutput) Validate() error {
	return firstError(
		CheckID("id", PrefixTask, string(in.ID)),
		checkNotNegative("stdout_offset", in.StdoutOffset),
		checkNotNegative("stderr_offset", in.StderrOffset),
	)
}
