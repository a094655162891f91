package server

import (
	"net/http"
	"strings"
	"testing"

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
	if !strings.HasPrefix(id(first), "sb-") || id(first) != id(again) {
		t.Errorf("%v and %v", first.StructuredContent, again.StructuredContent)
	}
}
