package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// waiters returns once so many of the database's sessions wait for a lock.
func waiters(t *testing.T, db *postgres.DB, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for n := -1; n < want; {
		err := db.View(ctx, func(tx store.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity, pg_sleep(0.002)
				WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		})
		if err != nil {
			t.Fatalf("%d sessions wait for a lock, want %d: %v", n, want, err)
		}
	}
}

func lock(tx store.Tx, k string) error {
	var v int64
	return tx.QueryRowContext(context.Background(), "SELECT v FROM thing WHERE k = $1"+tx.ForUpdate(), k).Scan(&v)
}

func fill(t *testing.T, db *postgres.DB, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if err := db.Update(t.Context(), putting(k, 0)); err != nil {
			t.Fatal(err)
		}
	}
}

// trap T41
func TestT41_NowIsTheClockAfterTheWaitForALock(t *testing.T) {
	db := open(t, config(t))
	fill(t, db, "a")
	var released, after time.Time
	ended := make(chan error, 1)
	err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := lock(tx, "a"); err != nil {
			return err
		}
		go func() {
			ended <- db.Update(t.Context(), func(tx store.Tx) (err error) {
				if err = lock(tx, "a"); err == nil {
					after, err = tx.Now(t.Context())
				}
				return err
			})
		}()
		waiters(t, db, 1)
		return tx.QueryRowContext(t.Context(), "SELECT clock_timestamp()").Scan(&released)
	})
	if err := errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	if !after.After(released) {
		t.Errorf("after the wait it was %v, and the lock was held until %v", after, released)
	}
}

// contract: D3: the victim of a deadlock runs again, and both have written.
func TestD3_ADeadlocksVictimRunsAgain(t *testing.T) {
	cfg := config(t)
	cfg.URL += "?deadlock_timeout=20ms"
	db := open(t, cfg)
	fill(t, db, "a", "b")
	both := make(chan struct{})
	var once sync.Once
	var met sync.WaitGroup
	met.Add(2)
	go func() { met.Wait(); once.Do(func() { close(both) }) }()
	errs := make(chan error, 2)
	runs := make(chan struct{}, 100)
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		first := true
		go func() {
			errs <- db.Update(t.Context(), func(tx store.Tx) error {
				runs <- struct{}{}
				for i, k := range order {
					if _, err := tx.ExecContext(t.Context(), "UPDATE thing SET v = v + 1 WHERE k = $1", k); err != nil {
						return err
					}
					if i == 0 && first {
						first = false
						met.Done()
						<-both // each holds one
					}
				}
				return nil
			})
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	if len(runs) != 3 || db.Stats().Again != 1 {
		t.Errorf("%d runs and %+v, want 3 and one again", len(runs), db.Stats())
	}
	for _, k := range []string{"a", "b"} {
		if err := db.View(t.Context(), func(tx store.Tx) error {
			if v, err := storetest.Get(tx, k); err != nil || v != 2 {
				t.Errorf("%s is %d (%v), want 2", k, v, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A caller that gives up while it waits for a lock is let go at once, and leaves no session behind that waits on.
func TestAContextInterruptsTheWaitForALock(t *testing.T) {
	db := open(t, config(t))
	fill(t, db, "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := lock(tx, "a"); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() {
			ended <- db.Update(ctx, func(tx store.Tx) error { return lock(tx, "a") }) // itself on no context
		}()
		waiters(t, db, 1)
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the waiting Update = %v, want context.Canceled", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("it waits on")
		}
		return noWaiters(t, db)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func noWaiters(t *testing.T, db *postgres.DB) error {
	t.Helper()
	for n := 1; n > 0; {
		err := db.View(t.Context(), func(tx store.Tx) error {
			return tx.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity, pg_sleep(0.01)
				WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A process that is stopped in the middle of a transaction does not keep its locks from the others, and when it goes on
// it writes nothing (contract: A6).
func TestAStoppedTransactionLosesItsLocks(t *testing.T) {
	cfg := config(t)
	stopped := cfg
	stopped.URL += "?idle_in_transaction_session_timeout=100ms"
	db, slow := open(t, cfg), open(t, stopped)
	fill(t, db, "a")
	err := slow.Update(t.Context(), func(tx store.Tx) error {
		if err := errors.Join(lock(tx, "a"), storetest.Put(tx, "b", 1)); err != nil {
			return err
		}
		if err := db.Update(t.Context(), func(tx store.Tx) error { return lock(tx, "a") }); err != nil {
			t.Errorf("another replica's Update: %v", err)
		}
		return nil
	})
	if err == nil {
		t.Error("an Update whose session the server ended reports success")
	}
	if has(t, db, "b") {
		t.Error("it wrote")
	}
}

// Whoever finds every connection taken waits for no longer than its context.
func TestTheWaitForAConnectionEndsWithItsContext(t *testing.T) {
	cfg := config(t)
	cfg.MaxConns = 2
	db := open(t, cfg)
	hold := func(inner func() error) error {
		return db.Update(t.Context(), func(store.Tx) error { return inner() })
	}
	err := hold(func() error {
		return hold(func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := db.Update(ctx, putting("a", 1)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Update = %v, want context.DeadlineExceeded", err)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}
