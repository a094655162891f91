package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// startFor bounds a server's start and its stop.
const startFor = 60 * time.Second

// Server is one real holdfast serve, for programs and tests: Process is the same
// for a test that fails with it.
type Server struct {
	Name    string // for messages
	DataDir string // exists
	Program string // bin/holdfast
	Listen  string // host:port
	Args    []string
	Env     []string // added to this process's
	LogFile string   // "": DataDir with .log behind it
	// WithParent is what the kernel sends it when this process ends; zero: SIGTERM.
	WithParent syscall.Signal

	mu    sync.Mutex
	cmd   *exec.Cmd
	ready chan struct{} // closed at its first line
	done  chan struct{} // closed when cmd has been reaped
}

// URL is where the server takes calls.
func (s *Server) URL() string { return "http://" + s.Listen }

// LogPath is where its standard error goes.
func (s *Server) LogPath() string {
	if s.LogFile != "" {
		return s.LogFile
	}
	return s.DataDir + ".log"
}

// Log is what it wrote there, its last 16 KiB.
func (s *Server) Log() string {
	raw, err := os.ReadFile(s.LogPath())
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-16<<10):])
}

// Start starts it (again) and returns when it takes calls.
func (s *Server) Start() error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.AwaitReady()
}

// Launch starts it (again) and does not wait: it may be killed at its start.
func (s *Server) Launch() error {
	log, err := os.OpenFile(s.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	cmd := exec.CommandContext(context.Background(), s.Program, append([]string{"serve", "--data-dir", s.DataDir, "--listen", s.Listen}, s.Args...)...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.Stderr = log
	// A group of its own: a terminal's ^C reaches its parent, which ends it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if s.WithParent != 0 {
		cmd.SysProcAttr.Pdeathsig = s.WithParent
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		untilFirstLine(out, ready)
		_ = cmd.Wait() // how it ended is what its log says
	}()
	s.mu.Lock()
	s.cmd, s.ready, s.done = cmd, ready, done
	s.mu.Unlock()
	return nil
}

// untilFirstLine closes ready at the first line, which a server prints when it
// takes calls, and reads on to the end.
func untilFirstLine(out io.Reader, ready chan struct{}) {
	lines := bufio.NewScanner(out)
	for first := true; lines.Scan(); first = false {
		if first {
			close(ready)
		}
	}
}

// AwaitReady returns when a server that was launched takes calls.
func (s *Server) AwaitReady() error {
	s.mu.Lock()
	ready, done := s.ready, s.done
	s.mu.Unlock()
	timeout := time.NewTimer(startFor)
	defer timeout.Stop()
	select {
	case <-ready:
		return nil
	case <-done:
		return fmt.Errorf("start %s: it ended before it took calls:\n%s", s.Name, s.Log())
	case <-timeout.C:
		return fmt.Errorf("start %s: it takes no calls after %s:\n%s", s.Name, startFor, s.Log())
	}
}

// PID of the process that was started last; 0 before the first start.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Signal sends a signal to the server's process alone; to one that has ended, none.
func (s *Server) Signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", s.Name, err)
	}
	return nil
}

// Stop ends it in order and waits. One that is not running is stopped already.
func (s *Server) Stop() error { return s.end(syscall.SIGTERM) }

// Kill ends it as a crash would, and waits.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

func (s *Server) end(sig syscall.Signal) error {
	// A frozen one takes no signal but SIGKILL until it is let go on.
	if err := errors.Join(s.Signal(sig), s.Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.mu.Unlock()
	if cmd == nil {
		return nil
	}
	timeout := time.NewTimer(startFor)
	defer timeout.Stop()
	select {
	case <-done:
		return nil
	case <-timeout.C:
		err := cmd.Process.Kill()
		<-done
		return errors.Join(fmt.Errorf("%s did not end within %s and was killed:\n%s", s.Name, startFor, s.Log()), err)
	}
}

// Done is closed once the process that was started last has ended; nil before
// the first start.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}
