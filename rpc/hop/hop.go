// Package hop is the plain HTTP and JSON between the parties (H2, H3, H11): one
// POST a call, the request as its body, and either the answer or a
// holdfast.Error as the reply. A hop never retries; its outermost caller does
// (trap T22).
package hop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/holdfast-dev/holdfast"
)

// MaxBody bounds a request and an answer that are not streams, in bytes.
const MaxBody = 8 << 20

// Client reaches one party. HTTP's transport decides how: a network, or memory.
type Client struct {
	HTTP  *http.Client
	URL   string // without a trailing slash
	Token string // "" sends none
}

// Call makes one call. What the transport cannot say is UNAVAILABLE, reason
// UNREACHABLE: the call may have happened.
func Call[In, Out any](ctx context.Context, c Client, path string, in In) (Out, error) {
	var out Out
	body, err := encode(&in)
	if err != nil {
		return out, fmt.Errorf("%s: encode: %w", path, err)
	}
	res, err := c.Do(ctx, path, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	err = decode(io.LimitReader(res.Body, MaxBody), res.ContentLength, &out)
	if err != nil {
		err = unreachable(ctx, path, err)
	}
	return out, errors.Join(err, closed(path, res.Body))
}

// decode reads a message of a length that was announced, or of any where -1 was.
func decode(from io.Reader, length int64, into any) error {
	var raw []byte
	var err error
	if length > 0 && length <= MaxBody {
		raw = make([]byte, length)
		_, err = io.ReadFull(from, raw)
	} else {
		raw, err = io.ReadAll(from)
	}
	if err != nil {
		return err
	}
	return unmarshal(raw, into)
}

// Do posts body to path and returns the answer when it is a success; the caller
// closes its body. Streams use it directly.
func (c Client) Do(ctx context.Context, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	res, err := c.roundTrip(req)
	if err != nil {
		return nil, unreachable(ctx, path, err)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	return nil, errors.Join(readError(ctx, path, res), closed(path, res.Body))
}

// roundTrip sends a request by the client's transport alone, where it has nothing else to heed: parties redirect nobody
// and have no cookies, and what a client does about both costs more than memory's transport itself.
func (c Client) roundTrip(req *http.Request) (*http.Response, error) {
	if c.HTTP.Transport == nil || c.HTTP.Timeout != 0 || c.HTTP.Jar != nil {
		return c.HTTP.Do(req)
	}
	return c.HTTP.Transport.RoundTrip(req)
}

func unreachable(ctx context.Context, path string, err error) error {
	if cause := ctx.Err(); cause != nil {
		return holdfast.AsError(cause)
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer to %s; it may have happened", path).Because(err)
}

func closed(path string, body io.Closer) error {
	if err := body.Close(); err != nil {
		return fmt.Errorf("%s: close the answer: %w", path, err)
	}
	return nil
}

func readError(ctx context.Context, path string, res *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(res.Body, MaxBody))
	if err != nil {
		return unreachable(ctx, path, err)
	}
	var e holdfast.Error
	if err := json.Unmarshal(raw, &e); err == nil && e.Code != "" {
		return &e
	}
	code := holdfast.Internal
	if res.StatusCode == http.StatusBadGateway || res.StatusCode == http.StatusServiceUnavailable || res.StatusCode == http.StatusGatewayTimeout {
		code = holdfast.Unavailable
	}
	return holdfast.E(code, holdfast.ReasonUnreachable, "%s answered %s", path, res.Status)
}

// Handle serves one call at POST path.
func Handle[In, Out any](mux *http.ServeMux, path string, fn func(context.Context, In) (Out, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := Decode(w, r, &in); err != nil {
			Fail(w, err)
			return
		}
		out, err := fn(r.Context(), in)
		if err != nil {
			Fail(w, err)
			return
		}
		Answer(w, &out)
	})
}

// Decode reads a call's request, bounded by MaxBody.
func Decode(w http.ResponseWriter, r *http.Request, in any) error {
	if err := decode(http.MaxBytesReader(w, r.Body, MaxBody), r.ContentLength, in); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonTooLarge, "the request is larger than %d bytes", tooLarge.Limit)
		}
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "the request is not the JSON this call takes").Because(err)
	}
	return nil
}

// Answer writes out as the call's reply.
func Answer(w http.ResponseWriter, out any) {
	raw, err := encode(out)
	if err != nil {
		Fail(w, fmt.Errorf("encode the answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw) // a client that hung up asks again
}

// Fail writes err as the call's reply.
func Fail(w http.ResponseWriter, err error) {
	e := *holdfast.AsError(err)
	e.Message = err.Error()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(Status(e.Code))
	_ = json.NewEncoder(w).Encode(&e)
}

// Status is the HTTP status of a code between the parties.
func Status(code holdfast.Code) int {
	switch code {
	case holdfast.InvalidArgument, holdfast.OutOfRange:
		return http.StatusBadRequest
	case holdfast.Unauthenticated:
		return http.StatusUnauthorized
	case holdfast.PermissionDenied:
		return http.StatusForbidden
	case holdfast.NotFound:
		return http.StatusNotFound
	case holdfast.AlreadyExists, holdfast.Aborted:
		return http.StatusConflict
	case holdfast.FailedPrecondition:
		return http.StatusPreconditionFailed
	case holdfast.ResourceExhausted:
		return http.StatusTooManyRequests
	case holdfast.Unavailable:
		return http.StatusServiceUnavailable
	case holdfast.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case holdfast.Cancelled:
		return 499
	case holdfast.Unimplemented:
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}
