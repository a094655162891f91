package guestagent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// MaxWatched bounds how many directories one recursive watch covers.
const MaxWatched = 1 << 13

// WatchDirectory yields changes until ctx ends. When the kernel had to drop some
// it ends with UNAVAILABLE, INTERRUPTED: list, and watch again. A recursive watch
// reports what is in a directory that appears as CREATED, perhaps twice.
func (f files) WatchDirectory(ctx context.Context, in holdfast.WatchDirectory, yield func(holdfast.FileEvent) error) (err error) {
	if err := in.Validate(); err != nil {
		return err
	}
	path := filepath.Clean(in.Path)
	dir, err := f.fs.open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fileError("watch", path, err)
	}
	// fsnotify takes a path, and must get one without links, or the one that it
	// reports differs from the one that it was given.
	inside, err := f.fs.actual(dir)
	if err = joinClose(err, dir); err != nil {
		return fileError("watch", path, err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fileError("watch", path, err)
	}
	w := &watch{watcher: watcher, base: filepath.Join(f.fs.root, inside), shown: path, recursive: in.Recursive, yield: yield}
	defer func() { err = errors.Join(err, watcher.Close()) }()
	if err := w.add(w.base, nil); err != nil {
		return fileError("watch", path, err)
	}
	if in.Started != nil {
		in.Started()
	}
	return fileError("watch", path, w.run(ctx))
}

type watch struct {
	watcher   *fsnotify.Watcher
	base      string // the directory, on the system
	shown     string // the directory, as it was asked for
	recursive bool
	yield     func(holdfast.FileEvent) error
	count     int
}

func (w *watch) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-w.watcher.Events:
			if !ok {
				return lostEvents(fsnotify.ErrClosed)
			}
			if err := w.handle(event); err != nil {
				return err
			}
		case err := <-w.watcher.Errors:
			return lostEvents(err)
		}
	}
}

func lostEvents(err error) error {
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "changes were lost; list the directory, then watch again").Because(err)
}

func (w *watch) handle(event fsnotify.Event) error {
	if event.Op.Has(fsnotify.Create) && w.recursive {
		if st, err := os.Lstat(event.Name); err == nil && st.IsDir() {
			return w.add(event.Name, func(path string) error { return w.send(path, holdfast.FileCreated) })
		}
	}
	for _, kind := range []struct {
		op   fsnotify.Op
		kind holdfast.FileEventKind
	}{
		{fsnotify.Create, holdfast.FileCreated},
		{fsnotify.Write, holdfast.FileWrote},
		{fsnotify.Remove, holdfast.FileRemoved},
		{fsnotify.Rename, holdfast.FileRenamed},
		{fsnotify.Chmod, holdfast.FileModified},
	} {
		if event.Op.Has(kind.op) {
			if err := w.send(event.Name, kind.kind); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watch) send(path string, kind holdfast.FileEventKind) error {
	return w.yield(holdfast.FileEvent{Path: filepath.Join(w.shown, strings.TrimPrefix(path, w.base)), Kind: kind})
}

// add watches a directory, and where the watch is recursive those below it;
// found is told of it and of what was there already.
func (w *watch) add(dir string, found func(path string) error) error {
	if !w.recursive {
		return w.watcher.Add(dir)
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			// Before it is reported: what happens in it after that is seen.
			if err := w.addOne(path); err != nil {
				return err
			}
		}
		if found == nil {
			return nil
		}
		return found(path)
	})
}

func (w *watch) addOne(dir string) error {
	if w.count++; w.count > MaxWatched {
		w.count = len(w.watcher.WatchList()) // without those that were removed
	}
	if w.count > MaxWatched {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooLarge, "there are more than %d directories to watch; watch fewer", MaxWatched)
	}
	err := w.watcher.Add(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	return err
}
