package server

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
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
func TestOneProcessDoesTheMainJob(t *testing.T) { mainJob(t, Config{}) }

func TestOneProcessDoesTheMainJobOnPostgres(t *testing.T) {
	postgres := testenv.SharedPostgres(t)
	mainJob(t, Config{Database: postgres.URL(postgres.Database(t))})
}

func mainJob(t *testing.T, config Config) {
	t.Helper()
	s, api := start(t, config)
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

// Bad input: a database that cannot be used is refused at the start with what to
// do, the address is free again, and the password is not repeated.
func TestADatabaseThatCannotBeUsedIsRefusedAtTheStart(t *testing.T) {
	postgres := testenv.SharedPostgres(t)
	url := postgres.URL(postgres.Database(t))
	for name, tc := range map[string]struct{ url, want string }{
		"another kind":     {"mysql://u:hidden@127.0.0.1/x", "--database is postgres://"},
		"unreachable":      {"postgres://u:hidden@127.0.0.1:1/x", "no PostgreSQL server answers at 127.0.0.1:1"},
		"wrong password":   {strings.Replace(url, "holdfast:", "holdfast:hidden", 1), `the server refuses the user "holdfast"`},
		"missing database": {postgres.URL("nowhere"), `createdb nowhere`},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{DataDir: t.TempDir(), Listen: testenv.FreeAddress(t), Runtime: "simulated", Database: tc.url}
			s, err := Start(t.Context(), config)
			if err == nil {
				t.Fatal("it started", s.Shutdown(t.Context()))
			}
			if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("want %q and no password: %v", tc.want, err)
			}
			l, err := net.Listen("tcp", config.Listen)
			if err != nil {
				t.Fatal("something is left of it:", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
