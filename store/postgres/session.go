package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-dev/holdfast/store"
)

// What a transaction begins and ends with. A View's snapshot is taken with its BEGIN.
const (
	forUpdates = "BEGIN ISOLATION LEVEL READ COMMITTED"
	forViews   = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
	commit     = "COMMIT"
	rollback   = "ROLLBACK"
	clockQuery = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
)

// undoTimeout bounds a ROLLBACK. A connection on which it fails is given up, and the server rolls back by itself.
const undoTimeout = 5 * time.Second

// session is a connection with a transaction open on it.
type session struct {
	db   *DB
	conn *sql.Conn
	// serverTime is the server's clock as it answered the BEGIN, at begun on this process's.
	serverTime time.Time
	begun      time.Time
}

// begin opens a transaction on a connection that works. Connections that have died in the pool, all of them after a
// restart of the server, are left out: nothing had begun on them.
func (db *DB) begin(ctx context.Context, kind string) (*session, error) {
	for tries := 0; ; tries++ {
		c, err := db.pool.Conn(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect: %w", own(ctx, err))
		}
		s := &session{db: db, conn: c}
		if err = s.begin(ctx, kind); err == nil {
			return s, nil
		}
		dead := closed(c)
		if err := errors.Join(own(ctx, err), drop(c)); !dead || ctx.Err() != nil || tries > db.cfg.MaxConns {
			return nil, fmt.Errorf("begin: %w", err)
		}
		db.stats.replaced.Add(1)
	}
}

// begin asks for the clock in the same breath, since most transactions want it first.
func (s *session) begin(ctx context.Context, kind string) error {
	return s.raw(func(c *pgconn.PgConn) error {
		results, err := c.Exec(ctx, kind+"; "+clockQuery).ReadAll()
		if err != nil {
			return err
		}
		us, err := strconv.ParseInt(string(results[1].Rows[0][0]), 10, 64)
		s.serverTime, s.begun = store.FromMicros(us), time.Now()
		return err
	})
}

// raw runs f on the connection underneath, which database/sql keeps from anybody else meanwhile.
func (s *session) raw(f func(*pgconn.PgConn) error) error {
	return s.conn.Raw(func(c any) error { return f(c.(*stdlib.Conn).Conn().PgConn()) })
}

// status is the transaction's, as the server last told: 'T' within one, 'E' within one that failed, 'I' without one.
// busy is that rows are still to be read. Of a connection that is gone it is an error.
func (s *session) status() (status byte, busy bool, err error) {
	err = s.raw(func(c *pgconn.PgConn) error {
		if c.IsClosed() {
			return errLost
		}
		status, busy = c.TxStatus(), c.IsBusy()
		return nil
	})
	if errors.Is(err, sql.ErrConnDone) {
		err = errLost
	}
	return status, busy, err
}

// commit makes the transaction durable and gives the connection back. It waits for the answer as long as that may take,
// and no caller's context cuts it off. An error that is store.ErrUnknownOutcome leaves open what became of it; any other
// is the server's word that nothing was written (hazard T46).
func (s *session) commit() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.db.cfg.CommitTimeout)
	defer cancel()
	var tag string
	err := s.raw(func(c *pgconn.PgConn) error {
		results, err := c.Exec(ctx, commit).ReadAll()
		if err == nil {
			tag = results[0].CommandTag.String()
		}
		return err
	})
	switch {
	case err == nil && tag == commit:
		s.db.stats.commits.Add(1)
		return s.release()
	case err == nil: // COMMIT of a transaction that had failed is answered ROLLBACK, and without an error
		return errors.Join(errors.New("nothing was written: the server rolled back"), s.release())
	case rolledBack(err):
		return errors.Join(fmt.Errorf("nothing was written: commit: %w", err), s.release())
	}
	s.db.stats.unknown.Add(1)
	return errors.Join(fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err), drop(s.conn))
}

// rollback undoes the transaction and gives the connection back. Where it cannot, it gives the connection up, which has
// the server do it.
func (s *session) rollback() {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	err := s.raw(func(c *pgconn.PgConn) error {
		if c.IsClosed() {
			return errLost
		}
		_, err := c.Exec(ctx, rollback).ReadAll()
		return err
	})
	if err == nil {
		err = s.release()
	}
	if err != nil {
		// What was to be undone is undone either way; the connection's end is counted, and no caller's concern.
		s.db.stats.replaced.Add(1)
		_ = drop(s.conn)
	}
}

func (s *session) release() error { return ignoreGone(s.conn.Close()) }

// drop closes a connection for good.
func drop(c *sql.Conn) error {
	gone := c.Raw(func(any) error { return driver.ErrBadConn })
	return errors.Join(ignoreGone(gone), ignoreGone(c.Close()))
}

func closed(c *sql.Conn) bool {
	dead := false
	err := c.Raw(func(c any) error {
		dead = c.(*stdlib.Conn).Conn().IsClosed()
		return nil
	})
	return dead || err != nil
}

// ignoreGone leaves out the errors by which database/sql says that a connection is gone, where that was the purpose.
func ignoreGone(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}
