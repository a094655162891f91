package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
)

// forksAndTasks times, on runc: a fork of a checkpoint of a disk that something was
// written to, against a create from the same base; and a task, from its submit to its
// first output on a session that is READY, against a plain exec there. They take turns.
func forksAndTasks(ctx context.Context, o options) (_ []line, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containers need root: use make bench, or sudo")
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startServer(ctx, o.binaries, dir, "--runtime", "runc")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	w := worker{ctx: ctx, api: rpc.Dial(rpc.NewHTTPClient(), s.url, s.key)}
	n := max(o.rounds, 11)
	forks, creates, err := w.forks(n)
	if err != nil {
		return nil, err
	}
	tasks, execs, err := w.tasks(n)
	if err != nil {
		return nil, err
	}
	fork, task := median(forks)/median(creates), median(tasks)/median(execs)
	return []line{
		{what: "fork of a disk checkpoint, runc", measured: spread(forks), against: "create from the same base, " + spread(creates),
			ratio: fork, goal: "<= 1.30", met: fork <= 1.3},
		{what: "submit of a task to its first output, READY session", measured: spread(tasks), against: "exec there, " + spread(execs),
			ratio: task, goal: "<= 1.20", met: task <= 1.2},
	}, nil
}

// worker is a caller of one server.
type worker struct {
	ctx context.Context
	api rpc.Services
}

func nobody() holdfast.Caller { return holdfast.Caller{} }

// forks creates and forks in turn, and deletes what it made. In milliseconds.
func (w worker) forks(n int) (forks, creates []float64, err error) {
	source, _, err := createAndSpeak(w.ctx, w.api, "source")
	if err != nil {
		return nil, nil, err
	}
	if _, err := w.exec(source.ID, "dd if=/dev/urandom of=/srv.data bs=65536 count=64 2>&1; echo written"); err != nil {
		return nil, nil, err
	}
	taken, err := w.api.Checkpoints.CreateCheckpoint(w.ctx, nobody(), holdfast.CreateCheckpoint{RequestID: "checkpoint", Source: string(source.ID)})
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoint: %w", err)
	}
	for i := range n {
		for _, turn := range []struct {
			into *[]float64
			in   holdfast.CreateSandbox
		}{
			{&creates, holdfast.CreateSandbox{RequestID: fmt.Sprint("create-", i), Environment: "base"}},
			{&forks, holdfast.CreateSandbox{RequestID: fmt.Sprint("fork-", i), Source: taken.ID}},
		} {
			if err := pause(w.ctx, settle); err != nil {
				return nil, nil, err
			}
			began := time.Now()
			sb, err := w.api.Sandboxes.CreateSandbox(w.ctx, nobody(), turn.in)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", turn.in.RequestID, err)
			}
			*turn.into = append(*turn.into, time.Since(began).Seconds()*1000)
			if err := w.remove(sb.ID); err != nil {
				return nil, nil, err
			}
		}
	}
	return forks, creates, w.remove(source.ID)
}

func (w worker) remove(id holdfast.SandboxID) error {
	_, err := w.api.Sandboxes.DeleteSandbox(w.ctx, nobody(), holdfast.MutateSandbox{ID: id})
	return err
}

// exec runs a shell line and tells how long it was until the first output.
func (w worker) exec(id holdfast.SandboxID, script string) (time.Duration, error) {
	began := time.Now()
	p, err := w.api.Processes.StartProcess(w.ctx, nobody(), id, holdfast.StartProcess{Command: "sh", Args: []string{"-c", script}})
	if err != nil {
		return 0, fmt.Errorf("exec: %w", err)
	}
	var first firstByte
	_, err = w.api.Processes.StreamProcessOutput(w.ctx, nobody(), id, holdfast.ReadOutput{Process: p.ID, Follow: true}, first.take)
	return first.since(began), err
}

// task submits the same and tells the same.
func (w worker) task(session holdfast.SessionID, request, script string) (time.Duration, error) {
	began := time.Now()
	t, err := w.api.Tasks.SubmitTask(w.ctx, nobody(), holdfast.SubmitTask{RequestID: request, Session: session, Command: "sh", Args: []string{"-c", script}})
	if err != nil {
		return 0, fmt.Errorf("submit: %w", err)
	}
	var first firstByte
	_, err = w.api.Tasks.StreamTaskOutput(w.ctx, nobody(), holdfast.TaskOutput{ID: t.ID, Follow: true}, first.take)
	return first.since(began), err
}

// firstByte remembers when the first output came.
type firstByte struct{ at time.Time }

func (f *firstByte) take(c holdfast.OutputChunk) error {
	if f.at.IsZero() && len(c.Data) > 0 {
		f.at = time.Now()
	}
	return nil
}

func (f *firstByte) since(began time.Time) time.Duration { return f.at.Sub(began) }

// tasks runs commands and tasks in turn, in one session. In milliseconds.
func (w worker) tasks(n int) (tasks, execs []float64, err error) {
	se, err := w.api.Sessions.CreateSession(w.ctx, nobody(), holdfast.CreateSession{RequestID: "session", Environment: "base"})
	if err != nil {
		return nil, nil, fmt.Errorf("session: %w", err)
	}
	for i := range n {
		if err := pause(w.ctx, settle); err != nil {
			return nil, nil, err
		}
		took, err := w.exec(se.Sandbox, "echo hello")
		if err != nil {
			return nil, nil, err
		}
		execs = append(execs, took.Seconds()*1000)
		if err := pause(w.ctx, settle); err != nil {
			return nil, nil, err
		}
		if took, err = w.task(se.ID, fmt.Sprint("task-", i), "echo hello"); err != nil {
			return nil, nil, err
		}
		tasks = append(tasks, took.Seconds()*1000)
	}
	_, err = w.api.Sessions.DeleteSession(w.ctx, nobody(), holdfast.MutateSession{ID: se.ID})
	return tasks, execs, err
}
