package acceptance

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// contract: A10. An unmodified MCP client starts the real program and does the main
// job on a real container, over standard input and output.
func TestA10_AnAgentUsesSandboxesOverStandardInputAndOutput(t *testing.T) {
	s := serve(t)
	program := exec.Command(filepath.Join(testenv.Binaries(t), "holdfast"), "mcp")
	program.Env = append(os.Environ(), "HOLDFAST_SERVER="+s.URL, "HOLDFAST_DATA_DIR="+s.DataDir)
	agent, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: program}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
	}()
	call := func(name string, args map[string]any) map[string]any {
		t.Helper()
		out, err := agent.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
		if err != nil || out.IsError {
			t.Fatalf("%s: %+v, %v", name, out, err)
		}
		m, _ := out.StructuredContent.(map[string]any)
		return m
	}
	create := map[string]any{"environment": "base", "request_id": "agent-1"}
	sb := call("create_sandbox", create)
	id, _ := sb["id"].(string)
	s.keep(holdfast.SandboxID(id))
	if again := call("create_sandbox", create); again["id"] != id || s.containers() != 1 {
		t.Errorf("%v and %v, %d containers", sb, again, s.containers())
	}
	call("write_file", map[string]any{"sandbox_id": id, "path": "/tmp/note", "text": "from an agent"})
	process := call("start_process", map[string]any{"sandbox_id": id, "command": "cat", "args": []string{"/tmp/note"}, "request_id": "p"})
	read := map[string]any{"sandbox_id": id, "process_id": process["id"]}
	var got any
	if !testenv.Eventually(20*time.Second, func() bool {
		out := call("read_output", read)
		stdout, _ := out["stdout"].(map[string]any)
		got = stdout["text"]
		return got == "from an agent"
	}) {
		t.Errorf("it reads %v", got)
	}
	if gone := call("delete_sandbox", map[string]any{"sandbox_id": id}); gone["state"] != "DELETED" || s.containers() != 0 {
		t.Errorf("%v, %d containers", gone, s.containers())
	}
}
