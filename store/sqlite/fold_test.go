package sqlite

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

// The log is folded into the file beside the writer: updates go on as long as that takes. Then the log begins
// anew, so that it does not grow for ever.
func TestTheLogIsFoldedBesideTheWriter(t *testing.T) {
	db := openTest(t, Config{Readers: 1})
	db.writer.foldAt = 20 // before the first update
	n := 0
	update := func() {
		n++
		if err := db.Update(t.Context(), putting(fmt.Sprint(n), 1, nil)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		// The fold waits for the only reader's connection, the updates for nothing.
		err := db.View(t.Context(), func(store.Tx) error {
			for range 100 {
				update()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the log is folded", func() bool { return len(db.writer.folded) == 1 })
		update()
		update()
		if pages := inLog(t, db); pages > 20 {
			t.Errorf("%d pages are in the log, want the last update's", pages)
		}
	}
	if !has(t, db, "1") || !has(t, db, fmt.Sprint(n)) {
		t.Error("an update is missing")
	}
}

// What came while a fold was under way is folded by the writer, or the log would never begin anew under load.
func TestWhatCameDuringAFoldIsFoldedToo(t *testing.T) {
	db := openTest(t, Config{})
	db.writer.foldAt, db.writer.folding = 20, true // before the first update
	db.writer.folded <- nil                        // one that was over before the first of them
	for i := 0; len(db.writer.folded) == 1; i++ {
		if err := db.Update(t.Context(), putting(fmt.Sprint(i), 1, nil)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if err := db.Update(t.Context(), putting(fmt.Sprint("after", i), 1, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if pages := inLog(t, db); pages > 15 {
		t.Errorf("%d pages are in the log, want the last updates'", pages)
	}
}

// inLog counts the pages in the log, folded ones too.
func inLog(t *testing.T, db *DB) (pages int) {
	t.Helper()
	var busy, folded int
	if err := db.readers.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(NOOP)").Scan(&busy, &pages, &folded); err != nil {
		t.Fatal(err)
	}
	return pages
}
