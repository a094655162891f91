package sqlite

import (
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

// TestT48_MemberCannotEndItsGroup: one COMMIT in a function would free the others' half-done work.
func TestT48_MemberCannotEndItsGroup(t *testing.T) {
	for _, query := range []string{
		"COMMIT", " rollback ", "\n\tEnd;", "BEGIN IMMEDIATE", ";SAVEPOINT x", "RELEASE member", "ROLLBACK TO member",
		"INSERT INTO thing (k, v) VALUES ('x', 1); COMMIT", // hidden behind another statement
	} {
		db := openTest(t, Config{})
		errs := oneGroup(t, db, putting("a", 1, nil), func(tx store.Tx) error {
			_, err := tx.ExecContext(t.Context(), query)
			if err == nil {
				t.Errorf("%q was run", query)
			}
			return nil
		}, putting("b", 1, nil))
		if errs[0] != nil || errs[1] == nil || errs[2] != nil {
			t.Errorf("after %q the updates returned %v", query, errs)
		}
		if !has(t, db, "a") || !has(t, db, "b") || has(t, db, "x") {
			t.Errorf("after %q not the right things are there", query)
		}
	}
	for _, query := range []string{"SELECT 1", "INSERT INTO committed VALUES (1)", "", "ENDPOINT", "-- COMMIT"} {
		if controls(query) {
			t.Errorf("%q is refused", query)
		}
	}
}
