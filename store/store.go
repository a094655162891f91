// Package store is how everything durable is written and read: transactions over database/sql that mean the same on
// every dialect. It knows no noun of the domain; each package that has tables ships its own SQL and migrations.
//
// An Update is one transaction that is durable when it returns nil, and a View is a read-only one over a consistent
// snapshot. SQL is written once where it can be: $1 placeholders, ON CONFLICT and RETURNING work on every dialect.
// Instants are integers in it, see [Micros].
//
// Package store/sqlite is the embedded dialect, and store/storetest the suite that every dialect passes.
package store

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"time"
)

// Tx is a transaction as its function sees it. It is valid until that function returns, and for one goroutine at a
// time. *sql.Tx has the first three methods, so packages that must not know this one take an interface of those.
//
// After a statement has failed, or once the caller's context has ended, every further statement is refused and the
// transaction writes nothing, even if its function returns nil. Having found no row ([sql.ErrNoRows]) is no failure.
// The rows of a query must be closed, or read to their end, before the next statement.
type Tx interface {
	// ExecContext runs a statement that returns no rows.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	// QueryContext runs a statement that returns rows.
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	// QueryRowContext runs a statement that returns at most one row. Row.Err tells a failure before Scan does.
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	// Now is the instant by which claims and lifetimes are judged: the database's clock where replicas share a
	// database, the process's on SQLite. UTC, in whole microseconds. It is the time of the call, not of the
	// transaction's start, so it is right after a wait for a lock (hazard T41).
	Now(ctx context.Context) (time.Time, error)
	// ForUpdate is what to append to a SELECT whose rows a decision depends on: " FOR UPDATE" where rows are locked
	// one by one, nothing on SQLite, which has one writer at a time.
	ForUpdate() string
	// ForShare is what to append to a SELECT whose rows shall not change before the transaction ends, while others may
	// share them: " FOR SHARE", or nothing on SQLite.
	ForShare() string
}

// DB is a database. Its methods are safe for concurrent use, but not from inside a transaction's function: there, only
// the Tx is used.
type DB interface {
	// Update runs fn in a transaction and returns once it is durable, or fn's error once nothing of it is. The function
	// touches the database only and may run again: whatever else it changes must be as right the second time. What it
	// has read or found in conflict is true once Update returns, not before.
	//
	// An error that is ErrUnknownOutcome means that the commit itself failed: look before deciding. A panic of fn
	// writes nothing and goes on in the caller.
	Update(ctx context.Context, fn func(Tx) error) error
	// View runs fn in a read-only transaction over one consistent snapshot, which holds everything whose Update had
	// returned and nothing that was not yet committed. A statement that writes fails.
	View(ctx context.Context, fn func(Tx) error) error
	// Close refuses what has not begun, waits for what has, and closes the database.
	Close() error
}

var (
	// ErrUnknownOutcome: a commit failed in a way that does not tell whether it is durable. The caller reads by key, on
	// a context of its own, before it decides anything (hazard T46).
	ErrUnknownOutcome = errors.New("the commit failed and its outcome is unknown")
	// ErrClosed: the database was closed before the transaction began. Nothing was written.
	ErrClosed = errors.New("the database is closed")
	// ErrNewerSchema: the database was written by a newer version of this program, and is left untouched.
	ErrNewerSchema = errors.New("the database has a newer schema than this program knows")
)

// Migrations are the migrations of one package. Each package's are versioned apart, in a table of their own, so that
// packages can be used without each other.
type Migrations struct {
	// Name is the package's: lower-case letters, digits and underscores. Versions are kept in the table NAME_schema.
	Name string
	// FS has goose migrations at its root: 00001_what_it_does.sql and so on, each with a "-- +goose Up" section.
	FS fs.FS
}

// Micros is t as it is stored: microseconds since 1970 in UTC, rounded down. The zero time is 0.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// FromMicros is the instant that [Micros] stored, in UTC. 0 is the zero time.
func FromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
