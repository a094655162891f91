package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// keyed sends an API key with every request.
type keyed string

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if k != "" {
		r.Header.Set("Authorization", "Bearer "+string(k))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// An unmodified MCP client over HTTP: its own API key says who calls.
func TestAgentsCallTheToolsOverHTTPWithTheirOwnKey(t *testing.T) {
	s, _ := start(t, Config{})
	key, _ := s.AdminKey()
	dial := func(key string) (*mcp.ClientSession, error) {
		return mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(),
			&mcp.StreamableClientTransport{Endpoint: s.URL() + "/mcp", HTTPClient: &http.Client{Transport: keyed(key)}, DisableStandaloneSSE: true}, nil)
	}
	for name, key := range map[string]string{"no key": "", "a wrong key": "hf_wrong"} {
		if _, err := dial(key); err == nil {
			t.Errorf("%s is let in", name)
		}
	}
	agent, err := dial(key)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
	}()
	args := map[string]any{"environment": "base", "request_id": "one"}
	first, err := agent.CallTool(t.Context(), &mcp.CallToolParams{Name: "create_sandbox", Arguments: args})
	if err != nil || first.IsError {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := agent.CallTool(t.Context(), &mcp.CallToolParams{Name: "create_sandbox", Arguments: args})
	if err != nil || again.IsError {
		t.Fatalf("%+v, %v", again, err)
	}
	id := func(r *mcp.CallToolResult) string {
		m, _ := r.StructuredContent.(map[string]any)
		id, _ := m["id"].(string)
		return id
	}
	fork := map[string]any{"sandbox_id": id(first), "request_id": "two"}
	forked, err := agent.CallTool(t.Context(), &mcp.CallToolParams{Name: "fork_sandbox", Arguments: fork})
	if err != nil || forked.IsError {
		t.Fatalf("%+v, %v", forked, err)
	}
	same, err := agent.CallTool(t.Context(), &mcp.CallToolParams{Name: "fork_sandbox", Arguments: fork})
	if err != nil || same.IsError || id(same) != id(forked) || id(forked) == id(first) {
		t.Errorf("%+v and %+v, %v", forked, same, err)
	}
	call := func(name string, args map[string]any) map[string]any {
		t.Helper()
		r, err := agent.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
		if err != nil || r.IsError {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		m, _ := r.StructuredContent.(map[string]any)
		return m
	}
	session := call("create_session", map[string]any{"environment": "base", "request_id": "session"})
	submit := map[string]any{"session_id": session["id"], "command": "echo", "args": []string{"hi"}, "request_id": "task"}
	task := call("submit_task", submit)
	if again := call("submit_task", submit); again["id"] != task["id"] || task["request_id"] != "task" {
		t.Errorf("%v and %v", task, again)
	}
	deadline := time.Now().Add(20 * time.Second)
	for task["state"] != "SUCCEEDED" {
		if time.Now().After(deadline) {
			t.Fatalf("%v", task)
		}
		task = call("get_task", map[string]any{"task_id": task["id"]})
	}
	if out := call("read_task_output", map[string]any{"task_id": task["id"]}); !strings.Contains(fmt.Sprint(out["stdout"]), "hi") {
		t.Errorf("%v", out)
	}
	if !strings.HasPrefix(id(first), "sb-") || id(first) != id(again) {
		t.Errorf("%v and %v", first.StructuredContent, again.StructuredContent)
	}
}
