package server

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/store"
)

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

// start starts a server with the simulated runtime and dials its API.
func start(t *testing.T, config Config) (*Server, rpc.Services) {
	t.Helper()
	if config.DataDir == "" {
		config.DataDir = t.TempDir()
	}
	config.Listen, config.Runtime = "127.0.0.1:0", "simulated"
	config.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
	s, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	key, _ := s.AdminKey()
	services := rpc.Dial(rpc.NewHTTPClient(), s.URL(), key)
	return s, services
}

// The main job, over every hop, in one process.
func TestOneProcessDoesTheMainJob(t *testing.T) {
	s, api := start(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	none := holdfast.Caller{}
	in := holdfast.CreateSandbox{RequestID: "r1", Environment: "base"}
	sb, err := api.Sandboxes.CreateSandbox(ctx, none, in)
	if err != nil || sb.State != holdfast.SandboxReady {
		t.Fatalf("create: %+v %v", sb, err)
	}
	again, err := api.Sandboxes.CreateSandbox(ctx, none, in)
	if err != nil || again.ID != sb.ID {
		t.Fatalf("repeat: %+v %v", again, err)
	}
	if n := applied(ctx, t, s); n != 1 {
		t.Fatalf("%d of the guest's reports arrived and counted, want 1", n)
	}
	p, err := api.Processes.StartProcess(ctx, none, sb.ID, holdfast.StartProcess{Command: "echo", Args: []string{"hello"}})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	var out strings.Builder
	p, err = api.Processes.StreamProcessOutput(ctx, none, sb.ID, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(c holdfast.OutputChunk) error {
		out.Write(c.Data)
		return nil
	})
	if err != nil || out.String() != "hello\n" || p.State != holdfast.ProcessExited || p.ExitCode != 0 {
		t.Fatalf("output %q of %+v: %v", out.String(), p, err)
	}
	m := holdfast.MutateSandbox{ID: sb.ID}
	for _, step := range []struct {
		call func(context.Context, holdfast.Caller, holdfast.MutateSandbox) (holdfast.Sandbox, error)
		want holdfast.SandboxState
	}{{api.Sandboxes.SuspendSandbox, holdfast.SandboxSuspended}, {api.Sandboxes.ResumeSandbox, holdfast.SandboxReady}, {api.Sandboxes.DeleteSandbox, holdfast.SandboxDeleted}} {
		if sb, err = step.call(ctx, none, m); err != nil || sb.State != step.want {
			t.Fatalf("want %s: %s %v", step.want, sb.State, err)
		}
	}
}

// applied waits until the guest's ready has arrived, and returns how many did.
func applied(ctx context.Context, t *testing.T, s *Server) (n int) {
	t.Helper()
	for n == 0 && ctx.Err() == nil {
		err := s.databases["orchestrator"].View(ctx, func(tx store.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM delivery WHERE kind = 'instance.ready' AND outcome <> ''`).Scan(&n)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}
