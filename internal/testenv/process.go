package testenv

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Process is one real holdfast serve of a test, which fails with it.
type Process struct {
	t      testing.TB
	server Server

	Name    string // for messages
	DataDir string
	URL     string
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
	p := &Process{t: t, Name: name, DataDir: dataDir, URL: "http://" + listen, server: Server{
		Name: name, DataDir: dataDir, Program: filepath.Join(Binaries(t), "holdfast"), Listen: listen, Args: args,
		LogFile: filepath.Join(filepath.Dir(dataDir), name+".log"), WithParent: syscall.SIGKILL,
	}}
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
	if err := p.server.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// PID of the running process.
func (p *Process) PID() int { return p.server.PID() }

// Signal sends a signal to the server's process alone.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.server.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// Kill kills the server with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.server.Kill(); err != nil {
		p.t.Error(err)
	}
}

// Stop ends the server in order. Stopping twice is harmless.
func (p *Process) Stop() {
	p.t.Helper()
	if err := p.server.Stop(); err != nil {
		p.t.Error(err)
	}
}

// Log is what the server wrote to standard error, its last 16 KiB.
func (p *Process) Log() string { return p.server.Log() }

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
