package sqlite

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/store"
)

// mould is a database in memory of which copies are made: one table has rows, the
// other one is filled by a trigger.
func mould(t *testing.T) *DB {
	t.Helper()
	db, err := Open(t.Context(), Config{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, query := range []string{
		`CREATE TABLE "a thing" (k TEXT PRIMARY KEY, at TIMESTAMP, v BLOB) WITHOUT ROWID`,
		`INSERT INTO "a thing" VALUES ('one', datetime(0, 'unixepoch'), x'0102'), ('two', 7, NULL)`,
		`CREATE TABLE gone (k TEXT)`,
		`CREATE TRIGGER noted AFTER DELETE ON "a thing" BEGIN INSERT INTO gone VALUES (OLD.k); END`,
	} {
		change(t, db, query)
	}
	return db
}

func change(t *testing.T, db *DB, query string) {
	t.Helper()
	err := db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), query)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// holds is everything in a database, with the types that SQLite stores it in.
func holds(t *testing.T, db *DB) (out string) {
	t.Helper()
	err := db.View(t.Context(), func(tx store.Tx) error {
		for _, query := range []string{
			`SELECT k, typeof(at) || ' ' || at, typeof(v) || ' ' || COALESCE(hex(v), '') FROM "a thing" ORDER BY k`,
			`SELECT k, typeof(k), '' FROM gone ORDER BY k`,
		} {
			rows, err := tx.QueryContext(t.Context(), query)
			if err != nil {
				return err
			}
			for rows.Next() {
				var a, b, c string
				if err := rows.Scan(&a, &b, &c); err != nil {
					return err
				}
				out += fmt.Sprintln(a, b, c)
			}
			if err := rows.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func copyOf(t *testing.T, db *DB) *DB {
	t.Helper()
	out, err := Open(context.WithoutCancel(t.Context()), Config{Memory: true, From: db})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func closed(t *testing.T, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// A copy gets what a closed one left: its connections, and nothing of what it held.
func TestACopyHasNothingOfTheOneWhoseConnectionsItGets(t *testing.T) {
	first := mould(t)
	want := holds(t, first)
	for _, query := range []string{
		`DELETE FROM "a thing"`, `UPDATE "a thing" SET v = 'x'`, `INSERT INTO "a thing" VALUES ('three', 3, 4)`, `INSERT INTO gone VALUES (NULL), ('x')`, `SELECT 1`,
	} {
		synctest.Test(t, func(t *testing.T) { // connections go from bubble to bubble
			db := copyOf(t, first)
			change(t, db, query)
			if db.writer.direct.parked {
				t.Error("a connection in use is parked")
			}
			closed(t, db)
		})
		if n := len(first.spares.all); n != 1 {
			t.Fatalf("after %s there are %d spares, not one", query, n)
		}
		left := first.spares.all[0].write
		again := copyOf(t, first)
		if again.writer.direct != left {
			t.Error("the copy did not get the connection that was left")
		}
		if got := holds(t, again); got != want {
			t.Errorf("after %s the next copy holds\n%snot\n%s", query, got, want)
		}
		closed(t, again)
	}
}

// Two copies at once never share anything.
func TestCopiesAtOnceGetConnectionsOfTheirOwn(t *testing.T) {
	first := mould(t)
	a, b := copyOf(t, first), copyOf(t, first)
	closed(t, a)
	closed(t, b)
	a, b = copyOf(t, first), copyOf(t, first)
	change(t, a, `DELETE FROM "a thing"`)
	if holds(t, a) == holds(t, b) || len(first.spares.all) != 0 {
		t.Errorf("copies share a database, or %d spares are left", len(first.spares.all))
	}
	closed(t, a)
	closed(t, b)
}

// What cannot be undone is not left to anybody.
func TestACopyWithAnotherSchemaLeavesNothing(t *testing.T) {
	first := mould(t)
	db := copyOf(t, first)
	change(t, db, `ALTER TABLE gone ADD COLUMN x TEXT`)
	closed(t, db)
	if n := len(first.spares.all); n != 0 {
		t.Errorf("%d spares with another schema", n)
	}
}

// A copy that is closed after the database that it was made from leaves nothing open.
func TestALateCopyIsClosedForGood(t *testing.T) {
	first, err := Open(t.Context(), Config{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	db := copyOf(t, first)
	closed(t, first)
	write := db.writer.direct
	closed(t, db)
	if write.parked || len(first.spares.all) != 0 {
		t.Error("a connection is kept for nobody")
	}
}
