package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// CreateSandbox creates a sandbox, or carries the create of its request id on,
// until the sandbox is READY or the create was refused. Without a request id it
// mints one. The sandbox is as it is now: a repeat may find it suspended, failed
// or deleted (contract: A3).
func (c *Client) CreateSandbox(ctx context.Context, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
	const method = "CreateSandbox"
	minted := in.RequestID == ""
	if minted {
		in.RequestID = NewRequestID()
	}
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	if minted {
		c.settings.requestID(method, in.RequestID)
	}
	request := IncompleteError{Method: method, RequestID: in.RequestID, Request: in}
	return attempts(ctx, c, holdfast.OperationCreate, request, func(ctx context.Context) (holdfast.Sandbox, error) {
		return c.services.Sandboxes.CreateSandbox(ctx, c.caller, in)
	})
}

// SuspendSandbox suspends a sandbox. A conflicting operation is returned as
// ABORTED: look at the sandbox's operation, coordinate, and call again.
func (c *Client) SuspendSandbox(ctx context.Context, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return c.mutate(ctx, "SuspendSandbox", holdfast.OperationSuspend, in, c.services.Sandboxes.SuspendSandbox)
}

// ResumeSandbox resumes a sandbox. A conflicting operation is returned as
// ABORTED: look at the sandbox's operation, coordinate, and call again.
func (c *Client) ResumeSandbox(ctx context.Context, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return c.mutate(ctx, "ResumeSandbox", holdfast.OperationResume, in, c.services.Sandboxes.ResumeSandbox)
}

// DeleteSandbox deletes a sandbox in any state. One that is not there is as
// wanted: it is returned as DELETED, with nothing but its id (contract: A4, A8).
func (c *Client) DeleteSandbox(ctx context.Context, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	out, err := c.mutate(ctx, "DeleteSandbox", holdfast.OperationDelete, in, c.services.Sandboxes.DeleteSandbox)
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return holdfast.Sandbox{ID: in.ID, State: holdfast.SandboxDeleted}, nil
	}
	return out, err
}

type mutation func(context.Context, holdfast.Caller, holdfast.MutateSandbox) (holdfast.Sandbox, error)

func (c *Client) mutate(ctx context.Context, method string, kind holdfast.OperationKind, in holdfast.MutateSandbox, send mutation) (holdfast.Sandbox, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	request := IncompleteError{Method: method, Request: in}
	return attempts(ctx, c, kind, request, func(ctx context.Context) (holdfast.Sandbox, error) {
		return send(ctx, c.caller, in)
	})
}

// ExtendSandbox asks for at least so much more time. It never shortens, so that
// it is repeated until it is known (contract: A11).
func (c *Client) ExtendSandbox(ctx context.Context, in holdfast.ExtendSandbox) (holdfast.Sandbox, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	return attempts(ctx, c, "", IncompleteError{Method: "ExtendSandbox", Request: in}, func(ctx context.Context) (holdfast.Sandbox, error) {
		return c.services.Sandboxes.ExtendSandbox(ctx, c.caller, in)
	})
}

// SetSandboxLifetime sets what a lifetime is; it may shorten the present one. A
// repeat counts the time from then on.
func (c *Client) SetSandboxLifetime(ctx context.Context, in holdfast.SetSandboxLifetime) (holdfast.Sandbox, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	return attempts(ctx, c, "", IncompleteError{Method: "SetSandboxLifetime", Request: in}, func(ctx context.Context) (holdfast.Sandbox, error) {
		return c.services.Sandboxes.SetSandboxLifetime(ctx, c.caller, in)
	})
}

// GetSandbox reads a sandbox, or the tombstone of a deleted one. It only
// observes (contract: A5).
func (c *Client) GetSandbox(ctx context.Context, id holdfast.SandboxID) (holdfast.Sandbox, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Sandbox, error) {
		return c.services.Sandboxes.GetSandbox(ctx, c.caller, id)
	})
}

// ListSandboxes reads one page.
func (c *Client) ListSandboxes(ctx context.Context, in holdfast.ListSandboxes) (holdfast.SandboxPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.SandboxPage, error) {
		return c.services.Sandboxes.ListSandboxes(ctx, c.caller, in)
	})
}

// StreamSandboxLog yields the console from an offset on, through broken
// connections; with Follow until the instance ends. What fails for good is an
// InterruptedError that says how far it came.
func (c *Client) StreamSandboxLog(ctx context.Context, in holdfast.SandboxLog, yield func(holdfast.OutputChunk) error) error {
	follow := follower{client: c, yield: yield}
	return follow.run(ctx, func(ctx context.Context, take func(holdfast.OutputChunk) error) error {
		in.Offset = max(in.Offset, follow.stdout)
		follow.stdout = in.Offset
		return c.services.Sandboxes.StreamSandboxLog(ctx, c.caller, in, take)
	})
}
