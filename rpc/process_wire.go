package rpc

import (
	"math"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

// maxChunk bounds what one message of a stream holds, in bytes.
const maxChunk = 256 << 10

func processToWire(p holdfast.Process) *v1.Process {
	out := &v1.Process{
		Id: string(p.ID), RequestId: p.RequestID, Incarnation: p.Incarnation,
		Command: text(p.Command), Args: each(p.Args, text), Cwd: text(p.Cwd), Env: texts(p.Env), Terminal: p.Terminal,
		Pid: int32(p.PID), State: enum[v1.Process_State](v1.Process_State_value, p.State), Lost: p.Lost,
		StdoutSize: p.StdoutSize, StderrSize: p.StderrSize,
		StartedAt: stamp(p.StartedAt), FinishedAt: stamp(p.FinishedAt),
	}
	if p.State == holdfast.ProcessExited && !p.Lost {
		code := int32(p.ExitCode)
		out.ExitCode = &code
	}
	return out
}

func processFromWire(p *v1.Process) holdfast.Process {
	return holdfast.Process{
		ID: holdfast.ProcessID(p.GetId()), RequestID: p.GetRequestId(), Incarnation: p.GetIncarnation(),
		Command: p.GetCommand(), Args: each(p.GetArgs(), func(s string) string { return s }), Cwd: p.GetCwd(), Env: filled(p.GetEnv()), Terminal: p.GetTerminal(),
		PID: int(p.GetPid()), State: word[holdfast.ProcessState](v1.Process_State_name, p.GetState()), ExitCode: int(p.GetExitCode()), Lost: p.GetLost(),
		StdoutSize: p.GetStdoutSize(), StderrSize: p.GetStderrSize(),
		StartedAt: instant(p.GetStartedAt()), FinishedAt: instant(p.GetFinishedAt()),
	}
}

func startToWire(sandbox holdfast.SandboxID, in holdfast.StartProcess) *v1.StartProcessRequest {
	out := &v1.StartProcessRequest{
		SandboxId: string(sandbox), RequestId: in.RequestID, Command: in.Command, Args: in.Args,
		Cwd: in.Cwd, Env: filled(in.Env), Stdin: in.Stdin, User: in.User,
	}
	if in.Terminal != nil {
		out.Terminal = sizeToWire(*in.Terminal)
	}
	return out
}

func startFromWire(in *v1.StartProcessRequest) (holdfast.StartProcess, error) {
	out := holdfast.StartProcess{
		RequestID: in.GetRequestId(), Command: in.GetCommand(), Args: each(in.GetArgs(), func(s string) string { return s }),
		Cwd: in.GetCwd(), Env: filled(in.GetEnv()), Stdin: in.GetStdin(), User: in.GetUser(),
	}
	if in.GetTerminal() == nil {
		return out, nil
	}
	size, err := sizeFromWire(in.GetTerminal())
	out.Terminal = &size
	return out, err
}

func sizeToWire(s holdfast.TerminalSize) *v1.TerminalSize {
	return &v1.TerminalSize{Columns: uint32(s.Columns), Rows: uint32(s.Rows)}
}

func sizeFromWire(s *v1.TerminalSize) (holdfast.TerminalSize, error) {
	if s.GetColumns() > math.MaxUint16 || s.GetRows() > math.MaxUint16 {
		return holdfast.TerminalSize{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField,
			"terminal is %d by %d characters; both must be 1 to %d", s.GetColumns(), s.GetRows(), math.MaxUint16).With("field", "terminal")
	}
	return holdfast.TerminalSize{Columns: uint16(s.GetColumns()), Rows: uint16(s.GetRows())}, nil
}

func chunkToWire(c holdfast.OutputChunk) *v1.OutputChunk {
	return &v1.OutputChunk{Stream: enum[v1.OutputChunk_Stream](v1.OutputChunk_Stream_value, c.Stream), Offset: c.Offset, Data: c.Data}
}

func chunkFromWire(c *v1.OutputChunk) holdfast.OutputChunk {
	return holdfast.OutputChunk{Stream: word[holdfast.Stream](v1.OutputChunk_Stream_name, c.GetStream()), Offset: c.GetOffset(), Data: c.GetData()}
}

// chunks sends a chunk in parts that a message can hold.
func chunks(c holdfast.OutputChunk, send func(*v1.OutputChunk) error) error {
	for len(c.Data) > maxChunk {
		part := c
		part.Data = c.Data[:maxChunk]
		if err := send(chunkToWire(part)); err != nil {
			return err
		}
		c.Data, c.Offset = c.Data[maxChunk:], c.Offset+maxChunk
	}
	return send(chunkToWire(c))
}

func processesToWire(all []holdfast.Process) *v1.ListProcessesResponse {
	return &v1.ListProcessesResponse{Processes: each(all, processToWire)}
}

func processesFromWire(all *v1.ListProcessesResponse) []holdfast.Process {
	return each(all.GetProcesses(), processFromWire)
}
