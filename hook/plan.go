package hook

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// Delivery is one webhook that came in, authenticated.
type Delivery struct {
	Hook    string // name of the source
	ID      string // the provider's, unique for the source
	Event   string // the provider's name for what happened
	Payload any    // as encoding/json decodes it, with json.Number
}

// Plan is what one rule makes of a delivery, in the API's words. It is durable, so it
// has JSON names. At most one of Sandbox and Session is set; a Task without a session
// belongs to the Session beside it.
type Plan struct {
	Rule    string                  `json:"rule"`
	Sandbox *holdfast.CreateSandbox `json:"sandbox,omitempty"`
	Session *holdfast.CreateSession `json:"session,omitempty"`
	Task    *holdfast.SubmitTask    `json:"task,omitempty"`
	// Failure says why nothing can be done, as where a field is missing: a person has to
	// see it (contract: B9).
	Failure string `json:"failure,omitempty"`
}

// Plan makes a plan for each rule that matches, in the order of the file.
func (r Rules) Plan(d Delivery) (plans []Plan) {
	for _, rule := range r.Rules {
		if rule.matches(d) {
			plans = append(plans, rule.plan(d))
		}
	}
	return plans
}

func (r Rule) matches(d Delivery) bool {
	if len(r.Event) > 0 && !r.Event.match(d.Event) {
		return false
	}
	for path, globs := range r.When {
		value, err := d.lookup(path)
		if err != nil || !globs.match(value) {
			return false
		}
	}
	return true
}

// plan puts the values of the payload in.
func (r Rule) plan(d Delivery) Plan {
	r, err := r.filled(func(text string) (string, error) { return replace(text, d.lookup) })
	if err != nil {
		return Plan{Rule: r.Name, Failure: err.Error()}
	}
	plan := Plan{Rule: r.Name}
	if t := r.Box; t != nil {
		plan.Sandbox = &holdfast.CreateSandbox{RequestID: RequestID(d, r.Name, "sandbox"), Environment: t.Environment, Name: t.Name,
			TTL: time.Duration(t.TTL), Env: t.Env, Labels: t.Labels}
	}
	if t := r.Sess; t != nil {
		plan.Session = &holdfast.CreateSession{RequestID: RequestID(d, r.Name, "session"), Environment: t.Environment, Name: t.Name,
			Idle: time.Duration(t.Idle), Env: t.Env, Labels: t.Labels}
		if t.Repository != nil {
			plan.Session.Repository = &holdfast.Repository{URL: t.Repository.URL, Ref: t.Repository.Ref}
		}
	}
	if t := r.Task; t != nil {
		plan.Task = &holdfast.SubmitTask{RequestID: RequestID(d, r.Name, "task"), Session: holdfast.SessionID(t.Session), Command: t.Command,
			Args: t.Args, Cwd: t.Cwd, Env: t.Env, Limit: time.Duration(t.Limit)}
	}
	return plan
}

// RequestID is that of one thing that a rule makes of a delivery: the same, whoever
// derives it and however often, so that it is made once (contract: A3, B2).
func RequestID(d Delivery, rule, what string) string {
	var fields strings.Builder
	for _, field := range []string{"holdfast hook request v1", d.Hook, d.ID, rule, what} {
		fmt.Fprintf(&fields, "%d:%s", len(field), field)
	}
	sum := sha256.Sum256([]byte(fields.String()))
	return "hook-" + what + "-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20]))
}
