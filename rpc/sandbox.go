package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type sandboxHandler struct {
	service  holdfast.SandboxService
	patience time.Duration // with a watcher that takes nothing
}

func (h sandboxHandler) CreateSandbox(ctx context.Context, req *v1.CreateSandboxRequest) (*v1.Sandbox, error) {
	in, err := createFromWire(req)
	if err != nil {
		return nil, err
	}
	return answer(sandboxToWire)(h.service.CreateSandbox(ctx, callerOf(ctx), in))
}

func (h sandboxHandler) GetSandbox(ctx context.Context, req *v1.GetSandboxRequest) (*v1.Sandbox, error) {
	return answer(sandboxToWire)(h.service.GetSandbox(ctx, callerOf(ctx), holdfast.SandboxID(req.GetId())))
}

func (h sandboxHandler) ListSandboxes(ctx context.Context, req *v1.ListSandboxesRequest) (*v1.ListSandboxesResponse, error) {
	page, err := h.service.ListSandboxes(ctx, callerOf(ctx), listFromWire(req))
	for i := range page.Sandboxes {
		page.Sandboxes[i].Env = nil // up to 64 KiB each: a page would not fit in a message
	}
	return answer(pageToWire)(page, err)
}

func (h sandboxHandler) SuspendSandbox(ctx context.Context, req *v1.SuspendSandboxRequest) (*v1.Sandbox, error) {
	return answer(sandboxToWire)(h.service.SuspendSandbox(ctx, callerOf(ctx), mutateFromWire(req)))
}

func (h sandboxHandler) ResumeSandbox(ctx context.Context, req *v1.ResumeSandboxRequest) (*v1.Sandbox, error) {
	return answer(sandboxToWire)(h.service.ResumeSandbox(ctx, callerOf(ctx), mutateFromWire(req)))
}

func (h sandboxHandler) DeleteSandbox(ctx context.Context, req *v1.DeleteSandboxRequest) (*v1.Sandbox, error) {
	return answer(sandboxToWire)(h.service.DeleteSandbox(ctx, callerOf(ctx), mutateFromWire(req)))
}

func (h sandboxHandler) ExtendSandbox(ctx context.Context, req *v1.ExtendSandboxRequest) (*v1.Sandbox, error) {
	in, err := extendFromWire(req)
	if err != nil {
		return nil, err
	}
	return answer(sandboxToWire)(h.service.ExtendSandbox(ctx, callerOf(ctx), in))
}

func (h sandboxHandler) SetSandboxLifetime(ctx context.Context, req *v1.SetSandboxLifetimeRequest) (*v1.Sandbox, error) {
	in, err := lifetimeFromWire(req)
	if err != nil {
		return nil, err
	}
	return answer(sandboxToWire)(h.service.SetSandboxLifetime(ctx, callerOf(ctx), in))
}

func (h sandboxHandler) WatchSandboxes(ctx context.Context, req *v1.WatchSandboxesRequest, stream *connect.ServerStream[v1.SandboxEvent]) error {
	return h.service.WatchSandboxes(ctx, callerOf(ctx), holdfast.WatchSandboxes{After: req.GetAfter()}, func(e holdfast.SandboxEvent) error {
		return within(ctx, h.patience, func() error { return stream.Send(eventToWire(e)) })
	})
}

func (h sandboxHandler) StreamSandboxLog(ctx context.Context, req *v1.StreamSandboxLogRequest, stream *connect.ServerStream[v1.OutputChunk]) error {
	in := holdfast.SandboxLog{ID: holdfast.SandboxID(req.GetId()), Offset: req.GetOffset(), Follow: req.GetFollow()}
	return h.service.StreamSandboxLog(ctx, callerOf(ctx), in, func(c holdfast.OutputChunk) error {
		return chunks(c, stream.Send)
	})
}

// mutateFromWire reads what suspend, resume and delete have in common.
func mutateFromWire(req interface {
	GetId() string
	GetIfGeneration() int64
}) holdfast.MutateSandbox {
	return holdfast.MutateSandbox{ID: holdfast.SandboxID(req.GetId()), IfGeneration: req.GetIfGeneration()}
}

// answer translates a service's answer where it is one.
func answer[A, W any](translate func(A) W) func(A, error) (W, error) {
	return func(a A, err error) (W, error) {
		if err != nil {
			var none W
			return none, err
		}
		return translate(a), nil
	}
}

type sandboxDialer struct {
	client holdfastv1connect.SandboxServiceClient
}

func (d sandboxDialer) CreateSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
	return call(ctx, "CreateSandbox", d.client.CreateSandbox, createToWire(in), sandboxFromWire)
}

func (d sandboxDialer) GetSandbox(ctx context.Context, _ holdfast.Caller, id holdfast.SandboxID) (holdfast.Sandbox, error) {
	return call(ctx, "GetSandbox", d.client.GetSandbox, &v1.GetSandboxRequest{Id: string(id)}, sandboxFromWire)
}

func (d sandboxDialer) ListSandboxes(ctx context.Context, _ holdfast.Caller, in holdfast.ListSandboxes) (holdfast.SandboxPage, error) {
	return call(ctx, "ListSandboxes", d.client.ListSandboxes, listToWire(in), pageFromWire)
}

func (d sandboxDialer) SuspendSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return call(ctx, "SuspendSandbox", d.client.SuspendSandbox, &v1.SuspendSandboxRequest{Id: string(in.ID), IfGeneration: in.IfGeneration}, sandboxFromWire)
}

func (d sandboxDialer) ResumeSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return call(ctx, "ResumeSandbox", d.client.ResumeSandbox, &v1.ResumeSandboxRequest{Id: string(in.ID), IfGeneration: in.IfGeneration}, sandboxFromWire)
}

func (d sandboxDialer) DeleteSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return call(ctx, "DeleteSandbox", d.client.DeleteSandbox, &v1.DeleteSandboxRequest{Id: string(in.ID), IfGeneration: in.IfGeneration}, sandboxFromWire)
}

func (d sandboxDialer) ExtendSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.ExtendSandbox) (holdfast.Sandbox, error) {
	return call(ctx, "ExtendSandbox", d.client.ExtendSandbox, extendToWire(in), sandboxFromWire)
}

func (d sandboxDialer) SetSandboxLifetime(ctx context.Context, _ holdfast.Caller, in holdfast.SetSandboxLifetime) (holdfast.Sandbox, error) {
	return call(ctx, "SetSandboxLifetime", d.client.SetSandboxLifetime, lifetimeToWire(in), sandboxFromWire)
}

func (d sandboxDialer) WatchSandboxes(ctx context.Context, _ holdfast.Caller, in holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	return received(ctx, "WatchSandboxes", opening(d.client.WatchSandboxes, &v1.WatchSandboxesRequest{After: in.After}), func(e *v1.SandboxEvent) error {
		return yield(eventFromWire(e))
	})
}

func (d sandboxDialer) StreamSandboxLog(ctx context.Context, _ holdfast.Caller, in holdfast.SandboxLog, yield func(holdfast.OutputChunk) error) error {
	req := &v1.StreamSandboxLogRequest{Id: string(in.ID), Offset: in.Offset, Follow: in.Follow}
	return received(ctx, "StreamSandboxLog", opening(d.client.StreamSandboxLog, req), func(c *v1.OutputChunk) error {
		return yield(chunkFromWire(c))
	})
}
