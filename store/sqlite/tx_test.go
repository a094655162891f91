package sqlite

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/storetest"
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

// TestT48_MembersContextNeverReachesTheDriver: an interrupted statement would roll back the whole group.
func TestT48_MembersContextNeverReachesTheDriver(t *testing.T) {
	db := openTest(t, Config{})
	db.writer.wary = waryFor // so that the function runs once
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := oneGroup(t, db, putting("a", 1, nil), func(tx store.Tx) error {
		timer := time.AfterFunc(2*time.Millisecond, cancel)
		defer timer.Stop()
		_, err := tx.ExecContext(ctx, `INSERT INTO thing (k, v)
			WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 100000) SELECT 'x', count(*) FROM c`)
		if err != nil {
			t.Errorf("the statement was interrupted: %v", err)
		}
		<-ctx.Done()
		if err := storetest.Put(tx, "y", 1); err != nil {
			t.Errorf("Put has another context, and failed: %v", err)
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM thing")
		return err
	}, putting("b", 1, nil))
	if errs[0] != nil || !errors.Is(errs[1], context.Canceled) || errs[2] != nil {
		t.Errorf("the updates returned %v, want only the second to fail, with context.Canceled", errs)
	}
	if s := db.Stats(); s.Apart != 0 || s.Groups != 1 {
		t.Errorf("stats %+v, want one group that did not fail", s)
	}
	if !has(t, db, "a") || !has(t, db, "b") || has(t, db, "x") || has(t, db, "y") {
		t.Error("not the right things are there")
	}
}

// TestStatementThatFailsWhileItIsReadCannotBeOverlooked: rows that end early look like fewer rows.
func TestStatementThatFailsWhileItIsReadCannotBeOverlooked(t *testing.T) {
	const query = "SELECT abs(n) FROM (SELECT 1 AS n UNION ALL SELECT -9223372036854775808)" // the second overflows
	for name, in := range map[string]func(db *DB, fn func(store.Tx) error) error{
		"update": func(db *DB, fn func(store.Tx) error) error { return db.Update(t.Context(), fn) },
		"view":   func(db *DB, fn func(store.Tx) error) error { return db.View(t.Context(), fn) },
	} {
		for _, next := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " then another statement: ", next), func(t *testing.T) {
				db := openTest(t, Config{})
				err := in(db, func(tx store.Tx) error {
					rows, err := tx.QueryContext(t.Context(), query)
					if err != nil {
						return err
					}
					n := 0
					for rows.Next() {
						n++
					}
					if n != 1 || rows.Err() == nil {
						t.Errorf("%d rows and %v, want 1 and an overflow", n, rows.Err())
					}
					if next {
						if err := tx.QueryRowContext(t.Context(), "SELECT 1").Err(); !errors.Is(err, errRefused) {
							t.Errorf("the next statement = %v, want a refusal", err)
						}
					}
					return nil
				})
				if err == nil {
					t.Error("it reports success")
				}
				if err := db.Update(t.Context(), putting("a", 1, nil)); err != nil {
					t.Errorf("the next update: %v", err)
				}
			})
		}
	}
}
