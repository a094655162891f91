package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

// together runs n updates at once and returns their errors.
func together(n int, run func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = run(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// testIsolation: neighbours that fail in every way leave no trace in those that succeed, and the other way round.
func testIsolation(t *testing.T, db store.DB) {
	put(t, db, "taken", 1)
	for round := range 10 {
		key := func(i int) string { return fmt.Sprintf("%d/%d", round, i) }
		var panicked sync.Map
		errs := together(24, func(i int) (err error) {
			defer func() {
				if cause := recover(); cause != nil {
					panicked.Store(i, cause)
				}
			}()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			return db.Update(ctx, func(tx store.Tx) error {
				if err := Put(tx, key(i), int64(i)); err != nil {
					return err
				}
				switch i % 6 {
				case 1:
					return errRefuse
				case 2:
					return Put(tx, "taken", 2)
				case 3:
					panic(i)
				case 4:
					cancel()
				}
				return nil
			})
		})
		for i, err := range errs {
			switch i % 6 {
			case 0, 5:
				if err != nil {
					t.Errorf("update %s: %v", key(i), err)
				}
				want(t, db, key(i), int64(i))
				continue
			case 1:
				if err != errRefuse {
					t.Errorf("update %s = %v, want its own error", key(i), err)
				}
			case 2:
				if err == nil || errors.Is(err, store.ErrUnknownOutcome) {
					t.Errorf("update %s = %v, want a constraint's error", key(i), err)
				}
			case 3:
				if cause, _ := panicked.Load(i); cause != i {
					t.Errorf("update %s panicked with %v, want its own panic", key(i), cause)
				}
			case 4:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("update %s = %v, want context.Canceled", key(i), err)
				}
			}
			want(t, db, key(i), -1)
		}
	}
}

// testEqualKeys: of concurrent updates that want one key, one has it, and both kinds of loser know whose it is.
func testEqualKeys(t *testing.T, db store.DB) {
	for round := range 20 {
		k := fmt.Sprint("key", round)
		found := make([]int64, 16)
		errs := together(len(found), func(i int) error {
			return db.Update(t.Context(), func(tx store.Tx) error {
				if i%2 == 0 {
					return Put(tx, k, int64(i))
				}
				// The usual way: insert or else read, in one transaction.
				row := tx.QueryRowContext(t.Context(),
					"INSERT INTO thing (k, v) VALUES ($1, $2) ON CONFLICT (k) DO NOTHING RETURNING v", k, i)
				err := row.Scan(&found[i])
				if errors.Is(err, sql.ErrNoRows) {
					found[i], err = Get(tx, k)
				}
				return err
			})
		})
		winner := int64(-1)
		if err := db.View(t.Context(), func(tx store.Tx) (err error) { winner, err = Get(tx, k); return err }); err != nil {
			t.Fatal(err)
		}
		for i, err := range errs {
			switch {
			case i%2 == 1 && (err != nil || found[i] != winner):
				t.Errorf("%s: update %d read %d, %v; want the winner %d", k, i, found[i], err, winner)
			case i%2 == 0 && (err == nil) != (winner == int64(i)):
				t.Errorf("%s: update %d got %v, and the winner is %d", k, i, err, winner)
			}
		}
	}
}

// testDeferredViolation: a constraint that is checked at commit fails who violates it, not its neighbours.
func testDeferredViolation(t *testing.T, db store.DB) {
	addPart := func(tx store.Tx, k string) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO part (k, thing) VALUES ($1, $2)", k, k)
		return err
	}
	for round := range 10 {
		key := func(i int) string { return fmt.Sprintf("%d/%d", round, i) }
		errs := together(12, func(i int) error {
			return db.Update(t.Context(), func(tx store.Tx) error {
				if err := addPart(tx, key(i)); err != nil {
					return err
				}
				if i%3 == 1 {
					return nil // a part of nothing
				}
				return Put(tx, key(i), int64(i))
			})
		})
		for i, err := range errs {
			if i%3 == 1 {
				if err == nil {
					t.Errorf("update %s succeeded with a part of nothing", key(i))
				}
				want(t, db, key(i), -1)
				continue
			}
			if err != nil {
				t.Errorf("update %s: %v", key(i), err)
			}
			want(t, db, key(i), int64(i))
		}
	}
	parts := 0
	err := db.View(t.Context(), func(tx store.Tx) error {
		return tx.QueryRowContext(t.Context(), "SELECT count(*) FROM part").Scan(&parts)
	})
	if err != nil || parts != 80 {
		t.Errorf("there are %d parts (%v), want 80", parts, err)
	}
}
