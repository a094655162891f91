package guestagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// System runs commands as processes of the system, and reaps every child of
// this process, orphans of others included: nothing else in the process may wait
// for children.
type System struct{ reaper *reaper }

// NewSystem makes one. Where this process is not PID 1 it asks to inherit the
// orphans of its descendants.
func NewSystem() (*System, error) {
	first := os.Getpid() == 1
	if !first {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("inherit orphans: %w", err)
		}
	}
	return &System{reaper: newReaper(first)}, nil
}

// Close ends all processes; see Executor.
func (s *System) Close(grace time.Duration) error { return s.reaper.close(grace) }

// Start starts c in a session of its own; see Executor.
func (s *System) Start(c Command) (Child, error) {
	path, err := lookUp(c)
	if err != nil {
		return nil, err
	}
	child := &systemChild{reaper: s.reaper}
	inside, attr, err := child.connect(c)
	if err != nil {
		return nil, errors.Join(err, child.closeOutside(), closeAll(inside))
	}
	fds := make([]uintptr, len(inside))
	for i, f := range inside {
		fds[i] = f.Fd()
	}
	child.pid, child.code, err = s.reaper.start(func() (int, error) {
		return syscall.ForkExec(path, append([]string{c.Name}, c.Args...), &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: fds, Sys: attr})
	})
	err = errors.Join(startError(c, path, err), closeAll(inside))
	if err != nil {
		if child.pid != 0 {
			return nil, errors.Join(err, child.Signal("KILL"), child.closeOutside())
		}
		return nil, errors.Join(err, child.closeOutside())
	}
	spareAgent(child.pid)
	for _, p := range child.pumps {
		go p.run()
	}
	return child, nil
}

// spareAgent makes a process the kernel's choice, before the agent, when the
// instance is out of memory: an agent that is killed takes the instance along.
// It is a preference; where it cannot be set nothing else changes.
func spareAgent(pid int) {
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("500"), 0)
}

type systemChild struct {
	reaper *reaper
	pid    int
	code   <-chan int
	pumps  []*pump

	terminal *os.File // both ways
	mu       sync.Mutex
	input    *os.File // nil: none, or closed
}

// connect makes the three files of the process, and ours at their other ends.
func (c *systemChild) connect(cmd Command) (inside []*os.File, attr *syscall.SysProcAttr, err error) {
	attr = &syscall.SysProcAttr{Setsid: true}
	if u := cmd.User; u != nil {
		attr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
	}
	if cmd.Terminal != nil {
		outside, tty, err := openTerminal(*cmd.Terminal)
		if err != nil {
			return nil, nil, err
		}
		attr.Setctty = true // on descriptor 0
		c.terminal, c.input = outside, outside
		c.pumps = []*pump{newPump(outside, terminalOutput{cmd.Stdout, cmd.Stderr}, true)}
		return []*os.File{tty, tty, tty}, attr, nil
	}
	stdin, err := c.connectInput(cmd.Stdin)
	if err != nil {
		return nil, nil, err
	}
	inside = append(inside, stdin)
	for _, to := range []io.WriteCloser{cmd.Stdout, cmd.Stderr} {
		read, write, err := pipe(readEnd)
		if err != nil {
			return inside, nil, err
		}
		inside = append(inside, write)
		c.pumps = append(c.pumps, newPump(read, to, false))
	}
	return inside, attr, nil
}

func (c *systemChild) connectInput(open bool) (*os.File, error) {
	if !open {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return null, nil
	}
	read, write, err := pipe(writeEnd)
	if err != nil {
		return nil, err
	}
	c.input = write
	return read, nil
}

// The ends of a pipe, by index.
const (
	readEnd  = 0
	writeEnd = 1
)

// pipe makes a pipe whose end ours takes no thread to wait and heeds deadlines;
// the other is what a process expects, one that blocks.
func pipe(ours int) (read, write *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	err = unix.SetNonblock(fds[ours], true)
	read, write = os.NewFile(uintptr(fds[readEnd]), "pipe"), os.NewFile(uintptr(fds[writeEnd]), "pipe")
	if err != nil {
		return nil, nil, joinClose(fmt.Errorf("make a pipe: %w", err), read, write)
	}
	return read, write, nil
}

func (c *systemChild) PID() int { return c.pid }

// Wait waits for the end and for what was written before it; see Child.
func (c *systemChild) Wait() int {
	code := <-c.code
	for _, p := range c.pumps {
		p.settle()
	}
	// Nobody reads it any more; what of it was not read is lost with its reader.
	_ = c.CloseInput()
	return code
}

// WriteInput writes to the pipe or the terminal; see Child.
func (c *systemChild) WriteInput(ctx context.Context, data []byte) (int, error) {
	c.mu.Lock()
	input := c.input
	c.mu.Unlock()
	if input == nil {
		return 0, ended()
	}
	if err := input.SetWriteDeadline(time.Time{}); err != nil {
		return 0, ended().Because(err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		// It fails only on a closed file, whose writes have failed already.
		_ = input.SetWriteDeadline(time.Unix(1, 0))
	})
	n, err := input.Write(data)
	if !stop() {
		<-interrupted
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return n, holdfast.AsError(ctx.Err())
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO), errors.Is(err, os.ErrClosed):
		return n, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonEnded, "the process does not read its input any more").Because(err)
	}
	return n, fmt.Errorf("write input: %w", err)
}

// CloseInput ends the input: of a terminal by what a person would type.
func (c *systemChild) CloseInput() error {
	c.mu.Lock()
	input := c.input
	if c.terminal == nil {
		c.input = nil
	}
	c.mu.Unlock()
	if input == nil {
		return nil
	}
	if c.terminal != nil {
		const endOfTransmission = 4
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.WriteInput(ctx, []byte{endOfTransmission})
		return err
	}
	if err := input.Close(); err != nil {
		return fmt.Errorf("close input: %w", err)
	}
	return nil
}

// Signal sends to the process's group; see Child.
func (c *systemChild) Signal(name string) error {
	sig := unix.SignalNum("SIG" + name)
	if sig == 0 {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "there is no signal %q", name).With("field", "signal")
	}
	return c.reaper.signal(c.pid, sig)
}

// Resize changes the terminal's size; see Child.
func (c *systemChild) Resize(size holdfast.TerminalSize) error {
	if c.terminal == nil {
		return noTerminal()
	}
	conn, err := c.terminal.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	var set error
	if err := conn.Control(func(fd uintptr) { set = resize(int(fd), size) }); err != nil {
		return ended().Because(err)
	}
	if set != nil {
		return fmt.Errorf("resize: %w", set)
	}
	return nil
}

// closeOutside closes our ends of a process that did not come to be.
func (c *systemChild) closeOutside() error {
	var files []*os.File
	if c.input != nil && c.terminal == nil {
		files = append(files, c.input)
	}
	for _, p := range c.pumps {
		files = append(files, p.from)
	}
	return closeAll(files)
}

// terminalOutput closes both streams: a terminal has one, for both.
type terminalOutput struct{ stdout, stderr io.WriteCloser }

func (t terminalOutput) Write(data []byte) (int, error) { return t.stdout.Write(data) }
func (t terminalOutput) Close() error                   { return errors.Join(t.stdout.Close(), t.stderr.Close()) }

// closeAll closes files, of which some may be the same.
func closeAll(files []*os.File) error {
	var errs []error
	closed := map[*os.File]bool{}
	for _, f := range files {
		if !closed[f] {
			closed[f] = true
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func joinClose(err error, files ...*os.File) error { return errors.Join(err, closeAll(files)) }
