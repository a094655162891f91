package mcp

import (
	"context"
	"encoding/base64"
	"errors"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
)

// maxRead bounds what one call of read_output or read_file returns, in bytes.
const maxRead = 1 << 20

// process is a command as tools answer it.
type process struct {
	ID         string   `json:"id"`
	RequestID  string   `json:"request_id,omitempty"`
	Command    string   `json:"command"`
	Args       []string `json:"args,omitempty"`
	State      string   `json:"state" jsonschema:"RUNNING or EXITED"`
	ExitCode   *int     `json:"exit_code,omitempty" jsonschema:"128 + signal where a signal ended it; absent while it runs, and where it was lost with its instance"`
	Lost       bool     `json:"lost,omitempty" jsonschema:"it ended with its instance"`
	StdoutSize int64    `json:"stdout_size"`
	StderrSize int64    `json:"stderr_size"`
	StartedAt  string   `json:"started_at"`
	FinishedAt string   `json:"finished_at,omitempty"`
	Next       string   `json:"next" jsonschema:"what is safe to do next"`
}

func processOf(p holdfast.Process) process {
	out := process{ID: string(p.ID), RequestID: p.RequestID, Command: p.Command, Args: p.Args, State: string(p.State), Lost: p.Lost,
		StdoutSize: p.StdoutSize, StderrSize: p.StderrSize, StartedAt: stamp(p.StartedAt), FinishedAt: stamp(p.FinishedAt),
		Next: "it runs on by itself: read_output shows what it writes, kill_process ends it"}
	if p.State == holdfast.ProcessExited {
		out.Next = "it has ended: read_output shows what it wrote"
		if !p.Lost {
			out.ExitCode = &p.ExitCode
		}
	}
	return out
}

type startProcess struct {
	SandboxID string            `json:"sandbox_id"`
	Command   string            `json:"command" jsonschema:"a program, found in PATH; for a shell line: sh with args -c and the line"`
	Args      []string          `json:"args,omitempty"`
	RequestID string            `json:"request_id,omitempty" jsonschema:"names this start: the same id is the same process, and starts once"`
	Cwd       string            `json:"cwd,omitempty" jsonschema:"absolute; default the user's home"`
	Env       map[string]string `json:"env,omitempty"`
}

type processID struct {
	SandboxID string `json:"sandbox_id"`
	ProcessID string `json:"process_id" jsonschema:"pr-…"`
}

type killProcess struct {
	SandboxID string `json:"sandbox_id"`
	ProcessID string `json:"process_id"`
	Signal    string `json:"signal,omitempty" jsonschema:"TERM (default), KILL, INT, …; to the whole process group"`
}

type readOutput struct {
	SandboxID    string `json:"sandbox_id"`
	ProcessID    string `json:"process_id"`
	StdoutOffset int64  `json:"stdout_offset,omitempty" jsonschema:"bytes that were read already"`
	StderrOffset int64  `json:"stderr_offset,omitempty" jsonschema:"bytes that were read already"`
}

// output is a part of what a command wrote.
type output struct {
	Stdout       text    `json:"stdout"`
	Stderr       text    `json:"stderr"`
	StdoutOffset int64   `json:"stdout_offset" jsonschema:"where the next read goes on"`
	StderrOffset int64   `json:"stderr_offset" jsonschema:"where the next read goes on"`
	Process      process `json:"process"`
	More         bool    `json:"more" jsonschema:"there is more to read now"`
}

// text is what a command or file holds: as it is where it is UTF-8, else in base64.
type text struct {
	Text   string `json:"text,omitempty"`
	Base64 string `json:"base64,omitempty" jsonschema:"in place of text, where it is not UTF-8"`
}

func textOf(data []byte) text {
	if utf8.Valid(data) {
		return text{Text: string(data)}
	}
	return text{Base64: base64.StdEncoding.EncodeToString(data)}
}

// processes are the tools of commands.
func (t tools) processes(s *mcp.Server) {
	add(s, tool("start_process", "Starts a command in a READY sandbox and returns at once; it runs on whether or not anybody reads.", repeats), t.startProcess)
	add(s, tool("get_process", "Shows whether a command still runs, and its exit code.", reads), func(ctx context.Context, in processID) (process, error) {
		p, err := t.client.GetProcess(ctx, ids(in.SandboxID), holdfast.ProcessID(in.ProcessID))
		return processOf(p), err
	})
	add(s, tool("read_output", "Reads what a command wrote from the given offsets on, at most 1 MiB, and returns at once.", reads), t.readOutput)
	add(s, tool("kill_process", "Sends a signal to a command and everything it started.", ends), func(ctx context.Context, in killProcess) (process, error) {
		signal := in.Signal
		if signal == "" {
			signal = "TERM"
		}
		id := holdfast.ProcessID(in.ProcessID)
		if err := t.client.SignalProcess(ctx, ids(in.SandboxID), id, signal); err != nil && holdfast.ReasonOf(err) != holdfast.ReasonEnded {
			return process{}, err
		}
		p, err := t.client.GetProcess(ctx, ids(in.SandboxID), id)
		return processOf(p), err
	})
}

func (t tools) startProcess(ctx context.Context, in startProcess) (process, error) {
	start := holdfast.StartProcess{RequestID: requestID(in.RequestID), Command: in.Command, Args: in.Args, Cwd: in.Cwd, Env: in.Env}
	p, err := t.client.StartProcess(ctx, ids(in.SandboxID), start)
	return processOf(p), err
}

func (t tools) readOutput(ctx context.Context, in readOutput) (output, error) {
	r := reader{stdout: in.StdoutOffset, stderr: in.StderrOffset}
	p, err := t.client.StreamProcessOutput(ctx, ids(in.SandboxID), holdfast.ReadOutput{
		Process: holdfast.ProcessID(in.ProcessID), StdoutOffset: in.StdoutOffset, StderrOffset: in.StderrOffset}, r.take)
	if err != nil && !r.full {
		return output{}, err
	}
	if r.full {
		if p, err = t.client.GetProcess(ctx, ids(in.SandboxID), holdfast.ProcessID(in.ProcessID)); err != nil {
			return output{}, err
		}
	}
	return output{Stdout: textOf(r.out), Stderr: textOf(r.err), StdoutOffset: r.stdout, StderrOffset: r.stderr, Process: processOf(p),
		More: r.full || r.stdout < p.StdoutSize || r.stderr < p.StderrSize}, nil
}

// reader takes chunks until it has as much as one answer holds.
type reader struct {
	out, err       []byte
	stdout, stderr int64
	full           bool
}

// errFull ends a stream of which one answer holds no more.
var errFull = errors.New("one answer holds no more")

func (r *reader) take(c holdfast.OutputChunk) error {
	room := maxRead - len(r.out) - len(r.err)
	if len(c.Data) > room {
		c.Data, r.full = c.Data[:room], true
	}
	if c.Stream == holdfast.Stderr {
		r.err, r.stderr = append(r.err, c.Data...), c.Offset+int64(len(c.Data))
	} else {
		r.out, r.stdout = append(r.out, c.Data...), c.Offset+int64(len(c.Data))
	}
	if r.full {
		return errFull
	}
	return nil
}
