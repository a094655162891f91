package sqlite

import (
	"errors"
	"fmt"
	"io/fs"

	modernc "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/holdfast-dev/holdfast/store"
)

// explain adds to an error of opening what a person can do about it.
func explain(err error, path string) error {
	if errors.Is(err, store.ErrNewerSchema) {
		return err
	}
	if hint := hint(err, path); hint != "" {
		return fmt.Errorf("%s: %w", hint, err)
	}
	return err
}

func hint(err error, path string) string {
	const writable = "the file and its directory must be writable by this user"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "its directory does not exist, create it first"
	case errors.Is(err, fs.ErrPermission):
		return writable
	}
	var e *modernc.Error
	if !errors.As(err, &e) {
		return ""
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_NOTADB:
		return "the file is not a SQLite database, or its header is damaged: name another file, or restore a backup"
	case sqlite3.SQLITE_CORRUPT:
		return "the file is damaged: restore a backup, or salvage it with `sqlite3 " + path + " .recover`"
	case sqlite3.SQLITE_CANTOPEN:
		return "it cannot be opened as a file; " + writable
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return writable
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return "another process holds it locked: stop that one first"
	case sqlite3.SQLITE_FULL:
		return "the disk is full: free some space"
	}
	return ""
}
