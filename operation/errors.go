package operation

import (
	"errors"
	"fmt"
	"time"
)

// The errors that callers decide on. Most come wrapped in a type that carries the row as it is.
var (
	ErrNotFound = errors.New("no such operation")
	ErrPending  = errors.New("another operation is pending on the resource")
	ErrHeld     = errors.New("another attempt holds the claim")
	ErrEnded    = errors.New("the operation has ended")
	ErrFenced   = errors.New("the claim is no longer the current one")
)

// PendingError says which operation stands in the way of a new intent. It matches ErrPending.
type PendingError struct{ Operation Operation }

// Error names the operation in the way.
func (e *PendingError) Error() string {
	return fmt.Sprintf("%s has a pending operation %s (%s)", e.Operation.Resource, e.Operation.ID, e.Operation.Kind)
}

// Is matches ErrPending.
func (e *PendingError) Is(target error) bool { return target == ErrPending }

// HeldError says who holds the claim and until when, which is when a retry makes sense at the latest. It matches
// ErrHeld (contract: A6).
type HeldError struct {
	Operation string // id
	Holder    string
	Expires   time.Time
}

// Error names the holder and the claim's end.
func (e *HeldError) Error() string {
	return fmt.Sprintf("operation %s is held by %s until %s", e.Operation, e.Holder, e.Expires.Format(time.RFC3339Nano))
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// EndedError says how the operation ended. It matches ErrEnded.
type EndedError struct{ Operation Operation }

// Error names the end, and its reason if there is one.
func (e *EndedError) Error() string {
	s := fmt.Sprintf("operation %s ended %s", e.Operation.ID, e.Operation.State)
	if f := e.Operation.LastError; f != nil {
		s += fmt.Sprintf(": %s %s: %s", f.Code, f.Reason, f.Message)
	}
	return s
}

// Is matches ErrEnded.
func (e *EndedError) Is(target error) bool { return target == ErrEnded }

// FencedError says that a write came from a claim that is over, and changed nothing. It matches ErrFenced. Roll the
// transaction back: whatever else it wrote rests on the same stale claim (trap T11).
type FencedError struct {
	Claim     Claim
	Operation Operation // as it is now
}

// Error names the claim that came too late and the one that is current.
func (e *FencedError) Error() string {
	return fmt.Sprintf("operation %s: claim %d of %s is over (now %s, claim %d, held by %q)", e.Claim.Operation,
		e.Claim.Number, e.Claim.Holder, e.Operation.State, e.Operation.Claim, e.Operation.Holder)
}

// Is matches ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// FinishedHere reports whether it was this very claim that ended the operation. After a commit of unknown outcome, a
// second Finish meets the first one's success this way (trap T46).
func (e *FencedError) FinishedHere() bool {
	return e.Operation.State.Ended() && e.Operation.Claim == e.Claim.Number
}
