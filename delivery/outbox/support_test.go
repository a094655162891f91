package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// TestOnPostgres runs every test of this package on PostgreSQL as well.
func TestOnPostgres(t *testing.T) { testenv.OnPostgres(t) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// box is an outbox on a real database, with a clock that the test turns.
type box struct {
	t   testing.TB
	db  *sql.DB
	mu  sync.Mutex
	now time.Time
}

// newBox opens a file: the connections of a pool see one database.
func newBox(t testing.TB) *box {
	t.Helper()
	driver, dialect := "sqlite", goose.DialectSQLite3
	dsn, ok := testenv.InPostgresSchema(t)
	if ok {
		driver, dialect = "pgx", goose.DialectPostgres
	} else {
		dsn = "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate"
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	provider, err := goose.NewProvider(dialect, db, outbox.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.Up(context.Background()); err != nil {
		t.Fatal(err)
	}
	return &box{t: t, db: db, now: noon}
}

func (b *box) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *box) advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func (b *box) transact(ctx context.Context, fn func(outbox.Tx) error) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// must runs fn in a transaction that has to succeed.
func (b *box) must(fn func(outbox.Tx) error) {
	b.t.Helper()
	if err := b.transact(context.Background(), fn); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) enqueue(destination, key string, ids ...string) {
	b.t.Helper()
	b.must(func(tx outbox.Tx) error {
		for _, id := range ids {
			row := outbox.Row{ID: id, Destination: destination, Kind: "k", Key: key, Body: []byte(`{}`)}
			if err := outbox.Enqueue(context.Background(), tx, row, b.clock()); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *box) get(destination, id string) (row outbox.Row) {
	b.t.Helper()
	b.must(func(tx outbox.Tx) (err error) {
		row, err = outbox.Get(context.Background(), tx, outbox.Ref{Destination: destination, ID: id})
		return err
	})
	return row
}

// dispatcher sends with fn; change may adjust the configuration.
func (b *box) dispatcher(fn func(context.Context, outbox.Row) error, change func(*outbox.Config)) *outbox.Dispatcher {
	b.t.Helper()
	c := outbox.Config{
		Update: b.transact, View: b.transact, Send: fn, Holder: "test", Clock: b.clock,
		Jitter: func(string, int) float64 { return 0.5 }, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	d, err := outbox.New(c)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// round runs the dispatcher once and holds its report to what is expected.
func (b *box) round(d *outbox.Dispatcher, want outbox.Report) {
	b.t.Helper()
	got, err := d.RunOnce(context.Background())
	if err != nil || got != want {
		b.t.Errorf("report %+v, %v, want %+v", got, err, want)
	}
}

// sends records what was sent, and answers as told.
type sends struct {
	mu     sync.Mutex
	seen   []string
	answer func(outbox.Row) error
}

func (s *sends) send(_ context.Context, r outbox.Row) error {
	s.mu.Lock()
	s.seen = append(s.seen, r.ID)
	s.mu.Unlock()
	if s.answer == nil {
		return nil
	}
	return s.answer(r)
}

func (s *sends) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.seen)
}

// drain runs the dispatcher until so many were sent in all.
func (s *sends) drain(b *box, d *outbox.Dispatcher, want int) {
	b.t.Helper()
	for range want {
		if _, err := d.RunOnce(context.Background()); err != nil {
			b.t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) != want {
		b.t.Fatalf("sent %q, want %d", s.seen, want)
	}
}
