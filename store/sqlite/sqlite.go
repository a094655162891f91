// Package sqlite is the embedded dialect of the store: one file (or memory), one writer that commits concurrent updates
// in groups, and a pool of readers that never wait for it.
//
// Everything is written with synchronous=FULL: when Update returns nil, it survives a loss of power.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
	modernc "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/internal/migrate"
)

// Config says where a database is and how it is used. Exactly one of Path and Memory is set.
type Config struct {
	// Path is the database's file, created (mode 0600) if it is missing; its directory must exist. The files PATH-wal
	// and PATH-shm belong to it.
	Path string
	// Memory keeps the database in memory, until Close. Opened inside a testing/synctest bubble it works there.
	Memory bool
	// From makes a database in memory begin as a copy of another one in memory, to which
	// nobody writes meanwhile, instead of empty: one that was migrated saves the migrations. It is closed after its
	// copies, and takes what they leave to the next copy: connections and their statements.
	From *DB
	// Clock is what Tx.Now tells. Default: time.Now.
	Clock func() time.Time
	// MaxGroup is how many updates one commit may carry. Default: 128.
	MaxGroup int
	// Readers is how many Views of a file may run at once; further ones wait. Default: 8.
	Readers int
	// BusyTimeout is how long to wait for a lock that another process holds on the file. Default: 5 s.
	BusyTimeout time.Duration
	// Log hears where a transaction's function panicked: the panic itself goes on in the caller, whose stack does not say.
	// Default: slog.Default.
	Log *slog.Logger
}

// DB is an open database. It implements store.DB.
type DB struct {
	cfg     Config
	dsn     string
	writer  *writer
	readers *sql.DB
	// gate is nil for a file. In memory there is no write-ahead log to read beside the writer, so groups and views
	// take turns: whoever runs holds the one token.
	gate chan struct{}
	// spares are what closed copies of this one left; spare is what this one, a copy, is to leave; nil: nothing.
	spares spares
	spare  *spare

	mu     sync.Mutex
	closed bool
	views  sync.WaitGroup
}

var _ store.DB = (*DB)(nil)

// Open opens or creates a database and brings it to the schema of the given migrations. A database that is ahead of
// them is refused with store.ErrNewerSchema. The context bounds the opening only.
func Open(ctx context.Context, cfg Config, migrations ...store.Migrations) (*DB, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	db, err := open(ctx, cfg, migrations)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", cfg.name(), explain(err, cfg.Path))
	}
	return db, nil
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Memory == (cfg.Path != "") {
		return cfg, errors.New("set a path or memory, one of them")
	}
	if cfg.MaxGroup < 0 || cfg.Readers < 0 || cfg.BusyTimeout < 0 {
		return cfg, errors.New("limits must not be negative")
	}
	if cfg.From != nil && !(cfg.Memory && cfg.From.cfg.Memory) {
		return cfg, errors.New("only a database in memory begins as a copy of another one in memory")
	}
	if cfg.Path != "" {
		abs, err := filepath.Abs(cfg.Path)
		if err != nil {
			return cfg, err
		}
		cfg.Path = abs
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.MaxGroup == 0 {
		cfg.MaxGroup = 128
	}
	if cfg.Readers == 0 {
		cfg.Readers = 8
	}
	if cfg.BusyTimeout == 0 {
		cfg.BusyTimeout = 5 * time.Second
	}
	if cfg.Memory {
		cfg.Readers = 1
	}
	return cfg, nil
}

func (cfg Config) name() string {
	if cfg.Memory {
		return "in memory"
	}
	return cfg.Path
}

func open(ctx context.Context, cfg Config, migrations []store.Migrations) (_ *DB, err error) {
	db := &DB{cfg: cfg}
	if cfg.Memory {
		db.gate = make(chan struct{}, 1)
	}
	var one *spare
	if cfg.From != nil {
		one = cfg.From.spares.take(cfg)
		db.spare = &spare{busy: cfg.BusyTimeout}
	}
	if one != nil {
		db.dsn, db.spare = one.dsn, one
	} else if db.dsn, err = cfg.dsn(); err != nil {
		return nil, err
	}
	write, read, err := db.pools(one)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, read.Close(), write.Close())
		}
	}()
	db.readers = read
	if one == nil {
		if err := db.fill(ctx, write, migrations); err != nil {
			return nil, err
		}
	}
	db.writer, err = newWriter(ctx, write, read, db.gate, cfg)
	if err != nil {
		return nil, err
	}
	return db, nil
}

// pools opens the pools of connections, with a spare's if there is one.
func (db *DB) pools(one *spare) (write, read *sql.DB, err error) {
	var writer, reader *conn
	if one != nil {
		writer, reader = one.write, one.read
	}
	if write, err = openPool(db.dsn, 1, writer); err != nil {
		return nil, nil, err
	}
	if read, err = openPool(db.dsn+"&_query_only=1", db.cfg.Readers, reader); err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	return write, read, nil
}

// fill gives a database its first content: a copy's, or what migrations make.
func (db *DB) fill(ctx context.Context, write *sql.DB, migrations []store.Migrations) error {
	if err := checkPragmas(ctx, write, db.cfg); err != nil {
		return err
	}
	// In memory the database lives as long as a connection to it: this one outlives a replaced writer.
	if err := db.readers.PingContext(ctx); err != nil {
		return err
	}
	if db.cfg.From == nil {
		return migrate.Up(ctx, goose.DialectSQLite3, write, migrations)
	}
	if err := copyFrom(ctx, db.readers, db.cfg.From.dsn); err != nil {
		return err
	}
	return db.copied(ctx, write)
}

// checkpointAfter is how many pages the log gathers before it is folded into the file, see [writer.fold]: 32 MB of it are read at the next
// start in less than a tenth of a second. A page that many updates change is folded once for all of them, so the default of
// 1000 was a twentieth of a create's processor time (measured).
const checkpointAfter = 8000

// dsn makes sure that the file exists and is private, and names it with the settings that every connection shares.
func (cfg Config) dsn() (string, error) {
	q := url.Values{}
	q.Set("_busy_timeout", fmt.Sprint(cfg.BusyTimeout.Milliseconds()))
	q.Set("_foreign_keys", "1")
	q.Set("_dqs", "0") // a misspelt column must not become a string
	q.Add("_pragma", "temp_store(MEMORY)")
	q.Add("_pragma", "trusted_schema(0)")
	if cfg.Memory {
		q.Set("vfs", "memdb")
		q.Set("_journal_mode", "MEMORY")
		return "file:/" + rand.Text() + "?" + q.Encode(), nil
	}
	q.Set("_journal_mode", "WAL")
	q.Set("_synchronous", "FULL")
	q.Add("_pragma", "wal_autocheckpoint(0)") // it would be a part of COMMIT
	// Only when it is new: to close a descriptor of an open database would drop SQLite's locks on it.
	f, err := os.OpenFile(cfg.Path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return "file:" + (&url.URL{Path: cfg.Path}).EscapedPath() + "?" + q.Encode(), nil
}

// copyFrom makes the database behind a pool a copy of the one with that name.
func copyFrom(ctx context.Context, pool *sql.DB, name string) (err error) {
	c, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return raw(c, func(to *conn) error {
		backup, err := to.NewRestore(name)
		if err != nil {
			return fmt.Errorf("copy a database: %w", err)
		}
		_, err = backup.Step(-1)
		if err = errors.Join(err, backup.Finish()); err != nil {
			return fmt.Errorf("copy a database: %w", err)
		}
		return nil
	})
}

// openPool opens a pool, whose first connection is the spare one unless that is nil.
func openPool(dsn string, size int, one *conn) (*sql.DB, error) {
	base, err := modernc.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(&second{connector: connector{base}, spare: one})
	pool.SetMaxOpenConns(size)
	pool.SetMaxIdleConns(size)
	return pool, nil
}

// checkPragmas reads back what durability rests on: SQLite answers an unusable setting with another one, not an error.
func checkPragmas(ctx context.Context, pool *sql.DB, cfg Config) error {
	var journal string
	if err := pool.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return err
	}
	// The schema is read here, so a file that is no database is found before anything else happens.
	var tables int
	if err := pool.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
		return err
	}
	if cfg.Memory {
		return nil
	}
	if journal != "wal" {
		return fmt.Errorf("its file system cannot hold a write-ahead log (journal mode is %q): use a local disk", journal)
	}
	var sync int
	if err := pool.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&sync); err != nil {
		return err
	}
	if sync != 2 {
		return fmt.Errorf("synchronous is %d, want 2 (FULL)", sync)
	}
	return nil
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

	db.views.Wait()
	db.writer.stop()
	left := db.leave()
	// The writer's connection goes last: the last one to close folds the log into the file.
	err := errors.Join(db.readers.Close(), db.writer.close(), db.spares.close())
	if left != nil {
		err = errors.Join(err, db.cfg.From.spares.put(left))
	}
	if err != nil {
		return fmt.Errorf("close database %s: %w", db.cfg.name(), err)
	}
	return nil
}

// enter admits a View unless the database is closed; the caller owes a views.Done.
func (db *DB) enter() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return fmt.Errorf("view: %w", store.ErrClosed)
	}
	db.views.Add(1)
	return nil
}
