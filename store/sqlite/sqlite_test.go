package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

func TestConformanceOfFiles(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.DB { return openFile(t, filepath.Join(t.TempDir(), "a b?%41.db")) })
}

func TestConformanceInMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.DB { return openMemory(t) })
}

func TestDurabilityOfFiles(t *testing.T) {
	storetest.RunDurable(t, func(t *testing.T) func() (store.DB, error) {
		path := filepath.Join(t.TempDir(), "holdfast.db")
		return func() (store.DB, error) {
			return sqlite.Open(t.Context(), sqlite.Config{Path: path}, storetest.Migrations())
		}
	})
}
