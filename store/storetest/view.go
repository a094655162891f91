package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

func testViewCannotWrite(t *testing.T, db store.DB) {
	put(t, db, "a", 1)
	for _, write := range []string{
		"INSERT INTO thing (k, v) VALUES ('b', 1)",
		"INSERT INTO thing (k, v) VALUES ('b', 1) RETURNING v",
		"UPDATE thing SET v = 2",
		"DELETE FROM thing",
		"DROP TABLE thing",
		"CREATE TABLE other (k TEXT)",
	} {
		err := db.View(t.Context(), func(tx store.Tx) error {
			if _, err := Get(tx, "a"); err != nil {
				return err
			}
			_, err := tx.ExecContext(t.Context(), write)
			if err == nil {
				t.Errorf("a View ran %q", write)
			}
			return nil // the failure cannot be overlooked here either
		})
		if err == nil {
			t.Errorf("View succeeded after %q", write)
		}
	}
	want(t, db, "a", 1)
	want(t, db, "b", -1)
	put(t, db, "c", 1)
}

// testViewNeverSeesUncommitted: what an update does and then undoes, or does in two steps, is never half seen.
func testViewNeverSeesUncommitted(t *testing.T, db store.DB) {
	put(t, db, "a", 0)
	put(t, db, "b", 0)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				err := db.Update(t.Context(), func(tx store.Tx) error {
					for _, k := range []string{"a", "b"} {
						if _, err := tx.ExecContext(t.Context(), "UPDATE thing SET v = v + 1 WHERE k = $1", k); err != nil {
							return err
						}
					}
					if w == 0 {
						_, err := tx.ExecContext(t.Context(), "UPDATE thing SET v = 1000000000")
						return errors.Join(errRefuse, err)
					}
					return nil
				})
				if err != nil && !errors.Is(err, errRefuse) {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		err := db.View(t.Context(), func(tx store.Tx) error {
			a, errA := Get(tx, "a")
			b, errB := Get(tx, "b")
			if err := errors.Join(errA, errB); err != nil {
				return err
			}
			if a != b || a >= 1000000000 {
				return fmt.Errorf("a View saw %d and %d", a, b)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}

// testViewIsOneSnapshot: an update that is committed while a view is under way either waits for it or is not seen.
func testViewIsOneSnapshot(t *testing.T, db store.DB) {
	put(t, db, "a", 1)
	begun, updated := make(chan struct{}), make(chan error, 1)
	go func() {
		<-begun
		updated <- db.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.ExecContext(t.Context(), "UPDATE thing SET v = 2")
			return err
		})
	}()
	err := db.View(t.Context(), func(tx store.Tx) error {
		first, err := Get(tx, "a")
		if err != nil {
			return err
		}
		close(begun)
		for range 100 {
			again, err := Get(tx, "a")
			if err != nil {
				return err
			}
			if again != first {
				return fmt.Errorf("a View saw %d and then %d", first, again)
			}
		}
		return nil
	})
	if err := errors.Join(err, <-updated); err != nil {
		t.Error(err)
	}
	want(t, db, "a", 2)
}

func testViewPanic(t *testing.T, db store.DB) {
	for range 20 { // more than there are connections
		func() {
			defer func() {
				if cause := recover(); cause != "boom" {
					t.Errorf("recovered %v, want boom", cause)
				}
			}()
			err := db.View(t.Context(), func(tx store.Tx) error {
				row := tx.QueryRowContext(t.Context(), "SELECT 1")
				panic(map[bool]any{true: "boom", false: row.Err()}[row.Err() == nil])
			})
			t.Errorf("View returned %v after a panic", err)
		}()
	}
	put(t, db, "a", 1)
	want(t, db, "a", 1)
}
