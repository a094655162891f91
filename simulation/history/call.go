package history

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// Verb is what a call asked for.
type Verb string

// The verbs.
const (
	Create  Verb = "create"
	Get     Verb = "get"
	List    Verb = "list" // as it concerns one sandbox: it was in the list
	Absent  Verb = "list without it"
	Suspend Verb = "suspend"
	Resume  Verb = "resume"
	Delete  Verb = "delete"
	Extend  Verb = "extend"
	Set     Verb = "set lifetime"
	Start   Verb = "start"     // of a process, by request id
	Running Verb = "processes" // as a list concerns one request id: Process is what it showed, "" for none
)

// mutates reports whether the verb is a lifecycle request, with an intent and an
// answer of its own.
func (v Verb) mutates() bool {
	switch v {
	case Create, Suspend, Resume, Delete, Open, Rest, Wake, Close:
		return true
	}
	return false
}

// Outcome is what a call's answer says of its effect.
type Outcome string

// The outcomes (contract: A8).
const (
	OK       Outcome = "ok"
	Refused  Outcome = "refused"  // FAILED_PRECONDITION: no effect
	Reused   Outcome = "reused"   // ALREADY_EXISTS: the request id stands for another input
	Aborted  Outcome = "aborted"  // nothing of this call is promised, and nothing comes of it later
	Recorded Outcome = "recorded" // not finished, but its intent is recorded: the answer names the operation
	Unknown  Outcome = "unknown"  // may have happened, may still, may never
	Wrong    Outcome = "wrong"    // an answer that no call of ours may get
)

// Call is one call of one client, with its answer.
type Call struct {
	Client int
	Slot   int // which of the history's sandboxes, by request id
	Verb   Verb

	// Input.
	ID      holdfast.SandboxID // "" for a create
	Variant int                // of a create's input; which of a session's tasks
	Input   int                // of a task
	TTL     time.Duration
	Expiry  holdfast.Expiry
	Request string // of a process start, or a task

	Outcome Outcome
	Sandbox holdfast.Sandbox // OK, and the id where an error named it
	Session holdfast.Session // the same; of a call that names one, its id
	Task    holdfast.Task
	State   holdfast.SandboxState
	Process holdfast.ProcessID
	Err     error
	Called  time.Time
	Ended   time.Time
}

// String is one line of a history.
func (c Call) String() string {
	text := fmt.Sprintf("client %d  %s", c.Client, c.Verb)
	switch {
	case c.Verb == Create:
		text += fmt.Sprintf(" (input %d)", c.Variant)
	case c.Request != "":
		text += " " + c.Request
	case c.TTL != 0:
		text += " " + c.TTL.String()
	}
	text += " → " + string(c.Outcome)
	if c.Outcome == OK && c.Sandbox.State != "" {
		text += " " + show(c.Sandbox)
	}
	if c.Outcome == OK && c.Session.State != "" {
		s := holdfast.Sandbox{State: holdfast.SandboxState(c.Session.State), Generation: c.Session.Generation, Operation: c.Session.Operation}
		text += " " + show(s)
	}
	if c.Task.ID != "" {
		text += fmt.Sprintf(" %s %s", c.Task.ID, c.Task.State)
	}
	if c.Process != "" {
		text += " " + string(c.Process)
	}
	if c.Err != nil {
		text += fmt.Sprintf(" %s/%s: %v", holdfast.CodeOf(c.Err), holdfast.ReasonOf(c.Err), c.Err)
	}
	return text
}

// show is what an answer says of a sandbox, as far as the model follows it.
func show(s holdfast.Sandbox) string {
	text := fmt.Sprintf("%s g%d", s.State, s.Generation)
	if s.Operation != nil {
		text += " " + string(s.Operation.Kind) + "…"
	}
	if !s.ExpiresAt.IsZero() {
		text += " until " + s.ExpiresAt.Format("04:05.000")
	}
	return text
}

// answered fills in what an answer, or its error, says.
func (c *Call) answered(s holdfast.Sandbox, err error) {
	c.Err = err
	if err == nil {
		c.Outcome, c.Sandbox = OK, s
		return
	}
	e := holdfast.AsError(err)
	if holdfast.CheckID("resource", holdfast.PrefixSandbox, e.Resource) == nil {
		c.Sandbox.ID = holdfast.SandboxID(e.Resource)
	}
	c.State = holdfast.SandboxState(e.Details["state"])
	c.Outcome = outcomeOf(c.Verb, e)
}

// outcomeOf reads an error as the contract means it.
func outcomeOf(verb Verb, e *holdfast.Error) Outcome {
	switch e.Code {
	case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Cancelled:
		if verb.mutates() && e.Operation != "" {
			return Recorded
		}
		return Unknown
	case holdfast.Aborted:
		if (verb == Delete || verb == Close) && e.Details["delete_wanted"] == "true" {
			return Recorded
		}
		return Aborted
	case holdfast.FailedPrecondition:
		return Refused
	case holdfast.AlreadyExists:
		return Reused
	}
	return Wrong
}
