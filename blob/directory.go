package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// unfinished is where files are written before they get their key; no key begins
// with a dot.
const unfinished = ".unfinished"

// abandonedAfter is how old a file there is when its writer must be gone.
const abandonedAfter = 24 * time.Hour

// directory is a Store of files.
type directory struct{ root string }

func openDirectory(path string) (*directory, error) {
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(root, unfinished), 0o700); err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	d := &directory{root: root}
	if err := d.removeAbandoned(time.Now()); err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	return d, errors.Join(syncDirectory(root), syncDirectory(filepath.Dir(root)))
}

// removeAbandoned removes what writers that died left.
func (d *directory) removeAbandoned(now time.Time) error {
	entries, err := os.ReadDir(filepath.Join(d.root, unfinished))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && now.Sub(info.ModTime()) > abandonedAfter {
			err = os.Remove(filepath.Join(d.root, unfinished, e.Name()))
		}
		if !errors.Is(err, fs.ErrNotExist) { // another process may be at it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *directory) path(key string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return filepath.Join(d.root, filepath.FromSlash(key)), nil
}

func (d *directory) Put(ctx context.Context, key string, r io.Reader) (_ Info, err error) {
	path, err := d.path(key)
	if err != nil {
		return Info{}, err
	}
	temp, err := os.CreateTemp(filepath.Join(d.root, unfinished), "put-*")
	if err != nil {
		return Info{}, fmt.Errorf("put %s: %w", key, err)
	}
	named := false
	defer func() {
		if !named {
			err = errors.Join(fmt.Errorf("put %s: %w", key, err), os.Remove(temp.Name()))
		}
	}()
	m := measure(ctx, r)
	_, err = io.Copy(temp, m)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return Info{}, err
	}
	if err = d.makeParents(filepath.Dir(path)); err != nil {
		return Info{}, err
	}
	if err = os.Rename(temp.Name(), path); err != nil {
		return Info{}, err
	}
	named = true
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return Info{}, fmt.Errorf("put %s: %w", key, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return Info{}, fmt.Errorf("put %s: %w", key, err)
	}
	return Info{Key: key, Size: m.size, SHA256: m.sum(), Written: info.ModTime()}, nil
}

// makeParents makes the directories of a key durable, from the root down.
func (d *directory) makeParents(dir string) error {
	if dir == d.root {
		return nil
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := d.makeParents(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDirectory(filepath.Dir(dir))
}

func (d *directory) Get(_ context.Context, key string) (io.ReadCloser, Info, error) {
	path, err := d.path(key)
	if err != nil {
		return nil, Info{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, Info{}, notFound("get", key, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = ErrNotFound
	}
	if err != nil {
		return nil, Info{}, errors.Join(fmt.Errorf("get %s: %w", key, err), f.Close())
	}
	return f, Info{Key: key, Size: info.Size(), Written: info.ModTime()}, nil
}

func (d *directory) Stat(_ context.Context, key string) (Info, error) {
	path, err := d.path(key)
	if err != nil {
		return Info{}, err
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Info{}, notFound("stat", key, err)
	}
	return Info{Key: key, Size: info.Size(), Written: info.ModTime()}, nil
}

// List reads the whole of the directories that may hold the prefix: a store of
// files has no order of its own.
func (d *directory) List(ctx context.Context, prefix, after string, limit int) ([]Info, string, error) {
	start := d.root
	if cut := strings.LastIndexByte(prefix, '/'); cut >= 0 {
		path, err := d.path(prefix[:cut])
		if err != nil {
			return nil, "", err
		}
		start = path
	}
	var found []Info
	err := filepath.WalkDir(start, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // never there, or removed meanwhile
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case e.IsDir() && strings.HasPrefix(e.Name(), ".") && path != d.root:
			return fs.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		rel, err := filepath.Rel(d.root, path)
		if err != nil {
			return err
		}
		key := filepath.ToSlash(rel)
		if !strings.HasPrefix(key, prefix) || key <= after {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			found = append(found, Info{Key: key, Size: info.Size(), Written: info.ModTime()})
		}
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list %q: %w", prefix, err)
	}
	slices.SortFunc(found, func(a, b Info) int { return strings.Compare(a.Key, b.Key) })
	if len(found) <= limit {
		return found, "", nil
	}
	return found[:limit], found[limit-1].Key, nil
}

// Delete leaves the key's directories: another Put may be about to use them.
func (d *directory) Delete(_ context.Context, key string) error {
	path, err := d.path(key)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return syncDirectory(filepath.Dir(path))
}

func notFound(what, key string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s %s: %w", what, key, ErrNotFound)
	}
	return fmt.Errorf("%s %s: %w", what, key, err)
}

func syncDirectory(path string) (err error) {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}
