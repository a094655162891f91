package guestagent

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// Simulated runs a handful of commands in memory: echo, cat (standard input to
// standard output), env, sleep SECONDS or a Go duration, exit CODE, true and
// false, and /bin/sh with a script of nothing but these, in order. A terminal is as
// good as a pipe.
type Simulated struct {
	after func(time.Duration) <-chan time.Time

	mu       sync.Mutex
	next     int
	closed   bool
	children map[*simulatedChild]struct{}
}

// NewSimulatedExecutor makes one whose sleeps are timed by after; nil means
// time.After, which a synctest bubble makes virtual.
func NewSimulatedExecutor(after func(time.Duration) <-chan time.Time) *Simulated {
	if after == nil {
		after = time.After
	}
	return &Simulated{after: after, next: 2, children: map[*simulatedChild]struct{}{}}
}

// program runs to its exit code; it ends early when the child is killed.
type program func(s *Simulated, child *simulatedChild, c Command) int

func programs() map[string]program {
	return map[string]program{
		"echo": func(_ *Simulated, _ *simulatedChild, c Command) int {
			return status(fmt.Fprintln(c.Stdout, strings.Join(c.Args, " ")))
		},
		"env": func(_ *Simulated, _ *simulatedChild, c Command) int {
			return status(fmt.Fprintln(c.Stdout, strings.Join(slices.Sorted(slices.Values(c.Env)), "\n")))
		},
		"true":  func(*Simulated, *simulatedChild, Command) int { return 0 },
		"false": func(*Simulated, *simulatedChild, Command) int { return 1 },
		"exit": func(_ *Simulated, _ *simulatedChild, c Command) int {
			code, err := strconv.Atoi(strings.Join(c.Args, ""))
			if err != nil {
				return 2
			}
			return code & 0xff
		},
		"cat":     simulatedCat,
		"sleep":   simulatedSleep,
		"/bin/sh": simulatedShell,
	}
}

func status(_ int, err error) int {
	if err != nil {
		return 1
	}
	return 0
}

func simulatedCat(_ *Simulated, child *simulatedChild, c Command) int {
	for {
		select {
		case data := <-child.input:
			if code := status(c.Stdout.Write(data)); code != 0 {
				return code
			}
		case <-child.inputClosed:
			return 0
		case <-child.killed:
			return 0
		}
	}
}

func simulatedSleep(s *Simulated, child *simulatedChild, c Command) int {
	text := strings.Join(c.Args, "")
	length, err := time.ParseDuration(text)
	if err != nil {
		length, err = time.ParseDuration(text + "s")
	}
	if err != nil {
		return 2
	}
	select {
	case <-s.after(length):
	case <-child.killed:
	}
	return 0
}

// Start runs c's program in a goroutine; see Executor.
func (s *Simulated) Start(c Command) (Child, error) {
	run, known := programs()[c.Name]
	if !known {
		return nil, noSuchCommand("command not found: the simulation has no %q", c.Name)
	}
	child := &simulatedChild{
		terminal:    c.Terminal != nil,
		input:       make(chan []byte),
		inputClosed: make(chan struct{}),
		killed:      make(chan struct{}),
		done:        make(chan struct{}),
	}
	if !c.Stdin && c.Terminal == nil {
		close(child.inputClosed)
		child.noInput = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, startError(c, "", errClosing)
	}
	child.pid = s.next
	s.next++
	s.children[child] = struct{}{}
	go func() {
		code := run(s, child, c)
		// The streams hold only what was written; closing them loses nothing.
		_ = c.Stdout.Close()
		_ = c.Stderr.Close()
		s.mu.Lock()
		delete(s.children, child)
		s.mu.Unlock()
		child.end(code)
	}()
	return child, nil
}

// Close kills what runs; see Executor.
func (s *Simulated) Close(time.Duration) error {
	s.mu.Lock()
	s.closed = true
	children := make([]*simulatedChild, 0, len(s.children))
	for child := range s.children {
		children = append(children, child)
	}
	s.mu.Unlock()
	for _, child := range children {
		if err := child.Signal("KILL"); err != nil && holdfast.ReasonOf(err) != holdfast.ReasonEnded {
			return err
		}
		<-child.done
	}
	return nil
}

type simulatedChild struct {
	pid         int
	terminal    bool
	noInput     bool
	input       chan []byte
	inputClosed chan struct{}
	killed      chan struct{}
	done        chan struct{}

	mu     sync.Mutex
	signal unix.Signal // that ended it
	closed bool        // the input
	ended  bool
	code   int
}

func (c *simulatedChild) end(code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signal != 0 {
		code = 128 + int(c.signal)
	}
	c.code, c.ended = code, true
	close(c.done)
}

func (c *simulatedChild) PID() int { return c.pid }

func (c *simulatedChild) Wait() int {
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.code
}

func (c *simulatedChild) WriteInput(ctx context.Context, data []byte) (int, error) {
	select {
	case c.input <- slices.Clone(data):
		return len(data), nil
	case <-c.inputClosed:
	case <-c.done:
	case <-ctx.Done():
		return 0, holdfast.AsError(ctx.Err())
	}
	return 0, ended()
}

func (c *simulatedChild) CloseInput() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && !c.noInput {
		c.closed = true
		close(c.inputClosed)
	}
	return nil
}

func (c *simulatedChild) Signal(name string) error {
	sig := unix.SignalNum("SIG" + name)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case sig == 0:
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "there is no signal %q", name).With("field", "signal")
	case c.ended:
		return ended()
	case c.signal == 0 && sig != unix.SIGCONT && sig != unix.SIGCHLD && sig != unix.SIGWINCH:
		c.signal = sig
		close(c.killed)
	}
	return nil
}

func (c *simulatedChild) Resize(holdfast.TerminalSize) error {
	if !c.terminal {
		return noTerminal()
	}
	return nil
}
