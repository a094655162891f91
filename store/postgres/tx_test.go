package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// A function that could commit would free what its Update then reports as undone.
func TestAFunctionCannotEndItsTransaction(t *testing.T) {
	db := open(t, config(t))
	for _, query := range []string{
		"COMMIT", " rollback ", "\n\tEnd;", "BEGIN", "START TRANSACTION", "ABORT", ";SAVEPOINT x", "RELEASE member",
		"INSERT INTO thing (k, v) VALUES ('x', 1); COMMIT", // hidden behind another statement
	} {
		err := db.Update(t.Context(), func(tx store.Tx) error {
			if err := storetest.Put(tx, "a", 1); err != nil {
				return err
			}
			if _, err := tx.ExecContext(t.Context(), query); err == nil {
				t.Errorf("%q was run", query)
			}
			return nil
		})
		if err == nil || has(t, db, "a") || has(t, db, "x") {
			t.Errorf("after %q: Update = %v, and something was written: %v", query, err, has(t, db, "a") || has(t, db, "x"))
		}
	}
}

// Rows that end early look like fewer rows.
func TestAStatementThatFailsWhileItIsReadCannotBeOverlooked(t *testing.T) {
	db := open(t, config(t))
	for _, next := range []bool{false, true} {
		for name, in := range map[string]func(fn func(store.Tx) error) error{
			"update": func(fn func(store.Tx) error) error { return db.Update(t.Context(), fn) },
			"view":   func(fn func(store.Tx) error) error { return db.View(t.Context(), fn) },
		} {
			err := in(func(tx store.Tx) error {
				rows, err := tx.QueryContext(t.Context(), "SELECT 1 / (2 - n) FROM generate_series(1, 2) n")
				if err != nil {
					return err
				}
				n := 0
				for rows.Next() {
					n++
				}
				if n != 1 || rows.Err() == nil {
					t.Errorf("%d rows and %v, want 1 and a division by zero", n, rows.Err())
				}
				if next && tx.QueryRowContext(t.Context(), "SELECT 1").Err() == nil {
					t.Error("the next statement ran")
				}
				return nil
			})
			if err == nil {
				t.Errorf("%s, another statement after it %v: it reports success", name, next)
			}
		}
	}
}

// The driver and the server would take a row that was not scanned for a statement that still runs.
func TestARowThatWasNotScannedRefusesTheNextStatement(t *testing.T) {
	db := open(t, config(t))
	fill(t, db, "a", "b")
	err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := tx.QueryRowContext(t.Context(), "SELECT k FROM thing").Err(); err != nil {
			return err
		}
		return storetest.Put(tx, "c", 1)
	})
	if err == nil || !strings.Contains(err.Error(), "are open") {
		t.Errorf("Update = %v, want that rows are open", err)
	}
	fill(t, db, "d")
}

// What a guest once said must not keep what it was about from being recorded: SQLite holds any text.
func TestTextThatTheServerCannotHoldIsStillWritten(t *testing.T) {
	db := open(t, config(t))
	for given, want := range map[string]string{"a\x00b": "a\uFFFDb", "c\xffd": "c\uFFFDd", "e": "e"} {
		var got string
		err := db.Update(t.Context(), func(tx store.Tx) error {
			if err := storetest.Put(tx, given, 1); err != nil {
				return err
			}
			return errors.Join(tx.QueryRowContext(t.Context(), "SELECT k FROM thing WHERE k = $1", given).Scan(&got))
		})
		if err != nil || got != want {
			t.Errorf("%q became %q (%v), want %q", given, got, err, want)
		}
	}
}
