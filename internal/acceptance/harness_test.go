package acceptance

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// system is one real server in one process, with a client of it.
type system struct {
	*testenv.Process
	t      *testing.T
	client *client.Client
	before testenv.Census
	made   []holdfast.SandboxID
}

// serve starts a server; at the end of the test everything it made is deleted
// and the machine has to be what it was.
func serve(t *testing.T, args ...string) *system {
	t.Helper()
	testenv.RequireRoot(t)
	data := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, before: testenv.TakeCensus(t, data)}
	t.Cleanup(func() { testenv.WantNothingLeft(t, s.before, data) }) // runs after the server stopped
	s.Process = testenv.Serve(t, "holdfast", data, append([]string{"--sweep-every", "1s"}, args...)...)
	s.client = s.dial()
	t.Cleanup(s.deleteAll)
	return s
}

func (s *system) dial(more ...client.Option) *client.Client {
	s.t.Helper()
	c, err := client.New(s.URL, append([]client.Option{client.WithAPIKey(s.Key()), client.WithOverallTimeout(time.Minute)}, more...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *system) deleteAll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, id := range s.made {
		if _, err := s.client.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: id}); err != nil {
			s.t.Errorf("clean up %s: %v\n%s", id, err, s.Log())
		}
	}
}

func (s *system) create(requestID string) holdfast.Sandbox {
	s.t.Helper()
	sb, err := s.client.CreateSandbox(s.t.Context(), holdfast.CreateSandbox{RequestID: requestID, Environment: "base"})
	s.keep(sb.ID)
	if err != nil || sb.State != holdfast.SandboxReady {
		s.t.Fatalf("create %s: %s %v\n%s", requestID, sb.State, err, s.Log())
	}
	return sb
}

func (s *system) keep(id holdfast.SandboxID) {
	if id != "" {
		s.made = append(s.made, id)
	}
}

func (s *system) get(id holdfast.SandboxID) holdfast.Sandbox {
	s.t.Helper()
	sb, err := s.client.GetSandbox(s.t.Context(), id)
	if err != nil {
		s.t.Fatalf("get %s: %v", id, err)
	}
	return sb
}

// awaitState waits until a sandbox has a state, as its watchers would.
func (s *system) awaitState(id holdfast.SandboxID, want holdfast.SandboxState, within time.Duration) holdfast.Sandbox {
	s.t.Helper()
	var sb holdfast.Sandbox
	if !testenv.Eventually(within, func() bool { sb = s.get(id); return sb.State == want }) {
		s.t.Fatalf("%s is %s after %s, want %s: %+v\n%s", id, sb.State, within, want, sb.Operation, s.Log())
	}
	return sb
}

// sh runs a shell line in a sandbox.
func (s *system) sh(id holdfast.SandboxID, script string) (stdout, stderr string, code int) {
	s.t.Helper()
	var out, errs bytes.Buffer
	p, err := s.client.Exec(s.t.Context(), id, holdfast.StartProcess{Command: "sh", Args: []string{"-c", script}}, client.ExecIO{
		Output: func(c holdfast.OutputChunk) error {
			if c.Stream == holdfast.Stderr {
				errs.Write(c.Data)
			} else {
				out.Write(c.Data)
			}
			return nil
		}})
	if err != nil {
		s.t.Fatalf("exec %q: %v\n%s", script, err, s.Log())
	}
	return out.String(), errs.String(), p.ExitCode
}

func (s *system) wantOutput(id holdfast.SandboxID, script, want string) {
	s.t.Helper()
	if out, errs, code := s.sh(id, script); strings.TrimSpace(out) != want || code != 0 {
		s.t.Fatalf("%q: %q, %q, exit %d; want %q", script, out, errs, code, want)
	}
}

// containers counts the guests that run on this machine beyond those before.
func (s *system) containers() int {
	n := 0
	for _, line := range testenv.TakeCensus(s.t, s.DataDir).Difference(s.before) {
		if strings.HasPrefix(line, "processes: ") && strings.Contains(line, "--listen-fd") {
			n++
		}
	}
	return n
}

func wantCode(t *testing.T, what string, err error, code holdfast.Code, reason holdfast.Reason) {
	t.Helper()
	if holdfast.CodeOf(err) != code || holdfast.ReasonOf(err) != reason {
		t.Errorf("%s: got %v (%s %s), want %s %s", what, err, holdfast.CodeOf(err), holdfast.ReasonOf(err), code, reason)
	}
}

func listAll() holdfast.ListSandboxes { return holdfast.ListSandboxes{PageSize: holdfast.MaxPageSize} }
