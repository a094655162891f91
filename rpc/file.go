package rpc

import (
	"context"
	"errors"
	"io"
	"sync"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type fileHandler struct{ service holdfast.FileService }

func (h fileHandler) ReadFile(ctx context.Context, req *v1.ReadFileRequest, stream *connect.ServerStream[v1.ReadFileResponse]) error {
	in := holdfast.ReadFile{Path: req.GetPath(), Offset: req.GetOffset(), Length: req.GetLength()}
	info, content, err := h.service.ReadFile(ctx, callerOf(ctx), sandboxOf(req), in)
	if err != nil {
		return err
	}
	return errors.Join(sendFile(info, content, stream.Send), content.Close())
}

func (h fileHandler) WriteFile(ctx context.Context, stream *connect.ClientStream[v1.WriteFileRequest]) (*v1.WriteFileResponse, error) {
	header, err := firstHeader(stream)
	if err != nil {
		return nil, err
	}
	sandbox, in := headerFromWire(header)
	content := &upload{stream: stream, sum: newSum()}
	written, err := h.service.WriteFile(ctx, callerOf(ctx), sandbox, in, content)
	if err != nil {
		return nil, content.explain(err)
	}
	return writtenToWire(written), nil
}

func (h fileHandler) StatFile(ctx context.Context, req *v1.StatFileRequest) (*v1.FileInfo, error) {
	return answer(infoToWire)(h.service.StatFile(ctx, callerOf(ctx), sandboxOf(req), req.GetPath()))
}

func (h fileHandler) ListDirectory(ctx context.Context, req *v1.ListDirectoryRequest) (*v1.ListDirectoryResponse, error) {
	return answer(entriesToWire)(h.service.ListDirectory(ctx, callerOf(ctx), sandboxOf(req), req.GetPath()))
}

func (h fileHandler) MakeDirectory(ctx context.Context, req *v1.MakeDirectoryRequest) (*v1.FileInfo, error) {
	return answer(infoToWire)(h.service.MakeDirectory(ctx, callerOf(ctx), sandboxOf(req), req.GetPath(), req.GetMode()))
}

func (h fileHandler) MoveFile(ctx context.Context, req *v1.MoveFileRequest) (*v1.FileInfo, error) {
	return answer(infoToWire)(h.service.MoveFile(ctx, callerOf(ctx), sandboxOf(req), req.GetFrom(), req.GetTo()))
}

func (h fileHandler) RemoveFile(ctx context.Context, req *v1.RemoveFileRequest) (*v1.RemoveFileResponse, error) {
	return &v1.RemoveFileResponse{}, h.service.RemoveFile(ctx, callerOf(ctx), sandboxOf(req), req.GetPath(), req.GetRecursive())
}

func (h fileHandler) WatchDirectory(ctx context.Context, req *v1.WatchDirectoryRequest, stream *connect.ServerStream[v1.WatchDirectoryResponse]) error {
	var sending sync.Mutex // started may be told from another goroutine than the changes
	var failed error
	send := func(m *v1.WatchDirectoryResponse) error {
		sending.Lock()
		defer sending.Unlock()
		if failed == nil {
			failed = stream.Send(m)
		}
		return failed
	}
	in := holdfast.WatchDirectory{Path: req.GetPath(), Recursive: req.GetRecursive(), Started: func() {
		_ = send(&v1.WatchDirectoryResponse{Event: &v1.WatchDirectoryResponse_Started{Started: &v1.WatchStarted{}}}) // kept in failed
	}}
	return h.service.WatchDirectory(ctx, callerOf(ctx), sandboxOf(req), in, func(e holdfast.FileEvent) error {
		return send(changeToWire(e))
	})
}

type fileDialer struct {
	client holdfastv1connect.FileServiceClient
}

// ReadFile returns a reader that fails, instead of ending, where the content did
// not arrive whole.
func (d fileDialer) ReadFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	reading, giveUp := context.WithCancel(ctx)
	req := &v1.ReadFileRequest{SandboxId: string(sandbox), Path: in.Path, Offset: in.Offset, Length: in.Length}
	stream, err := d.client.ReadFile(reading, req)
	if err != nil {
		giveUp()
		return holdfast.FileInfo{}, nil, fromWire(ctx, "ReadFile", err)
	}
	content := &download{ctx: ctx, stream: stream, giveUp: giveUp, sum: newSum()}
	info, err := content.info()
	if err != nil {
		return holdfast.FileInfo{}, nil, errors.Join(err, content.Close())
	}
	return info, content, nil
}

func (d fileDialer) WriteFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	writing, giveUp := context.WithCancel(ctx)
	defer giveUp()
	stream, err := d.client.WriteFile(writing)
	if err != nil {
		return holdfast.FileWritten{}, fromWire(ctx, "WriteFile", err)
	}
	if err := sendUpload(headerToWire(sandbox, in), content, stream.Send); err != nil {
		giveUp() // the server must not take what it has for the whole
		_, _ = stream.CloseAndReceive()
		return holdfast.FileWritten{}, err
	}
	answer, err := stream.CloseAndReceive()
	if err != nil {
		return holdfast.FileWritten{}, fromWire(ctx, "WriteFile", err)
	}
	return writtenFromWire(answer), nil
}

func (d fileDialer) StatFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, path string) (holdfast.FileInfo, error) {
	return call(ctx, "StatFile", d.client.StatFile, &v1.StatFileRequest{SandboxId: string(sandbox), Path: path}, infoFromWire)
}

func (d fileDialer) ListDirectory(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, path string) ([]holdfast.FileInfo, error) {
	req := &v1.ListDirectoryRequest{SandboxId: string(sandbox), Path: path}
	return call(ctx, "ListDirectory", d.client.ListDirectory, req, entriesFromWire)
}

func (d fileDialer) MakeDirectory(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, path string, mode uint32) (holdfast.FileInfo, error) {
	return call(ctx, "MakeDirectory", d.client.MakeDirectory, &v1.MakeDirectoryRequest{SandboxId: string(sandbox), Path: path, Mode: mode}, infoFromWire)
}

func (d fileDialer) MoveFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, from, to string) (holdfast.FileInfo, error) {
	return call(ctx, "MoveFile", d.client.MoveFile, &v1.MoveFileRequest{SandboxId: string(sandbox), From: from, To: to}, infoFromWire)
}

func (d fileDialer) RemoveFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, path string, recursive bool) error {
	req := &v1.RemoveFileRequest{SandboxId: string(sandbox), Path: path, Recursive: recursive}
	_, err := call(ctx, "RemoveFile", d.client.RemoveFile, req, nothing)
	return err
}

func (d fileDialer) WatchDirectory(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WatchDirectory, yield func(holdfast.FileEvent) error) error {
	req := &v1.WatchDirectoryRequest{SandboxId: string(sandbox), Path: in.Path, Recursive: in.Recursive}
	return received(ctx, "WatchDirectory", opening(d.client.WatchDirectory, req), func(m *v1.WatchDirectoryResponse) error {
		if change := m.GetChange(); change != nil {
			return yield(changeFromWire(change))
		}
		if m.GetStarted() != nil && in.Started != nil {
			in.Started()
		}
		return nil
	})
}
