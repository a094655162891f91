package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"mime"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast"
)

// strictJSON reads requests in JSON and refuses what they have that the API has
// not: a misspelt field or state, ignored, would be a default that nobody wanted.
type strictJSON struct{ name string }

// strictly makes a handler read JSON by strictJSON, under both names it has.
func strictly() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
}

// Name is the codec's, as content types end.
func (c strictJSON) Name() string { return c.name }

// Marshal writes a message.
func (strictJSON) Marshal(value any) ([]byte, error) {
	m, err := protoMessage(value)
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(m)
}

// Unmarshal reads a message, all of which it must know.
func (strictJSON) Unmarshal(data []byte, value any) error {
	m, err := protoMessage(value)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		return errors.New("the body is empty; a JSON object is needed, such as {}")
	}
	return protojson.Unmarshal(data, m)
}

func protoMessage(value any) (proto.Message, error) {
	m, ok := value.(proto.Message)
	if !ok {
		return nil, errors.New("not a message")
	}
	return m, nil
}

// explained adds to the refusals that Connect makes before a handler runs (a
// body that cannot be read, or is too large) the ErrorInfo that every other
// error has (contract: A8). Those of gRPC keep to their code and message.
func explained(logger *slog.Logger, write *connect.ErrorWriter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isUnary(r.Header.Get("Content-Type")) && r.Method != http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		held := &refusal{ResponseWriter: w}
		next.ServeHTTP(held, r)
		if held.status == 0 {
			return // no refusal
		}
		if err := held.finish(write, r); err != nil {
			logger.DebugContext(r.Context(), "refusal not delivered", "error", err)
		}
	})
}

// isUnary reports whether a request of that type is one message of Connect's.
func isUnary(contentType string) bool {
	if contentType == "application/proto" || contentType == "application/json" { // as clients write them
		return true
	}
	content, _, err := mime.ParseMediaType(contentType)
	return err == nil && (content == "application/json" || content == "application/proto")
}

// refusal holds back an answer that is an error of Connect's.
type refusal struct {
	http.ResponseWriter
	passed bool
	status int // of what is held back; 0: nothing is
	body   bytes.Buffer
}

// WriteHeader decides whether the answer is one to hold back.
func (h *refusal) WriteHeader(status int) {
	if !h.passed && status >= http.StatusBadRequest && h.Header().Get("Content-Type") == "application/json" {
		h.status = status
		return
	}
	h.passed = true
	h.ResponseWriter.WriteHeader(status)
}

// Write writes, or holds back.
func (h *refusal) Write(data []byte) (int, error) {
	if h.status != 0 {
		return h.body.Write(data)
	}
	h.passed = true
	return h.ResponseWriter.Write(data)
}

// Unwrap is for http.ResponseController.
func (h *refusal) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// finish sends what was held back, explained where it was not.
func (h *refusal) finish(write *connect.ErrorWriter, r *http.Request) error {
	var said struct {
		Code    connect.Code      `json:"code"`
		Message string            `json:"message"`
		Details []json.RawMessage `json:"details"`
	}
	if err := json.Unmarshal(h.body.Bytes(), &said); err == nil && len(said.Details) == 0 && said.Code != 0 {
		row := byWire(said.Code)
		h.Header().Del("Content-Length")
		return write.Write(h.ResponseWriter, r, toWire(holdfast.E(row.code, row.reason, "%s", said.Message)))
	}
	h.ResponseWriter.WriteHeader(h.status)
	_, err := h.ResponseWriter.Write(h.body.Bytes())
	return err
}
