package acceptance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// apart is the three roles as three processes on one machine.
type apart struct {
	*system
	fleet, host *testenv.Process
}

// serveApart starts orchestrator, fleet and host agent apart, over a network,
// knowing each other by one cluster key.
func serveApart(t *testing.T) *apart {
	t.Helper()
	testenv.RequireRoot(t)
	dir := t.TempDir()
	key := filepath.Join(dir, "cluster.key")
	if err := os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := map[string]string{}
	var dirs []string
	for _, role := range []string{"orchestrator", "fleet", "host"} {
		data[role] = filepath.Join(dir, role)
		dirs = append(dirs, data[role])
		if err := os.Mkdir(data[role], 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a := &apart{system: &system{t: t, before: testenv.TakeCensus(t, dirs...)}}
	t.Cleanup(func() { testenv.WantNothingLeft(t, a.before, dirs...) })
	common := []string{"--cluster-key-file", key, "--sweep-every", "1s"}
	orchestratorAt, fleetAt := testenv.FreeAddress(t), testenv.FreeAddress(t)
	a.fleet = testenv.ServeAt(t, "fleet", data["fleet"], fleetAt, append([]string{"--roles", "fleet", "--orchestrator-url", "http://" + orchestratorAt}, common...)...)
	common = append(common, "--blobs", filepath.Join(dir, "blobs"))
	a.host = testenv.Serve(t, "host", data["host"], append([]string{"--roles", "host", "--orchestrator-url", "http://" + orchestratorAt, "--fleet-url", "http://" + fleetAt}, common...)...)
	a.Process = testenv.ServeAt(t, "orchestrator", data["orchestrator"], orchestratorAt, append([]string{"--roles", "orchestrator", "--fleet-url", "http://" + fleetAt}, common...)...)
	a.client = a.dial()
	t.Cleanup(a.deleteAll)
	return a
}

// contract: B1
func TestB1_ThreeProcessesDoTheMainJob(t *testing.T) {
	a := serveApart(t)
	sb := a.create("r1")
	a.wantOutput(sb.ID, "echo hello", "hello")
	if _, err := a.client.Upload(t.Context(), sb.ID, holdfast.WriteFile{Path: "/tmp/x"}, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	m := holdfast.MutateSandbox{ID: sb.ID}
	if got, err := a.client.SuspendSandbox(t.Context(), m); err != nil || got.State != holdfast.SandboxSuspended {
		t.Fatalf("suspend: %s %v", got.State, err)
	}
	if got, err := a.client.ResumeSandbox(t.Context(), m); err != nil || got.State != holdfast.SandboxReady {
		t.Fatalf("resume: %s %v", got.State, err)
	}
	a.wantOutput(sb.ID, "cat /tmp/x", "content")
	if got, err := a.client.DeleteSandbox(t.Context(), m); err != nil || got.State != holdfast.SandboxDeleted {
		t.Fatalf("delete: %s %v", got.State, err)
	}
}

// contract: C6: the host agent is killed and restarted under running sandboxes:
// their processes run on, exec works again, exit codes are kept.
func TestC6_AHostAgentsRestartLosesNothing(t *testing.T) {
	a := serveApart(t)
	sb, frozen := a.create("r1"), a.create("r2")
	if _, err := a.client.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: frozen.ID}); err != nil {
		t.Fatal(err)
	}
	start := func(requestID, script string) holdfast.Process {
		p, err := a.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{RequestID: requestID, Command: "sh", Args: []string{"-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	short := start("short", "sleep 1; echo short; exit 5")
	long := start("long", "echo begun; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo long; exit 6")
	a.host.Kill()
	dead := time.NewTimer(1500 * time.Millisecond) // the short one ends while no host agent is there
	<-dead.C
	a.host.Start()
	for _, want := range []struct {
		p      holdfast.Process
		code   int
		output string
	}{{short, 5, "short\n"}, {long, 6, "begun\nlong\n"}} {
		if want.code == 6 {
			a.wantOutput(sb.ID, "touch /tmp/go; echo again", "again")
		}
		var out strings.Builder
		p, err := a.client.StreamProcessOutput(t.Context(), sb.ID, holdfast.ReadOutput{Process: want.p.ID, Follow: true}, func(c holdfast.OutputChunk) error {
			out.Write(c.Data)
			return nil
		})
		if err != nil || p.ExitCode != want.code || out.String() != want.output || p.Lost {
			t.Errorf("exit %d, output %q, lost %v, %v; want %d %q", p.ExitCode, out.String(), p.Lost, err, want.code, want.output)
		}
	}
	if got := a.get(sb.ID); got.State != holdfast.SandboxReady || got.Incarnation != 1 {
		t.Errorf("after the restart: %s incarnation %d", got.State, got.Incarnation)
	}
	if got, err := a.client.ResumeSandbox(t.Context(), holdfast.MutateSandbox{ID: frozen.ID}); err != nil || got.State != holdfast.SandboxReady {
		t.Errorf("resume after the restart: %s %v", got.State, err)
	}
	a.wantOutput(frozen.ID, "echo thawed", "thawed")
}

// contract: C6: the fleet and the orchestrator are killed and restarted.
func TestC6_AFleetsAndAnOrchestratorsRestartLosesNothing(t *testing.T) {
	a := serveApart(t)
	sb := a.create("r1")
	for _, p := range []*testenv.Process{a.fleet, a.Process} {
		p.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := a.client.SuspendSandbox(ctx, holdfast.MutateSandbox{ID: sb.ID})
		cancel()
		var incomplete *client.IncompleteError
		if !errors.As(err, &incomplete) && holdfast.CodeOf(err) != holdfast.Unavailable && holdfast.CodeOf(err) != holdfast.DeadlineExceeded {
			t.Errorf("suspend without the %s: %v", p.Name, err)
		}
		p.Start()
		if got, err := a.client.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil || got.State != holdfast.SandboxSuspended {
			t.Fatalf("suspend after the %s's restart: %s %v\n%s", p.Name, got.State, err, p.Log())
		}
		if got, err := a.client.ResumeSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil || got.State != holdfast.SandboxReady {
			t.Fatalf("resume after the %s's restart: %s %v", p.Name, got.State, err)
		}
		a.wantOutput(sb.ID, "echo here", "here")
	}
}

// contract: C2, B5: an instance dies while its host agent is dead, which cannot
// report it then: it is found all the same.
func TestC2_ADeathWithoutAHostAgentIsFound(t *testing.T) {
	a := serveApart(t)
	sb := a.create("r1")
	pid := a.guestPID(sb.ID)
	a.host.Kill()
	killPID(t, pid)
	a.host.Start()
	failed := a.awaitState(sb.ID, holdfast.SandboxFailed, 30*time.Second)
	if failed.Failure == nil || failed.Failure.Message == "" {
		t.Fatalf("no reason: %+v", failed.Failure)
	}
}

// contract: D2, C4: an unreachable host is never taken for gone.
func TestT27_ASilentHostIsNotGone(t *testing.T) {
	a := serveApart(t)
	sb := a.create("r1")
	a.host.Kill()
	quiet := time.NewTimer(4 * time.Second) // several sweeps
	<-quiet.C
	if got := a.get(sb.ID); got.State != holdfast.SandboxReady {
		t.Fatalf("a silent host made it %s: %+v", got.State, got.Failure)
	}
	_, err := a.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "true"})
	if holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Errorf("exec on a silent host: %v", err)
	}
	a.host.Start()
	ok := testenv.Eventually(20*time.Second, func() bool {
		p, err := a.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "true"})
		return err == nil && p.ID != ""
	})
	if !ok {
		t.Fatal("exec does not work again")
	}
}

// A party with another cluster key is nobody's party.
func TestPartiesOfAnotherClusterAreRefused(t *testing.T) {
	a := serveApart(t)
	for _, path := range []string{"/fleet/list", "/fleet/ensure"} {
		if status, body := testenv.Post(t, a.fleet.URL+path, "{}"); status != 401 || !strings.Contains(body, "cluster-key-file") {
			t.Errorf("fleet %s: %d %s", path, status, body)
		}
	}
	for _, path := range []string{"/host/list", "/host/ensure"} {
		if status, body := testenv.Post(t, a.host.URL+path, "{}"); status != 401 || !strings.Contains(body, "cluster-key-file") {
			t.Errorf("host %s: %d %s", path, status, body)
		}
	}
}
