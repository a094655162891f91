package mcp

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// pending is an operation that is under way, as an agent needs it.
type pending struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Attempts  int    `json:"attempts"`
	Since     string `json:"since"`
	WaitsFor  string `json:"waits_for,omitempty" jsonschema:"what it waits for, such as image, host or task"`
	LastError string `json:"last_error,omitempty"`
}

// failure is why something failed.
type failure struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	LogTail string `json:"log_tail,omitempty"`
}

func pendingOf(o *holdfast.Operation) *pending {
	if o == nil {
		return nil
	}
	out := &pending{ID: string(o.ID), Kind: string(o.Kind), Attempts: o.Attempts, Since: stamp(o.Since), WaitsFor: o.WaitsFor}
	if o.LastError != nil {
		out.LastError = o.LastError.Message
	}
	return out
}

func failureOf(f *holdfast.Failure) *failure {
	if f == nil {
		return nil
	}
	return &failure{Reason: string(f.Reason), Message: f.Message, LogTail: f.LogTail}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// explain makes of an error what an agent can act on: what happened, and what is safe
// to do next (contract: A8).
func explain(err error) error {
	if err == nil {
		return nil
	}
	e := holdfast.AsError(err)
	next := adviceOn(e.Code)
	var incomplete *client.IncompleteError
	if errors.As(err, &incomplete) {
		next = "its outcome is not known: call it again with the same arguments"
		if incomplete.RequestID != "" {
			next += fmt.Sprintf(" and request_id %q", incomplete.RequestID)
		}
	}
	text := fmt.Sprintf("%s (%s, %s)", e.Message, e.Code, e.Reason)
	if e.Resource != "" {
		text += "; resource: " + e.Resource
	}
	if e.Operation != "" {
		text += "; operation: " + e.Operation
	}
	if next != "" {
		text += "; next: " + next
	}
	return errors.New(text)
}

func adviceOn(code holdfast.Code) string {
	switch code {
	case holdfast.Unavailable, holdfast.DeadlineExceeded:
		return "call it again with the same arguments"
	case holdfast.Aborted:
		return "another operation is in the way: look at the resource, then call it again"
	case holdfast.Cancelled:
		return "nothing is undone by cancelling: call it again with the same arguments to go on"
	case holdfast.InvalidArgument, holdfast.AlreadyExists, holdfast.FailedPrecondition, holdfast.Unauthenticated, holdfast.PermissionDenied:
		return "correct that first: the same call will be refused again"
	case holdfast.ResourceExhausted:
		return "a quota is used up: delete what is not needed"
	case holdfast.NotFound:
		return "there is no such thing in this project"
	}
	return ""
}
