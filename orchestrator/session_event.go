package orchestrator

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// sessionObject is what an event says of a session. Its repository's address is not in
// it: it may hold a password.
type sessionObject struct {
	ID          holdfast.SessionID    `json:"id"`
	Name        string                `json:"name,omitempty"`
	State       holdfast.SessionState `json:"state"`
	Environment string                `json:"environment,omitempty"`
	Build       holdfast.BuildID      `json:"build,omitempty"`
	Source      holdfast.CheckpointID `json:"source,omitempty"`
	Sandbox     holdfast.SandboxID    `json:"sandbox,omitempty"`
	Incarnation int64                 `json:"incarnation"`
	Generation  int64                 `json:"generation"`
	SuspendedBy holdfast.Reason       `json:"suspended_by,omitempty"`
	Labels      map[string]string     `json:"labels,omitempty"`
	Failure     *holdfast.Failure     `json:"failure,omitempty"`
}

// sessionEvent is the kind of a change between two recorded states, of which the first
// is "" for a new session; "" when it is none. It is pure.
func sessionEvent(from, to holdfast.SessionState) holdfast.EventKind {
	if from == to {
		return ""
	}
	if from == "" {
		return holdfast.EventSessionCreated
	}
	switch to {
	case holdfast.SessionCreating:
		if from == holdfast.SessionWaiting {
			return holdfast.EventSessionCreating
		}
		return holdfast.EventSessionReplacing
	case holdfast.SessionReady:
		if from == holdfast.SessionSuspended {
			return holdfast.EventSessionResumed
		}
		return holdfast.EventSessionReady
	case holdfast.SessionSuspended:
		return holdfast.EventSessionSuspended
	case holdfast.SessionFailed:
		return holdfast.EventSessionFailed
	case holdfast.SessionDeleting:
		return holdfast.EventSessionDeleting
	case holdfast.SessionDeleted:
		return holdfast.EventSessionDeleted
	}
	return ""
}

// tell emits the change since the session was read or saved last, if it is one.
func (r *sessionRow) tell(ctx context.Context, tx store.Tx, now time.Time) error {
	kind := sessionEvent(r.was, r.State)
	r.was = r.State
	return emitIn(ctx, tx, now, news{project: r.Project, kind: kind, resource: string(r.ID), object: sessionObject{
		ID: r.ID, Name: r.Name, State: r.State, Environment: r.Environment, Build: r.Build, Source: r.Source, Sandbox: r.Sandbox,
		Incarnation: r.Incarnation, Generation: r.Generation, SuspendedBy: r.SuspendedBy, Labels: r.Labels, Failure: r.Failure}})
}
