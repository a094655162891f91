package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// maxLine bounds one frame of a stream, in bytes. What comes from a guest may be
// endless.
const maxLine = 8 << 20

// frame is one line of a stream. Exactly one field is set; Done, or Process
// after chunks, or Error ends it.
type frame struct {
	Started bool                  `json:"started,omitempty"`
	Chunk   *holdfast.OutputChunk `json:"chunk,omitempty"`
	Listed  *holdfast.Process     `json:"listed,omitempty"`
	Info    *holdfast.FileInfo    `json:"info,omitempty"`
	Event   *holdfast.FileEvent   `json:"event,omitempty"`
	Process *holdfast.Process     `json:"process,omitempty"`
	Done    bool                  `json:"done,omitempty"`
	Error   *holdfast.Error       `json:"error,omitempty"`
}

// stream serves one call whose answer is frames. fn's error before its first
// frame is an ordinary reply; later it is the last frame.
func stream[In any](mux *http.ServeMux, path string, fn func(ctx context.Context, in In, send func(frame) error) (last frame, err error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := hop.Decode(w, r, &in); err != nil {
			hop.Fail(w, err)
			return
		}
		// Only a body read to its end lets the server notice that a client hung up.
		if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, hop.MaxBody)); err != nil {
			hop.Fail(w, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "the request broke off").Because(err))
			return
		}
		lines := &lineWriter{w: w, encoder: json.NewEncoder(w), control: http.NewResponseController(w)}
		last, err := fn(r.Context(), in, lines.send)
		switch {
		case errors.Is(err, errHungUp):
			return
		case err != nil && !lines.begun:
			hop.Fail(w, err)
			return
		case err != nil:
			last = frame{Error: wireError(err)}
		}
		// A client that hung up before the last frame knows that it is missing.
		_ = lines.send(last)
	})
}

// wireError is err as it crosses a hop: with its causes in the message.
func wireError(err error) *holdfast.Error {
	e := *holdfast.AsError(err)
	e.Message = err.Error()
	return &e
}

// errHungUp ends a stream that nobody reads.
var errHungUp = errors.New("the client hung up")

type lineWriter struct {
	w       http.ResponseWriter
	encoder *json.Encoder
	control *http.ResponseController
	begun   bool
}

func (l *lineWriter) send(f frame) error {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	err := l.encoder.Encode(f)
	if err == nil {
		err = l.control.Flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errHungUp, err)
	}
	return nil
}

// receive makes a call whose answer is frames, and hands each but the last to
// each. It returns the last one, and each's error as it is.
func receive[In any](ctx context.Context, c hop.Client, path string, in In, each func(frame) error) (last frame, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return last, fmt.Errorf("%s: encode: %w", path, err)
	}
	res, err := c.Do(ctx, path, bytes.NewReader(body))
	if err != nil {
		return last, err
	}
	// What is left of the answer does not matter once it is over.
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var f frame
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			return last, broken(ctx, path, err)
		}
		switch {
		case f.Error != nil:
			return last, f.Error
		case f.Done, f.Process != nil:
			return f, nil
		}
		if err := each(f); err != nil {
			return last, err
		}
	}
	err = lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return last, broken(ctx, path, err)
}

// broken is a stream without its last frame.
func broken(ctx context.Context, path string, err error) error {
	if cause := ctx.Err(); cause != nil {
		return holdfast.AsError(cause)
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "the answer to %s broke off", path).Because(err)
}
