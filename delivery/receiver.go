package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// DefaultLimit is the largest delivery a receiver reads, in bytes.
const DefaultLimit = 1 << 20

// Source is who a request claims to come from, before its signature is checked.
type Source struct {
	// Name is unique among sources and becomes the inbox's source, for example
	// what [InstanceSource] gives (contract: B3).
	Name string
	// Secrets are those it may sign with, more than one while they are rotated.
	Secrets [][]byte
	// Tolerance bounds the timestamp's distance from now; 0 means no bound, which
	// is right for instances alone (contract: B8).
	Tolerance time.Duration
}

// Received is a delivery whose signature holds.
type Received struct {
	Source string // [Source].Name
	Signed
	Kind string // what happened
	Body []byte // its data, JSON; nil when there is none
	// At of Signed is the sender's claim; ReceivedAt is this receiver's clock.
	ReceivedAt time.Time
}

// Options configure [Handle].
type Options struct {
	// Authenticate finds the source that a request's URL or headers name; it reads
	// no body. An unknown source wraps [ErrUnauthenticated]; any other error is
	// answered 500 and retried by the sender. Required.
	Authenticate func(*http.Request) (Source, error)
	// Limit is the largest body in bytes; 0 means [DefaultLimit].
	Limit int64
	// RetryAfter is what an answer of 503 asks for, in whole seconds; 0 means 1 s.
	RetryAfter time.Duration
	// Clock stamps what arrives; nil means [time.Now].
	Clock func() time.Time
	// Log gets what is answered with an error; nil means [slog.Default].
	Log *slog.Logger
}

// Handle serves deliveries: it checks method, size, signature and form, calls
// accept, and answers what accept's error says (see [StatusOf]). Accept does its
// work in one transaction that also records (Source, ID) with package inbox, and
// returns nil for a repeat once the first one's transaction has committed; when it
// returns [ErrNotYet] that transaction must be rolled back, or the retry would be
// taken for a repeat. contract: B3, B7
func Handle(o Options, accept func(context.Context, Received) error) http.Handler {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.RetryAfter <= 0 {
		o.RetryAfter = time.Second
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "deliveries are posted", http.StatusMethodNotAllowed)
			return
		}
		received, err := o.open(w, r)
		if err == nil {
			err = accept(r.Context(), received)
		}
		o.answer(w, r, received, err)
	})
}

// open reads and authenticates one request.
func (o Options) open(w http.ResponseWriter, r *http.Request) (Received, error) {
	now := o.Clock()
	source, err := o.Authenticate(r)
	if err != nil {
		return Received{}, fmt.Errorf("authenticate: %w", err)
	}
	body, err := Read(w, r, o.Limit)
	if err != nil {
		return Received{Source: source.Name}, err
	}
	signed, err := source.verify(r.Header, body, now)
	if err != nil {
		return Received{Source: source.Name}, err
	}
	m, err := decode(signed.ID, body)
	return Received{Source: source.Name, Signed: signed, Kind: m.Kind, Body: m.Body, ReceivedAt: now}, err
}

func (s Source) verify(h http.Header, body []byte, now time.Time) (Signed, error) {
	var options []VerifyOption
	if s.Tolerance > 0 {
		options = append(options, WithTolerance(now, s.Tolerance))
	}
	failure := fmt.Errorf("%w: source %s has no secret", ErrUnauthenticated, s.Name)
	for _, secret := range s.Secrets {
		signed, err := Verify(secret, h, body, options...)
		if err == nil {
			return signed, nil
		}
		failure = err
	}
	return Signed{}, failure
}

// Read reads a request's body up to limit bytes. A larger one gives an error that
// wraps [*http.MaxBytesError]; one that was cut off gives the transport's error,
// which is nobody's 4xx: the sender tries again.
func Read(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("read the delivery: %w", err)
	}
	return body, nil
}

// StatusOf maps a receiver's outcome to the answer: nil 204, [ErrNotYet] 503,
// [*http.MaxBytesError] 413, [ErrUnauthenticated] 401, [ErrMalformed] 400, anything
// else 500. Only what can never succeed is a 4xx, since those are never retried
// (contract: B5, B7).
func StatusOf(err error) int {
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return http.StatusNoContent
	case errors.Is(err, ErrNotYet):
		return http.StatusServiceUnavailable
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, ErrMalformed):
		return http.StatusBadRequest
	default:
		return http.StatusInternalServerError
	}
}

// answer writes the outcome. A 5xx keeps its cause to our log; a 4xx tells the
// sender what to correct.
func (o Options) answer(w http.ResponseWriter, r *http.Request, d Received, err error) {
	status := StatusOf(err)
	if err == nil {
		w.WriteHeader(status)
		return
	}
	o.Log.LogAttrs(r.Context(), slog.LevelWarn, "delivery not accepted",
		slog.String("source", d.Source), slog.String("id", d.ID), slog.String("kind", d.Kind),
		slog.Int("status", status), slog.Any("error", err))
	text := err.Error()
	switch {
	case status == http.StatusServiceUnavailable:
		seconds := max(1, int(o.RetryAfter.Round(time.Second)/time.Second))
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
		text = ErrNotYet.Error()
	case status >= http.StatusInternalServerError:
		text = "not accepted, try again"
	}
	http.Error(w, text, status)
}
