package holdfast

import (
	"context"
	"slices"
	"time"
)

// HookKind says how a provider signs what it posts.
type HookKind string

// The kinds of hooks.
const (
	HookGitHub   HookKind = "GITHUB"   // X-GitHub-Delivery, X-GitHub-Event, X-Hub-Signature-256
	HookStandard HookKind = "STANDARD" // Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature
)

// HookActionState is how far an action is that a provider's webhook asked for.
type HookActionState string

// The states of a hook's action.
const (
	HookActionPending HookActionState = "PENDING"
	HookActionDone    HookActionState = "DONE"
	HookActionFailed  HookActionState = "FAILED" // for a person to look at, and to retry
)

// HookActionTransitions lists, for each state, the states that may follow it.
func HookActionTransitions() map[HookActionState][]HookActionState {
	return map[HookActionState][]HookActionState{
		HookActionPending: {HookActionDone, HookActionFailed},
		HookActionDone:    {},
		HookActionFailed:  {HookActionPending}, // a person retries it
	}
}

// Times and limits of hooks.
const (
	MaxHookBody      = 1 << 20             // bytes of a provider's webhook
	MaxHookRules     = 64 << 10            // bytes of a rule file
	MaxHookSecret    = 512                 // bytes
	HookActionAfter  = 10 * time.Second    // due, before a sweep carries it out
	HookActionMaxAge = 3 * 24 * time.Hour  // of trying, after which its next failure is its last
	HookKept         = 30 * 24 * time.Hour // of deliveries, for repeats, and of ended actions
)

// HookAction is what one rule made of one delivery: durable work, done once however
// often the delivery comes (contract: B3, B9).
type HookAction struct {
	ID        HookActionID
	Hook      string // name
	Project   ProjectID
	Delivery  string // the provider's id
	Event     string // the provider's word for what happened
	Rule      string // name, in the hook's rule file
	State     HookActionState
	Failure   *Failure // why it FAILED, or did not succeed yet
	Resources []string // ids of what it made so far
	Attempts  int
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Hook is a source of webhooks from outside, served at /hooks/NAME; its rules say
// what is to be done.
type Hook struct {
	Name      string
	Project   ProjectID // in which its actions act
	Kind      HookKind
	Rules     string // YAML
	Creator   string
	CreatedAt time.Time
}

// CreateHook is the input of a create, keyed by the name (contract: A3).
type CreateHook struct {
	Name    string // in the path, unique in the installation: lower-case letters, digits, hyphens
	Project string // id or name; "": default
	Kind    HookKind
	Secret  string // what the provider signs with; "": a new one, which the answer tells
	Rules   string // YAML
}

// CreatedHook is a hook with its secret, which is told this once: "" where the hook
// was there already, with the same input.
type CreatedHook struct {
	Hook   Hook
	Secret string
}

// ListHooks pages by name.
type ListHooks struct {
	PageSize  int // zero: 50; at most 1000
	PageToken string
}

// HookPage is one page; NextPageToken is "" on the last.
type HookPage struct {
	Hooks         []Hook
	NextPageToken string
}

// ListHookActions filters and pages, newest first.
type ListHookActions struct {
	Hook      string // "": every hook of the project
	States    []HookActionState
	PageSize  int // zero: 50; at most 1000
	PageToken string
}

// HookActionPage is one page; NextPageToken is "" on the last.
type HookActionPage struct {
	Actions       []HookAction
	NextPageToken string
}

// HookService manages webhooks that come in. Hooks are an ADMIN's; their actions are
// shown to the members of the project in which they act.
type HookService interface {
	CreateHook(ctx context.Context, caller Caller, in CreateHook) (CreatedHook, error)
	ListHooks(ctx context.Context, caller Caller, in ListHooks) (HookPage, error)
	// DeleteHook ends one: what comes is answered 404, and actions that are pending
	// are carried out. A hook of that name made later knows the deliveries of this one.
	DeleteHook(ctx context.Context, caller Caller, name string) error
	ListHookActions(ctx context.Context, caller Caller, in ListHookActions) (HookActionPage, error)
	// RetryHookAction makes a FAILED one PENDING, under its request ids.
	RetryHookAction(ctx context.Context, caller Caller, id HookActionID) (HookAction, error)
}

// Validate checks every field but the rules, which package hook reads.
func (in CreateHook) Validate() error {
	if in.Project != "" {
		if err := CheckProject("project", in.Project); err != nil {
			return err
		}
	}
	if in.Rules == "" {
		return bad("rules", "is empty: a hook without rules does nothing")
	}
	return firstError(
		CheckHookName("name", in.Name),
		checkOneOf("kind", in.Kind, HookGitHub, HookStandard),
		checkLength("secret", in.Secret, MaxHookSecret),
		checkValue("secret", in.Secret),
		checkLength("rules", in.Rules, MaxHookRules),
		checkValue("rules", in.Rules),
	)
}

// CheckHookName checks what is a part of a URL's path.
func CheckHookName(field, name string) error {
	if name == "" || len(name) > 63 {
		return bad(field, "has %d characters; 1 to 63 are allowed", len(name))
	}
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (c != '-' || i == 0 || i == len(name)-1) {
			return bad(field, "%q has other characters than a-z, 0-9 and hyphens between them", shown(name))
		}
	}
	return nil
}

// Validate checks the page.
func (in ListHooks) Validate() error { return checkPage(in.PageSize, in.PageToken) }

// Validate checks the filter and the page.
func (in ListHookActions) Validate() error {
	if in.Hook != "" {
		if err := CheckHookName("hook", in.Hook); err != nil {
			return err
		}
	}
	for _, state := range in.States {
		if !slices.Contains([]HookActionState{HookActionPending, HookActionDone, HookActionFailed}, state) {
			return bad("states", "has %q, which is no state of a hook's action", shown(string(state)))
		}
	}
	if in.PageToken != "" && CheckID("page_token", PrefixHookAction, in.PageToken) != nil {
		return bad("page_token", "is none that a list returned")
	}
	return checkPage(in.PageSize, in.PageToken)
}
