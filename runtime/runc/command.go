package runc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// command runs the OCI runtime.
type command struct {
	binary   string
	root     string // of its state
	timeout  time.Duration
	patience time.Duration // with runs that a killed driver left behind
}

// container is what the OCI runtime says of one container.
type container struct {
	ID     string `json:"id"`
	Status string `json:"status"` // creating, created, running, paused, stopped
	PID    int    `json:"pid"`
}

// failure is a run of the OCI runtime that ended badly.
type failure struct {
	verb     string
	message  string
	answered bool // it ended by itself and said why, rather than being killed or not started
}

func (f *failure) Error() string { return f.verb + ": " + f.message }

// start prepares a run. It is in a process group of its own and goes on when
// our process dies: a repeat then finds its finished work, or its remains.
func (c command) start(ctx context.Context, args ...string) (*exec.Cmd, context.CancelFunc) {
	// The caller's cancellation does not reach it (contract: A2): a runtime
	// killed half-way leaves more to clean up than one that ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	cmd := exec.CommandContext(ctx, c.binary, append([]string{"--root", c.root}, args...)...)
	// Nothing of our environment reaches it: LISTEN_FDS and NOTIFY_SOCKET would
	// mean something to it.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd, cancel
}

// run runs one verb and returns what it printed.
func (c command) run(ctx context.Context, verb string, args ...string) ([]byte, error) {
	cmd, cancel := c.start(ctx, append([]string{verb}, args...)...)
	defer cancel()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = c.timeout
	if err := cmd.Run(); err != nil {
		return nil, c.failed(verb, err, errs.String())
	}
	return out.Bytes(), nil
}

func (c command) failed(verb string, err error, said string) error {
	message := lastMessage(said)
	if message == "" {
		message = err.Error()
	}
	var exit *exec.ExitError
	return &failure{
		verb:     filepath.Base(c.binary) + " " + verb,
		message:  message,
		answered: errors.As(err, &exit) && exit.Exited(),
	}
}

// lastMessage finds the last error in what an OCI runtime wrote: JSON lines
// where it keeps a log, plain text on standard error.
func lastMessage(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		var entry struct {
			Level   string `json:"level"`
			Message string `json:"msg"`
		}
		if json.Unmarshal([]byte(lines[i]), &entry) == nil {
			if entry.Level == "error" || entry.Level == "fatal" {
				return entry.Message
			}
			continue
		}
		if line := strings.TrimSpace(lines[i]); line != "" {
			return line
		}
	}
	return ""
}

// state asks for one container; false means that the runtime has none of that
// name, and is certain of it.
func (c command) state(ctx context.Context, id string) (container, bool, error) {
	out, err := c.run(ctx, "state", id)
	if err == nil {
		var s container
		if err := json.Unmarshal(out, &s); err != nil {
			return container{}, false, fmt.Errorf("state of %s: %w", id, err)
		}
		return s, true, nil
	}
	// An exit status does not tell "there is none" from "I cannot say". The list does.
	all, listErr := c.list(ctx)
	if listErr != nil {
		return container{}, false, errors.Join(err, listErr)
	}
	for _, s := range all {
		if s.ID == id {
			return s, true, nil
		}
	}
	return container{}, false, nil
}

func (c command) list(ctx context.Context) ([]container, error) {
	out, err := c.run(ctx, "list", "--format", "json")
	if err != nil {
		return nil, err
	}
	var all []container
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return all, nil
}

// delete removes a container and its state; that there is none is success.
func (c command) delete(ctx context.Context, id string) error {
	there, err := exists(filepath.Join(c.root, id))
	if err != nil {
		return err
	}
	if !there {
		if _, found, err := c.state(ctx, id); err != nil || !found {
			return err
		}
	}
	if _, err := c.run(ctx, "delete", "--force", id); err != nil {
		if _, found, stateErr := c.state(ctx, id); stateErr != nil || found {
			return errors.Join(err, stateErr)
		}
	}
	// A create that was killed early leaves a directory that it does not list.
	return os.RemoveAll(filepath.Join(c.root, id))
}

// endStrays waits for runs that a killed driver left behind, then ends them: a
// create that goes on while its instance is being removed would come back after.
func (c command) endStrays(ctx context.Context) error {
	deadline := time.Now().Add(c.patience)
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		strays, err := c.strays()
		if err != nil || len(strays) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			for _, pid := range strays {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("ending a stray %s (process %d): %w", c.binary, pid, err)
				}
			}
			deadline = time.Now().Add(c.patience)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// strays finds processes that run the OCI runtime on our state directory.
func (c command) strays() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue // it ended meanwhile
		}
		args := strings.Split(string(line), "\x00")
		if len(args) > 3 && args[1] == "--root" && args[2] == c.root {
			found = append(found, pid)
		}
	}
	return found, nil
}

// pause waits, or returns ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
