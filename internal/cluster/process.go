package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// patience bounds a process's start and its stop.
const patience = 60 * time.Second

// Process is one holdfast serve of a cluster.
type Process struct {
	Name    string
	DataDir string
	program string
	listen  string
	args    []string
	env     []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has been reaped
}

// URL is where the process takes calls.
func (p *Process) URL() string { return "http://" + p.listen }

// LogFile is where its standard error goes.
func (p *Process) LogFile() string { return p.DataDir + ".log" }

// Log is what it wrote there, its last 8 KiB.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-8<<10):])
}

// Start starts it (again) and returns when it takes calls.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	cmd := exec.CommandContext(context.Background(), p.program, append([]string{"serve", "--data-dir", p.DataDir, "--listen", p.listen}, p.args...)...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stderr = log
	// A group of its own: the terminal's ^C reaches the launcher, which ends the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		for first := true; lines.Scan(); first = false {
			if first { // it says where it serves once it takes calls
				close(ready)
			}
		}
		_ = cmd.Wait() // how it ended is what its log says
	}()
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-ready:
		return nil
	case <-done:
		return fmt.Errorf("start %s: it ended before it took calls:\n%s", p.Name, p.Log())
	case <-timeout.C:
		return fmt.Errorf("start %s: it takes no calls after %s:\n%s", p.Name, patience, p.Log())
	}
}

// Signal sends a signal; to one that has ended, none.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil // never started
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Stop ends it in order and waits. One that is not running is stopped already.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

// Kill ends it as a crash would, and waits.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL) }

func (p *Process) end(sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := p.Signal(syscall.SIGCONT); err != nil { // a frozen one takes no signal
		return err
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-done:
		return nil
	case <-timeout.C:
		err := cmd.Process.Kill()
		<-done
		return errors.Join(fmt.Errorf("%s did not end within %s and was killed:\n%s", p.Name, patience, p.Log()), err)
	}
}

// Done is closed once the running process has ended by itself or otherwise.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}
