package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// engine is a kind of database: SQLite, or a PostgreSQL server.
type engine struct {
	name     string
	postgres *testenv.Postgres // nil: SQLite
}

// durable are the server's settings: a server of its own for this run, with its
// own defaults where nothing is said, and every commit on disk.
func durable() []string {
	return []string{"fsync=on", "full_page_writes=on", "synchronous_commit=on", "shared_buffers=256MB", "max_wal_size=4GB"}
}

// place is where one measurement keeps what it writes; close removes it all.
type place struct {
	engine
	dir string // temporary
	db  string // PostgreSQL: the database's name
}

func (e engine) place(ctx context.Context) (*place, error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return nil, err
	}
	p := &place{engine: e, dir: dir}
	if e.postgres == nil {
		return p, nil
	}
	p.db = "b" + strings.ToLower(rand.Text())
	if err := e.postgres.Exec(ctx, "postgres", "CREATE DATABASE "+p.db); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

func (p *place) close() error {
	err := os.RemoveAll(p.dir)
	if p.postgres != nil {
		err = errors.Join(err, p.postgres.Exec(context.Background(), "postgres", "DROP DATABASE "+p.db+" WITH (FORCE)"))
	}
	return err
}

// url is what a server's --database takes; "" for SQLite in its data directory.
func (p *place) url() string {
	if p.postgres == nil {
		return ""
	}
	return p.postgres.URL(p.db) + "?connect_timeout=60" // a busy machine is no reason to give up
}

// open opens a party's database as a server with its data directory here does.
func (p *place) open(ctx context.Context, party string, migrations ...store.Migrations) (store.DB, error) {
	if p.postgres != nil {
		return opened(postgres.Open(ctx, postgres.Config{URL: p.url(), Schema: party}, migrations...))
	}
	return opened(sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(p.dir, party+".db")}, migrations...))
}

// opened keeps a nil database from becoming an interface that is not nil.
func opened[D store.DB](db D, err error) (store.DB, error) {
	if err != nil {
		return nil, err
	}
	return db, nil
}

// with runs work in a place of its own.
func (e engine) with(ctx context.Context, work func(*place) error) (err error) {
	p, err := e.place(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	return work(p)
}

// execute runs one statement in a transaction of its own.
func execute(ctx context.Context, db store.DB, query string, args ...any) error {
	return db.Update(ctx, func(tx store.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

// number reads one.
func number(ctx context.Context, db store.DB, query string, args ...any) (n int64, err error) {
	err = db.View(ctx, func(tx store.Tx) error { return tx.QueryRowContext(ctx, query, args...).Scan(&n) })
	return n, err
}
