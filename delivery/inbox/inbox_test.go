package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// TestOnPostgres runs every test of this package on PostgreSQL as well.
func TestOnPostgres(t *testing.T) { testenv.OnPostgres(t) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// open gives a database with the package's schema and a table for effects.
func open(t testing.TB) *sql.DB {
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
	provider, err := goose.NewProvider(dialect, db, inbox.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE effect (id TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func update(ctx context.Context, db *sql.DB, fn func(inbox.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// apply is a receiver: the effect happens once per source and id.
func apply(ctx context.Context, db *sql.DB, source, id string, failure error) (fresh bool, err error) {
	err = update(ctx, db, func(tx inbox.Tx) error {
		d := inbox.Delivery{Source: source, ID: id, Kind: "k", ReceivedAt: noon, Body: []byte("{}")}
		if fresh, err = inbox.Record(ctx, tx, d); err != nil || !fresh {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ($1)`, source+" "+id); err != nil {
			return err
		}
		return failure
	})
	return fresh, err
}

func effects(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow(`SELECT COUNT(*) FROM effect`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestB3_RepeatedDeliveryDoesNothing(t *testing.T) {
	db := open(t)
	for i, tc := range []struct {
		source, id string
		fresh      bool
		effects    int
	}{
		{"in/1", "a", true, 1}, {"in/1", "a", false, 1}, {"in/1", "b", true, 2},
		{"in/2", "a", true, 3}, // ids are unique per source
		{"in/2", "a", false, 3}, {"in/1", "a", false, 3},
	} {
		fresh, err := apply(t.Context(), db, tc.source, tc.id, nil)
		if err != nil || fresh != tc.fresh || effects(t, db) != tc.effects {
			t.Errorf("%d: fresh %v, %d effects, error %v", i, fresh, effects(t, db), err)
		}
	}
}

// contract: B3. The row and the effect come and go together.
func TestT16_AFailedEffectLeavesNoTraceSoThatTheRetryWorks(t *testing.T) {
	db, failure := open(t), errors.New("not known yet")
	if _, err := apply(t.Context(), db, "in/1", "a", failure); !errors.Is(err, failure) {
		t.Fatal(err)
	}
	err := update(t.Context(), db, func(tx inbox.Tx) error {
		seen, err := inbox.Seen(t.Context(), tx, "in/1", "a")
		if seen {
			t.Error("a rolled back delivery is remembered")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if fresh, err := apply(t.Context(), db, "in/1", "a", nil); err != nil || !fresh || effects(t, db) != 1 {
		t.Errorf("fresh %v, %d effects, error %v", fresh, effects(t, db), err)
	}
}

// contract: B3. Attempt 2 gets its answer only after attempt 1's commit.
func TestT24_ARepeatDuringTheFirstWaitsForItsCommit(t *testing.T) {
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprintf("the first commits: %v", commits), func(t *testing.T) {
			db := open(t)
			first, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			d := inbox.Delivery{Source: "in/1", ID: "a", Kind: "k", ReceivedAt: noon}
			if fresh, err := inbox.Record(t.Context(), first, d); err != nil || !fresh {
				t.Fatal(fresh, err)
			}
			type answer struct {
				fresh bool
				err   error
			}
			second, begun := make(chan answer, 1), make(chan struct{})
			go func() {
				close(begun)
				fresh, err := apply(t.Context(), db, "in/1", "a", nil)
				second <- answer{fresh, err}
			}()
			<-begun
			select {
			case a := <-second:
				t.Fatalf("answered %+v before the first one's end", a)
			case <-time.After(100 * time.Millisecond): // a look, not a wait: nothing can signal that it stays blocked
			}
			end := first.Rollback
			if commits {
				end = first.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if a := <-second; a.err != nil || a.fresh == commits {
				t.Errorf("the repeat: %+v", a)
			}
		})
	}
}

func TestB3_ManySendersOfOneEventHaveOneEffect(t *testing.T) {
	db := open(t)
	var senders sync.WaitGroup
	var mu sync.Mutex
	firsts := 0
	for range 16 {
		senders.Go(func() {
			for i := range 10 {
				fresh, err := apply(t.Context(), db, "in/1", fmt.Sprint(i), nil)
				if err != nil {
					t.Error(err)
				}
				if fresh {
					mu.Lock()
					firsts++
					mu.Unlock()
				}
			}
		})
	}
	senders.Wait()
	if firsts != 10 || effects(t, db) != 10 {
		t.Errorf("%d were first, %d effects, want 10 and 10", firsts, effects(t, db))
	}
}

func TestB7_WhatWasIgnoredIsRecordedAndListed(t *testing.T) {
	db, ctx := open(t), t.Context()
	err := update(ctx, db, func(tx inbox.Tx) error {
		for _, ref := range [][2]string{{"in/1", "a"}, {"in/1", "b"}, {"in/2", "a"}, {"host/1", "z"}} {
			d := inbox.Delivery{Source: ref[0], ID: ref[1], Kind: "instance.ready", ReceivedAt: noon, Body: []byte("{}")}
			if _, err := inbox.Record(ctx, tx, d); err != nil {
				return err
			}
		}
		if err := inbox.Note(ctx, tx, "in/1", "b", "ignored: stale incarnation"); err != nil {
			return err
		}
		if err := inbox.Note(ctx, tx, "in/1", "c", "applied"); !errors.Is(err, inbox.ErrUnknown) {
			t.Errorf("a note on nothing: %v", err)
		}
		var all []string
		for f := (inbox.Filter{Limit: 3}); ; {
			page, err := inbox.List(ctx, tx, f)
			if err != nil {
				return err
			}
			for _, e := range page {
				all = append(all, e.Source+" "+e.ID+" "+e.Outcome)
				f.AfterSource, f.AfterID = e.Source, e.ID
			}
			if len(page) == 0 {
				break
			}
		}
		if want := []string{"host/1 z ", "in/1 a ", "in/1 b ignored: stale incarnation", "in/2 a "}; !reflect.DeepEqual(all, want) {
			t.Errorf("listed %q", all)
		}
		one, err := inbox.List(ctx, tx, inbox.Filter{Source: "in/1"})
		if err != nil {
			return err
		}
		want := inbox.Entry{Source: "in/1", ID: "a", Kind: "instance.ready", ReceivedAt: noon,
			BodySHA256: "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}
		if len(one) != 2 || one[0] != want {
			t.Errorf("listed %+v", one)
		}
		next, err := inbox.List(ctx, tx, inbox.Filter{Source: "in/1", AfterSource: "in/1", AfterID: "a"})
		if len(next) != 1 || next[0].ID != "b" {
			t.Errorf("after a: %+v", next)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestT20_PurgeTakesOnlyTheNamedSourceAndOnlyTheOld(t *testing.T) {
	db, ctx := open(t), t.Context()
	err := update(ctx, db, func(tx inbox.Tx) error {
		for _, source := range []string{"ended", "live"} {
			for i := range 5 {
				d := inbox.Delivery{Source: source, ID: fmt.Sprint(i), Kind: "k", ReceivedAt: noon.Add(time.Duration(i) * time.Hour)}
				if _, err := inbox.Record(ctx, tx, d); err != nil {
					return err
				}
			}
		}
		if sources, err := inbox.Sources(ctx, tx, "", 0); err != nil || !reflect.DeepEqual(sources, []string{"ended", "live"}) {
			t.Errorf("sources %q, %v", sources, err)
		}
		if sources, err := inbox.Sources(ctx, tx, "ended", 1); err != nil || !reflect.DeepEqual(sources, []string{"live"}) {
			t.Errorf("sources after: %q, %v", sources, err)
		}
		var batches []int
		for {
			n, err := inbox.Purge(ctx, tx, "ended", noon.Add(3*time.Hour), 2)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			batches = append(batches, n)
		}
		if !reflect.DeepEqual(batches, []int{2, 1}) {
			t.Errorf("batches %v", batches)
		}
		left, err := inbox.List(ctx, tx, inbox.Filter{})
		if len(left) != 7 || left[0].ID != "3" {
			t.Errorf("left %+v", left)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestADeliveryWithoutSourceOrIDIsAnError(t *testing.T) {
	db := open(t)
	for _, d := range []inbox.Delivery{{ID: "a"}, {Source: "s"}} {
		err := update(t.Context(), db, func(tx inbox.Tx) error {
			_, err := inbox.Record(t.Context(), tx, d)
			return err
		})
		if err == nil {
			t.Errorf("%+v was recorded", d)
		}
	}
}

func TestErrorsOfTheDatabaseAreReported(t *testing.T) {
	db, ctx := open(t), t.Context()
	if _, err := db.Exec(`DROP TABLE delivery`); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(inbox.Tx) error{
		"record": func(tx inbox.Tx) error {
			_, err := inbox.Record(ctx, tx, inbox.Delivery{Source: "s", ID: "a"})
			return err
		},
		"seen":    func(tx inbox.Tx) error { _, err := inbox.Seen(ctx, tx, "s", "a"); return err },
		"note":    func(tx inbox.Tx) error { return inbox.Note(ctx, tx, "s", "a", "x") },
		"list":    func(tx inbox.Tx) error { _, err := inbox.List(ctx, tx, inbox.Filter{}); return err },
		"sources": func(tx inbox.Tx) error { _, err := inbox.Sources(ctx, tx, "", 0); return err },
		"purge":   func(tx inbox.Tx) error { _, err := inbox.Purge(ctx, tx, "s", noon, 0); return err },
	} {
		if err := update(ctx, db, call); err == nil {
			t.Errorf("%s hid an error", name)
		}
	}
}
