package mcp

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
)

// session is a session as tools answer it.
type session struct {
	ID          string   `json:"id"`
	Name        string   `json:"name,omitempty"`
	Environment string   `json:"environment,omitempty"`
	State       string   `json:"state" jsonschema:"WAITING (for its environment's build), CREATING, READY, SUSPENDED, FAILED, DELETING or DELETED"`
	SandboxID   string   `json:"sandbox_id,omitempty" jsonschema:"where its tasks run: files and commands there work while it is READY"`
	Pending     *pending `json:"pending,omitempty" jsonschema:"the operation that is under way; absent when none is"`
	Failure     *failure `json:"failure,omitempty"`
	SuspendedBy string   `json:"suspended_by,omitempty" jsonschema:"IDLE where nobody asked for it"`
	Queued      int      `json:"queued" jsonschema:"tasks that wait"`
	Running     string   `json:"running,omitempty" jsonschema:"the task that runs"`
	RequestID   string   `json:"request_id,omitempty" jsonschema:"of the create that this call was"`
	Next        string   `json:"next" jsonschema:"what is safe to do next"`
}

func sessionOf(s holdfast.Session, requestID string) session {
	out := session{ID: string(s.ID), Name: s.Name, Environment: s.Environment, State: string(s.State), SandboxID: string(s.Sandbox),
		Pending: pendingOf(s.Operation), Failure: failureOf(s.Failure), SuspendedBy: string(s.SuspendedBy), Queued: s.Queued, Running: string(s.Running),
		RequestID: requestID}
	switch {
	case s.Operation != nil:
		out.Next = s.Operation.Next
	case s.State == holdfast.SessionReady, s.State == holdfast.SessionSuspended:
		out.Next = "submit_task runs a command in it, and wakes it where it sleeps"
	case s.State == holdfast.SessionFailed:
		out.Next = "delete_session, and create another with a new request_id; its tasks' output can be read until then"
	case s.State == holdfast.SessionDeleted:
		out.Next = "it is gone: a new request_id makes another"
	default:
		out.Next = "tasks can be submitted already; repeat create_session with the same request_id to wait for it"
	}
	return out
}

type createSession struct {
	Environment  string            `json:"environment,omitempty" jsonschema:"as of create_sandbox, or the name of an environment, whose build it waits for"`
	CheckpointID string            `json:"checkpoint_id,omitempty" jsonschema:"in place of environment: makes it a fork"`
	RequestID    string            `json:"request_id,omitempty" jsonschema:"names this create: the same id with the same arguments is the same session"`
	Name         string            `json:"name,omitempty" jsonschema:"for people"`
	Env          map[string]string `json:"env,omitempty"`
}

type sessionID struct {
	SessionID string `json:"session_id" jsonschema:"se-…"`
}

// sessions are the tools of sessions.
func (t tools) sessions(s *mcp.Server) {
	add(s, tool("create_session", "Creates a session: durable work on a sandbox of its own, in which tasks run one at a time. Waits until it is READY.", repeats),
		func(ctx context.Context, in createSession) (session, error) {
			id := requestID(in.RequestID)
			out, err := t.client.CreateSession(ctx, holdfast.CreateSession{RequestID: id, Environment: in.Environment,
				Source: holdfast.CheckpointID(in.CheckpointID), Name: in.Name, Env: in.Env})
			return sessionOf(out, id), err
		})
	add(s, tool("get_session", "Shows a session: its state, its tasks in the queue, what is pending, what is safe to do next.", reads), func(ctx context.Context, in sessionID) (session, error) {
		out, err := t.client.GetSession(ctx, holdfast.SessionID(in.SessionID))
		return sessionOf(out, ""), err
	})
	add(s, tool("delete_session", "Deletes a session with its sandbox, once its running task has ended. Success when it is gone already.", ends), func(ctx context.Context, in sessionID) (session, error) {
		out, err := t.client.DeleteSession(ctx, holdfast.MutateSession{ID: holdfast.SessionID(in.SessionID)})
		return sessionOf(out, ""), err
	})
}
