package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// Dial returns the guest that Handler serves at c's URL. Nothing is sent before
// the first call, and no call is repeated (trap T45).
func Dial(c hop.Client) holdfast.Guest {
	return holdfast.Guest{
		Processes: processes{c},
		Files:     files{c},
		Log: func(ctx context.Context, offset int64, follow bool, yield func(holdfast.OutputChunk) error) error {
			_, err := receive(ctx, c, "/log", logRequest{offset, follow}, chunks(yield))
			return err
		},
		Status: func(ctx context.Context) (holdfast.GuestStatus, error) {
			return hop.Call[nothing, holdfast.GuestStatus](ctx, c, "/status", nothing{})
		},
	}
}

// Over is Dial on connections of its own: those to one boot's guest agent. Idle
// ones end by themselves.
func Over(dial func(ctx context.Context) (net.Conn, error)) holdfast.Guest {
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        10 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return Dial(hop.Client{HTTP: &http.Client{Transport: transport}, URL: "http://guest"})
}

// chunks hands out the chunks of a stream.
func chunks(yield func(holdfast.OutputChunk) error) func(frame) error {
	return func(f frame) error {
		if f.Chunk == nil {
			return nil
		}
		return yield(*f.Chunk)
	}
}

type processes struct{ c hop.Client }

func (p processes) StartProcess(ctx context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
	return hop.Call[holdfast.StartProcess, holdfast.Process](ctx, p.c, "/processes/start", in)
}

func (p processes) GetProcess(ctx context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	return hop.Call[processRequest, holdfast.Process](ctx, p.c, "/processes/get", processRequest{id})
}

func (p processes) ListProcesses(ctx context.Context) (list []holdfast.Process, err error) {
	_, err = receive(ctx, p.c, "/processes/list", nothing{}, func(f frame) error {
		if f.Listed != nil {
			list = append(list, *f.Listed)
		}
		return nil
	})
	return list, err
}

func (p processes) StreamProcessOutput(ctx context.Context, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	last, err := receive(ctx, p.c, "/processes/output", in, chunks(yield))
	if err == nil && last.Process == nil {
		err = broken(ctx, "/processes/output", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return holdfast.Process{}, err
	}
	return *last.Process, nil
}

func (p processes) WriteProcessInput(ctx context.Context, in holdfast.ProcessInput) (int64, error) {
	answer, err := hop.Call[holdfast.ProcessInput, inputAnswer](ctx, p.c, "/processes/input", in)
	if err == nil {
		return answer.Offset, nil
	}
	var e *holdfast.Error
	if errors.As(err, &e) {
		if offset, parse := strconv.ParseInt(e.Details["offset"], 10, 64); parse == nil {
			return offset, err
		}
	}
	return 0, err
}

func (p processes) SignalProcess(ctx context.Context, id holdfast.ProcessID, signal string) error {
	_, err := hop.Call[signalRequest, nothing](ctx, p.c, "/processes/signal", signalRequest{id, signal})
	return err
}

func (p processes) ResizeTerminal(ctx context.Context, id holdfast.ProcessID, size holdfast.TerminalSize) error {
	_, err := hop.Call[resizeRequest, nothing](ctx, p.c, "/processes/resize", resizeRequest{id, size})
	return err
}

type files struct{ c hop.Client }

func (f files) StatFile(ctx context.Context, path string) (holdfast.FileInfo, error) {
	return hop.Call[pathRequest, holdfast.FileInfo](ctx, f.c, "/files/stat", pathRequest{path})
}

func (f files) ListDirectory(ctx context.Context, path string) (list []holdfast.FileInfo, err error) {
	_, err = receive(ctx, f.c, "/files/list", pathRequest{path}, func(f frame) error {
		if f.Info != nil {
			list = append(list, *f.Info)
		}
		return nil
	})
	return list, err
}

func (f files) MakeDirectory(ctx context.Context, path string, mode uint32) (holdfast.FileInfo, error) {
	return hop.Call[directoryRequest, holdfast.FileInfo](ctx, f.c, "/files/mkdir", directoryRequest{path, mode})
}

func (f files) MoveFile(ctx context.Context, from, to string) (holdfast.FileInfo, error) {
	return hop.Call[moveRequest, holdfast.FileInfo](ctx, f.c, "/files/move", moveRequest{from, to})
}

func (f files) RemoveFile(ctx context.Context, path string, recursive bool) error {
	_, err := hop.Call[removeRequest, nothing](ctx, f.c, "/files/remove", removeRequest{path, recursive})
	return err
}

func (f files) WatchDirectory(ctx context.Context, in holdfast.WatchDirectory, yield func(holdfast.FileEvent) error) error {
	_, err := receive(ctx, f.c, "/files/watch", in, func(f frame) error {
		if f.Started && in.Started != nil {
			in.Started()
		}
		if f.Event == nil {
			return nil
		}
		return yield(*f.Event)
	})
	return err
}

// ReadFile's reader fails with UNAVAILABLE, INTERRUPTED where the content was cut.
func (f files) ReadFile(ctx context.Context, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	var info holdfast.FileInfo
	body, err := json.Marshal(in)
	if err != nil {
		return info, nil, fmt.Errorf("/files/read: encode: %w", err)
	}
	res, err := f.c.Do(ctx, "/files/read", bytes.NewReader(body))
	if err != nil {
		return info, nil, err
	}
	if err := readHeader(res.Body, &info); err != nil {
		return info, nil, errors.Join(err, res.Body.Close())
	}
	return info, download{&contentReader{from: res.Body}, res.Body}, nil
}

type download struct {
	io.Reader
	io.Closer
}

// WriteFile sends content as it reads it. When content fails, nothing of a
// replacement is kept, and its error is in the chain of what is returned.
func (f files) WriteFile(ctx context.Context, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	var written holdfast.FileWritten
	body, upload := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		contentErr, err := writeContent(upload, in, content)
		failed <- contentErr
		upload.CloseWithError(err)
	}()
	// The transport waits for its body, and the content may be waiting for ever.
	stop := context.AfterFunc(ctx, func() { body.CloseWithError(ctx.Err()) })
	defer stop()
	res, err := f.c.Do(ctx, "/files/write", body)
	// An answer that came before the end of the content ends the sending.
	body.CloseWithError(errHungUp)
	if err != nil {
		return written, because(err, failed)
	}
	if err = json.NewDecoder(io.LimitReader(res.Body, hop.MaxBody)).Decode(&written); err != nil {
		err = broken(ctx, "/files/write", err)
	}
	return written, errors.Join(err, res.Body.Close())
}

// because adds the content's own error, if it has already failed.
func because(err error, failed <-chan error) error {
	select {
	case contentErr := <-failed:
		if contentErr != nil {
			return holdfast.AsError(err).Because(contentErr)
		}
	default:
	}
	return err
}
