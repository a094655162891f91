package acceptance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// guestPID finds PID 1 of a sandbox on the host, by its network address's or
// instance's name on its command line's environment: the host name.
func (s *system) guestPID(id holdfast.SandboxID) int {
	s.t.Helper()
	host, _, _ := s.sh(id, "hostname")
	host = strings.TrimSpace(host)
	procs, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range procs {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(raw), host) {
			continue
		}
		dir := filepath.Dir(path)
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err == nil && strings.Contains(string(cmdline), "--listen-fd") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err == nil {
				return pid
			}
		}
	}
	s.t.Fatalf("no PID 1 of %s (%s)", id, host)
	return 0
}

// killInstance kills PID 1 of a sandbox, as a crash in it would.
func (s *system) killInstance(id holdfast.SandboxID) {
	s.t.Helper()
	killPID(s.t, s.guestPID(id))
}

// killPID kills a process and waits until it is gone, or waits for its parent.
func killPID(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	dead := func() bool {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(raw), ") Z ")
	}
	if !testenv.Eventually(5*time.Second, dead) {
		t.Fatalf("process %d lives on", pid)
	}
}

// contract: C2, A14: an instance that dies is a failed sandbox with a reason, and
// its output can be read.
func TestC2_AnInstanceThatDiesIsFailedAndItsOutputStays(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	p, err := s.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "sh", Args: []string{"-c", "echo last words; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	s.wantOutput(sb.ID, "echo x", "x")
	s.killInstance(sb.ID)
	failed := s.awaitState(sb.ID, holdfast.SandboxFailed, 15*time.Second)
	if failed.Failure == nil || failed.Failure.Reason != holdfast.ReasonExited || failed.Failure.Message == "" {
		t.Fatalf("failure: %+v", failed.Failure)
	}
	got, err := s.client.GetProcess(t.Context(), sb.ID, p.ID)
	if err != nil || got.State != holdfast.ProcessExited || got.ExitCode != 3 {
		t.Fatalf("process: %+v %v", got, err)
	}
	var out strings.Builder
	_, err = s.client.StreamProcessOutput(t.Context(), sb.ID, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(c holdfast.OutputChunk) error {
		out.Write(c.Data)
		return nil
	})
	if err != nil || out.String() != "last words\n" {
		t.Fatalf("output %q %v", out.String(), err)
	}
	_, err = s.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "true"})
	wantCode(t, "start in FAILED", err, holdfast.FailedPrecondition, holdfast.ReasonState)
	// Everything but the output is given back at once (contract: A11).
	testenv.WantNothingLeft(t, s.running(true), s.DataDir)
}

// deadGuest builds a guest that ends before its first call.
func deadGuest(t *testing.T, body string) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n"+body+"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "guest")
	cmd := exec.Command("go", "build", "-o", program, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// contract: C2: the guest binary missing, the root file system broken, the guest
// dying before its first call: FAILED with a reason and a log tail, nothing left.
func TestC2_ABootThatFailsIsFailedWithAReason(t *testing.T) {
	cases := []struct {
		name   string
		guest  string // "" is the real one
		spoil  func(t *testing.T, s *system, guest string)
		reason holdfast.Reason
		tail   string
	}{
		{name: "the guest dies before its first call", guest: `fmt.Println("panic: no such luck"); os.Exit(2)`,
			reason: holdfast.ReasonBootFailed, tail: "panic: no such luck"},
		{name: "the guest binary is gone", guest: `fmt.Println("never runs"); os.Exit(0)`, reason: holdfast.ReasonPrepareFailed,
			spoil: func(t *testing.T, _ *system, guest string) {
				if err := os.Remove(guest); err != nil {
					t.Fatal(err)
				}
			}},
		{name: "the root file system is broken", reason: holdfast.ReasonPrepareFailed,
			spoil: func(t *testing.T, s *system, _ string) {
				s.create("makes-the-image")
				roots, err := filepath.Glob(filepath.Join(s.DataDir, "images", "*", "rootfs"))
				if err != nil || len(roots) == 0 {
					t.Fatalf("no image: %v", err)
				}
				if err := os.RemoveAll(roots[0]); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(roots[0], nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			testenv.RequireRoot(t)
			var args []string
			guest := ""
			if c.guest != "" {
				guest = deadGuest(t, c.guest)
				args = []string{"--guest-binary", guest}
			}
			s := serve(t, args...)
			if c.spoil != nil {
				c.spoil(t, s, guest)
			}
			_, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
			wantCode(t, "create", err, holdfast.FailedPrecondition, holdfast.ReasonCreateFailed)
			id := holdfast.SandboxID(holdfast.AsError(err).Resource)
			s.keep(id)
			again, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
			if err != nil || again.ID != id || again.State != holdfast.SandboxFailed {
				t.Fatalf("the repeat: %+v %v", again, err)
			}
			if again.Failure.Reason != c.reason || !strings.Contains(again.Failure.LogTail, c.tail) {
				t.Errorf("failure %+v, want %s with a tail that has %q", again.Failure, c.reason, c.tail)
			}
		})
	}
}

// contract: C6: a host whose runtime state was wiped never boots an incarnation again.
func TestC6_T49_AHostWhoseRuntimeStateIsWipedBootsNothingAgain(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	pid := s.guestPID(sb.ID)
	s.Kill()
	killPID(t, pid)
	s.wipeRuntimeState()
	s.Start()
	s.awaitState(sb.ID, holdfast.SandboxFailed, 20*time.Second)
	again, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
	if err != nil || again.State != holdfast.SandboxFailed || again.Incarnation != 1 {
		t.Fatalf("the repeat: %+v %v", again, err)
	}
	if n := s.containers(); n != 0 {
		t.Fatalf("%d containers: it booted again", n)
	}
}

// wipeRuntimeState does what a reboot does to what this server keeps in /run.
func (s *system) wipeRuntimeState() {
	s.t.Helper()
	dir := "/run/holdfast/" + testenv.RuntimeName(s.DataDir)
	if _, err := os.Stat(dir); err != nil {
		s.t.Fatalf("the runtime's state is not where it is looked for: %v", err)
	}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			if err := syscall.Unmount(fields[4], syscall.MNT_DETACH); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		s.t.Fatal(err)
	}
}
