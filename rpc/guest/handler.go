package guest

import (
	"bufio"
	"context"
	"net/http"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// The requests that are not nouns of the vocabulary.
type (
	nothing        struct{}
	processRequest struct {
		Process holdfast.ProcessID `json:"process"`
	}
	signalRequest struct {
		Process holdfast.ProcessID `json:"process"`
		Signal  string             `json:"signal"`
	}
	resizeRequest struct {
		Process holdfast.ProcessID    `json:"process"`
		Size    holdfast.TerminalSize `json:"size"`
	}
	inputAnswer struct {
		Offset int64 `json:"offset"`
	}
	pathRequest struct {
		Path string `json:"path"`
	}
	directoryRequest struct {
		Path string `json:"path"`
		Mode uint32 `json:"mode"`
	}
	moveRequest struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	removeRequest struct {
		Path      string `json:"path"`
		Recursive bool   `json:"recursive"`
	}
	logRequest struct {
		Offset int64 `json:"offset"`
		Follow bool  `json:"follow"`
	}
)

// Handler serves g. It may be mounted below a prefix by http.StripPrefix. What g
// lacks answers UNIMPLEMENTED. A client that hangs up cancels its call, except
// that a start runs to its end.
func Handler(g holdfast.Guest) http.Handler {
	mux := http.NewServeMux()
	if g.Status != nil {
		hop.Handle(mux, "/status", func(ctx context.Context, _ nothing) (holdfast.GuestStatus, error) { return g.Status(ctx) })
	}
	if g.Log != nil {
		stream(mux, "/log", func(ctx context.Context, in logRequest, send func(frame) error) (frame, error) {
			err := g.Log(ctx, in.Offset, in.Follow, func(c holdfast.OutputChunk) error { return send(frame{Chunk: &c}) })
			return frame{Done: true}, err
		})
	}
	if g.Processes != nil {
		serveProcesses(mux, g.Processes)
	}
	if g.Files != nil {
		serveFiles(mux, g.Files)
		serveContents(mux, g.Files)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		hop.Fail(w, holdfast.E(holdfast.Unimplemented, holdfast.ReasonNotCapable, "%s %s is not served here", r.Method, r.URL.Path))
	})
	return mux
}

func serveProcesses(mux *http.ServeMux, p holdfast.GuestProcesses) {
	hop.Handle(mux, "/processes/start", func(ctx context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
		// Begun is begun: a caller that hung up asks again by its request id.
		return p.StartProcess(context.WithoutCancel(ctx), in)
	})
	hop.Handle(mux, "/processes/get", func(ctx context.Context, in processRequest) (holdfast.Process, error) {
		return p.GetProcess(ctx, in.Process)
	})
	hop.Handle(mux, "/processes/input", func(ctx context.Context, in holdfast.ProcessInput) (inputAnswer, error) {
		offset, err := p.WriteProcessInput(ctx, in)
		return inputAnswer{offset}, err
	})
	hop.Handle(mux, "/processes/signal", func(ctx context.Context, in signalRequest) (nothing, error) {
		return nothing{}, p.SignalProcess(ctx, in.Process, in.Signal)
	})
	hop.Handle(mux, "/processes/resize", func(ctx context.Context, in resizeRequest) (nothing, error) {
		return nothing{}, p.ResizeTerminal(ctx, in.Process, in.Size)
	})
	stream(mux, "/processes/list", func(ctx context.Context, _ nothing, send func(frame) error) (frame, error) {
		list, err := p.ListProcesses(ctx)
		if err != nil {
			return frame{}, err
		}
		for i := range list {
			if err := send(frame{Listed: &list[i]}); err != nil {
				return frame{}, err
			}
		}
		return frame{Done: true}, nil
	})
	stream(mux, "/processes/output", func(ctx context.Context, in holdfast.ReadOutput, send func(frame) error) (frame, error) {
		last, err := p.StreamProcessOutput(ctx, in, func(c holdfast.OutputChunk) error { return send(frame{Chunk: &c}) })
		return frame{Process: &last}, err
	})
}

func serveFiles(mux *http.ServeMux, f holdfast.GuestFiles) {
	hop.Handle(mux, "/files/stat", func(ctx context.Context, in pathRequest) (holdfast.FileInfo, error) {
		return f.StatFile(ctx, in.Path)
	})
	hop.Handle(mux, "/files/mkdir", func(ctx context.Context, in directoryRequest) (holdfast.FileInfo, error) {
		return f.MakeDirectory(ctx, in.Path, in.Mode)
	})
	hop.Handle(mux, "/files/move", func(ctx context.Context, in moveRequest) (holdfast.FileInfo, error) {
		return f.MoveFile(ctx, in.From, in.To)
	})
	hop.Handle(mux, "/files/remove", func(ctx context.Context, in removeRequest) (nothing, error) {
		return nothing{}, f.RemoveFile(ctx, in.Path, in.Recursive)
	})
	stream(mux, "/files/list", func(ctx context.Context, in pathRequest, send func(frame) error) (frame, error) {
		list, err := f.ListDirectory(ctx, in.Path)
		if err != nil {
			return frame{}, err
		}
		for i := range list {
			if err := send(frame{Info: &list[i]}); err != nil {
				return frame{}, err
			}
		}
		return frame{Done: true}, nil
	})
	stream(mux, "/files/watch", func(ctx context.Context, in holdfast.WatchDirectory, send func(frame) error) (frame, error) {
		var hungUp error
		in.Started = func() { hungUp = send(frame{Started: true}) }
		err := f.WatchDirectory(ctx, in, func(e holdfast.FileEvent) error {
			if hungUp != nil {
				return hungUp
			}
			return send(frame{Event: &e})
		})
		return frame{Done: true}, err
	})
}

// serveContents serves the two calls that carry whole files.
func serveContents(mux *http.ServeMux, f holdfast.GuestFiles) {
	mux.HandleFunc("POST /files/read", func(w http.ResponseWriter, r *http.Request) {
		var in holdfast.ReadFile
		if err := hop.Decode(w, r, &in); err != nil {
			hop.Fail(w, err)
			return
		}
		info, content, err := f.ReadFile(r.Context(), in)
		if err != nil {
			hop.Fail(w, err)
			return
		}
		// Closing wakes a read that waits, when the client hangs up. Nothing is
		// lost with what was only read from.
		stop := context.AfterFunc(r.Context(), func() { _ = content.Close() })
		w.Header().Set("Content-Type", "application/octet-stream")
		out := bufio.NewWriterSize(w, maxData+8)
		if _, err := writeContent(out, info, content); err == nil {
			// A client that hung up finds no end, and knows.
			_ = out.Flush()
		}
		if stop() {
			_ = content.Close()
		}
	})
	mux.HandleFunc("POST /files/write", func(w http.ResponseWriter, r *http.Request) {
		var in holdfast.WriteFile
		body := bufio.NewReaderSize(r.Body, 64<<10)
		if err := readHeader(body, &in); err != nil {
			hop.Fail(w, err)
			return
		}
		written, err := f.WriteFile(r.Context(), in, &contentReader{from: body})
		if err != nil {
			hop.Fail(w, err)
			return
		}
		hop.Answer(w, written)
	})
}
