package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/store"
)

var (
	errEnded   = errors.New("the transaction has ended: its Tx is valid in its function only")
	errRefused = errors.New("refused, since an earlier statement of this transaction failed")
	errControl = errors.New("a transaction's function must not begin, commit or roll back: return an error to undo")
	errOpen    = errors.New("rows of an earlier query are open: close them, or read them to their end")
	errUnread  = errors.New("a statement failed while its rows were read")
	errLost    = errors.New("the connection to the database was lost")
)

// tx is one transaction's handle.
type tx struct {
	ctx     context.Context // the caller's
	session *session

	mu      sync.Mutex
	started bool         // a statement ran
	failed  error        // the first error; no statement runs after it
	left    func() error // closes the last statement's rows
	ended   bool
}

// admit returns why this statement may not run, or nil. Callers hold mu.
func (t *tx) admit(ctx context.Context, query string) error {
	switch {
	case t.ended:
		return errEnded
	case t.failed != nil:
		return fmt.Errorf("%w: %w", errRefused, t.failed)
	}
	return t.note(t.ready(ctx, query))
}

func (t *tx) ready(ctx context.Context, query string) error {
	if controls(query) {
		return errControl
	}
	for _, c := range []context.Context{t.ctx, ctx} {
		if c.Err() != nil {
			return ended(c)
		}
	}
	// The driver takes a statement beside open rows for a broken connection, and database/sql would wait for the rows.
	status, busy, err := t.session.status()
	switch {
	case err != nil:
		return err
	case busy:
		return errOpen
	case status == 'E':
		return errUnread
	}
	return nil
}

// controls tells whether a statement would end or nest the transaction.
func controls(query string) bool {
	word := strings.TrimLeft(query, " \t\r\n;")
	if i := strings.IndexFunc(word, func(r rune) bool { return !unicode.IsLetter(r) }); i >= 0 {
		word = word[:i]
	}
	switch strings.ToUpper(word) {
	case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE":
		return true
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

// statement is the context that may interrupt a statement: its own, or the transaction's where it has none.
func (t *tx) statement(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return t.ctx
	}
	return ctx
}

// note keeps the first error, and returns err as the function shall see it.
func (t *tx) note(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		err = errLost
		if t.ctx.Err() != nil { // the driver's word for a context that ended before anything was sent
			err = ended(t.ctx)
		}
	}
	if err != nil && t.failed == nil {
		t.failed = err
	}
	return err
}

// storable replaces in texts what PostgreSQL refuses to hold and SQLite keeps, a zero byte and what is no UTF-8, by
// U+FFFD: what a host or a guest once said must not keep what it was about from being recorded.
func storable(args []any) []any {
	copied := false
	for i, arg := range args {
		s, ok := arg.(string)
		if !ok || utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
			continue
		}
		if !copied {
			args, copied = slices.Clone(args), true
		}
		args[i] = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	}
	return args
}

// ExecContext implements store.Tx.
func (t *tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, query); err != nil {
		return nil, err
	}
	t.started = true
	res, err := t.exec(t.statement(ctx), query, args)
	return res, t.note(err)
}

// exec sees to it that the query is one statement. Of one without arguments the driver does not, and a COMMIT hidden
// behind another would end the transaction.
func (t *tx) exec(ctx context.Context, query string, args []any) (res sql.Result, err error) {
	if len(args) > 0 {
		return t.session.conn.ExecContext(ctx, query, storable(args)...)
	}
	statement, err := t.session.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, statement.Close()) }()
	return statement.ExecContext(ctx)
}

// QueryContext implements store.Tx.
func (t *tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, query); err != nil {
		return nil, err
	}
	t.started = true
	rows, err := t.session.conn.QueryContext(t.statement(ctx), query, storable(args)...)
	if err != nil {
		return nil, t.note(err)
	}
	t.left = rows.Close
	return rows, nil
}

// QueryRowContext implements store.Tx.
func (t *tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, query); err != nil {
		return t.session.db.refusals.QueryRowContext(context.WithValue(context.Background(), refusal{}, err), query)
	}
	t.started = true
	row := t.session.conn.QueryRowContext(t.statement(ctx), query, storable(args)...)
	_ = t.note(row.Err()) // the function has it from the row
	t.left = func() error { return discard(row) }
	return row
}

// Now implements store.Tx. The first thing that a transaction asks for was answered with its BEGIN.
func (t *tx) Now(ctx context.Context) (time.Time, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ctx, ""); err != nil {
		return time.Time{}, err
	}
	if clock := t.session.db.cfg.Clock; clock != nil {
		return clock().UTC().Truncate(time.Microsecond), nil
	}
	if !t.started {
		t.started = true
		return t.session.serverTime.Add(time.Since(t.session.begun)).Truncate(time.Microsecond), nil
	}
	var us int64
	if err := t.session.conn.QueryRowContext(t.statement(ctx), clockQuery).Scan(&us); err != nil {
		return time.Time{}, fmt.Errorf("read the server's clock: %w", t.note(err))
	}
	return store.FromMicros(us), nil
}

// ForUpdate implements store.Tx.
func (t *tx) ForUpdate() string { return " FOR UPDATE" }

// ForShare implements store.Tx.
func (t *tx) ForShare() string { return " FOR SHARE" }

// discard closes a row that was perhaps never scanned, which only Scan can. To have no destination for its columns, or
// no row, is as expected; a failure of the statement itself shows in the transaction's status.
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
	if t.left != nil { // rows that are still open would hold on to the connection for ever
		_ = t.note(t.left())
	}
	if t.failed == nil {
		status, _, err := t.session.status()
		if err == nil && status == 'E' {
			err = errUnread
		}
		_ = t.note(err)
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

// abandon undoes the transaction of a function that did not return.
func (t *tx) abandon() {
	_ = t.end(errEnded) // that is not what the caller gets: its own panic goes on
	t.session.rollback()
}

// refuser is a driver that connects to nothing: a *sql.Row that carries an error cannot be made in any other way.
type refuser struct{}

type refusal struct{}

// Connect returns the error that the context carries.
func (refuser) Connect(ctx context.Context) (driver.Conn, error) {
	if err, ok := ctx.Value(refusal{}).(error); ok {
		return nil, err
	}
	return nil, errRefused
}

// Driver implements driver.Connector.
func (r refuser) Driver() driver.Driver { return r }

// Open implements driver.Driver.
func (refuser) Open(string) (driver.Conn, error) { return nil, errRefused }
