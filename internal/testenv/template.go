package testenv

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Template is a SQLite file that was migrated once in this process: under the race
// detector that takes longer than most tests.
type Template struct {
	once sync.Once
	raw  []byte
	err  error
}

// Copy puts a copy of it at a path. The first call has it made: migrate opens a new
// file, and closes it.
func (f *Template) Copy(t testing.TB, path string, migrate func(path string) error) {
	t.Helper()
	f.once.Do(func() {
		first := filepath.Join(t.TempDir(), "template.db")
		if f.err = migrate(first); f.err == nil {
			f.raw, f.err = os.ReadFile(first)
		}
	})
	if f.err != nil {
		t.Fatal(f.err)
	}
	if err := os.WriteFile(path, f.raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
