package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// CreateSession creates a session, or carries the create of its request id on, until
// it is READY or was refused: an environment that is being built is waited for. Without
// a request id it mints one. The session is as it is now (contract: A3).
func (c *Client) CreateSession(ctx context.Context, in holdfast.CreateSession) (holdfast.Session, error) {
	const method = "CreateSession"
	minted := in.RequestID == ""
	if minted {
		in.RequestID = NewRequestID()
	}
	if err := in.Validate(); err != nil {
		return holdfast.Session{}, err
	}
	if minted {
		c.settings.requestID(method, in.RequestID)
	}
	request := IncompleteError{Method: method, RequestID: in.RequestID, Request: in}
	return attempts(ctx, c, holdfast.OperationCreate, request, func(ctx context.Context) (holdfast.Session, error) {
		return c.services.Sessions.CreateSession(ctx, c.caller, in)
	})
}

// SuspendSession suspends a session when its running task has ended. A conflicting
// operation is returned as ABORTED: look at the session's operation, and call again.
func (c *Client) SuspendSession(ctx context.Context, in holdfast.MutateSession) (holdfast.Session, error) {
	return c.mutateSession(ctx, "SuspendSession", holdfast.OperationSuspend, in, c.services.Sessions.SuspendSession)
}

// ResumeSession resumes a session. A conflicting operation is returned as ABORTED.
func (c *Client) ResumeSession(ctx context.Context, in holdfast.MutateSession) (holdfast.Session, error) {
	return c.mutateSession(ctx, "ResumeSession", holdfast.OperationResume, in, c.services.Sessions.ResumeSession)
}

// DeleteSession deletes a session in any state. One that is not there is as wanted: it
// is returned as DELETED, with nothing but its id (contract: A4, A8).
func (c *Client) DeleteSession(ctx context.Context, in holdfast.MutateSession) (holdfast.Session, error) {
	out, err := c.mutateSession(ctx, "DeleteSession", holdfast.OperationDelete, in, c.services.Sessions.DeleteSession)
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return holdfast.Session{ID: in.ID, State: holdfast.SessionDeleted}, nil
	}
	return out, err
}

type sessionMutation func(context.Context, holdfast.Caller, holdfast.MutateSession) (holdfast.Session, error)

func (c *Client) mutateSession(ctx context.Context, method string, kind holdfast.OperationKind, in holdfast.MutateSession, send sessionMutation) (holdfast.Session, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Session{}, err
	}
	return attempts(ctx, c, kind, IncompleteError{Method: method, Request: in}, func(ctx context.Context) (holdfast.Session, error) {
		return send(ctx, c.caller, in)
	})
}

// RenameSession sets the name; a repeat is harmless, so that it is repeated until it is
// known.
func (c *Client) RenameSession(ctx context.Context, in holdfast.RenameSession) (holdfast.Session, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Session{}, err
	}
	return attempts(ctx, c, "", IncompleteError{Method: "RenameSession", Request: in}, func(ctx context.Context) (holdfast.Session, error) {
		return c.services.Sessions.RenameSession(ctx, c.caller, in)
	})
}

// GetSession reads a session, or the tombstone of a deleted one. It only observes
// (contract: A5).
func (c *Client) GetSession(ctx context.Context, id holdfast.SessionID) (holdfast.Session, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Session, error) {
		return c.services.Sessions.GetSession(ctx, c.caller, id)
	})
}

// ListSessions reads one page, the newest first.
func (c *Client) ListSessions(ctx context.Context, in holdfast.ListSessions) (holdfast.SessionPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.SessionPage, error) {
		return c.services.Sessions.ListSessions(ctx, c.caller, in)
	})
}

// ForkSession takes a checkpoint of a session, creates a session from it as in says (its
// Source and Environment are left out), and deletes the checkpoint, as ForkSandbox
// does. The fork begins with the disk of the other and none of its tasks.
func (c *Client) ForkSession(ctx context.Context, source holdfast.SessionID, in holdfast.CreateSession) (holdfast.Session, error) {
	return fork(ctx, c, forking{"ForkSession", string(source), in.RequestID}, func(ctx context.Context, requestID string, from holdfast.CheckpointID) (holdfast.Session, error) {
		in.RequestID, in.Source, in.Environment = requestID, from, ""
		return c.CreateSession(ctx, in)
	})
}
