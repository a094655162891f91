package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/internal/migrate"
)

// oldest is the oldest server that is supported, as server_version_num.
const oldest = 130000

// check finds at the start what would otherwise fail some time later.
func (db *DB) check(ctx context.Context) error {
	var version int
	var encoding string
	err := db.pool.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_encoding')`).
		Scan(&version, &encoding)
	switch {
	case err != nil:
		return err
	case version < oldest:
		return fmt.Errorf("the server is PostgreSQL %d: use %d or newer", version/10000, oldest/10000)
	case encoding != "UTF8":
		return fmt.Errorf("the database's encoding is %s, want UTF8: create it with createdb -E UTF8 -T template0 %s", encoding, db.conn.Database)
	}
	return nil
}

// migrate makes the schema and brings it up to date, alone: a session's lock keeps processes that start together from
// each other, and goes with the session.
func (db *DB) migrate(ctx context.Context, all []store.Migrations) (err error) {
	c, err := db.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop(c)) }()
	if _, err := c.ExecContext(ctx, "SET lock_timeout = 0"); err != nil { // another's migrations may take their time
		return err
	}
	if _, err := c.ExecContext(ctx, "SELECT pg_advisory_lock($1)", db.migrationLock()); err != nil {
		return fmt.Errorf("wait for another process's migrations: %w", own(ctx, err))
	}
	if err := db.makeSchema(ctx, c); err != nil {
		return err
	}
	if err := migrate.Up(ctx, goose.DialectPostgres, db.pool, all); err != nil {
		return err
	}
	return db.compareByBytes(ctx, c)
}

// migrationLock is the schema's advisory lock, of which a database has 2^64.
func (db *DB) migrationLock() int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("holdfast migrations " + db.cfg.Schema)) // a hash never fails
	return int64(h.Sum64())
}

// makeSchema asks first: CREATE SCHEMA IF NOT EXISTS needs the right to create one even where there is one.
func (db *DB) makeSchema(ctx context.Context, c *sql.Conn) error {
	var there bool
	err := c.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", db.cfg.Schema).Scan(&there)
	if err == nil && !there {
		_, err = c.ExecContext(ctx, "CREATE SCHEMA "+quote(db.cfg.Schema))
	}
	if err != nil {
		return fmt.Errorf("make the schema %s: %w", db.cfg.Schema, err)
	}
	return nil
}

// compareByBytes makes text columns compare as they do on SQLite and in Go, whatever the database's locale: pages by id
// are the same everywhere, and no upgrade of the server's locales breaks an index.
func (db *DB) compareByBytes(ctx context.Context, c *sql.Conn) (err error) {
	rows, err := c.QueryContext(ctx, `SELECT c.relname, string_agg(format('ALTER COLUMN %I TYPE text COLLATE "C"', a.attname), ', ')
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid = 'text'::regtype
		AND a.attcollation = (SELECT oid FROM pg_collation WHERE collname = 'default' AND collnamespace = 'pg_catalog'::regnamespace)
		AND NOT (SELECT d.datcollate IN ('C', 'POSIX') AND COALESCE(to_jsonb(d)->>'datlocprovider', 'c') = 'c'
			FROM pg_database d WHERE d.datname = current_database())
		GROUP BY c.relname ORDER BY c.relname`, db.cfg.Schema)
	if err != nil {
		return fmt.Errorf("read the columns' collations: %w", err)
	}
	var statements []string
	for rows.Next() {
		var table, columns string
		if err := rows.Scan(&table, &columns); err != nil {
			return errors.Join(fmt.Errorf("read the columns' collations: %w", err), rows.Close())
		}
		statements = append(statements, "ALTER TABLE "+quote(table)+" "+columns)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return fmt.Errorf("read the columns' collations: %w", err)
	}
	for _, statement := range statements {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("set the columns' collations: %w", err)
		}
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
