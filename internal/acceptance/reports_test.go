package acceptance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// What users of systems like this one reported (docs/reports.md), where it takes a
// real container to see it.

func (s *system) suspend(id holdfast.SandboxID) {
	s.t.Helper()
	if sb, err := s.client.SuspendSandbox(s.t.Context(), holdfast.MutateSandbox{ID: id}); err != nil || sb.State != holdfast.SandboxSuspended {
		s.t.Fatalf("suspend: %s, %v\n%s", sb.State, err, s.Log())
	}
}

// Files and processes are there after every suspension, the automatic ones too, and
// it is the same sandbox under the same id.
func TestReport_EverySuspensionKeepsFilesAndProcesses(t *testing.T) {
	s := serve(t)
	sb := s.createAs(holdfast.CreateSandbox{RequestID: "r1", OnExpiry: holdfast.ExpirySuspend})
	s.wantOutput(sb.ID, `(while :; do date +%s%N > /tmp/alive; sleep 0.05; done) >/dev/null 2>&1 & echo $! > /tmp/pid; echo ok`, "ok")
	var want []string
	for round := range 4 {
		want = append(want, fmt.Sprintf("round %d", round))
		s.wantOutput(sb.ID, fmt.Sprintf("echo 'round %d' >> /var/rounds && echo 'round %d' > /tmp/last && sync && echo ok", round, round), "ok")
		automatic := round%2 == 1
		if automatic {
			if _, err := s.client.SetSandboxLifetime(t.Context(), holdfast.SetSandboxLifetime{ID: sb.ID, TTL: time.Second}); err != nil {
				t.Fatal(err)
			}
			s.awaitState(sb.ID, holdfast.SandboxSuspended, 30*time.Second)
			if _, err := s.client.SetSandboxLifetime(t.Context(), holdfast.SetSandboxLifetime{ID: sb.ID, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
		} else {
			s.suspend(sb.ID)
		}
		got, err := s.client.ResumeSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID})
		if err != nil || got.ID != sb.ID || got.State != holdfast.SandboxReady || got.Incarnation != 1 || got.Instance != sb.Instance {
			t.Fatalf("round %d: resumed as %+v, %v", round, got, err)
		}
		s.wantOutput(sb.ID, "cat /var/rounds", strings.Join(want, "\n"))
		s.wantOutput(sb.ID, "cat /tmp/last", want[round])
		s.wantOutput(sb.ID, `was=$(cat /tmp/alive); for i in $(seq 100); do sleep 0.05; [ "$(cat /tmp/alive)" != "$was" ] && kill -0 "$(cat /tmp/pid)" && echo runs && break; done`, "runs")
	}
}

// Many suspended sandboxes are deleted together: none is resumed for it, and no link,
// mount, process or group is left of any.
func TestReport_ManySuspendedOnesAreDeletedAndLeaveNoLink(t *testing.T) {
	s := serve(t)
	const many = 8
	var all [many]holdfast.Sandbox
	for i := range all {
		all[i] = s.create(fmt.Sprint("r", i))
	}
	together := func(what string, call func(context.Context, holdfast.MutateSandbox) (holdfast.Sandbox, error)) {
		t.Helper()
		var wg sync.WaitGroup
		for _, sb := range all {
			wg.Go(func() {
				if _, err := call(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
					t.Errorf("%s %s: %v", what, sb.ID, err)
				}
			})
		}
		wg.Wait()
	}
	together("suspend", s.client.SuspendSandbox)
	together("delete", s.client.DeleteSandbox)
	testenv.WantNothingLeft(t, s.running(false), s.DataDir)
	for _, sb := range all {
		journal, err := s.client.ListOperations(t.Context(), holdfast.ListOperations{Resource: string(sb.ID)})
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range journal.Operations {
			if op.Kind == holdfast.OperationResume {
				t.Errorf("%s was resumed to be deleted: %+v", sb.ID, op)
			}
		}
	}
}

// Creates that fail together leave no container, and their records are in the way of
// no other create, of the same name too.
func TestReport_CreatesThatFailTogetherLeaveNothingAndBlockNothing(t *testing.T) {
	testenv.RequireRoot(t)
	guest := filepath.Join(t.TempDir(), "guest")
	raw, err := os.ReadFile(filepath.Join(testenv.Binaries(t), "holdfast-guest"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(guest, raw, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s := serve(t, "--guest-binary", guest)
	s.create("first")
	broken := deadGuest(t, `fmt.Println("no such luck"); os.Exit(3)`)
	swap := func(with string) {
		t.Helper()
		if out, err := exec.Command("cp", "--remove-destination", with, guest).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	good := guest + ".good"
	if err := os.Rename(guest, good); err != nil {
		t.Fatal(err)
	}
	swap(broken)
	const many = 6
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range many {
		wg.Go(func() {
			_, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: fmt.Sprint("bad-", i), Environment: "base", Name: "worker"})
			wantCode(t, "a create that fails", err, holdfast.FailedPrecondition, holdfast.ReasonCreateFailed)
			mu.Lock()
			defer mu.Unlock()
			s.keep(holdfast.SandboxID(holdfast.AsError(err).Resource))
		})
	}
	wg.Wait()
	if n := s.containers(); n != 1 {
		t.Errorf("%d containers, want the one that was there", n)
	}
	swap(good)
	s.createAs(holdfast.CreateSandbox{RequestID: "good", Name: "worker"})
	again, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "bad-0", Environment: "base", Name: "worker"})
	if err != nil || again.State != holdfast.SandboxFailed || again.Failure == nil || !strings.Contains(again.Failure.LogTail, "no such luck") {
		t.Errorf("the failed one's repeat: %+v, %v", again, err)
	}
}

// Whoever was told that a sandbox is deleted finds nothing of it, also when everything
// is killed right after the answer.
func TestReport_ADeleteThatWasAnsweredIsDone(t *testing.T) {
	s := serve(t)
	for round := range 4 {
		sb := s.create(fmt.Sprint("r", round))
		if round%2 == 1 {
			s.suspend(sb.ID)
		}
		if got, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil || got.State != holdfast.SandboxDeleted {
			t.Fatalf("delete: %s, %v", got.State, err)
		}
		s.Kill()
		testenv.WantNothingLeft(t, s.running(false), s.DataDir)
		s.Start()
		if got := s.get(sb.ID); got.State != holdfast.SandboxDeleted {
			t.Errorf("after the restart it is %s", got.State)
		}
	}
}

// A host agent that lost an instance's record in a crash, and not its network, finds
// the instance by its files; later creates meet no obstacle, and its delete leaves
// nothing.
func TestReport_ALostRecordsNetworkBlocksNoLaterCreate(t *testing.T) {
	s := serve(t)
	lost := s.create("lost")
	s.Kill()
	records, err := filepath.Glob(filepath.Join(s.DataDir, "host", "instances", string(lost.Instance), "*", "record.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records %v, %v", records, err)
	}
	if err := os.Remove(records[0]); err != nil {
		t.Fatal(err)
	}
	s.Start()
	for i := range 3 {
		sb := s.create(fmt.Sprint("after-", i))
		s.wantOutput(sb.ID, "echo works", "works")
	}
	s.wantOutput(lost.ID, "echo runs on", "runs on")
	if _, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: lost.ID}); err != nil {
		t.Fatal(err)
	}
	if n := s.containers(); n != 3 {
		t.Errorf("%d containers, want the three that were created after it", n)
	}
}

// The end of one instance hangs in the OCI runtime: others are created and deleted
// meanwhile, the hanging one says that it is being deleted, and ends when it can.
func TestReport_AnEndThatHangsDelaysNobodyElse(t *testing.T) {
	testenv.RequireRoot(t)
	dir := t.TempDir()
	hang, wrapper := filepath.Join(dir, "hang"), filepath.Join(dir, "runc")
	script := fmt.Sprintf(`#!/bin/sh
# Passes everything on; but ends of the container that is named in the file wait as long as it is there.
end=no
for a in "$@"; do case "$a" in delete|kill) end=yes;; esac; done
if [ $end = yes ] && [ -s %[1]s ]; then
  case "$*" in *"$(cat %[1]s)"*) while [ -e %[1]s ]; do sleep 0.1; done;; esac
fi
exec runc "$@"
`, hang)
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s := serve(t, "--runtime-binary", wrapper)
	t.Cleanup(func() {
		if err := os.Remove(hang); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
	stuck := s.create("stuck")
	if err := os.WriteFile(hang, []byte(stuck.Instance), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	_, err := s.client.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: stuck.ID})
	cancel()
	if err == nil {
		t.Fatal("a delete that hangs was answered as done")
	}
	began := time.Now()
	for i := range 3 {
		sb := s.create(fmt.Sprint("beside-", i))
		s.wantOutput(sb.ID, "echo works", "works")
		if _, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("three creates and deletes beside it took %s", took)
	}
	if got := s.get(stuck.ID); got.State != holdfast.SandboxDeleting || got.Operation == nil {
		t.Errorf("the hanging one is %s, %+v", got.State, got.Operation)
	}
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	s.awaitState(stuck.ID, holdfast.SandboxDeleted, 60*time.Second)
	testenv.WantNothingLeft(t, s.running(false), s.DataDir)
}
