package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
)

// raising raises things; the statement sleeps as long as it is given, in milliseconds.
func raising() *store.Joint {
	return &store.Joint{Columns: "k text, sleep bigint", Query: `, raised AS (
		UPDATE thing SET v = v + 1 FROM given g WHERE thing.k = g.k AND pg_sleep(g.sleep / 1000.0) IS NOT NULL RETURNING g.position)
		SELECT position, 1::bigint, now FROM raised, clock`}
}

func value(t *testing.T, db *postgres.DB, k string) (v int64) {
	t.Helper()
	err := db.View(t.Context(), func(tx store.Tx) error {
		return tx.QueryRowContext(t.Context(), "SELECT v FROM thing WHERE k = $1", k).Scan(&v)
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Many wait for a joint statement, so it does not wait for the lock that one of them needs.
func TestAJointStatementWaitsForALockAMomentOnly(t *testing.T) {
	db := open(t, config(t))
	fill(t, db, "a", "b")
	j := raising()
	err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := lock(tx, "a"); err != nil {
			return err
		}
		began := time.Now()
		told, err := db.Join(t.Context(), j, "a", int64(0))
		if err != nil || told.Did != 0 {
			t.Errorf("Join = %+v, %v; want that nothing was done", told, err)
		}
		if took := time.Since(began); took > 5*time.Second { // the usual sessions would wait for 20 s
			t.Errorf("it waited for %v", took)
		}
		if told, err := db.Join(t.Context(), j, "b", int64(0)); err != nil || told.Did != 1 {
			t.Errorf("of another row: Join = %+v, %v", told, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if told, err := db.Join(t.Context(), j, "a", int64(0)); err != nil || told.Did != 1 || value(t, db, "a") != 1 {
		t.Errorf("once it is free: Join = %+v, %v", told, err)
	}
}

// trap T46: a statement whose answer is lost may have been committed, and its callers are told that nobody knows.
func TestT46_AJointStatementsLostAnswerIsAnUnknownOutcome(t *testing.T) {
	db := open(t, config(t))
	fill(t, db, "a")
	j := raising()
	ended := make(chan error, 1)
	go func() {
		_, err := db.Join(t.Context(), j, "a", int64(60_000))
		ended <- err
	}()
	number := func(query string) (n int) {
		t.Helper()
		err := db.View(t.Context(), func(tx store.Tx) error {
			return tx.QueryRowContext(t.Context(), query).Scan(&n)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const others = ` FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`
	eventually(t, func() bool {
		return number(`SELECT COUNT(pg_terminate_backend(pid))`+others+` AND wait_event = 'PgSleep'`) == 1
	})
	if err := <-ended; !errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("Join = %v, want ErrUnknownOutcome", err)
	}
	if db.Stats().Unknown != 1 {
		t.Errorf("%+v, want 1 unknown", db.Stats())
	}
	// The next one has a session that works, and so have those whose sessions died while they were idle.
	for range 2 {
		if told, err := db.Join(t.Context(), j, "a", int64(0)); err != nil || told.Did != 1 {
			t.Errorf("after it: Join = %+v, %v", told, err)
		}
		if number(`SELECT COUNT(pg_terminate_backend(pid))`+others) == 0 {
			t.Error("no session was idle")
		}
		eventually(t, func() bool { return number(`SELECT COUNT(*)`+others) == 0 })
		if _, err := db.Join(t.Context(), j, "a", int64(0)); err != nil && !errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("on a dead session: %v", err)
		}
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
	}
}

// A caller that leaves takes its row back while the statement before it runs, and waits once its own does.
func TestACallerThatLeavesTakesItsRowBackOrHearsWhatBecameOfIt(t *testing.T) {
	db := open(t, config(t))
	fill(t, db, "a", "b")
	j := raising()
	first, cancelFirst := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := db.Join(first, j, "a", int64(300))
		ended <- err
	}()
	eventually(t, func() bool {
		n := 0
		err := db.View(t.Context(), func(tx store.Tx) error {
			return tx.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`).Scan(&n)
		})
		return err == nil && n == 1
	})
	second, cancelSecond := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancelSecond()
	if _, err := db.Join(second, j, "b", int64(0)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second: %v", err)
	}
	cancelFirst()
	if err := <-ended; err != nil {
		t.Errorf("the first: %v", err)
	}
	if a, b := value(t, db, "a"), value(t, db, "b"); a != 1 || b != 0 {
		t.Errorf("a is %d and b %d, want 1 and 0", a, b)
	}
}

// What a guest once said must not fail a statement that others are in.
func TestAJointStatementTakesTextThatTheServerCannotHold(t *testing.T) {
	db := open(t, config(t))
	j := &store.Joint{Columns: "k text", Query: `, made AS (INSERT INTO thing (k, v) SELECT k, 1 FROM given RETURNING k)
		SELECT g.position, 1::bigint, now FROM given g JOIN made USING (k), clock`}
	for _, k := range []string{"a\x00b", "c\xffd"} {
		if told, err := db.Join(t.Context(), j, k); err != nil || told.Did != 1 {
			t.Errorf("%q: Join = %+v, %v", k, told, err)
		}
	}
}
