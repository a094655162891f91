package clienttest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

type process struct {
	record         holdfast.Process
	sandbox        holdfast.SandboxID
	input          int64
	stdout, stderr []byte
}

// StartProcess knows a few commands: echo prints its arguments, err prints them
// to standard error, exit ends with its argument, cat copies its input until it
// is closed, sleep waits for a signal; anything else does not exist.
func (f *Fake) StartProcess(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.StartProcess) (out holdfast.Process, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"StartProcess", in}, func() error {
		if err := f.ready(sandbox); err != nil {
			return err
		}
		for _, p := range f.processes {
			if in.RequestID != "" && p.record.RequestID == in.RequestID {
				out = p.record
				return nil
			}
		}
		p := &process{sandbox: sandbox, record: holdfast.Process{
			ID: holdfast.ProcessID(f.ids.New(holdfast.PrefixProcess)), RequestID: in.RequestID, Incarnation: 1, Command: in.Command, Args: in.Args,
			Cwd: in.Cwd, Env: in.Env, Terminal: in.Terminal != nil, PID: 100 + len(f.processes), State: holdfast.ProcessRunning, StartedAt: f.now(),
		}}
		switch in.Command {
		case "echo":
			p.stdout = []byte(strings.Join(in.Args, " ") + "\n")
			f.exit(p, 0)
		case "err":
			p.stderr = []byte(strings.Join(in.Args, " ") + "\n")
			f.exit(p, 0)
		case "exit":
			code, err := strconv.Atoi(in.Args[0])
			if err != nil {
				return err
			}
			f.exit(p, code)
		case "cat", "sleep":
		default:
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchCommand, "%s: no such command", in.Command).On(string(sandbox))
		}
		f.processes[p.record.ID] = p
		out = p.record
		return nil
	})
	return out, err
}

func (f *Fake) ready(id holdfast.SandboxID) error {
	s, ok := f.sandboxes[id]
	if !ok {
		return unknown("sandbox", string(id))
	}
	if s.State != holdfast.SandboxReady {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "sandbox is %s", s.State).On(string(id))
	}
	return nil
}

func (f *Fake) exit(p *process, code int) {
	p.record.State, p.record.ExitCode, p.record.FinishedAt = holdfast.ProcessExited, code, f.now()
	p.record.StdoutSize, p.record.StderrSize = int64(len(p.stdout)), int64(len(p.stderr))
}

// withProcess runs act on a process's record, locked.
func (f *Fake) withProcess(ctx context.Context, call Call, id holdfast.ProcessID, act func(*process) error) error {
	return f.do(ctx, call, func() error {
		p, ok := f.processes[id]
		if !ok {
			return unknown("process", string(id))
		}
		return act(p)
	})
}

// GetProcess reads a record.
func (f *Fake) GetProcess(ctx context.Context, _ holdfast.Caller, _ holdfast.SandboxID, id holdfast.ProcessID) (out holdfast.Process, err error) {
	err = f.withProcess(ctx, Call{"GetProcess", id}, id, func(p *process) error { out = p.record; return nil })
	return out, err
}

// ListProcesses lists a sandbox's processes by id.
func (f *Fake) ListProcesses(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID) (out []holdfast.Process, err error) {
	err = f.do(ctx, Call{"ListProcesses", sandbox}, func() error {
		if _, ok := f.sandboxes[sandbox]; !ok {
			return unknown("sandbox", string(sandbox))
		}
		for _, id := range slices.Sorted(maps.Keys(f.processes)) {
			if p := f.processes[id]; p.sandbox == sandbox {
				out = append(out, p.record)
			}
		}
		return nil
	})
	return out, err
}

// StreamProcessOutput yields what there is from the offsets on, and what comes.
func (f *Fake) StreamProcessOutput(ctx context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	err := f.withProcess(ctx, Call{"StreamProcessOutput", in}, in.Process, func(*process) error { return nil })
	for err == nil {
		f.mu.Lock()
		p := f.processes[in.Process]
		record, seen := p.record, f.changed
		stdout := bytes.Clone(p.stdout[min(in.StdoutOffset, int64(len(p.stdout))):])
		stderr := bytes.Clone(p.stderr[min(in.StderrOffset, int64(len(p.stderr))):])
		f.mu.Unlock()
		if len(stdout) > 0 {
			err = yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: in.StdoutOffset, Data: stdout})
			in.StdoutOffset += int64(len(stdout))
		}
		if len(stderr) > 0 && err == nil {
			err = yield(holdfast.OutputChunk{Stream: holdfast.Stderr, Offset: in.StderrOffset, Data: stderr})
			in.StderrOffset += int64(len(stderr))
		}
		if err == nil && (record.State == holdfast.ProcessExited || !in.Follow) {
			return record, nil
		}
		if err == nil {
			err = f.wait(ctx, seen)
		}
	}
	return holdfast.Process{}, err
}

// WriteProcessInput gives input to cat.
func (f *Fake) WriteProcessInput(ctx context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.ProcessInput) (offset int64, err error) {
	err = f.withProcess(ctx, Call{"WriteProcessInput", in}, in.Process, func(p *process) error {
		if p.record.State == holdfast.ProcessExited {
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonEnded, "the process has ended").On(string(in.Process))
		}
		if in.Offset >= 0 {
			in.Data = in.Data[min(max(p.input-in.Offset, 0), int64(len(in.Data))):]
		}
		p.stdout = append(p.stdout, in.Data...)
		p.input += int64(len(in.Data))
		offset = p.input
		if in.Close {
			f.exit(p, 0)
		}
		return nil
	})
	return offset, err
}

// SignalProcess ends a process by INT, TERM or KILL.
func (f *Fake) SignalProcess(ctx context.Context, _ holdfast.Caller, _ holdfast.SandboxID, id holdfast.ProcessID, signal string) error {
	return f.withProcess(ctx, Call{"SignalProcess", signal}, id, func(p *process) error {
		number, ok := map[string]int{"INT": 2, "KILL": 9, "TERM": 15}[signal]
		if !ok {
			return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "no signal %q", signal)
		}
		if p.record.State == holdfast.ProcessRunning {
			f.exit(p, 128+number)
		}
		return nil
	})
}

// ResizeTerminal takes any size.
func (f *Fake) ResizeTerminal(ctx context.Context, _ holdfast.Caller, _ holdfast.SandboxID, id holdfast.ProcessID, size holdfast.TerminalSize) error {
	return f.withProcess(ctx, Call{"ResizeTerminal", size}, id, func(*process) error { return nil })
}
