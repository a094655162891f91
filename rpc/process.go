package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type processHandler struct{ service holdfast.ProcessService }

func (h processHandler) StartProcess(ctx context.Context, req *v1.StartProcessRequest) (*v1.Process, error) {
	in, err := startFromWire(req)
	if err != nil {
		return nil, err
	}
	return answer(processToWire)(h.service.StartProcess(ctx, callerOf(ctx), sandboxOf(req), in))
}

func (h processHandler) GetProcess(ctx context.Context, req *v1.GetProcessRequest) (*v1.Process, error) {
	return answer(processToWire)(h.service.GetProcess(ctx, callerOf(ctx), sandboxOf(req), holdfast.ProcessID(req.GetProcessId())))
}

func (h processHandler) ListProcesses(ctx context.Context, req *v1.ListProcessesRequest) (*v1.ListProcessesResponse, error) {
	return answer(processesToWire)(h.service.ListProcesses(ctx, callerOf(ctx), sandboxOf(req)))
}

func (h processHandler) StreamProcessOutput(ctx context.Context, req *v1.StreamProcessOutputRequest, stream *connect.ServerStream[v1.StreamProcessOutputResponse]) error {
	in := holdfast.ReadOutput{
		Process: holdfast.ProcessID(req.GetProcessId()), Follow: req.GetFollow(),
		StdoutOffset: req.GetStdoutOffset(), StderrOffset: req.GetStderrOffset(),
	}
	process, err := h.service.StreamProcessOutput(ctx, callerOf(ctx), sandboxOf(req), in, func(c holdfast.OutputChunk) error {
		return chunks(c, func(c *v1.OutputChunk) error {
			return stream.Send(&v1.StreamProcessOutputResponse{Event: &v1.StreamProcessOutputResponse_Chunk{Chunk: c}})
		})
	})
	if err != nil {
		return err
	}
	return stream.Send(&v1.StreamProcessOutputResponse{Event: &v1.StreamProcessOutputResponse_Process{Process: processToWire(process)}})
}

func (h processHandler) WriteProcessInput(ctx context.Context, req *v1.WriteProcessInputRequest) (*v1.WriteProcessInputResponse, error) {
	in := holdfast.ProcessInput{Process: holdfast.ProcessID(req.GetProcessId()), Offset: -1, Data: req.GetData(), Close: req.GetClose()}
	if req.Offset != nil {
		if in.Offset = req.GetOffset(); in.Offset < 0 {
			return nil, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField,
				"offset is %d; it must not be negative: leave it out to append", in.Offset).With("field", "offset")
		}
	}
	offset, err := h.service.WriteProcessInput(ctx, callerOf(ctx), sandboxOf(req), in)
	return &v1.WriteProcessInputResponse{Offset: offset}, err
}

func (h processHandler) SignalProcess(ctx context.Context, req *v1.SignalProcessRequest) (*v1.SignalProcessResponse, error) {
	err := h.service.SignalProcess(ctx, callerOf(ctx), sandboxOf(req), holdfast.ProcessID(req.GetProcessId()), req.GetSignal())
	return &v1.SignalProcessResponse{}, err
}

func (h processHandler) ResizeTerminal(ctx context.Context, req *v1.ResizeTerminalRequest) (*v1.ResizeTerminalResponse, error) {
	size, err := sizeFromWire(req.GetSize())
	if err != nil {
		return nil, err
	}
	err = h.service.ResizeTerminal(ctx, callerOf(ctx), sandboxOf(req), holdfast.ProcessID(req.GetProcessId()), size)
	return &v1.ResizeTerminalResponse{}, err
}

// sandboxOf reads what every guest call has.
func sandboxOf(req interface{ GetSandboxId() string }) holdfast.SandboxID {
	return holdfast.SandboxID(req.GetSandboxId())
}

type processDialer struct {
	client holdfastv1connect.ProcessServiceClient
}

func (d processDialer) StartProcess(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.StartProcess) (holdfast.Process, error) {
	return call(ctx, "StartProcess", d.client.StartProcess, startToWire(sandbox, in), processFromWire)
}

func (d processDialer) GetProcess(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, id holdfast.ProcessID) (holdfast.Process, error) {
	return call(ctx, "GetProcess", d.client.GetProcess, &v1.GetProcessRequest{SandboxId: string(sandbox), ProcessId: string(id)}, processFromWire)
}

func (d processDialer) ListProcesses(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID) ([]holdfast.Process, error) {
	req := &v1.ListProcessesRequest{SandboxId: string(sandbox)}
	return call(ctx, "ListProcesses", d.client.ListProcesses, req, processesFromWire)
}

func (d processDialer) StreamProcessOutput(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	req := &v1.StreamProcessOutputRequest{
		SandboxId: string(sandbox), ProcessId: string(in.Process), Follow: in.Follow,
		StdoutOffset: in.StdoutOffset, StderrOffset: in.StderrOffset,
	}
	var last *v1.Process
	err := received(ctx, "StreamProcessOutput", opening(d.client.StreamProcessOutput, req), func(m *v1.StreamProcessOutputResponse) error {
		if c := m.GetChunk(); c != nil {
			return yield(chunkFromWire(c))
		}
		last = m.GetProcess()
		return nil
	})
	if err == nil && last == nil {
		err = interrupted("StreamProcessOutput", "the process")
	}
	if err != nil {
		return holdfast.Process{}, err
	}
	return processFromWire(last), nil
}

func (d processDialer) WriteProcessInput(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ProcessInput) (int64, error) {
	req := &v1.WriteProcessInputRequest{SandboxId: string(sandbox), ProcessId: string(in.Process), Data: in.Data, Close: in.Close}
	if in.Offset >= 0 {
		req.Offset = &in.Offset
	}
	return call(ctx, "WriteProcessInput", d.client.WriteProcessInput, req, (*v1.WriteProcessInputResponse).GetOffset)
}

func (d processDialer) SignalProcess(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, id holdfast.ProcessID, signal string) error {
	req := &v1.SignalProcessRequest{SandboxId: string(sandbox), ProcessId: string(id), Signal: signal}
	_, err := call(ctx, "SignalProcess", d.client.SignalProcess, req, nothing)
	return err
}

func (d processDialer) ResizeTerminal(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, id holdfast.ProcessID, size holdfast.TerminalSize) error {
	req := &v1.ResizeTerminalRequest{SandboxId: string(sandbox), ProcessId: string(id), Size: sizeToWire(size)}
	_, err := call(ctx, "ResizeTerminal", d.client.ResizeTerminal, req, nothing)
	return err
}
