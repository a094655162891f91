package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// SubmitTask queues a task, and is repeated until it is known to be queued or
// refused. Without a request id it mints one. A repeat finds the task as it is now
// (contract: A3).
func (c *Client) SubmitTask(ctx context.Context, in holdfast.SubmitTask) (holdfast.Task, error) {
	const method = "SubmitTask"
	minted := in.RequestID == ""
	if minted {
		in.RequestID = NewRequestID()
	}
	if err := in.Validate(); err != nil {
		return holdfast.Task{}, err
	}
	if minted {
		c.settings.requestID(method, in.RequestID)
	}
	request := IncompleteError{Method: method, RequestID: in.RequestID, Request: in}
	return attempts(ctx, c, holdfast.OperationCreate, request, func(ctx context.Context) (holdfast.Task, error) {
		return c.services.Tasks.SubmitTask(ctx, c.caller, in)
	})
}

// GetTask reads a task.
func (c *Client) GetTask(ctx context.Context, id holdfast.TaskID) (holdfast.Task, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Task, error) {
		return c.services.Tasks.GetTask(ctx, c.caller, id)
	})
}

// ListTasks reads one page.
func (c *Client) ListTasks(ctx context.Context, in holdfast.ListTasks) (holdfast.TaskPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.TaskPage, error) {
		return c.services.Tasks.ListTasks(ctx, c.caller, in)
	})
}

// CancelTask ends a task, and is repeated until that is recorded. One that runs has
// ended only once its state says so.
func (c *Client) CancelTask(ctx context.Context, id holdfast.TaskID) (holdfast.Task, error) {
	return attempts(ctx, c, "", IncompleteError{Method: "CancelTask", Request: id}, func(ctx context.Context) (holdfast.Task, error) {
		return c.services.Tasks.CancelTask(ctx, c.caller, id)
	})
}

// StreamTaskOutput yields a task's output once and in order, through broken
// connections, and returns the task as it was when the last was read; with Follow
// that is as it ended. What fails for good after output came is an InterruptedError.
func (c *Client) StreamTaskOutput(ctx context.Context, in holdfast.TaskOutput, yield func(holdfast.OutputChunk) error) (holdfast.Task, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Task{}, err
	}
	follow := follower{client: c, yield: yield, stdout: in.StdoutOffset, stderr: in.StderrOffset}
	var last holdfast.Task
	err := follow.run(ctx, func(ctx context.Context, take func(holdfast.OutputChunk) error) error {
		in.StdoutOffset, in.StderrOffset = follow.stdout, follow.stderr
		task, err := c.services.Tasks.StreamTaskOutput(ctx, c.caller, in, take)
		last = task
		return err
	})
	return last, err
}
