package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/mcp"
)

// connect is a real MCP client of a server over a fake's real wire.
func connect(t *testing.T, fake *clienttest.Fake, options ...client.Option) *sdk.ClientSession {
	t.Helper()
	c, err := client.New(fake.Serve(t), append([]client.Option{client.WithAPIKey(clienttest.APIKey)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := sdk.NewInMemoryTransports()
	serving, err := mcp.NewServer(c, "test").Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(session.Close(), serving.Wait()); err != nil {
			t.Error(err)
		}
	})
	return session
}

type answer map[string]any

func (a answer) text(path ...string) string {
	var at any = map[string]any(a)
	for _, name := range path {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	s, _ := at.(string)
	return s
}

// call calls a tool, and fails where the tool does.
func call(t *testing.T, s *sdk.ClientSession, name string, args any) answer {
	t.Helper()
	out, failed := try(t, s, name, args)
	if failed != "" {
		t.Fatalf("%s: %s", name, failed)
	}
	return out
}

func try(t *testing.T, s *sdk.ClientSession, name string, args any) (out answer, failed string) {
	t.Helper()
	res, err := s.CallTool(context.Background(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if res.IsError {
		text, _ := res.Content[0].(*sdk.TextContent)
		return nil, text.Text
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out, ""
}

// contract: A10
func TestA10_AnAgentThatRepeatsItsRequestIDGetsTheSameSandbox(t *testing.T) {
	s := connect(t, clienttest.New())
	args := map[string]any{"environment": "base", "request_id": "one", "ttl_seconds": 60, "name": "n"}
	first, again := call(t, s, "create_sandbox", args), call(t, s, "create_sandbox", args)
	if first.text("id") == "" || first.text("id") != again.text("id") || first.text("request_id") != "one" || first.text("state") != "READY" {
		t.Errorf("%v and %v", first, again)
	}
	args["name"] = "other"
	if _, failed := try(t, s, "create_sandbox", args); !strings.Contains(failed, "ALREADY_EXISTS") || !strings.Contains(failed, "correct that first") {
		t.Errorf("other arguments: %q", failed)
	}
	// Without one, one is made and shown.
	minted := call(t, s, "create_sandbox", map[string]any{"environment": "base"})
	if minted.text("request_id") == "" || minted.text("id") == first.text("id") {
		t.Errorf("%v", minted)
	}
}

// contract: A8: what an agent is told of a failure says what to do.
func TestA8_AnAgentIsToldWhatIsSafeToDoNext(t *testing.T) {
	fake := clienttest.New()
	fake.After = func(_ context.Context, c clienttest.Call) error {
		if c.Method == "CreateSandbox" {
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no host has room")
		}
		return nil
	}
	s := connect(t, fake, client.WithOverallTimeout(1))
	_, failed := try(t, s, "create_sandbox", map[string]any{"environment": "base", "request_id": "kept"})
	if !strings.Contains(failed, `request_id "kept"`) || !strings.Contains(failed, "same arguments") {
		t.Errorf("%q", failed)
	}
	if _, failed := try(t, s, "create_sandbox", map[string]any{"environment": "base", "ttl_seconds": 1 << 40}); !strings.Contains(failed, "INVALID_ARGUMENT") {
		t.Errorf("%q", failed)
	}
	if _, failed := try(t, s, "get_sandbox", map[string]any{"sandbox_id": holdfast.IDs{}.New("sb")}); !strings.Contains(failed, "NOT_FOUND") {
		t.Errorf("%q", failed)
	}
}

func TestAnAgentDoesTheMainJob(t *testing.T) {
	s := connect(t, clienttest.New())
	listed, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range listed.Tools {
		if tool.Description == "" || tool.InputSchema == nil || tool.Annotations == nil {
			t.Errorf("%s is not described", tool.Name)
		}
	}
	id := call(t, s, "create_sandbox", map[string]any{"environment": "base", "request_id": "r"}).text("id")
	at := func(more map[string]any) map[string]any {
		out := map[string]any{"sandbox_id": id}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	wrote := call(t, s, "write_file", at(map[string]any{"path": "/note", "text": "hello"}))
	if wrote.text("sha256") != "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" {
		t.Errorf("%v", wrote)
	}
	if read := call(t, s, "read_file", at(map[string]any{"path": "/note"})); read.text("content", "text") != "hello" {
		t.Errorf("%v", read)
	}
	start := at(map[string]any{"command": "echo", "args": []string{"hi"}, "request_id": "p"})
	p, again := call(t, s, "start_process", start), call(t, s, "start_process", start)
	if p.text("id") == "" || p.text("id") != again.text("id") {
		t.Errorf("%v and %v", p, again)
	}
	out := call(t, s, "read_output", at(map[string]any{"process_id": p.text("id")}))
	if out.text("process", "id") != p.text("id") {
		t.Errorf("%v", out)
	}
	call(t, s, "kill_process", at(map[string]any{"process_id": p.text("id"), "signal": "KILL"}))
	if got := call(t, s, "suspend_sandbox", at(nil)); got.text("state") != "SUSPENDED" || !strings.Contains(got.text("next"), "resume_sandbox") {
		t.Errorf("%v", got)
	}
	if got := call(t, s, "resume_sandbox", at(nil)); got.text("state") != "READY" {
		t.Errorf("%v", got)
	}
	for range 2 {
		if got := call(t, s, "delete_sandbox", at(nil)); got.text("state") != "DELETED" {
			t.Errorf("%v", got)
		}
	}
	if page := call(t, s, "list_sandboxes", map[string]any{}); page["sandboxes"] == nil {
		t.Errorf("%v", page)
	}
}
