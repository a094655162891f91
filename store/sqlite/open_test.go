package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// migrations makes n migrations, each of a table of its own.
func migrations(name string, n int) store.Migrations {
	fsys := fstest.MapFS{}
	for i := 1; i <= n; i++ {
		v := string(rune('0' + i))
		fsys["0000"+v+"_add.sql"] = &fstest.MapFile{
			Data: []byte("-- +goose Up\nCREATE TABLE " + name + v + " (k TEXT PRIMARY KEY);\n"),
		}
	}
	return store.Migrations{Name: name, FS: fsys}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		name string
		cfg  sqlite.Config
		want string
	}{
		{"nowhere", sqlite.Config{}, "set a path or memory"},
		{"two places", sqlite.Config{Path: "x", Memory: true}, "set a path or memory"},
		{"negative", sqlite.Config{Memory: true, MaxGroup: -1}, "must not be negative"},
		{"no directory", sqlite.Config{Path: filepath.Join(dir, "missing", "x.db")}, "create it first"},
		{"a directory", sqlite.Config{Path: dir}, "must be writable"},
		{"below a file", sqlite.Config{Path: filepath.Join(write("file", nil), "x.db")}, "not a directory"},
		{"no database", sqlite.Config{Path: write("text", []byte(strings.Repeat("not a database ", 100)))},
			"not a SQLite database"},
		{"damaged", sqlite.Config{Path: write("damaged", damaged(t))}, "restore a backup"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db, err := sqlite.Open(t.Context(), tc.cfg, storetest.Migrations())
			if err == nil {
				t.Fatal("it was opened", db.Close())
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error does not say %q: %v", tc.want, err)
			}
			if tc.cfg.Path != "" && !tc.cfg.Memory && !strings.Contains(err.Error(), tc.cfg.Path) {
				t.Errorf("the error does not name %s: %v", tc.cfg.Path, err)
			}
		})
	}
}

// damaged is a real database whose pages were overwritten behind a good header.
func damaged(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "good.db")
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}, storetest.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 100; i < len(b); i++ {
		b[i] = 0xa5
	}
	return b
}

func TestNewFilesArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "private.db")
	db := openFile(t, path)
	if err := db.Update(t.Context(), func(tx store.Tx) error { return storetest.Put(tx, "a", 1) }); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", filepath.Base(name), info.Mode().Perm())
		}
	}
}

// TestNewerSchemaIsRefusedAndUntouched: an old program on a new database changes nothing, not even what is behind.
func TestNewerSchemaIsRefusedAndUntouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "newer.db")
	open := func(all ...store.Migrations) error {
		db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}, all...)
		if err != nil {
			return err
		}
		return db.Close()
	}
	if err := open(migrations("operation", 3)); err != nil {
		t.Fatal(err)
	}
	err := open(migrations("inbox", 1), migrations("operation", 2))
	if !errors.Is(err, store.ErrNewerSchema) {
		t.Fatalf("Open = %v, want ErrNewerSchema", err)
	}
	for _, part := range []string{path, `"operation" is at version 3`, "knows 2", "Run the version"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	// Had the old program applied inbox, its table would be there for this one to collide with.
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}, migrations("operation", 3))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), "CREATE TABLE inbox1 (k TEXT)")
		return err
	}); err != nil {
		t.Errorf("the refused program changed the schema: %v", err)
	}
}

func TestPackagesMigrateApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "apart.db")
	for _, all := range [][]store.Migrations{
		{migrations("operation", 1)},
		{migrations("operation", 2), migrations("inbox", 1)},
		{migrations("inbox", 3), migrations("operation", 2)},
		{migrations("outbox", 1)},
	} {
		db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}, all...)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnusableMigrationsAreRefused(t *testing.T) {
	broken := migrations("broken", 2)
	broken.FS.(fstest.MapFS)["00002_add.sql"].Data = []byte("-- +goose Up\nCREATE TABEL t (k TEXT);\n")
	for name, tc := range map[string]struct {
		all  []store.Migrations
		want string
	}{
		"twice":         {[]store.Migrations{migrations("a", 1), migrations("a", 1)}, "given twice"},
		"a bad name":    {[]store.Migrations{migrations("a; drop table b", 1)}, "lower-case"},
		"no files":      {[]store.Migrations{{Name: "a", FS: fstest.MapFS{}}}, "at its root"},
		"a broken file": {[]store.Migrations{broken}, `migrate "broken"`},
	} {
		t.Run(name, func(t *testing.T) {
			db, err := sqlite.Open(t.Context(), sqlite.Config{Memory: true}, tc.all...)
			if err == nil {
				t.Fatal("it was opened", db.Close())
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error does not say %q: %v", tc.want, err)
			}
		})
	}
}

// TestLockedFileIsAnErrorInTime: another program's lock is waited for as configured, and then named; nothing is lost.
func TestLockedFileIsAnErrorInTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "busy.db")
	other := openFile(t, path)
	db := openConfig(t, sqlite.Config{Path: path, BusyTimeout: 20 * time.Millisecond})
	put := func(k string) error {
		return db.Update(t.Context(), func(tx store.Tx) error { return storetest.Put(tx, k, 1) })
	}
	if err := other.Update(t.Context(), func(store.Tx) error {
		if err := put("a"); err == nil || errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("Update = %v, want a known failure", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := put("a"); err != nil {
		t.Errorf("once the lock is gone: %v", err)
	}
}

func TestViewIsInterruptedByItsContext(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "view.db"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err := db.View(ctx, func(tx store.Tx) error {
		var n int64
		return tx.QueryRowContext(ctx, `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000000000)
			SELECT count(*) FROM c`).Scan(&n)
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("View = %v, want context.DeadlineExceeded", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := db.View(t.Context(), func(tx store.Tx) error { _, err := tx.Now(t.Context()); return err }); err != nil {
		t.Errorf("the next View: %v", err)
	}
}

func TestViewsOfAFileRunBesideTheWriter(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "beside.db"))
	if err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := storetest.Put(tx, "a", 1); err != nil {
			return err
		}
		// Not what a function should do; here it shows that readers neither wait for the writer nor see its work.
		return db.View(t.Context(), func(tx store.Tx) error {
			n := -1
			if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM thing").Scan(&n); err != nil {
				return err
			}
			if n != 0 {
				t.Errorf("the view saw %d things that are not committed", n)
			}
			return nil
		})
	}); err != nil {
		t.Error(err)
	}
}

// TestViewsInMemoryAndTheWriterTakeTurns: they have no log to read beside the writer, and must not run into SQLite's
// locks, which are waited for in real time.
func TestViewsInMemoryAndTheWriterTakeTurns(t *testing.T) {
	db := openConfig(t, sqlite.Config{Memory: true, BusyTimeout: time.Millisecond})
	updated := make(chan error, 1)
	if err := db.View(t.Context(), func(tx store.Tx) error {
		if _, err := storetest.Get(tx, "a"); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		go func() {
			updated <- db.Update(t.Context(), func(tx store.Tx) error { return storetest.Put(tx, "a", 1) })
		}()
		select {
		case err := <-updated:
			t.Errorf("an update ended (%v) while a view was under way", err)
			updated <- err
		case <-time.After(50 * time.Millisecond): // long beyond the busy timeout
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-updated; err != nil {
		t.Error(err)
	}
}
