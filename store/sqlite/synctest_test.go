package sqlite_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// TestMemoryWorksInABubble: virtual time passes while updates and views wait for each other, and nothing is left running
// after Close (the bubble would deadlock).
func TestMemoryWorksInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := sqlite.Open(t.Context(), sqlite.Config{Memory: true}, storetest.Migrations())
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i%4) * time.Hour)
				if err := db.Update(t.Context(), func(tx store.Tx) error {
					now, err := tx.Now(t.Context())
					if err != nil {
						return err
					}
					time.Sleep(time.Minute) // stands for a simulated instant; others wait meanwhile
					return storetest.Put(tx, fmt.Sprint(i), store.Micros(now))
				}); err != nil {
					t.Error(err)
				}
				if err := db.View(t.Context(), func(tx store.Tx) error {
					time.Sleep(90 * time.Second) // beyond others' commits
					us, err := storetest.Get(tx, fmt.Sprint(i))
					if at := store.FromMicros(us); err == nil && at.Before(begun.Truncate(time.Microsecond)) {
						t.Errorf("Now was %v, before virtual time began", at)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begun); took < 3*time.Hour {
			t.Errorf("virtual time moved by %v only", took)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestNowIsTheInjectedClock: T42, a clock that steps is passed on as it is, to the microsecond.
func TestNowIsTheInjectedClock(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8999, time.FixedZone("west", -3600))
	db := openConfig(t, sqlite.Config{Memory: true, Clock: func() time.Time { return at }})
	for _, step := range []time.Duration{0, time.Hour, -2 * time.Hour} {
		at = at.Add(step)
		if err := db.Update(t.Context(), func(tx store.Tx) error {
			now, err := tx.Now(t.Context())
			if want := at.UTC().Truncate(time.Microsecond); now != want {
				t.Errorf("Now = %v, want %v", now, want)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}
