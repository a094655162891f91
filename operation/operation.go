// Package operation is the durable record of what is meant to happen to a resource, and of who is making it happen.
//
// An intent is recorded in the caller's own transaction, beside the resource it concerns, before anything is done about
// it (Record). Whoever works on it takes a claim first (Take): a number that grows by one, a holder, an end at most two
// minutes away that nobody can push out. Every later write carries the claim's number (Issue, Finish, Release), and one
// that is no longer the current claim changes nothing. So an attempt that was paused, cut off or given up for dead can
// come back at any time and do no harm, and an operation that lost its holder can be carried on by anyone (Due).
//
// The package knows resources by kind and id alone. It takes any transaction with the three methods of Tx, such as
// *sql.Tx, on SQLite or PostgreSQL, and ships its table as goose migrations (Migrations). It reads no clock: now is
// passed, and should be the database's clock, read after the locks that the transaction waits for.
package operation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// MaxClaim is the longest life of a claim, and so of an attempt. A claim is never extended: a holder that needs longer
// releases and takes anew (contract: A6; trap T31).
const MaxClaim = 2 * time.Minute

// Tx is the part of a transaction that this package needs; *sql.Tx satisfies it. A function of this package that finds
// its row changed, held or gone says so without a failed statement, so the transaction stays usable.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Resource names what an operation acts on: a kind, such as "sandbox", and an id that is unique within the kind.
type Resource struct{ Kind, ID string }

// String is the kind and the id, for messages.
func (r Resource) String() string { return r.Kind + " " + r.ID }

// State is how far an operation has come. Every state but StatePending is an end.
type State string

// The states of an operation.
const (
	StatePending    State = "PENDING"    // meant to happen; somebody, or nobody yet, is at it
	StateDone       State = "DONE"       // its effect is durable and recorded
	StateFailed     State = "FAILED"     // ended without its effect, for the reason in LastError
	StateSuperseded State = "SUPERSEDED" // a later intent took its place
)

// Ended reports whether the state is an end.
func (s State) Ended() bool { return s == StateDone || s == StateFailed || s == StateSuperseded }

// Failure is why an attempt or an operation failed, as a person and a program read it.
type Failure struct {
	Code    string `json:"code"`             // the caller's error code, such as UNAVAILABLE
	Reason  string `json:"reason,omitempty"` // the machine-readable reason within the code, such as NO_CAPACITY
	Message string `json:"message,omitempty"`
}

// Operation is one recorded intent with what became of it so far. Instants are UTC in microseconds; the zero time
// stands for "not yet" (contract: A5).
type Operation struct {
	ID         string
	Resource   Resource
	Kind       string // what is to happen, in the caller's words: CREATE, SUSPEND
	Generation int64  // of the resource, as this intent made it; commands downstream carry it
	State      State

	Issued       bool      // a call that may have changed the far side has begun
	Claim        int64     // number of the last claim, or of the last forced end; 0 when never claimed
	Holder       string    // of the recorded claim; empty when it was released
	ClaimedAt    time.Time // when the last claim was taken
	ClaimExpires time.Time // zero when no claim is recorded; in the past when its holder never came back

	Attempts    int           // claims taken
	Answered    int           // attempts that the authority answered, waiting for something named apart
	AnsweredFor time.Duration // how long answered attempts have been going on, gaps between consecutive ones included
	WaitsFor    string        // what it waits for with no claim held, such as "image"; empty for nothing

	EnteredAt    time.Time // when it was recorded
	Deadline     time.Time // when it counts as overdue; attempts never move it (trap T31)
	DueAt        time.Time // from when on it has been idle, so that Due may name it
	UpdatedAt    time.Time
	FinishedAt   time.Time // zero while pending
	SupersededBy string    // id of the operation that took its place
	LastError    *Failure  // of the last attempt, or of the operation once it failed
	Input        []byte    // JSON: what the caller resolved once and stored with the intent; nil for none
}

// Claimed reports whether an attempt may be at work: a claim is recorded and has not run out at now (contract: A6).
func (o Operation) Claimed(now time.Time) bool {
	return o.State == StatePending && o.ClaimExpires.After(now)
}

// Claim is the right to work on one operation for a while. Its Number is the fencing token: carry it with every write
// and every call downstream.
type Claim struct {
	Operation string // id
	Number    int64
	Holder    string
	Taken     time.Time // by the clock that was passed to Take
	Expires   time.Time
}

// Intent is what Record writes down. The fields up to Deadline are required.
type Intent struct {
	ID         string
	Resource   Resource
	Kind       string
	Generation int64     // at least 1
	Deadline   time.Time // when it counts as overdue
	Input      []byte    // JSON, or nil
	// Issued and WaitsFor say what is so from the first on, where the caller begins it in the same transaction: another
	// operation carries this one out, say (see Entrust).
	Issued   bool
	WaitsFor string
}

func (i Intent) validate() error {
	switch {
	case i.ID == "":
		return errors.New("intent has no id")
	case i.Resource.Kind == "" || i.Resource.ID == "":
		return fmt.Errorf("intent %s has no resource", i.ID)
	case i.Kind == "":
		return fmt.Errorf("intent %s has no kind", i.ID)
	case i.Generation < 1:
		return fmt.Errorf("intent %s has generation %d; the first one is 1", i.ID, i.Generation)
	case i.Deadline.IsZero():
		return fmt.Errorf("intent %s has no deadline", i.ID)
	}
	return nil
}
