package mcp

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
)

// task is a session's command as tools answer it.
type task struct {
	ID         string   `json:"id"`
	Session    string   `json:"session"`
	State      string   `json:"state" jsonschema:"QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED or TIMED_OUT"`
	Command    string   `json:"command"`
	Args       []string `json:"args,omitempty"`
	ExitCode   *int     `json:"exit_code,omitempty" jsonschema:"absent until its process ended"`
	Failure    *failure `json:"failure,omitempty"`
	RequestID  string   `json:"request_id,omitempty" jsonschema:"of the submit that this call was"`
	StartedAt  string   `json:"started_at,omitempty"`
	FinishedAt string   `json:"finished_at,omitempty"`
	Next       string   `json:"next" jsonschema:"what is safe to do next"`
}

func taskOf(t holdfast.Task, requestID string) task {
	out := task{ID: string(t.ID), Session: string(t.Session), State: string(t.State), Command: t.Command, Args: t.Args, Failure: failureOf(t.Failure),
		RequestID: requestID, StartedAt: stamp(t.StartedAt), FinishedAt: stamp(t.FinishedAt)}
	if t.ProcessEnded {
		out.ExitCode = &t.ExitCode
	}
	switch t.State {
	case holdfast.TaskQueued:
		out.Next = "it starts by itself when the tasks before it have ended: ask with get_task"
	case holdfast.TaskRunning:
		out.Next = "it runs on by itself: read_task_output shows what it writes, get_task when it has ended"
	default:
		out.Next = "it has ended and never runs again: read_task_output shows what it wrote; another request_id is another task"
	}
	return out
}

type submitTask struct {
	SessionID    string            `json:"session_id" jsonschema:"se-…"`
	Command      string            `json:"command" jsonschema:"a program, found in PATH; for a shell line: sh with args -c and the line"`
	Args         []string          `json:"args,omitempty"`
	RequestID    string            `json:"request_id,omitempty" jsonschema:"names this task: the same id is the same task, and runs at most once"`
	Cwd          string            `json:"cwd,omitempty" jsonschema:"absolute; default the user's home"`
	Env          map[string]string `json:"env,omitempty"`
	LimitSeconds int64             `json:"limit_seconds,omitempty" jsonschema:"how long it may run, 1 to 604800; default 3600"`
}

type taskID struct {
	TaskID string `json:"task_id" jsonschema:"tk-…"`
}

type readTaskOutput struct {
	TaskID       string `json:"task_id"`
	StdoutOffset int64  `json:"stdout_offset,omitempty" jsonschema:"bytes that were read already"`
	StderrOffset int64  `json:"stderr_offset,omitempty" jsonschema:"bytes that were read already"`
}

// taskOutput is a part of what a task wrote.
type taskOutput struct {
	Stdout       text  `json:"stdout"`
	Stderr       text  `json:"stderr"`
	StdoutOffset int64 `json:"stdout_offset" jsonschema:"where the next read goes on"`
	StderrOffset int64 `json:"stderr_offset" jsonschema:"where the next read goes on"`
	Task         task  `json:"task"`
	More         bool  `json:"more" jsonschema:"there is more to read now"`
}

// tasks are the tools of sessions' commands.
func (t tools) tasks(s *mcp.Server) {
	add(s, tool("submit_task", "Queues a command in a session, which is resumed if it sleeps, and returns at once. Tasks run one at a time, in order, each at most once.", repeats),
		func(ctx context.Context, in submitTask) (task, error) {
			id := requestID(in.RequestID)
			out, err := t.client.SubmitTask(ctx, holdfast.SubmitTask{RequestID: id, Session: holdfast.SessionID(in.SessionID), Command: in.Command,
				Args: in.Args, Cwd: in.Cwd, Env: in.Env, Limit: time.Duration(in.LimitSeconds) * time.Second})
			return taskOf(out, id), err
		})
	add(s, tool("get_task", "Shows whether a task has ended, with its exit code or why it failed.", reads), func(ctx context.Context, in taskID) (task, error) {
		out, err := t.client.GetTask(ctx, holdfast.TaskID(in.TaskID))
		return taskOf(out, ""), err
	})
	add(s, tool("cancel_task", "Ends a task, and everything its command started. Success when it has ended already.", ends), func(ctx context.Context, in taskID) (task, error) {
		out, err := t.client.CancelTask(ctx, holdfast.TaskID(in.TaskID))
		return taskOf(out, ""), err
	})
	add(s, tool("read_task_output", "Reads what a task wrote from the given offsets on, at most 1 MiB, during and after, and returns at once.", reads), t.readTaskOutput)
}

func (t tools) readTaskOutput(ctx context.Context, in readTaskOutput) (taskOutput, error) {
	r := reader{stdout: in.StdoutOffset, stderr: in.StderrOffset}
	id := holdfast.TaskID(in.TaskID)
	out, err := t.client.StreamTaskOutput(ctx, holdfast.TaskOutput{ID: id, StdoutOffset: in.StdoutOffset, StderrOffset: in.StderrOffset}, r.take)
	if r.full {
		out, err = t.client.GetTask(ctx, id)
	}
	return taskOutput{Stdout: textOf(r.out), Stderr: textOf(r.err), StdoutOffset: r.stdout, StderrOffset: r.stderr, Task: taskOf(out, ""), More: r.full}, err
}
