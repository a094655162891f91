package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"

	modernc "modernc.org/sqlite"
)

// connector opens connections that keep their prepared statements: to prepare one costs several times what it costs to
// run it.
type connector struct{ driver.Connector }

// maxCached bounds a connection's kept statements; the SQL of all our packages fits.
const maxCached = 256

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	raw, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	base, ok := raw.(baseConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("unexpected driver connection %T", raw), raw.Close())
	}
	return &conn{baseConn: base, kept: make(map[string]*stmt)}, nil
}

// baseConn is what the driver's connections can do; all of it shines through, but for the statements' way.
type baseConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	modernc.DBStatus
	modernc.HookRegisterer
	NewRestore(name string) (*modernc.Backup, error)
}

// conn is one connection. database/sql uses it from one goroutine at a time.
type conn struct {
	baseConn
	kept map[string]*stmt // by their text
	uses uint64           // of statements so far
	args []driver.NamedValue
	// arranged are the arguments of the statement that runs, in the order of its parameters.
	arranged []driver.NamedValue
	open     *rows // the result that is being read, if any
	// fault is the error of a statement that failed while its rows were read: database/sql shows it to the reader alone.
	fault error
	// committing is set while the writer's own COMMIT runs, see guard.
	committing bool
	// parked is set while a closing copy leaves the connection to the next one: see spare.
	parked bool
}

type baseStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type stmt struct {
	baseStmt
	query  string
	used   uint64 // number of its last use
	order  []int  // which argument each parameter takes, see positional
	sorted bool   // the order is the arguments' own
}

// refusal is the context value by which a transaction makes the connection answer with an error of its choice: the only
// way to a *sql.Row that carries one.
type refusal struct{}

func (c *conn) take(ctx context.Context, query string) (*stmt, error) {
	if err, ok := ctx.Value(refusal{}).(error); ok {
		return nil, err
	}
	if c.fault != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, c.fault)
	}
	if c.open != nil {
		return nil, errors.New("the rows of the previous query are still open: close them before the next statement " +
			"(no dialect but SQLite could run both)")
	}
	c.uses++
	if s, ok := c.kept[query]; ok {
		s.used = c.uses
		return s, nil
	}
	text, order := positional(query)
	ds, err := c.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	base, ok := ds.(baseStmt)
	if !ok {
		return nil, errors.Join(fmt.Errorf("unexpected driver statement %T", ds), ds.Close())
	}
	if len(c.kept) >= maxCached {
		if err := c.forget(c.oldest()); err != nil {
			return nil, errors.Join(err, base.Close())
		}
	}
	s := &stmt{baseStmt: base, query: query, used: c.uses, order: order, sorted: slices.IsSorted(order)}
	c.kept[query] = s
	return s, nil
}

// oldest is the kept statement that was not used for longest. None is in use: statements take turns.
func (c *conn) oldest() *stmt {
	var oldest *stmt
	for _, s := range c.kept {
		if oldest == nil || s.used < oldest.used {
			oldest = s
		}
	}
	return oldest
}

// forget gives a statement up, as one that failed is.
func (c *conn) forget(s *stmt) error {
	delete(c.kept, s.query)
	return s.Close()
}

// errIndirect says that database/sql must convert an argument.
var errIndirect = errors.New("not an argument that the driver takes as it is")

// execute is ExecContext for arguments that need none of database/sql's conversions; errIndirect for others.
func (c *conn) execute(query string, args []any) (driver.Result, error) {
	named := c.args[:0]
	for i, arg := range args {
		switch v := arg.(type) {
		case string, int64, bool, nil:
		case int:
			arg = int64(v)
		default:
			return nil, errIndirect
		}
		named = append(named, driver.NamedValue{Ordinal: i + 1, Value: arg})
	}
	defer func() { clear(named); c.args = named }()
	return c.ExecContext(context.Background(), query, named)
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	res, err := s.ExecContext(ctx, c.arrange(s, args))
	if err != nil {
		return nil, errors.Join(err, c.forget(s))
	}
	return res, nil
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	dr, err := s.QueryContext(ctx, c.arrange(s, args))
	if err != nil {
		return nil, errors.Join(err, c.forget(s))
	}
	base, ok := dr.(baseRows)
	if !ok {
		return nil, errors.Join(fmt.Errorf("unexpected driver rows %T", dr), dr.Close(), c.forget(s))
	}
	c.open = &rows{baseRows: base, c: c, s: s}
	return c.open, nil
}

// exec runs a statement of the store's own.
func (c *conn) exec(query string) error {
	_, err := c.ExecContext(context.Background(), query, nil)
	return err
}

// guard makes every commit but the writer's own fail. Without it, a RELEASE that finds its group's transaction gone would
// commit one member's work apart from the answer that the member gets.
func (c *conn) guard() error {
	c.RegisterCommitHook(func() int32 {
		if c.committing {
			return 0
		}
		return 1
	})
	return nil
}

// commit commits a guarded connection's transaction.
func (c *conn) commit() error {
	c.committing = true
	defer func() { c.committing = false }()
	return c.exec(stepCommit)
}

// written counts the pages that the connection has written so far; it may begin anew.
func (c *conn) written() (int, error) {
	n, _, err := c.Status(modernc.DBStatusCacheWrite, false)
	return n, err
}

// checkpoint writes the log's pages into the file, as far as nobody reads them from the log, and tells how many are left.
func (c *conn) checkpoint() (left int, err error) {
	rows, err := c.QueryContext(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)", nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	counts := make([]driver.Value, 3) // refused, in the log, folded
	if err := rows.Next(counts); err != nil {
		return 0, errors.Join(err, c.settle())
	}
	pages, ok := counts[1].(int64)
	folded, ok2 := counts[2].(int64)
	if !ok || !ok2 {
		return 0, fmt.Errorf("a checkpoint answered %v", counts)
	}
	return int(pages - folded), nil
}

// settle ends what a transaction's function left behind: it closes its rows and returns the error that they ran into,
// or that an unmet deferred foreign key would otherwise become at COMMIT, where it would fail everybody.
func (c *conn) settle() error {
	err := c.fault
	c.fault = nil
	if c.open != nil {
		err = errors.Join(err, c.open.Close())
	}
	if err != nil {
		return err
	}
	unmet, _, err := c.Status(modernc.DBStatusDeferredFKs, false)
	if err == nil && unmet != 0 {
		err = errors.New("a deferred foreign key constraint is not met at the transaction's end")
	}
	return err
}

// Close implements driver.Conn.
func (c *conn) Close() error {
	if c.parked {
		return nil
	}
	var errs []error
	for _, s := range c.kept {
		errs = append(errs, s.Close())
	}
	clear(c.kept)
	return errors.Join(append(errs, c.baseConn.Close())...)
}

// baseRows is what the driver's rows can do.
type baseRows interface {
	driver.Rows
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeLength
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// rows are read one result at a time.
type rows struct {
	baseRows
	c      *conn
	s      *stmt
	closed bool
}

func (r *rows) Next(dest []driver.Value) error {
	if r.closed {
		return errEnded
	}
	err := r.baseRows.Next(dest)
	if err != nil && !errors.Is(err, io.EOF) {
		r.c.fault = err
	}
	return err
}

func (r *rows) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	r.c.open = nil
	if err := r.baseRows.Close(); err != nil {
		return errors.Join(err, r.c.forget(r.s))
	}
	return nil
}
