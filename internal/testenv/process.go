package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startFor bounds a server's start and its stop.
const startFor = 60 * time.Second

// Process is one real holdfast serve.
type Process struct {
	t    testing.TB
	args []string
	env  []string

	Name    string // for messages
	DataDir string
	URL     string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has been reaped
	log  *os.File
}

// Serve starts holdfast serve with a data directory and a free port of its own,
// and waits until it takes calls. It is stopped when the test ends.
func Serve(t testing.TB, name, dataDir string, args ...string) *Process {
	t.Helper()
	return ServeAt(t, name, dataDir, FreeAddress(t), args...)
}

// ServeAt is Serve at a known address.
func ServeAt(t testing.TB, name, dataDir, listen string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, Name: name, DataDir: dataDir}
	p.URL = "http://" + listen
	p.args = append([]string{"serve", "--data-dir", dataDir, "--listen", listen}, args...)
	t.Cleanup(p.Stop)
	p.Start()
	return p
}

// FreeAddress is a loopback address that nobody listens at just now.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// Start starts the process (again) and waits until it is ready.
func (p *Process) Start() {
	p.t.Helper()
	if err := p.start(); err != nil {
		p.t.Fatalf("start %s: %v\n%s", p.Name, err, p.Log())
	}
}

func (p *Process) start() error {
	log, err := os.OpenFile(filepath.Join(filepath.Dir(p.DataDir), p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(Binaries(p.t), "holdfast"), p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	ready := make(chan struct{})
	go func() {
		defer close(done)
		p.read(out, ready)
		_ = cmd.Wait() // how it ended is what its log says
	}()
	p.mu.Lock()
	p.cmd, p.done, p.log = cmd, done, log
	p.mu.Unlock()
	timeout := time.NewTimer(startFor)
	defer timeout.Stop()
	select {
	case <-ready:
		return nil
	case <-done:
		return errors.New("it ended before it was ready")
	case <-timeout.C:
		return fmt.Errorf("not ready after %s", startFor)
	}
}

// read closes ready at the first line of standard output, which a server prints
// when it takes calls.
func (p *Process) read(out io.Reader, ready chan struct{}) {
	lines := bufio.NewScanner(out)
	for first := true; lines.Scan(); first = false {
		if first {
			close(ready)
		}
	}
}

// PID of the running process.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Signal sends a signal to the server's process alone.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.PID(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.t.Fatalf("signal %s: %v", p.Name, err)
	}
}

// Kill kills the server with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.await()
}

// Stop ends the server in order. Stopping twice is harmless.
func (p *Process) Stop() {
	p.mu.Lock()
	running := p.cmd != nil
	p.mu.Unlock()
	if !running {
		return
	}
	p.Signal(syscall.SIGTERM)
	p.await()
}

func (p *Process) await() {
	p.t.Helper()
	p.mu.Lock()
	cmd, done, log := p.cmd, p.done, p.log
	p.cmd = nil
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	timeout := time.NewTimer(startFor)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
		_ = syscall.Kill(cmd.Process.Pid, syscall.SIGKILL)
		<-done
		p.t.Errorf("%s did not end within %s\n%s", p.Name, startFor, p.Log())
	}
	if err := log.Close(); err != nil {
		p.t.Error(err)
	}
}

// Log is what the server wrote to standard error, its last 16 KiB.
func (p *Process) Log() string {
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(p.DataDir), p.Name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-16<<10):])
}

// Key is the admin's API key of an orchestrator's process.
func (p *Process) Key() string {
	p.t.Helper()
	raw, err := os.ReadFile(filepath.Join(p.DataDir, "admin.key"))
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// Get fetches a plain page of the server, such as /metrics.
func (p *Process) Get(ctx context.Context, path string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return do(req)
}

// Post posts JSON to a URL as curl would, without credentials.
func Post(t testing.TB, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return do(req)
}

func do(req *http.Request) (int, string) {
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	raw, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(raw)
}
