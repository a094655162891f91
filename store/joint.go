package store

import (
	"context"
	"time"
)

// Joint is one statement that does the usual case of a small transaction for several callers at once, on a dialect where
// a round trip and a commit cost more than what they are for (adr/0009-joint-statements.md). It decides by conditions of
// its own and leaves a row alone where they do not hold; then its caller takes the general way, which is the only one
// that explains anything.
//
// Whatever it does to a row, it does in full or not at all. A statement that finds halfway that it cannot fails (a
// division by zero is enough), and nothing of it stays.
type Joint struct {
	// Columns are what each caller gives, in order: "id text, size bigint, fit boolean". Those are the types there are.
	Columns string
	// Query is what follows "WITH clock AS (…), given AS (…)", and begins with a comma where it has parts of its own.
	// clock has one row with the instant now, in microseconds (see Micros), read when the statement began; given has
	// a row for each caller, with the column position. The result is at most one row for each: its position, what was done
	// (a bigint that is not 0), and clock's now.
	Query string
}

// Told is what a joint statement did for one caller.
type Told struct {
	Did int64     // as the statement says; 0: nothing was done, whyever
	At  time.Time // clock's now, unless nothing was done
}

// Joiner runs joint statements. Its methods are safe for concurrent use, but not from inside a transaction's function.
type Joiner interface {
	// Join runs the statement for one row (values are string, int64 and bool), together with the rows that others give it
	// meanwhile, and returns once what was done for it is durable. It waits for other transactions' locks a moment only:
	// then nothing is done for anybody, which is no error, and neither is any other failure of the statement.
	//
	// An error that is ErrUnknownOutcome leaves open what was done, as it does of an Update: the general way looks. Any
	// other error is the context's or ErrClosed, and nothing was done.
	Join(ctx context.Context, j *Joint, row ...any) (Told, error)
}
