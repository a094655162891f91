package delivery

import (
	"errors"
	"fmt"
	"time"
)

// Errors that a receiver's function returns, or wraps, to choose the answer.
var (
	// ErrNotYet says that the event concerns something this receiver does not
	// know yet. The answer is 503, so that the sender tries again: a 4xx would
	// lose the event for good (contract: B7).
	ErrNotYet = errors.New("concerns something not known yet")
	// ErrMalformed says that the event can never be understood. The answer is 400.
	ErrMalformed = errors.New("malformed delivery")
	// ErrUnauthenticated says that the signature, its headers or the source
	// is not accepted. The answer is 401.
	ErrUnauthenticated = errors.New("delivery not authenticated")
)

// RefusedError is a receiver's 4xx: the same message would be refused again, so
// nobody retries it (contract: B5).
type RefusedError struct {
	ID         string        // the delivery's id
	Status     int           // 400 to 499
	Reason     string        // the beginning of the answer's body, for people
	RetryAfter time.Duration // what the receiver asked for; 0 when it did not
}

// Error names the delivery, the status and the receiver's words.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("delivery %s: refused with status %d: %q", e.ID, e.Status, e.Reason)
}

// StatusError is an answer that is neither 2xx nor 4xx. The receiver may or may
// not have taken the message; a retry with the same id settles it.
type StatusError struct {
	ID         string        // the delivery's id
	Status     int           // 300 to 399 or 500 and more
	Reason     string        // the beginning of the answer's body, for people
	RetryAfter time.Duration // what the receiver asked for; 0 when it did not
}

// Error names the delivery, the status and the receiver's words.
func (e *StatusError) Error() string {
	return fmt.Sprintf("delivery %s: answered with status %d: %q", e.ID, e.Status, e.Reason)
}

// UndeliveredError says that the budget, or the caller's context, ended before
// any attempt was acknowledged. The receiver may still have acted on one of
// them: only its own record tells. It wraps the last attempt's error and, when
// the context ended, the context's.
type UndeliveredError struct {
	ID       string // the delivery's id
	Attempts int    // attempts begun
	Err      error  // never nil
}

// Error names the delivery, the attempts made and the last failure.
func (e *UndeliveredError) Error() string {
	return fmt.Sprintf("delivery %s: not acknowledged after %d attempts: %v", e.ID, e.Attempts, e.Err)
}

// Unwrap gives the last failure.
func (e *UndeliveredError) Unwrap() error { return e.Err }
