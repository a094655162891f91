package server

import (
	"context"
	"path/filepath"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// database is a party's, with what its metrics count.
type database struct {
	store.DB
	joiner store.Joiner // nil: it does nothing for several callers at once
	counts func() (updates, commits int64)
}

// shared reports whether other processes use the same databases.
func (c Config) shared() bool { return c.Database != "" }

// openDatabase opens a party's own database: a file in the data directory, or a
// schema of the server that the replicas share. The parties share no tables.
func (s *Server) openDatabase(ctx context.Context, party Role, migrations []store.Migrations) (database, error) {
	open := s.openFile
	if s.config.shared() {
		open = s.openSchema
	}
	db, err := open(ctx, party, migrations)
	if err != nil {
		return database{}, err
	}
	s.onClose(string(party)+"'s database", db.Close)
	s.databases[string(party)] = db
	return db, nil
}

func (s *Server) openFile(ctx context.Context, party Role, migrations []store.Migrations) (database, error) {
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(s.config.DataDir, string(party)+".db"), Clock: s.config.Clock}, migrations...)
	if err != nil {
		return database{}, err
	}
	return database{DB: db, counts: func() (int64, int64) {
		stats := db.Stats()
		return stats.Updates, stats.Groups
	}}, nil
}

func (s *Server) openSchema(ctx context.Context, party Role, migrations []store.Migrations) (database, error) {
	db, err := postgres.Open(ctx, postgres.Config{URL: s.config.Database, Schema: string(party)}, migrations...)
	if err != nil {
		return database{}, err
	}
	return database{DB: db, joiner: db, counts: func() (int64, int64) {
		stats := db.Stats()
		return stats.Updates, stats.Commits
	}}, nil
}
