package acceptance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/cluster"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// tool runs one holdfast command to its end and returns its output and whether
// it exited with 0.
func tool(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(testenv.Binaries(t), "holdfast"), args...).CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("holdfast %s does not end:\n%s", strings.Join(args, " "), out)
	}
	return string(out), err == nil
}

// copyDatabases copies the databases of a stopped server from one directory to another.
func copyDatabases(t *testing.T, from, to string) {
	t.Helper()
	for _, pattern := range []string{"*.db", "*.db-wal", "*.db-shm"} {
		old, err := filepath.Glob(filepath.Join(to, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range old {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		paths, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			raw, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(filepath.Join(to, filepath.Base(path)), raw, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// trap T52: databases restored from an older backup destroy nothing; once the
// operator has said so, what they have lost is taken up again, their intents are
// issued anew, and what they do not know is kept until a person decides.
func TestT52_ARestoredDatabaseDestroysNothingAndIsRecovered(t *testing.T) {
	s := serve(t)
	changed, deleted := s.create("changed"), s.create("deleted")
	backup := t.TempDir()
	s.Stop()
	copyDatabases(t, s.DataDir, backup)
	s.Start()
	younger := s.create("younger")
	pid := s.guestPID(younger.ID)
	m := holdfast.MutateSandbox{ID: changed.ID}
	if got, err := s.client.SuspendSandbox(t.Context(), m); err != nil || got.State != holdfast.SandboxSuspended {
		t.Fatalf("suspend: %s %v", got.State, err)
	}
	if _, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: deleted.ID}); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	copyDatabases(t, backup, s.DataDir)
	s.made = []holdfast.SandboxID{changed.ID, deleted.ID} // the younger one is no longer the API's
	t.Cleanup(func() {
		if t.Failed() {
			killPID(t, pid)
		}
	})

	s.Start()
	s.awaitLog("run holdfast recover")
	s.wantAlive(pid)
	if out, ok := tool(t, "recover", "--data-dir", s.DataDir); ok || !strings.Contains(out, "in use by process") {
		t.Errorf("recover under a running server: %s", out)
	}
	s.Stop()
	if out, ok := tool(t, "recover", "--data-dir", s.DataDir); !ok || strings.Count(out, "epoch") != 2 {
		t.Fatalf("recover: %s", out)
	}

	s.Start()
	// What was suspended after the backup runs again, as the database says.
	if !testenv.Eventually(30*time.Second, func() bool { return s.get(changed.ID).Generation > 2 }) {
		t.Errorf("the intent is not issued anew: %+v\n%s", s.get(changed.ID), s.Log())
	}
	s.wantOutput(changed.ID, "echo again", "again")
	// What was deleted after the backup has ended.
	s.awaitState(deleted.ID, holdfast.SandboxFailed, 30*time.Second)
	// What was made after the backup is unknown, and lives.
	s.awaitLog("an instance that the restored database does not know is kept")
	s.wantAlive(pid)
	out, ok := tool(t, "recover", "--list", "--data-dir", s.DataDir)
	if !ok || !strings.Contains(out, "unknown: instance "+string(younger.Instance)+" of "+string(younger.ID)) {
		t.Errorf("list: %s", out)
	}

	s.Stop()
	if out, ok := tool(t, "recover", "--forget-unknown", "--data-dir", s.DataDir); !ok || !strings.Contains(out, string(younger.Instance)) {
		t.Fatalf("forget: %s", out)
	}
	s.Start()
	if !testenv.Eventually(30*time.Second, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }) {
		t.Errorf("what is nobody's lives on\n%s", s.Log())
	}
	s.wantOutput(changed.ID, "echo still", "still")
}

func (s *system) awaitLog(text string) {
	s.t.Helper()
	if !testenv.Eventually(30*time.Second, func() bool { return strings.Contains(s.Log(), text) }) {
		s.t.Fatalf("the log does not say %q:\n%s", text, s.Log())
	}
}

func (s *system) wantAlive(pid int) {
	s.t.Helper()
	if err := syscall.Kill(pid, 0); err != nil {
		s.t.Fatalf("the guest %d is gone: %v\n%s", pid, err, s.Log())
	}
}

// trap T52: an empty database beside a host with another cluster's instances is
// refused at the start; nothing of them is touched.
func TestT52_AnEmptyDatabaseIsRefusedByAHostWithInstances(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	pid := s.guestPID(sb.ID)
	s.Stop()
	backup := t.TempDir()
	copyDatabases(t, s.DataDir, backup)
	copyDatabases(t, t.TempDir(), s.DataDir)
	for range 2 { // the first start leaves a new database behind
		out, ok := tool(t, "serve", "--data-dir", s.DataDir, "--listen", testenv.FreeAddress(t))
		if ok || !strings.Contains(out, "restore the database that belongs to them") {
			t.Errorf("it was not refused: %s", out)
		}
		s.wantAlive(pid)
	}
	copyDatabases(t, backup, s.DataDir)
	s.Start()
	s.wantOutput(sb.ID, "echo here", "here")
}

// trap T52: the same where the parties run apart: the fleet does not count on the
// hosts of another cluster, both say why, and with the right database all is well.
func TestT52_AnotherClustersDatabaseGetsNoHost(t *testing.T) {
	d := startCluster(t, cluster.Config{Runtime: "simulated", Hosts: 1})
	sb, err := d.client.CreateSandbox(t.Context(), base("r1"))
	if err != nil {
		t.Fatalf("create: %v\n%s", err, d.Logs())
	}
	use := func(database string) {
		t.Helper()
		for _, p := range append(d.Fleets[:2:2], d.Orchestrators...) {
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
		}
		d.Use(database)
		for _, p := range append(d.Fleets[:2:2], d.Orchestrators...) {
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
		}
	}
	use(d.Postgres.URL(d.Postgres.Database(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	if got, err := d.client.CreateSandbox(ctx, base("r2")); err == nil {
		t.Errorf("it was created on another cluster's host: %+v", got)
	}
	if !testenv.Eventually(20*time.Second, func() bool {
		return strings.Contains(d.Hosts[0].Log(), "give the fleet the database that belongs to the host")
	}) {
		t.Errorf("the host does not say why:\n%s", d.Hosts[0].Log())
	}
	use(d.Database)
	p, err := d.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "echo", Args: []string{"here"}})
	if err != nil || p.ID == "" {
		t.Errorf("exec with the right database again: %v\n%s", err, d.Logs())
	}
	if got, err := d.client.GetSandbox(t.Context(), sb.ID); err != nil || got.State != holdfast.SandboxReady || got.Incarnation != 1 {
		t.Errorf("%+v %v", got, err)
	}
}
