package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/rpc/guest"
	"github.com/holdfast-dev/holdfast/spool"
)

var binary string // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "holdfast-guest")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "holdfast-guest")
		build := exec.Command("go", "build", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v: %s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// instance is the real binary as PID 1 of a real PID namespace.
type instance struct {
	holdfast.Guest
	pid    int // of PID 1, seen from here
	spool  string
	config string
	ended  chan error
	log    *bytes.Buffer // valid after ended
}

const secret = "the-secret-of-this-boot"

func boot(t *testing.T, callback string, change func(*instance)) *instance {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make a PID namespace")
	}
	dir := t.TempDir()
	i := &instance{spool: filepath.Join(dir, "spool"), config: filepath.Join(dir, "config.json"), ended: make(chan error, 1), log: &bytes.Buffer{}}
	raw, err := json.Marshal(holdfast.GuestConfig{
		Instance: "in-00000000000000000000000000", Incarnation: 4, Secret: []byte(secret), CallbackURL: callback,
		ProcessDefaults: holdfast.ProcessDefaults{Env: map[string]string{"FROM": "sandbox"}},
	})
	must(t, err)
	must(t, os.WriteFile(i.config, raw, 0o600))
	if change != nil {
		change(i)
	}
	socket := filepath.Join(dir, "guest.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	must(t, err)
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
		binary, "--listen-fd", "3", "--config", i.config, "--spool", i.spool)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stdout, cmd.Stderr = i.log, i.log
	must(t, cmd.Start())
	must(t, errors.Join(file.Close(), listener.Close()))
	over := make(chan struct{})
	go func() { i.ended <- cmd.Wait(); close(over) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-over
		if t.Failed() {
			t.Logf("console: %s", i.log)
		}
	})
	i.Guest = guest.Over(func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", socket) })
	eventually(t, "the guest knows how its setup went", func() bool {
		status, err := i.Status(t.Context())
		return err == nil && (status.Ready || status.Failure != nil)
	})
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
	must(t, err)
	i.pid, err = strconv.Atoi(strings.TrimSpace(string(children)))
	must(t, err)
	return i
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (i *instance) sh(t *testing.T, script string) holdfast.Process {
	t.Helper()
	p, err := i.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "sh", Args: []string{"-c", script}})
	must(t, err)
	return p
}

func (i *instance) wait(t *testing.T, p holdfast.Process) (holdfast.Process, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var out strings.Builder
	p, err := i.Processes.StreamProcessOutput(ctx, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(c holdfast.OutputChunk) error {
		out.Write(c.Data)
		return nil
	})
	must(t, err)
	return p, out.String()
}

// Reported elsewhere as "793 of 950 processes were zombies under PID 1".
func TestThousandOrphansInARealPIDNamespaceLeaveNoZombie(t *testing.T) {
	i := boot(t, "", nil)
	p := i.sh(t, `i=0; while [ $i -lt 1000 ]; do (sleep 0.05 & ) ; i=$((i+1)); done; exit 42`)
	for code := range 50 { // while orphans are being reaped, real exit codes are right
		if got, _ := i.wait(t, i.sh(t, fmt.Sprintf("exit %d", code))); got.ExitCode != code {
			t.Errorf("exit %d: %+v", code, got)
		}
	}
	if got, _ := i.wait(t, p); got.ExitCode != 42 {
		t.Errorf("%+v", got)
	}
	eventually(t, "PID 1 is alone but for who counts", func() bool {
		_, out := i.wait(t, i.sh(t, `for s in /proc/[0-9]*/stat; do read pid comm state ppid rest < $s && echo $pid $state; done 2>/dev/null`))
		return strings.Count(out, "\n") == 2
	})
}

func TestTERMEndsEveryProcessAndRecordsIt(t *testing.T) {
	i := boot(t, "", nil)
	polite := i.sh(t, `trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done`)
	stubborn := i.sh(t, `trap '' TERM; setsid sh -c "trap '' TERM; sleep 1000" & echo up; while :; do sleep 1; done`)
	for _, p := range []holdfast.Process{polite, stubborn} {
		eventually(t, "its trap is set", func() bool {
			got, err := i.Processes.GetProcess(t.Context(), p.ID)
			return err == nil && got.StdoutSize > 0
		})
	}
	began := time.Now()
	must(t, unix.Kill(i.pid, unix.SIGTERM))
	select {
	case err := <-i.ended:
		if err != nil {
			t.Errorf("exit: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	if took := time.Since(began); took < 1900*time.Millisecond || took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	reader := spool.Open(i.spool, spool.Options{Alive: func() bool { return false }})
	for id, code := range map[holdfast.ProcessID]int{polite.ID: 7, stubborn.ID: 137} {
		if p, err := reader.Get(t.Context(), id); err != nil || p.ExitCode != code || p.Lost {
			t.Errorf("%+v, %v, want %d", p, err, code)
		}
	}
}

// contract: A14
func TestA14_OutputOutlivesAGuestThatWasKilled(t *testing.T) {
	i := boot(t, "", nil)
	p := i.sh(t, `echo last words; sleep 1000`)
	eventually(t, "it has spoken", func() bool {
		got, err := i.Processes.GetProcess(t.Context(), p.ID)
		return err == nil && got.StdoutSize > 0
	})
	must(t, unix.Kill(i.pid, unix.SIGKILL))
	<-i.ended
	var out strings.Builder
	got, err := spool.Open(i.spool, spool.Options{Alive: func() bool { return false }}).Stream(t.Context(),
		holdfast.ReadOutput{Process: p.ID, Follow: true}, func(c holdfast.OutputChunk) error { out.Write(c.Data); return nil })
	if err != nil || out.String() != "last words\n" || !got.Lost || got.State != holdfast.ProcessExited {
		t.Errorf("%q, %+v, %v", out.String(), got, err)
	}
}

// contract: B8
func TestB8_TheSecretIsNotLeftInTheInstance(t *testing.T) {
	i := boot(t, "", nil)
	if _, err := os.Stat(i.config); !os.IsNotExist(err) {
		t.Errorf("the configuration is still there: %v", err)
	}
	_, out := i.wait(t, i.sh(t, `env; tr '\0' '\n' < /proc/1/environ; tr '\0' ' ' < /proc/1/cmdline; ls -l /proc/self/fd`))
	if strings.Contains(out, secret) || strings.Contains(out, "dGhlLXNlY3JldC1vZi10aGlzLWJvb3Q") {
		t.Error("the secret is visible")
	}
	if strings.Contains(out, "socket:") {
		t.Errorf("a process has the agent's socket: %s", out)
	}
	if !strings.Contains(out, "FROM=sandbox\n") {
		t.Errorf("the sandbox's environment is missing: %s", out)
	}
}

// contract: B2, B5, B8: one id on every attempt, signed by the boot's secret.
func TestB2_CallsHomeUnderOneIDUntilItIsHeard(t *testing.T) {
	type call struct {
		id, kind string
		report   holdfast.GuestReport
	}
	calls := make(chan call, 3)
	first := true
	home := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		signed, err := delivery.Verify([]byte(secret), r.Header, raw)
		if err != nil || r.URL.Path != "/deliveries" || r.Header.Get("Holdfast-Instance") == "" || r.Header.Get("Holdfast-Incarnation") != "4" {
			t.Errorf("%s, %v, %v", r.URL.Path, r.Header, err)
		}
		var envelope struct {
			Type string               `json:"type"`
			Data holdfast.GuestReport `json:"data"`
		}
		if err := json.Unmarshal(raw, &envelope); err != nil {
			t.Errorf("%s, %v", raw, err)
		}
		calls <- call{signed.ID, envelope.Type, envelope.Data}
		if first {
			first = false
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer home.Close()
	boot(t, home.URL, nil)
	want := delivery.DeriveID("instance.ready", "in-00000000000000000000000000", 4, "boot")
	for range 2 {
		select {
		case got := <-calls:
			if got.id != want || got.kind != string(holdfast.DeliveryReady) || got.report.Failure != nil || got.report.Incarnation != 4 {
				t.Errorf("%+v", got)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it does not call")
		}
	}
}

// contract: C2: a setup that fails is told, at home and to who asks.
func TestFailedSetupIsReported(t *testing.T) {
	kinds := make(chan holdfast.DeliveryKind, 3)
	home := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var envelope struct {
			Type holdfast.DeliveryKind `json:"type"`
			Data holdfast.GuestReport  `json:"data"`
		}
		if err := json.NewDecoder(r.Body).Decode(&envelope); err != nil || envelope.Data.Failure == nil {
			t.Errorf("%+v, %v", envelope, err)
		}
		kinds <- envelope.Type
	}))
	defer home.Close()
	i := boot(t, home.URL, func(i *instance) { must(t, os.WriteFile(i.spool, nil, 0o600)) })
	status, err := i.Status(t.Context())
	if err != nil || status.Ready || status.Failure == nil || status.Failure.Reason != holdfast.ReasonSetupFailed {
		t.Errorf("%+v, %v", status, err)
	}
	if kind := <-kinds; kind != holdfast.DeliveryFailed {
		t.Errorf("%s", kind)
	}
	if _, err := i.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "true"}); holdfast.ReasonOf(err) != holdfast.ReasonState {
		t.Errorf("%v", err)
	}
}

func TestBadInvocationsSayWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.json")
	must(t, os.WriteFile(junk, []byte("{}"), 0o600))
	for text, args := range map[string][]string{
		"--config and --spool":     {},
		"either --listen-fd":       {"--config", junk, "--spool", dir},
		"unexpected argument":      {"--config", junk, "--spool", dir, "--listen", "unix:/x", "more"},
		"only unix:/path":          {"--config", junk, "--spool", dir, "--listen", "tcp:1"},
		"no such file":             {"--config", filepath.Join(dir, "none"), "--spool", dir, "--listen", "unix:" + filepath.Join(dir, "a.sock")},
		"no instance":              {"--config", junk, "--spool", dir, "--listen", "unix:" + filepath.Join(dir, "b.sock")},
		"--listen-fd":              {"--config", junk, "--spool", dir, "--listen-fd", "77"},
		"flag provided but not de": {"--nonsense"},
	} {
		out, err := exec.Command(binary, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), text) {
			t.Errorf("%v: %s, %v; want %q", args, out, err, text)
		}
	}
}
