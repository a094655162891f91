package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// spare is a database in memory that nobody uses: a copy that was closed and holds again what it held at first. To
// open a connection, read its schema and prepare its statements costs more than what a short-lived copy is then used
// for, so that the next copy gets these.
type spare struct {
	dsn         string
	busy        time.Duration
	schema      int64   // its version when it was made: what changes the schema is not undone
	tables      []table // what it held at first
	write, read *conn
}

// spares are what the copies of one database left.
type spares struct {
	mu     sync.Mutex
	closed bool
	all    []*spare
}

// table is one table as it was at first.
type table struct {
	name string // quoted
	kept string // quoted name of the temporary table with its rows; "": it was empty
}

// take gives a spare with those settings away; nil if there is none.
func (s *spares) take(cfg Config) *spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.all) - 1; i >= 0; i-- {
		if one := s.all[i]; one.busy == cfg.BusyTimeout {
			s.all = append(s.all[:i], s.all[i+1:]...)
			return one
		}
	}
	return nil
}

// put keeps a spare whose copy was closed.
func (s *spares) put(one *spare) error {
	usable, err := one.renew()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || !usable || s.closed {
		return errors.Join(err, one.close())
	}
	s.all = append(s.all, one)
	return nil
}

func (s *spares) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, one := range s.all {
		errs = append(errs, one.close())
	}
	s.all = nil
	return errors.Join(errs...)
}

func (one *spare) close() error {
	one.write.parked, one.read.parked = false, false
	return errors.Join(one.read.Close(), one.write.Close())
}

// renew takes out of a spare what its copy has put there. False: that cannot be done.
func (one *spare) renew() (bool, error) {
	if now, err := one.write.schemaVersion(); err != nil || now != one.schema {
		return false, err
	}
	if err := one.write.exec(stepBegin); err != nil {
		return false, err
	}
	if err := one.write.restore(one.tables); err != nil {
		return false, errors.Join(err, one.write.exec(stepRollback))
	}
	return true, one.write.commit()
}

// maxPasses bounds how often all tables are emptied: a trigger may fill one as another is emptied.
const maxPasses = 5

// restore makes every table hold what it held at first.
func (c *conn) restore(tables []table) error {
	for pass, left := 0, int64(1); left > 0; pass++ {
		if pass == maxPasses {
			return errors.New("tables fill as others are emptied")
		}
		left = 0
		for _, t := range tables {
			res, err := c.ExecContext(context.Background(), "DELETE FROM "+t.name, nil)
			if err != nil {
				return err
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			left += n
		}
	}
	for _, t := range tables {
		if t.kept == "" {
			continue
		}
		if err := c.exec("INSERT INTO " + t.name + " SELECT * FROM " + t.kept); err != nil {
			return err
		}
	}
	return nil
}

// remember notes what a fresh copy holds, in temporary tables.
func (c *conn) remember() ([]table, error) {
	names, err := c.firstColumn("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite@_%' ESCAPE '@' ORDER BY name")
	if err != nil {
		return nil, err
	}
	tables := make([]table, 0, len(names))
	for i, name := range names {
		t := table{name: `main."` + strings.ReplaceAll(fmt.Sprint(name), `"`, `""`) + `"`}
		some, err := c.firstColumn("SELECT 1 FROM " + t.name + " LIMIT 1")
		if err != nil {
			return nil, err
		}
		if len(some) > 0 {
			t.kept = fmt.Sprintf("temp.first_%d", i)
			if err := c.exec("CREATE TEMP TABLE first_" + fmt.Sprint(i) + " AS SELECT * FROM " + t.name); err != nil {
				return nil, err
			}
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// firstColumn reads the first value of every row.
func (c *conn) firstColumn(query string) (out []driver.Value, err error) {
	rows, err := c.QueryContext(context.Background(), query, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	values := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(values); err != nil {
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			return nil, err
		}
		out = append(out, values[0])
	}
}

func (c *conn) schemaVersion() (int64, error) {
	values, err := c.firstColumn("PRAGMA main.schema_version")
	if err != nil {
		return 0, err
	}
	if len(values) == 1 {
		if n, ok := values[0].(int64); ok {
			return n, nil
		}
	}
	return 0, fmt.Errorf("the schema's version is %v", values)
}

// copied makes a fresh copy one that leaves a spare.
func (db *DB) copied(ctx context.Context, write *sql.DB) error {
	return onConn(ctx, write, func(c *conn) (err error) {
		if db.spare.tables, err = c.remember(); err != nil {
			return err
		}
		db.spare.schema, err = c.schemaVersion()
		return err
	})
}

// leave takes the connections out of a copy that is being closed, for the next one; nil where it has none to give.
func (db *DB) leave() *spare {
	one := db.spare
	if one == nil || db.writer.direct == nil || db.writer.stats.replaced.Load() > 0 {
		return nil
	}
	one.write = db.writer.direct
	err := onConn(context.Background(), db.readers, func(c *conn) error {
		one.read = c
		return nil
	})
	if err != nil {
		return nil // it is closed like any other
	}
	one.write.parked, one.read.parked = true, true
	return one
}

// onConn runs f on a connection of a pool.
func onConn(ctx context.Context, pool *sql.DB, f func(*conn) error) (err error) {
	c, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return raw(c, f)
}

// second gives a spare's connection first, and opens others after that.
type second struct {
	connector
	mu    sync.Mutex
	spare *conn
}

// Connect implements driver.Connector.
func (s *second) Connect(ctx context.Context) (driver.Conn, error) {
	s.mu.Lock()
	c := s.spare
	s.spare = nil
	s.mu.Unlock()
	if c != nil {
		c.parked = false
		return c, nil
	}
	return s.connector.Connect(ctx)
}
