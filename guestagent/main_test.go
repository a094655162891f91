package guestagent_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
	"github.com/holdfast-dev/holdfast/spool"
)

// system is shared by the tests: one reaper waits for all children of this
// process, so no test may start a command in another way.
var system *guestagent.System

func TestMain(m *testing.M) {
	// What this test inherited is not to be taken for what the agent leaks.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var err error
	if system, err = guestagent.NewSystem(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// shared keeps the system executor open when one of many agents closes.
type shared struct{ *guestagent.System }

func (shared) Close(time.Duration) error { return nil }

type agent struct {
	*guestagent.Agent
	holdfast.Guest
	spool string
}

// start runs an agent until the test ends, and waits until it is ready.
func start(t *testing.T, change func(*guestagent.Config)) agent {
	t.Helper()
	notifier, err := spool.NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	c := guestagent.Config{
		Guest:    holdfast.GuestConfig{Instance: "in-00000000000000000000000000", Incarnation: 3, Secret: []byte("s3cr3t-of-the-boot"), ProcessDefaults: holdfast.ProcessDefaults{Env: map[string]string{"FROM": "sandbox"}}},
		Spool:    t.TempDir(),
		Executor: shared{system},
		Notifier: notifier,
	}
	if change != nil {
		change(&c)
	}
	a, err := guestagent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Logf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if list, err := a.Guest().Processes.ListProcesses(context.Background()); err == nil {
			for _, p := range list {
				_ = a.Guest().Processes.SignalProcess(context.Background(), p.ID, "KILL")
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := notifier.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the agent has an opinion of its setup", func() bool {
		status, err := a.Status(t.Context())
		return err == nil && (status.Ready || status.Failure != nil)
	})
	return agent{Agent: a, Guest: a.Guest(), spool: c.Spool}
}

// eventually polls a condition that nothing signals.
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

func (a agent) start(t *testing.T, in holdfast.StartProcess) holdfast.Process {
	t.Helper()
	p, err := a.Processes.StartProcess(t.Context(), in)
	if err != nil {
		t.Fatalf("start %s: %v", in.Command, err)
	}
	return p
}

func (a agent) sh(t *testing.T, script string) holdfast.Process {
	t.Helper()
	return a.start(t, holdfast.StartProcess{Command: "sh", Args: []string{"-c", script}, Cwd: "/"})
}

// wait follows a process to its end.
func (a agent) wait(t *testing.T, id holdfast.ProcessID) (p holdfast.Process, stdout, stderr []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := a.Processes.StreamProcessOutput(ctx, holdfast.ReadOutput{Process: id, Follow: true}, func(c holdfast.OutputChunk) error {
		if c.Stream == holdfast.Stderr {
			stderr = append(stderr, c.Data...)
		} else {
			stdout = append(stdout, c.Data...)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return p, stdout, stderr
}

func wantError(t *testing.T, err error, code holdfast.Code, reason holdfast.Reason) {
	t.Helper()
	if holdfast.CodeOf(err) != code || holdfast.ReasonOf(err) != reason {
		t.Errorf("got %v (%s, %s), want %s, %s", err, holdfast.CodeOf(err), holdfast.ReasonOf(err), code, reason)
	}
}
