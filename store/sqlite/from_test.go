package sqlite_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// A copy has what the other one had, and nothing of what either gets later.
func TestACopyInMemoryIsADatabaseOfItsOwn(t *testing.T) {
	first := openMemory(t)
	put := func(db *sqlite.DB, key string) {
		t.Helper()
		if err := db.Update(t.Context(), func(tx store.Tx) error { return storetest.Put(tx, key, 1) }); err != nil {
			t.Fatal(err)
		}
	}
	has := func(db *sqlite.DB, key string) bool {
		return db.View(t.Context(), func(tx store.Tx) error {
			_, err := storetest.Get(tx, key)
			return err
		}) == nil
	}
	put(first, "before")
	second := openConfig(t, sqlite.Config{Memory: true, From: first})
	put(first, "first")
	put(second, "second")
	if !has(second, "before") || has(second, "first") || !has(second, "second") || has(first, "second") {
		t.Error("a copy shares what came later, or lacks what came before")
	}
	if _, err := sqlite.Open(t.Context(), sqlite.Config{Path: t.TempDir() + "/x.db", From: first}); err == nil {
		t.Error("a file was opened as a copy")
	}
}

func BenchmarkOpenCopy(b *testing.B) {
	first := openMemory(b)
	for b.Loop() {
		db, err := sqlite.Open(b.Context(), sqlite.Config{Memory: true, From: first})
		if err != nil {
			b.Fatal(err)
		}
		if err := db.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
