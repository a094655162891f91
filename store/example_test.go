package store_test

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"time"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// A package embeds its migrations, here one file: 00001_add_note.sql.
//
//go:embed testdata/migrations/*.sql
var noteFiles embed.FS

// noteMigrations is what such a package exports. Its versions are kept in the table note_schema.
func noteMigrations() (store.Migrations, error) {
	sub, err := fs.Sub(noteFiles, "testdata/migrations")
	return store.Migrations{Name: "note", FS: sub}, err
}

// addNote is right however often it is called: a repeat finds what the first one wrote. It takes the transaction, so
// that its caller can write more in the same one.
func addNote(ctx context.Context, tx store.Tx, id, body string) (created bool, err error) {
	now, err := tx.Now(ctx)
	if err != nil {
		return false, err
	}
	var got string
	err = tx.QueryRowContext(ctx, `INSERT INTO note (id, body, created_at) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO NOTHING RETURNING id`, id, body, store.Micros(now)).Scan(&got)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add note %s: %w", id, err)
	}
	return true, nil
}

func Example() {
	ctx := context.Background()
	migrations, err := noteMigrations()
	if err != nil {
		log.Fatal(err)
	}
	clock := func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC) }
	db, err := sqlite.Open(ctx, sqlite.Config{Memory: true, Clock: clock}, migrations)
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		// Assigned anew in each run, since the function may run again.
		var created bool
		if err := db.Update(ctx, func(tx store.Tx) (err error) {
			created, err = addNote(ctx, tx, "n1", "hold fast")
			return err
		}); err != nil {
			log.Fatal(err)
		}
		fmt.Println("created:", created)
	}
	if err := db.View(ctx, func(tx store.Tx) error {
		var body string
		var at int64
		row := tx.QueryRowContext(ctx, "SELECT body, created_at FROM note WHERE id = $1", "n1")
		if err := row.Scan(&body, &at); err != nil {
			return err
		}
		fmt.Println(body, store.FromMicros(at))
		return nil
	}); err != nil {
		log.Fatal(err)
	}
	if err := db.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// created: true
	// created: false
	// hold fast 2026-01-02 03:04:05.000006 +0000 UTC
}
