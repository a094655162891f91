package mcp

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
)

// sandbox is a sandbox as tools answer it.
type sandbox struct {
	ID          string            `json:"id"`
	Name        string            `json:"name,omitempty"`
	Environment string            `json:"environment"`
	State       string            `json:"state" jsonschema:"CREATING, READY, SUSPENDED, FAILED, DELETING or DELETED"`
	Pending     *pending          `json:"pending,omitempty" jsonschema:"the operation that is under way; absent when none is"`
	Failure     *failure          `json:"failure,omitempty"`
	Incarnation int64             `json:"incarnation" jsonschema:"goes up when the sandbox was booted anew and its memory lost"`
	ExpiresAt   string            `json:"expires_at,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	RequestID   string            `json:"request_id,omitempty" jsonschema:"of the create that this call was"`
	Next        string            `json:"next" jsonschema:"what is safe to do next"`
}

func sandboxOf(s holdfast.Sandbox, requestID string) sandbox {
	return sandbox{ID: string(s.ID), Name: s.Name, Environment: s.Environment, State: string(s.State), Pending: pendingOf(s.Operation),
		Failure: failureOf(s.Failure), Incarnation: s.Incarnation, ExpiresAt: stamp(s.ExpiresAt), Labels: s.Labels, RequestID: requestID, Next: nextFor(s)}
}

// nextFor says what is safe to do about a sandbox.
func nextFor(s holdfast.Sandbox) string {
	if s.Operation != nil {
		return s.Operation.Next
	}
	if s.Owner != "" && (s.State == holdfast.SandboxReady || s.State == holdfast.SandboxSuspended) {
		return "it belongs to " + s.Owner + ", which alone suspends, resumes and deletes it; commands and files work while it is READY"
	}
	switch s.State {
	case holdfast.SandboxReady:
		return "run commands with start_process, move files, suspend or delete it"
	case holdfast.SandboxSuspended:
		return "resume_sandbox continues it; its commands' output can be read meanwhile"
	case holdfast.SandboxFailed:
		return "delete it, and create another with a new request_id; its output can be read until then"
	case holdfast.SandboxDeleted:
		return "it is gone: a new request_id makes another"
	case holdfast.SandboxCreating:
		return "repeat create_sandbox with the same request_id to wait for it"
	}
	return "wait, or repeat delete_sandbox"
}

type createSandbox struct {
	Environment string            `json:"environment" jsonschema:"what it is made from: base, debian, debian:bookworm, oci:REFERENCE, or the name of an environment"`
	RequestID   string            `json:"request_id,omitempty" jsonschema:"names this create: the same id with the same arguments is the same sandbox"`
	Name        string            `json:"name,omitempty" jsonschema:"for people"`
	TTLSeconds  int64             `json:"ttl_seconds,omitempty" jsonschema:"how long it lives, 1 to 86400; default 3600"`
	Labels      map[string]string `json:"labels,omitempty"`
	Env         map[string]string `json:"env,omitempty" jsonschema:"environment variables of every command"`
}

type forkSandbox struct {
	SandboxID  string `json:"sandbox_id" jsonschema:"the source"`
	RequestID  string `json:"request_id,omitempty" jsonschema:"names this fork: the same id with the same arguments is the same fork"`
	Name       string `json:"name,omitempty" jsonschema:"of the fork, for people"`
	TTLSeconds int64  `json:"ttl_seconds,omitempty" jsonschema:"how long the fork lives, 1 to 86400; default 3600"`
}

type sandboxID struct {
	SandboxID string `json:"sandbox_id" jsonschema:"sb-…"`
}

type listSandboxes struct {
	PageToken string `json:"page_token,omitempty" jsonschema:"next_page_token of the page before"`
	All       bool   `json:"all,omitempty" jsonschema:"deleted ones too, while their records are kept"`
}

type sandboxPage struct {
	Sandboxes     []sandbox `json:"sandboxes"`
	NextPageToken string    `json:"next_page_token,omitempty"`
}

// sandboxes are the tools of sandboxes.
func (t tools) sandboxes(s *mcp.Server) {
	add(s, tool("create_sandbox", "Creates a sandbox and waits until it is READY; with a request_id that was used before it returns that sandbox as it is now.", repeats), t.createSandbox)
	add(s, tool("list_sandboxes", "Lists the sandboxes of the project, newest first, with what is pending on each.", reads), t.listSandboxes)
	add(s, tool("get_sandbox", "Shows a sandbox: its state, what is pending, why it failed, what is safe to do next.", reads), func(ctx context.Context, in sandboxID) (sandbox, error) {
		out, err := t.client.GetSandbox(ctx, ids(in.SandboxID))
		return sandboxOf(out, ""), err
	})
	add(s, tool("suspend_sandbox", "Stops a READY sandbox from running; files and processes are kept. Success when it is suspended already.", repeats), t.mutation(t.client.SuspendSandbox))
	add(s, tool("resume_sandbox", "Lets a suspended sandbox run on where it stopped. Success when it is READY already.", repeats), t.mutation(t.client.ResumeSandbox))
	add(s, tool("fork_sandbox", "Copies the disk of a READY or SUSPENDED sandbox, which goes on undisturbed, into a new one with an identity of its own; memory and processes are not copied.", repeats), t.forkSandbox)
	add(s, tool("delete_sandbox", "Deletes a sandbox with everything in it, in any state. Success when it is gone already.", ends), t.mutation(t.client.DeleteSandbox))
}

func (t tools) createSandbox(ctx context.Context, in createSandbox) (sandbox, error) {
	id := requestID(in.RequestID)
	out, err := t.client.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: id, Environment: in.Environment, Name: in.Name,
		TTL: time.Duration(in.TTLSeconds) * time.Second, Labels: in.Labels, Env: in.Env})
	return sandboxOf(out, id), err
}

func (t tools) forkSandbox(ctx context.Context, in forkSandbox) (sandbox, error) {
	id := requestID(in.RequestID)
	out, err := t.client.ForkSandbox(ctx, ids(in.SandboxID), holdfast.CreateSandbox{RequestID: id, Name: in.Name, TTL: time.Duration(in.TTLSeconds) * time.Second})
	return sandboxOf(out, id), err
}

func (t tools) listSandboxes(ctx context.Context, in listSandboxes) (sandboxPage, error) {
	ask := holdfast.ListSandboxes{PageToken: in.PageToken}
	if in.All {
		for state := range holdfast.SandboxTransitions() {
			ask.States = append(ask.States, state)
		}
	}
	page, err := t.client.ListSandboxes(ctx, ask)
	out := sandboxPage{Sandboxes: []sandbox{}, NextPageToken: page.NextPageToken}
	for _, s := range page.Sandboxes {
		out.Sandboxes = append(out.Sandboxes, sandboxOf(s, ""))
	}
	return out, err
}

func (t tools) mutation(call func(context.Context, holdfast.MutateSandbox) (holdfast.Sandbox, error)) func(context.Context, sandboxID) (sandbox, error) {
	return func(ctx context.Context, in sandboxID) (sandbox, error) {
		out, err := call(ctx, holdfast.MutateSandbox{ID: ids(in.SandboxID)})
		return sandboxOf(out, ""), err
	}
}
