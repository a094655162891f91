package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

var (
	errEnded   = errors.New("the transaction has ended: its Tx is valid in its function only")
	errRefused = errors.New("refused, since an earlier statement of this transaction failed")
	errControl = errors.New("a transaction's function must not begin, commit or roll back: return an error to undo")
)

// tx is one transaction's handle on a connection: a member's of a group, or a View's.
type tx struct {
	// ctx is the caller's. It is looked at between statements. The driver gets it only where interruptible says so: a
	// statement that its context interrupts rolls back the whole SQLite transaction, that is, everybody's.
	ctx           context.Context
	conn          *sql.Conn
	direct        *conn // conn's own, for a member's statements that return no rows; nil: they go through conn
	clock         func() time.Time
	interruptible bool

	mu     sync.Mutex
	failed error        // the first error; no statement runs after it
	left   func() error // closes the last statement's rows
	ended  bool
}

// admit returns why this statement may not run, or nil. Callers hold mu.
func (t *tx) admit(ctx context.Context, query string) error {
	switch {
	case controls(query):
		t.note(errControl)
		return errControl
	case t.ended:
		return errEnded
	case t.failed != nil:
		return fmt.Errorf("%w: %w", errRefused, t.failed)
	}
	for _, c := range []context.Context{t.ctx, ctx} {
		if c.Err() != nil {
			t.failed = ended(c)
			return t.failed
		}
	}
	return nil
}

// controls tells whether a statement would end or nest the transaction, which is its whole group's.
func controls(query string) bool {
	begin := 0
	for begin < len(query) && strings.IndexByte(" \t\r\n;", query[begin]) >= 0 {
		begin++
	}
	end := begin
	for end < len(query) && (query[end]|0x20 >= 'a' && query[end]|0x20 <= 'z' || query[end] >= utf8.RuneSelf) {
		end++
	}
	for _, word := range [...]string{"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"} {
		if end-begin == len(word) && strings.EqualFold(query[begin:end], word) {
			return true
		}
	}
	return false
}

// ended is the error of a context that has ended, with its cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) || cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func (t *tx) driverContext(ctx context.Context) context.Context {
	if t.interruptible {
		return ctx
	}
	return context.Background()
}

func (t *tx) note(err error) {
	if err != nil && t.failed == nil {
		t.failed = err
	}
}

// ExecContext implements store.Tx.
func (t *tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, query); err != nil {
		return nil, err
	}
	var res sql.Result
	err := errIndirect
	if t.direct != nil {
		res, err = t.direct.execute(query, args)
	}
	if errors.Is(err, errIndirect) {
		res, err = t.conn.ExecContext(t.driverContext(ctx), query, args...)
	}
	t.note(err)
	return res, err
}

// QueryContext implements store.Tx.
func (t *tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, query); err != nil {
		return nil, err
	}
	rows, err := t.conn.QueryContext(t.driverContext(ctx), query, args...)
	t.note(err)
	if err == nil {
		t.left = rows.Close
	}
	return rows, err
}

// QueryRowContext implements store.Tx.
func (t *tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, query); err != nil {
		return t.conn.QueryRowContext(context.WithValue(context.Background(), refusal{}, err), query)
	}
	row := t.conn.QueryRowContext(t.driverContext(ctx), query, args...)
	t.note(row.Err())
	t.left = func() error { return discard(row) }
	return row
}

// Now implements store.Tx.
func (t *tx) Now(ctx context.Context) (time.Time, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, ""); err != nil {
		return time.Time{}, err
	}
	return t.clock().UTC().Truncate(time.Microsecond), nil
}

// ForUpdate implements store.Tx.
func (t *tx) ForUpdate() string { return "" }

// ForShare implements store.Tx.
func (t *tx) ForShare() string { return "" }

// discard closes a row that was perhaps never scanned, which only Scan can. To have no destination for its columns, or
// no row, is as expected; a failure of the statement itself has been noted by the connection.
func discard(row *sql.Row) error {
	_ = row.Scan()
	return nil
}

// end makes the handle useless and returns the transaction's error, given its function's: the function's own, or one
// that it overlooked.
func (t *tx) end(fnErr error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	// Rows that are still open would hold on to the connection for ever.
	if t.left != nil {
		t.note(t.left())
	}
	switch {
	case fnErr != nil:
		return fnErr
	case t.failed != nil:
		return fmt.Errorf("nothing was written, since a statement failed: %w", t.failed)
	case t.ctx.Err() != nil:
		return ended(t.ctx)
	}
	return nil
}

// raw runs f on the connection underneath, which database/sql keeps from anybody else meanwhile.
func raw(c *sql.Conn, f func(*conn) error) error {
	return c.Raw(func(dc any) error { return f(dc.(*conn)) })
}
