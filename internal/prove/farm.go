package prove

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

// envWorker is set, to a test's name, in the processes that a farm starts.
const envWorker = "HOLDFAST_PROVE_WORKER"

// Farm makes a rung's runs in processes of their own, one for each processor: the
// runs of one process would contend for its locks, its allocator and its collector,
// which takes a third of the time (measured).
type Farm[J, R any] struct {
	// Next gives the next job; false when there is none any more. It is called by one
	// goroutine at a time.
	Next func() (J, bool)
	// Work does a job, in a worker. It must not fail the test that it is given, which
	// is a worker's, but say in its result what is wrong; a worker that fails or ends
	// fails the farm.
	Work func(*testing.T, J) R
	// Done takes a job's result. It is called by one goroutine at a time.
	Done func(J, R)
}

// IsWorker reports whether this process is a worker of a test's farm, which has to
// call Run and nothing else.
func IsWorker(t testing.TB) bool { return os.Getenv(envWorker) == t.Name() }

// Run gives the jobs to the workers and returns when all are done. False: this
// process is a worker, which has done what it was given; the test has to return.
// It is called by a test, not by a subtest, once.
func (f Farm[J, R]) Run(t *testing.T) bool {
	t.Helper()
	if IsWorker(t) {
		if err := f.serve(t, os.Stdin, os.NewFile(3, "results")); err != nil {
			t.Fatalf("worker: %v", err)
		}
		return false
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			if err := f.hire(t, &mu); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return true
}

// serve does the jobs that come from a reader, a JSON value each.
func (f Farm[J, R]) serve(t *testing.T, from io.Reader, to io.Writer) error {
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // short lives: collecting less often is faster
	jobs, results := json.NewDecoder(from), json.NewEncoder(to)
	for {
		var job J
		if err := jobs.Decode(&job); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read a job: %w", err)
		}
		if err := results.Encode(f.Work(t, job)); err != nil {
			return fmt.Errorf("tell a result: %w", err)
		}
	}
}

// hire starts a worker and gives it jobs until there is none.
func (f Farm[J, R]) hire(t *testing.T, mu *sync.Mutex) (err error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=0")
	if testing.Short() {
		cmd.Args = append(cmd.Args, "-test.short")
	}
	cmd.Env = append(os.Environ(), envWorker+"="+t.Name(), "GOMAXPROCS=1")
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start a worker: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start a worker: %w", err)
	}
	defer func() { err = errors.Join(err, read.Close()) }()
	cmd.ExtraFiles = []*os.File{write}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start a worker: %w", err), write.Close())
	}
	given := errors.Join(write.Close(), f.give(mu, json.NewEncoder(in), json.NewDecoder(bufio.NewReader(read))), in.Close())
	if err := errors.Join(given, cmd.Wait()); err != nil {
		return fmt.Errorf("a worker: %w\n%s", err, out.text)
	}
	return nil
}

func (f Farm[J, R]) give(mu *sync.Mutex, jobs *json.Encoder, results *json.Decoder) error {
	for {
		mu.Lock()
		job, more := f.Next()
		mu.Unlock()
		if !more {
			return nil
		}
		if err := jobs.Encode(job); err != nil {
			return fmt.Errorf("give a job: %w", err)
		}
		var result R
		if err := results.Decode(&result); err != nil {
			return fmt.Errorf("no result of %v: %w", job, err)
		}
		mu.Lock()
		f.Done(job, result)
		mu.Unlock()
	}
}

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

// most is how many bytes a tail keeps.
const most = 64 << 10

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if len(t.text) > 2*most {
		t.text = append([]byte(nil), t.text[len(t.text)-most:]...)
	}
	return len(p), nil
}
