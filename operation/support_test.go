package operation_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/operation"
)

var (
	epoch   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sandbox = operation.Resource{Kind: "sandbox", ID: "sbx_1"}
)

// TestOnPostgres runs every test of this package on PostgreSQL as well.
func TestOnPostgres(t *testing.T) { testenv.OnPostgres(t) }

// openDB returns a migrated database: a SQLite file with the settings that the product uses, or PostgreSQL.
func openDB(t testing.TB) (*sql.DB, goose.Dialect) {
	t.Helper()
	driver, dialect := "sqlite", goose.DialectSQLite3
	url, ok := testenv.InPostgresSchema(t)
	if ok {
		driver, dialect = "pgx", goose.DialectPostgres
	} else {
		url = "file:" + filepath.Join(t.TempDir(), "test.db") +
			"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	}
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	migrate(t, db, dialect)
	return db, dialect
}

func migrate(t testing.TB, db *sql.DB, dialect goose.Dialect) {
	t.Helper()
	p, err := goose.NewProvider(dialect, db, operation.Migrations(), goose.WithTableName("operation_schema"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Up(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// update runs fn in one transaction, and rolls back what fn fails.
func update(db *sql.DB, fn func(tx operation.Tx) error) error {
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// world is a database with short names for the package's calls, each in a transaction of its own.
type world struct {
	t        testing.TB
	db       *sql.DB
	postgres bool
}

func newWorld(t testing.TB) world {
	db, dialect := openDB(t)
	return world{t, db, dialect == goose.DialectPostgres}
}

func (w world) must(fn func(tx operation.Tx) error) {
	w.t.Helper()
	if err := update(w.db, fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w world) record(id string, r operation.Resource, kind string) operation.Operation {
	w.t.Helper()
	var o operation.Operation
	w.must(func(tx operation.Tx) (err error) {
		o, err = operation.Record(context.Background(), tx, epoch, operation.Intent{ID: id, Resource: r, Kind: kind,
			Generation: 1, Deadline: epoch.Add(time.Minute), Input: []byte(`{"image":"base"}`)})
		return err
	})
	return o
}

func (w world) take(id string, now time.Time, ttl time.Duration) operation.Claim {
	w.t.Helper()
	c, err := w.tryTake(id, now, ttl)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w world) tryTake(id string, now time.Time, ttl time.Duration) (c operation.Claim, err error) {
	err = update(w.db, func(tx operation.Tx) error {
		_, c, err = operation.Take(context.Background(), tx, now,
			operation.Attempt{Operation: id, Holder: operation.NewHolder("test"), TTL: ttl})
		return err
	})
	return c, err
}

func (w world) finish(c operation.Claim, now time.Time, out operation.Outcome) error {
	return update(w.db, func(tx operation.Tx) error {
		return operation.Finish(context.Background(), tx, now, c, out)
	})
}

func (w world) release(c operation.Claim, now time.Time, r operation.Report) error {
	return update(w.db, func(tx operation.Tx) error {
		return operation.Release(context.Background(), tx, now, c, r)
	})
}

func (w world) get(id string) operation.Operation {
	w.t.Helper()
	var o operation.Operation
	w.must(func(tx operation.Tx) (err error) {
		o, err = operation.Get(context.Background(), tx, id)
		return err
	})
	return o
}

func wantErr(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want an error that is %v", err, target)
	}
}

var done = operation.Outcome{State: operation.StateDone}
