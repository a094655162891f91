package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// The budget of a state-bearing event (contract: B5, B6).
const (
	// Attempts is how often a message is sent at most.
	Attempts = 3
	// AttemptTimeout is the default deadline of one attempt.
	AttemptTimeout = 10 * time.Second
	// DefaultSpread is how far, as a fraction, a pause is from its length at most.
	DefaultSpread = 0.2
)

// Sender delivers messages to one URL within a small, fixed budget, and keeps
// nothing: what must outlive the process goes through package outbox, whose rows
// are sent with [Sender.Attempt]. It is safe for concurrent use once its fields
// are set.
type Sender struct {
	Client *http.Client // nil: [http.DefaultClient]; redirects are never followed
	Secret []byte       // signs every attempt; required
	URL    string       // where the receiver listens; required

	// Timeout is each attempt's own deadline; 0 means [AttemptTimeout].
	Timeout time.Duration
	// Spread is the jitter's fraction of a pause, so that a fleet whose guests
	// failed together does not come back together (T23); 0 means [DefaultSpread].
	Spread float64

	// Clock gives the timestamps that are signed; nil means [time.Now].
	Clock func() time.Time
	// After times the pauses; nil means [time.After].
	After func(time.Duration) <-chan time.Time
	// Jitter gives a number in [0, 1) for the pause after an attempt (1, 2) of a
	// message, so that a simulation can derive it from both; nil means random.
	Jitter func(id string, attempt int) float64
}

// pauses are between attempts 1 and 2, and 2 and 3 (contract: B5).
func pauses() [Attempts - 1]time.Duration {
	return [...]time.Duration{time.Second, 5 * time.Second}
}

// Send delivers m, trying transport errors and answers that are neither 2xx nor
// 4xx again, always with the same id and body. It returns nil once an attempt was
// acknowledged, a [*RefusedError] for a 4xx, and an [*UndeliveredError] when the
// budget or ctx ended first; the receiver may have acted even then (contract: A2).
// Any other error means that m was never sent. contract: B5
func (s *Sender) Send(ctx context.Context, m Message) error {
	payload, err := s.prepare(m)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := s.attempt(ctx, m.ID, payload)
		var refused *RefusedError
		if err == nil || errors.As(err, &refused) {
			return err
		}
		if attempt == Attempts {
			return &UndeliveredError{ID: m.ID, Attempts: attempt, Err: err}
		}
		if stopped := s.pause(ctx, m.ID, attempt); stopped != nil {
			return &UndeliveredError{ID: m.ID, Attempts: attempt, Err: errors.Join(stopped, err)}
		}
	}
}

// Attempt sends m once, for callers that have a retry of their own: retries inside
// retries multiply (T22). Errors are a [*RefusedError], a [*StatusError] or the
// transport's.
func (s *Sender) Attempt(ctx context.Context, m Message) error {
	payload, err := s.prepare(m)
	if err != nil {
		return err
	}
	return s.attempt(ctx, m.ID, payload)
}

func (s *Sender) prepare(m Message) ([]byte, error) {
	if len(s.Secret) == 0 {
		return nil, errors.New("delivery: the sender has no secret to sign with")
	}
	payload, err := m.encode()
	if err != nil {
		return nil, fmt.Errorf("delivery: prepare: %w", err)
	}
	return payload, nil
}

func (s *Sender) attempt(ctx context.Context, id string, payload []byte) (err error) {
	timeout := s.Timeout
	if timeout <= 0 {
		timeout = AttemptTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(payload))
	if err != nil {
		return fmt.Errorf("delivery %s: make the request: %w", id, err)
	}
	now := time.Now
	if s.Clock != nil {
		now = s.Clock
	}
	req.Header = Sign(s.Secret, id, now(), payload)
	req.Header.Set("Content-Type", "application/json")

	res, err := Do(s.Client, req)
	if err != nil {
		return fmt.Errorf("delivery %s: send: %w", id, err)
	}
	return errors.Join(judge(id, res), closeBody(id, res))
}

// Do sends a request as its caller made it: no redirect is followed, since what is
// signed for one receiver is for it alone. Where the client has nothing else to
// heed, its transport sends it: what a client does about redirects and cookies costs
// more than a transport in memory itself. A nil client is [http.DefaultClient].
func Do(client *http.Client, req *http.Request) (*http.Response, error) {
	if client == nil {
		client = http.DefaultClient
	}
	if client.Transport != nil && client.Timeout == 0 && client.Jar == nil {
		return client.Transport.RoundTrip(req)
	}
	c := *client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c.Do(req)
}

// judge turns an answer into the attempt's outcome.
func judge(id string, res *http.Response) error {
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil
	}
	// The words are for people; a cut answer still has its status.
	text, err := io.ReadAll(io.LimitReader(res.Body, 512))
	reason := string(bytes.TrimSpace(text))
	if err != nil && reason == "" {
		reason = "its body could not be read: " + err.Error()
	}
	wait := retryAfter(res.Header.Get("Retry-After"))
	if res.StatusCode >= 400 && res.StatusCode < 500 {
		return &RefusedError{ID: id, Status: res.StatusCode, Reason: reason, RetryAfter: wait}
	}
	return &StatusError{ID: id, Status: res.StatusCode, Reason: reason, RetryAfter: wait}
}

// closeBody reads a little on, so that the connection can be used again. Its
// failures do not change an outcome that the status has settled: an
// acknowledgement whose body is cut is still one.
func closeBody(id string, res *http.Response) error {
	_, readErr := io.CopyN(io.Discard, res.Body, 4096)
	if errors.Is(readErr, io.EOF) {
		readErr = nil
	}
	err := errors.Join(readErr, res.Body.Close())
	if err == nil || res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil
	}
	return fmt.Errorf("delivery %s: close the answer: %w", id, err)
}

// retryAfter reads the seconds form alone: the date form would need the other
// side's clock to agree with ours.
func retryAfter(text string) time.Duration {
	seconds, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// pause waits between attempts; its error is the context's.
func (s *Sender) pause(ctx context.Context, id string, attempt int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	after := time.After
	if s.After != nil {
		after = s.After
	}
	select {
	case <-after(s.length(id, attempt)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// length is the nominal pause after an attempt, spread evenly to both sides.
func (s *Sender) length(id string, attempt int) time.Duration {
	spread, jitter := s.Spread, rand.Float64
	if spread == 0 {
		spread = DefaultSpread
	}
	if s.Jitter != nil {
		jitter = func() float64 { return s.Jitter(id, attempt) }
	}
	return time.Duration(float64(pauses()[attempt-1]) * (1 + spread*(2*jitter()-1)))
}
