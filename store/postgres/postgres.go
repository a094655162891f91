// Package postgres is the dialect of the store that many processes share: a schema of a PostgreSQL server, reached over
// a pool of connections. Whatever replicas agree on they agree on here; there is no leader and no other coordinator.
//
// Updates run at READ COMMITTED: a decision that depends on a row locks it (Tx.ForUpdate), and Tx.Now is the server's
// clock at the time of the call. An update that the server ends to resolve a deadlock or a conflict runs again
// (contract: D3). Nothing is notified; who waits, looks again.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-dev/holdfast/store"
)

// Config says where a database is and how it is used.
type Config struct {
	// URL names server, user and database: postgres://user:password@host:5432/name. Several hosts, with commas, are
	// tried in turn until one takes writes. Parameters are those of libpq (sslmode=verify-full, …), and any of the
	// server's settings. It must lead to sessions of the server's own, not to a pooler that shares them by transaction.
	URL string
	// Schema is where this database's tables are, made at the first start. Packages that share no tables share a server
	// by schemas of their own. Lower-case letters, digits and underscores.
	Schema string
	// Clock replaces the server's clock as what Tx.Now tells, for tests. Default: the server's.
	Clock func() time.Time
	// MaxConns is how many connections the pool has at most, and so how many transactions run at once; further ones
	// wait. Default: 16.
	MaxConns int
	// Tries is how often an update runs at most when the server ends it to resolve a deadlock. Default: 10.
	Tries int
	// CommitTimeout is how long to wait for the answer to a COMMIT before its outcome counts as unknown. Default: 30 s.
	CommitTimeout time.Duration
}

// DB is an open database. It implements store.DB.
type DB struct {
	cfg      Config
	conn     *pgx.ConnConfig
	pool     *sql.DB
	refusals *sql.DB
	joints   joints
	stats    counters

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

var _ store.DB = (*DB)(nil)

// Open connects to a database and brings its schema to that of the given migrations. Processes that start together take
// turns at it. A database that is ahead of them is refused with store.ErrNewerSchema, one that cannot be used with an
// error that says what to do. The context bounds the opening only.
func Open(ctx context.Context, cfg Config, migrations ...store.Migrations) (*DB, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	conn, err := cfg.parse()
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	db := &DB{cfg: cfg, conn: conn, refusals: sql.OpenDB(refuser{})}
	db.pool = pool(conn, cfg.MaxConns)
	db.openJoints()
	if err = db.check(ctx); err == nil {
		err = db.migrate(ctx, migrations)
	}
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", db.name(), errors.Join(explain(err, conn), db.close()))
	}
	return db, nil
}

// pool is one of at most so many connections.
func pool(conn *pgx.ConnConfig, most int) *sql.DB {
	p := stdlib.OpenDB(*conn, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool {
		return false // a connection that went stale is found by BEGIN, which is tried again on another one
	}))
	p.SetMaxOpenConns(most)
	p.SetMaxIdleConns(most)
	p.SetConnMaxIdleTime(10 * time.Minute)
	p.SetConnMaxLifetime(time.Hour) // a server that moved is found again in the end
	return p
}

// name is the database for people, without the password.
func (db *DB) name() string {
	return fmt.Sprintf("%s (schema %s) on %s", db.conn.Database, db.cfg.Schema, address(db.conn))
}

// Close implements store.DB. A second Close does nothing.
func (db *DB) Close() error {
	db.mu.Lock()
	if db.closed {
		db.mu.Unlock()
		return nil
	}
	db.closed = true
	db.mu.Unlock()

	db.running.Wait()
	if err := db.close(); err != nil {
		return fmt.Errorf("close database %s: %w", db.name(), err)
	}
	return nil
}

func (db *DB) close() error {
	return errors.Join(db.pool.Close(), db.joints.pool.Close(), db.refusals.Close())
}

// enter admits a transaction unless the database is closed; the caller owes a running.Done.
func (db *DB) enter() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return store.ErrClosed
	}
	db.running.Add(1)
	return nil
}
