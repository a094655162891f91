package simulation

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/simulation/step"
)

// memoryDir is a directory of the test's own, in memory where there is such a file system.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-simulation-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func templates(t testing.TB) *Templates {
	t.Helper()
	all, err := NewTemplates(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := all.Close(); err != nil {
			t.Error(err)
		}
	})
	return all
}

// inWorld runs fn in a bubble with a world that has started.
func (b *bench) inWorld(t *testing.T, config Config, fn func(ctx context.Context, w *World)) {
	t.Helper()
	config.Templates, config.Directory = b.templates, b.directory
	synctest.Test(t, func(t *testing.T) {
		w, err := New(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		fn(t.Context(), w)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheWholeSystemRunsInABubble(t *testing.T) {
	newBench(t).inWorld(t, Config{Seed: 1, Orchestrators: 2, Fleets: 2, Hosts: 2}, func(ctx context.Context, w *World) {
		c := w.Clients[0]
		s, err := c.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "one", Environment: environment})
		if err != nil {
			t.Fatal(err)
		}
		if s.State != holdfast.SandboxReady {
			t.Errorf("it is %s", s.State)
		}
		for _, verb := range []func(context.Context, holdfast.MutateSandbox) (holdfast.Sandbox, error){c.SuspendSandbox, c.ResumeSandbox, c.DeleteSandbox} {
			if s, err = verb(ctx, holdfast.MutateSandbox{ID: s.ID}); err != nil {
				t.Fatal(err)
			}
		}
		if s.State != holdfast.SandboxDeleted {
			t.Errorf("it is %s", s.State)
		}
		time.Sleep(5 * time.Minute) // virtual: sweeps have been everywhere
	})
}

// A party that dies before or after any of its first steps of a create comes back,
// and the client's one call ends with a sandbox that booted once.
func TestACrashAtAnyStepOfACreateLosesNothing(t *testing.T) {
	b := newBench(t)
	for _, party := range []string{"orchestrator-0", "fleet-0", "host-0"} {
		for number := 3; number < 12; number += prove.Slice(1, 4) {
			for _, after := range []bool{false, true} {
				b.inWorld(t, Config{Seed: uint64(number)}, func(ctx context.Context, w *World) {
					p := w.Party(party)
					p.At(p.Steps()+number-2, after, func(*step.Step) { p.Bounce(2 * time.Second) })
					s, err := w.Clients[0].CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "one", Environment: environment})
					if err != nil || s.State != holdfast.SandboxReady || len(w.boots.all) != 1 {
						t.Errorf("%s died at step %d (after: %v): %v, %v, boots %v\n%s", party, number, after, s.State, err, w.boots.all,
							strings.Join(w.Trace.Lines(false), "\n"))
					}
					time.Sleep(time.Minute)
				})
			}
		}
	}
}

// The same seed is the same run, to the nanosecond.
func TestASeedIsOneRun(t *testing.T) {
	b, sums := newBench(t), map[uint64]int{}
	for range prove.Slice(20, 2) {
		b.inWorld(t, Config{Seed: 7, Orchestrators: 2, Fleets: 2, Hosts: 2, Clients: 3}, func(ctx context.Context, w *World) {
			w.Orchestrators[0].At(40, false, func(*step.Step) { w.Orchestrators[0].Bounce(time.Second) })
			var calls sync.WaitGroup
			for i, c := range w.Clients {
				calls.Go(func() {
					s, err := c.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: strconv.Itoa(i), Environment: environment})
					if err == nil {
						_, err = c.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: s.ID})
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
			time.Sleep(10 * time.Minute)
			sums[w.Trace.Sum()]++
		})
	}
	if len(sums) != 1 {
		t.Errorf("one seed gave %d traces: %v", len(sums), sums)
	}
}

// What sessions are made of works in a world: a build whose setup runs, a session that
// waited for it and is prepared, a task, its output, a checkpoint, and a fork that has
// the files of all of them.
func TestSessionsRunInABubble(t *testing.T) {
	newBench(t).inWorld(t, Config{Seed: 3, Orchestrators: 2, Hosts: 2}, func(ctx context.Context, w *World) {
		c := w.Clients[0]
		recipe := holdfast.Recipe{Base: environment, Setup: "echo setting up; sleep 2s", Files: []holdfast.RecipeFile{{Path: "/recipe", Content: "a recipe"}},
			Repository: &holdfast.Repository{URL: "https://example.com/work.git", Ref: "main"}}
		_, err := c.CreateEnvironment(ctx, holdfast.CreateEnvironment{Name: "tools", Recipe: recipe})
		if err != nil {
			t.Fatal(err)
		}
		build, err := c.BuildEnvironment(ctx, holdfast.BuildEnvironment{RequestID: "build", Environment: "tools"})
		if err != nil {
			t.Fatal(err)
		}
		session, err := c.CreateSession(ctx, holdfast.CreateSession{RequestID: "session", Environment: "tools"})
		if err != nil || session.State != holdfast.SessionReady || session.Build != build.ID {
			t.Fatalf("%+v, %v", session, err)
		}
		task, err := c.SubmitTask(ctx, holdfast.SubmitTask{RequestID: "task", Session: session.ID, Command: "/bin/sh", Args: []string{"-c", "echo working; sleep 3s; exit 7"},
			Env: map[string]string{TaskVariable: "one"}})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		task, err = c.StreamTaskOutput(ctx, holdfast.TaskOutput{ID: task.ID, Follow: true}, func(chunk holdfast.OutputChunk) error {
			return join(out.Write(chunk.Data))
		})
		if err != nil || task.State != holdfast.TaskFailed || task.ExitCode != 7 || out.String() != "working\n" {
			t.Errorf("%+v, %v, %q", task, err, &out)
		}
		fork, err := c.ForkSession(ctx, session.ID, holdfast.CreateSession{RequestID: "fork"})
		if err != nil || fork.State != holdfast.SessionReady {
			t.Fatalf("%+v, %v", fork, err)
		}
		for _, path := range []string{"/recipe", Fetched} {
			if _, err := c.StatFile(ctx, fork.Sandbox, path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		for _, what := range []string{"task one", "preparation of "} {
			if n := started(w, what); n != 1 {
				t.Errorf("%s was started %d times", what, n)
			}
		}
		time.Sleep(5 * time.Minute) // virtual
	})
}

func join(_ int, err error) error { return err }

func started(w *World, prefix string) (n int) {
	w.boots.mu.Lock()
	defer w.boots.mu.Unlock()
	for what, all := range w.boots.starts {
		if strings.HasPrefix(what, prefix) {
			n += len(all)
		}
	}
	return n
}
