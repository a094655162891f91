package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// StartProcess starts a command, in one attempt: it is never repeated on the
// caller's behalf (contract: A14). When its outcome is unknown and it has a
// request id, the error is an IncompleteError, and the same call returns that
// same process if it started.
func (c *Client) StartProcess(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.StartProcess) (holdfast.Process, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Process{}, err
	}
	out, err := attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Process, error) {
		return c.services.Processes.StartProcess(ctx, c.caller, sandbox, in)
	})
	if err != nil && in.RequestID != "" && unknownOutcome(err) {
		err = &IncompleteError{Method: "StartProcess", RequestID: in.RequestID, Request: in, Last: err}
	}
	return out, err
}

// GetProcess reads a process, ended ones included.
func (c *Client) GetProcess(ctx context.Context, sandbox holdfast.SandboxID, id holdfast.ProcessID) (holdfast.Process, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Process, error) {
		return c.services.Processes.GetProcess(ctx, c.caller, sandbox, id)
	})
}

// ListProcesses reads the processes of a sandbox.
func (c *Client) ListProcesses(ctx context.Context, sandbox holdfast.SandboxID) ([]holdfast.Process, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) ([]holdfast.Process, error) {
		return c.services.Processes.ListProcesses(ctx, c.caller, sandbox)
	})
}

// StreamProcessOutput yields output once and in order, through broken
// connections, and returns the process as it was when the last was read. What
// fails for good after output came is an InterruptedError.
func (c *Client) StreamProcessOutput(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Process{}, err
	}
	follow := follower{client: c, yield: yield, stdout: in.StdoutOffset, stderr: in.StderrOffset}
	var last holdfast.Process
	err := follow.run(ctx, func(ctx context.Context, take func(holdfast.OutputChunk) error) error {
		in.StdoutOffset, in.StderrOffset = follow.stdout, follow.stderr
		process, err := c.services.Processes.StreamProcessOutput(ctx, c.caller, sandbox, in, take)
		last = process
		return err
	})
	return last, err
}

// WriteProcessInput writes input, in one attempt; with an offset a repeat is safe.
func (c *Client) WriteProcessInput(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.ProcessInput) (int64, error) {
	if err := in.Validate(); err != nil {
		return 0, err
	}
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (int64, error) {
		return c.services.Processes.WriteProcessInput(ctx, c.caller, sandbox, in)
	})
}

// SignalProcess sends a signal ("TERM", "KILL", …) to a process's group.
func (c *Client) SignalProcess(ctx context.Context, sandbox holdfast.SandboxID, id holdfast.ProcessID, signal string) error {
	if err := holdfast.CheckSignal("signal", signal); err != nil {
		return err
	}
	_, err := attempt(ctx, c.settings.attempt, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.services.Processes.SignalProcess(ctx, c.caller, sandbox, id, signal)
	})
	return err
}

// ResizeTerminal tells a process's terminal its size.
func (c *Client) ResizeTerminal(ctx context.Context, sandbox holdfast.SandboxID, id holdfast.ProcessID, size holdfast.TerminalSize) error {
	if err := size.Validate(); err != nil {
		return err
	}
	_, err := attempt(ctx, c.settings.attempt, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.services.Processes.ResizeTerminal(ctx, c.caller, sandbox, id, size)
	})
	return err
}
