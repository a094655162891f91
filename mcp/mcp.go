// Package mcp offers Holdfast to agents as tools of the Model Context Protocol, over
// the client alone: what an agent calls is repeated, and named by request ids, as any
// other caller's calls are (contract: A3, A9, A10).
package mcp

import (
	"context"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// instructions are what an agent reads before it calls anything.
const instructions = `Holdfast runs isolated sandboxes that keep their files and processes until they are deleted.
Every creating tool takes a request_id: choose one, and repeat a call whose answer was lost with the same request_id and the same
arguments; it returns what the first call made, and never makes a second one. Another request_id makes another resource.
Answers say the state, what is pending, and under "next" what is safe to do. Commands run until they end or are killed, whether or not
somebody reads their output; read it by offset.`

// NewServer makes a server whose tools call c.
func NewServer(c *client.Client, version string) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "holdfast", Title: "Holdfast", Version: version}, &mcp.ServerOptions{Instructions: instructions})
	t := tools{c}
	t.sandboxes(s)
	t.processes(s)
	t.sessions(s)
	t.tasks(s)
	t.files(s)
	return s
}

// Serve answers over standard input and output until the other side ends, or ctx does.
func Serve(ctx context.Context, c *client.Client, version string) error {
	return NewServer(c, version).Run(ctx, &mcp.StdioTransport{})
}

// NewHandler serves MCP over HTTP. connect makes the client of whoever sent the API
// key; each request stands alone, so that any replica answers it.
func NewHandler(connect func(apiKey string) (*client.Client, error), version string) http.Handler {
	return mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		c, err := connect(bearer(r))
		if err != nil {
			return nil
		}
		return NewServer(c, version)
	}, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
}

// bearer is the API key of a request, "" where it has none.
func bearer(r *http.Request) string {
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// tools are the tools over one client.
type tools struct{ client *client.Client }

// kind is what a tool does to the world, as its annotations say.
type kind int

const (
	reads   kind = iota // changes nothing
	repeats             // changes something, and a repeat of the same call nothing more
	ends                // takes something away; a repeat nothing more
)

// tool describes a tool to agents.
func tool(name, description string, k kind) *mcp.Tool {
	closed, destroys := false, k == ends
	return &mcp.Tool{Name: name, Description: description, Annotations: &mcp.ToolAnnotations{
		ReadOnlyHint: k == reads, IdempotentHint: true, DestructiveHint: &destroys, OpenWorldHint: &closed}}
}

// add registers a tool; what it returns as an error is told to the agent, with what
// to do about it.
func add[In, Out any](s *mcp.Server, t *mcp.Tool, call func(context.Context, In) (Out, error)) {
	mcp.AddTool(s, t, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		out, err := call(ctx, in)
		return nil, out, explain(err)
	})
}

// requestID is the one that was given, or a new one: the answer shows it.
func requestID(given string) string {
	if given == "" {
		return client.NewRequestID()
	}
	return given
}

func ids(id string) holdfast.SandboxID { return holdfast.SandboxID(id) }
