package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

var errRefuse = errors.New("refused by the test")

func update(t *testing.T, db store.DB, fn func(tx store.Tx) error) {
	t.Helper()
	if err := db.Update(t.Context(), fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

func put(t *testing.T, db store.DB, k string, v int64) {
	t.Helper()
	update(t, db, func(tx store.Tx) error { return Put(tx, k, v) })
}

// want checks a thing's value; -1 is for none.
func want(t *testing.T, db store.DB, k string, v int64) {
	t.Helper()
	got := int64(-1)
	err := db.View(t.Context(), func(tx store.Tx) error {
		n, err := Get(tx, k)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		got = n
		return err
	})
	if err != nil {
		t.Fatalf("View: %v", err)
	}
	if got != v {
		t.Errorf("thing %s is %d, want %d (-1: none)", k, got, v)
	}
}

func testUpdateIsSeen(t *testing.T, db store.DB) {
	for n := range int64(20) {
		k := fmt.Sprint(n)
		put(t, db, k, n)
		want(t, db, k, n)
	}
}

func testFailedUpdate(t *testing.T, db store.DB) {
	err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := Put(tx, "a", 1); err != nil {
			return err
		}
		return errRefuse
	})
	if err != errRefuse {
		t.Errorf("Update = %v, want the function's very error", err)
	}
	want(t, db, "a", -1)
}

func testFailedStatement(t *testing.T, db store.DB) {
	put(t, db, "taken", 1)
	for name, fail := range map[string]func(tx store.Tx) error{
		"a constraint": func(tx store.Tx) error { return Put(tx, "taken", 2) },
		"syntax": func(tx store.Tx) error {
			_, err := tx.ExecContext(t.Context(), "INSRT")
			return err
		},
		"a query": func(tx store.Tx) error {
			rows, err := tx.QueryContext(t.Context(), "SELECT nothing FROM nowhere")
			if err == nil {
				err = errors.Join(errors.New("it succeeded"), rows.Close())
				t.Error(err)
			}
			return err
		},
		"a row": func(tx store.Tx) error {
			return tx.QueryRowContext(t.Context(), "INSERT INTO thing (k, v) VALUES ($1, 1) RETURNING v", "taken").Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var first error
			err := db.Update(t.Context(), func(tx store.Tx) error {
				if err := Put(tx, "before", 1); err != nil {
					return err
				}
				if first = fail(tx); first == nil {
					t.Error("the statement did not fail")
				}
				checkRefused(t, tx)
				return first
			})
			if err == nil || !errors.Is(err, first) {
				t.Errorf("Update = %v, want the function's error", err)
			}
			want(t, db, "before", -1)
			want(t, db, "after", -1)
		})
	}
}

// checkRefused expects every kind of statement to be refused with an error that can be seen at once.
func checkRefused(t *testing.T, tx store.Tx) {
	t.Helper()
	if err := Put(tx, "after", 1); err == nil {
		t.Error("ExecContext works on")
	}
	if rows, err := tx.QueryContext(context.Background(), "SELECT k FROM thing"); err == nil {
		t.Error("QueryContext works on", rows.Close())
	}
	var k string
	row := tx.QueryRowContext(context.Background(), "SELECT k FROM thing")
	if row == nil {
		t.Fatal("QueryRowContext returned nil")
	}
	if row.Err() == nil {
		t.Error("the Err of a refused row is nil")
	}
	if err := row.Scan(&k); err == nil || errors.Is(err, sql.ErrNoRows) {
		t.Errorf("the Scan of a refused row = %v", err)
	}
	if _, err := tx.Now(context.Background()); err == nil {
		t.Error("Now works on")
	}
}

func testOverlookedFailure(t *testing.T, db store.DB) {
	put(t, db, "taken", 1)
	err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := Put(tx, "a", 1); err != nil {
			return err
		}
		if err := Put(tx, "taken", 2); err == nil {
			t.Error("an equal key was accepted")
		}
		return nil
	})
	if err == nil {
		t.Error("an update whose statement failed reports success")
	}
	want(t, db, "a", -1)
	want(t, db, "taken", 1)
}

func testNoRow(t *testing.T, db store.DB) {
	update(t, db, func(tx store.Tx) error {
		if _, err := Get(tx, "none"); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("Get = %v, want sql.ErrNoRows", err)
		}
		return Put(tx, "a", 1)
	})
	want(t, db, "a", 1)
}

func testCounter(t *testing.T, db store.DB) {
	put(t, db, "n", 0)
	const writers, each = 16, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				err := db.Update(t.Context(), func(tx store.Tx) error {
					var v int64
					row := tx.QueryRowContext(t.Context(), "SELECT v FROM thing WHERE k = $1"+tx.ForUpdate(), "n")
					if err := row.Scan(&v); err != nil {
						return err
					}
					_, err := tx.ExecContext(t.Context(), "UPDATE thing SET v = $1 WHERE k = $2", v+1, "n")
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	want(t, db, "n", writers*each)
}

func testContextBefore(t *testing.T, db store.DB) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ran := false
	run := func(store.Tx) error { ran = true; return nil }
	if err := db.Update(ctx, run); !errors.Is(err, context.Canceled) {
		t.Errorf("Update = %v, want context.Canceled", err)
	}
	if err := db.View(ctx, run); !errors.Is(err, context.Canceled) {
		t.Errorf("View = %v, want context.Canceled", err)
	}
	if ran {
		t.Error("the function ran")
	}
}

func testContextMidRun(t *testing.T, db store.DB) {
	for _, tc := range []struct {
		name string
		then func(tx store.Tx) error
	}{
		{"another statement is refused", func(tx store.Tx) error { return Put(tx, "b", 1) }},
		{"the function does not look", func(store.Tx) error { return nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := db.Update(ctx, func(tx store.Tx) error {
				if err := Put(tx, "a", 1); err != nil {
					return err
				}
				cancel()
				return tc.then(tx)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Update = %v, want context.Canceled", err)
			}
			want(t, db, "a", -1)
			want(t, db, "b", -1)
		})
	}
}

func testPanic(t *testing.T, db store.DB) {
	func() {
		defer func() {
			if cause := recover(); cause != "boom" {
				t.Errorf("recovered %v, want boom", cause)
			}
		}()
		err := db.Update(t.Context(), func(tx store.Tx) error {
			if err := Put(tx, "a", 1); err != nil {
				return err
			}
			panic("boom")
		})
		t.Errorf("Update returned %v after a panic", err)
	}()
	want(t, db, "a", -1)
	put(t, db, "b", 1)
}

func testGoexit(t *testing.T, db store.DB) {
	var wg sync.WaitGroup
	wg.Go(func() {
		err := db.Update(t.Context(), func(tx store.Tx) error {
			if err := Put(tx, "a", 1); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		})
		t.Errorf("Update returned %v after Goexit", err)
	})
	wg.Wait()
	want(t, db, "a", -1)
	put(t, db, "b", 1)
}

func testTxAfterEnd(t *testing.T, db store.DB) {
	var kept store.Tx
	keep := func(tx store.Tx) error { kept = tx; return nil }
	update(t, db, keep)
	if kept.QueryRowContext(t.Context(), "SELECT 1").Err() == nil {
		t.Error("a query runs after the transaction's end")
	}
	checkRefused(t, kept)
	if err := db.View(t.Context(), keep); err != nil {
		t.Fatal(err)
	}
	checkRefused(t, kept)
	want(t, db, "after", -1)
}

func testOpenRows(t *testing.T, db store.DB) {
	put(t, db, "a", 1)
	err := db.Update(t.Context(), func(tx store.Tx) (err error) {
		rows, err := tx.QueryContext(t.Context(), "SELECT k FROM thing")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close(), rows.Err()) }()
		for rows.Next() {
			if err := Put(tx, "b", 1); err == nil {
				t.Error("a statement ran beside open rows")
			}
		}
		return nil
	})
	if err == nil {
		t.Error("Update succeeded")
	}
	want(t, db, "b", -1)
}

func testLeftOpenRows(t *testing.T, db store.DB) {
	put(t, db, "a", 1)
	var left *sql.Rows
	leave := func(tx store.Tx) (err error) {
		left, err = tx.QueryContext(t.Context(), "SELECT k FROM thing")
		return err
	}
	if err := errors.Join(db.Update(t.Context(), leave), left.Err()); err != nil {
		t.Errorf("Update: %v", err)
	}
	if left.Next() {
		t.Error("rows can be read after their transaction")
	}
	update(t, db, func(tx store.Tx) error { // this row is never scanned
		return tx.QueryRowContext(t.Context(), "INSERT INTO thing (k, v) VALUES ('b', 1) RETURNING v").Err()
	})
	if err := db.View(t.Context(), leave); err != nil {
		t.Errorf("View: %v", err)
	}
	put(t, db, "c", 1)
	want(t, db, "b", 1)
}

func testNow(t *testing.T, db store.DB) {
	var last time.Time
	check := func(tx store.Tx) error {
		for range 3 {
			now, err := tx.Now(t.Context())
			if err != nil {
				return err
			}
			if now.Before(last) {
				t.Errorf("Now went back from %v to %v", last, now)
			}
			if now.Location() != time.UTC || !now.Equal(now.Truncate(time.Microsecond)) || now.IsZero() {
				t.Errorf("Now = %v, want UTC in whole microseconds", now)
			}
			if back := store.FromMicros(store.Micros(now)); back != now {
				t.Errorf("Now = %v and is %v once stored", now, back)
			}
			last = now
		}
		return nil
	}
	for range 3 {
		update(t, db, check)
		if err := db.View(t.Context(), check); err != nil {
			t.Fatal(err)
		}
	}
}

func testClosed(t *testing.T, db store.DB) {
	put(t, db, "a", 1)
	for range 2 {
		if err := db.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	run := func(store.Tx) error { t.Error("the function ran"); return nil }
	if err := db.Update(t.Context(), run); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Update = %v, want ErrClosed", err)
	}
	if err := db.View(t.Context(), run); !errors.Is(err, store.ErrClosed) {
		t.Errorf("View = %v, want ErrClosed", err)
	}
}
