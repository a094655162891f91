package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// The bounds of the wait before another attempt (contract: A9).
const (
	firstWait = 250 * time.Millisecond
	longest   = 5 * time.Second
)

// IncompleteError says that a call was given up while its outcome was not
// known: it may have happened, and may still. The same request can be repeated
// later, under the same request id (contract: A9).
type IncompleteError struct {
	Method    string // "CreateSandbox"
	RequestID string // of a create or a start; "" for others
	Request   any    // holdfast.CreateSandbox, MutateSandbox or StartProcess
	Last      error  // what the last attempt met
}

// Error says what was given up and why.
func (e *IncompleteError) Error() string {
	if e.RequestID == "" {
		return fmt.Sprintf("%s is incomplete: %v", e.Method, e.Last)
	}
	return fmt.Sprintf("%s is incomplete (request id %s): %v", e.Method, e.RequestID, e.Last)
}

// Unwrap returns what the last attempt met.
func (e *IncompleteError) Unwrap() error { return e.Last }

// Retry tells of a wait before another attempt.
type Retry struct {
	Method  string
	Attempt int           // attempts made so far
	Wait    time.Duration // until the next
	Cause   error         // what the last attempt met
}

// verdict is what an attempt's error means for the call.
type verdict int

const (
	final   verdict = iota // the answer: done, or refused
	again                  // the same request may succeed
	stopped                // the outcome is unknown, and the call was cancelled
)

// judge decides what an error of an attempt at an operation of a kind means
// (contract: A8, A9).
func judge(kind holdfast.OperationKind, err error) verdict {
	e := holdfast.AsError(err)
	switch {
	case err == nil:
		return final
	case e.Code == holdfast.Unavailable, e.Code == holdfast.DeadlineExceeded:
		return again
	case e.Code == holdfast.Cancelled:
		return stopped
	case e.Code == holdfast.Aborted && goesOn(kind, e):
		return again
	}
	return final
}

// goesOn reports whether an ABORTED is no conflict: one's own create is carried
// on, a delete is recorded as wanted, and an attempt of the same kind works
// towards the same end.
func goesOn(kind holdfast.OperationKind, e *holdfast.Error) bool {
	switch e.Reason {
	case holdfast.ReasonConflict, holdfast.ReasonSuperseded, holdfast.ReasonGeneration:
		return false
	}
	if kind == holdfast.OperationCreate || kind == holdfast.OperationDelete {
		return true
	}
	return e.Reason == holdfast.ReasonClaimed && e.Details["kind"] == string(kind)
}

// wait is how long to wait after a number of attempts: full jitter under a bound
// that doubles, and no less than the server asks, but never over 5 s.
func wait(attempts int, random float64, asked time.Duration) time.Duration {
	bound := longest
	if shift := attempts - 1; shift < 5 { // 250 ms · 2⁵ is over the bound already (trap T25)
		bound = min(firstWait<<shift, longest)
	}
	jittered := time.Duration(random * float64(bound))
	return min(longest, min(longest, max(asked, 0))+jittered)
}

// attempts makes one lifecycle call, again and again until it is known how it
// ended, or its time is over.
func attempts[Out any](ctx context.Context, c *Client, kind holdfast.OperationKind, request IncompleteError, call func(context.Context) (Out, error)) (Out, error) {
	ctx, cancel := context.WithTimeout(ctx, c.settings.overall)
	defer cancel()
	for made := 1; ; made++ {
		out, err := attempt(ctx, c.settings.attempt, call)
		verdict := judge(kind, err)
		if verdict == final {
			return out, err
		}
		request.Last = err
		if verdict == stopped || ctx.Err() != nil {
			return out, &request
		}
		pause := wait(made, c.settings.random(), holdfast.AsError(err).RetryAfter)
		c.settings.retry(Retry{Method: request.Method, Attempt: made, Wait: pause, Cause: err})
		if !sleep(ctx, pause) {
			return out, &request
		}
	}
}

// attempt makes a call under a deadline of its own.
func attempt[Out any](ctx context.Context, limit time.Duration, call func(context.Context) (Out, error)) (Out, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

// sleep waits, and reports whether the time passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unknownOutcome reports whether what err says of may have happened.
func unknownOutcome(err error) bool {
	var e *holdfast.Error
	if !errors.As(err, &e) {
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	}
	switch e.Code {
	case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Cancelled:
		return true
	}
	return false
}
