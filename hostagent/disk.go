package hostagent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// replaceFile puts content at path: after a crash of the process there is all of
// the old, or all of the new; synced, also after one of the machine. Its
// directory exists.
func replaceFile(path string, content []byte, sync bool) error {
	temp := path + ".new"
	if err := writeFile(temp, content, sync); err != nil {
		return errors.Join(err, removeIfThere(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, removeIfThere(temp))
	}
	if !sync {
		return nil
	}
	return syncDirectory(filepath.Dir(path))
}

func writeFile(path string, content []byte, sync bool) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(content); err != nil || !sync {
		return err
	}
	return f.Sync()
}

func syncDirectory(dir string) (err error) {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// consolePath is where the runtime's driver puts what PID 1 writes.
func consolePath(spool string) string { return filepath.Join(spool, "console") }

// clip cuts text to at most max bytes of its end, at a character's border.
func clip(text string, max int) string {
	if len(text) > max {
		text = text[len(text)-max:]
	}
	return strings.ToValidUTF8(text, "")
}
