package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"golang.org/x/sys/unix"
)

// build is one build under way, which many may wait for.
type build struct {
	done  chan struct{}
	image Image // valid once done
	err   error

	mu        sync.Mutex
	last      string
	listeners map[*func(string)]struct{}
}

// join waits for a build under way with others, or begins it.
func (s *Store) join(wanted Image, r recipe) (*build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := wanted.directory()
	b := s.builds[key]
	if b == nil {
		if s.life.Err() != nil {
			return nil, holdfast.E(holdfast.Unavailable, holdfast.ReasonDraining, "the image store is closed")
		}
		b = &build{done: make(chan struct{}), listeners: map[*func(string)]struct{}{}}
		s.builds[key] = b
		s.running.Go(func() {
			ctx, cancel := context.WithTimeout(s.life, s.config.BuildTimeout)
			defer cancel()
			b.image, b.err = s.build(ctx, wanted, r, b.say)
			s.mu.Lock()
			delete(s.builds, key)
			s.mu.Unlock()
			close(b.done)
		})
	}
	return b, nil
}

// enter adds a listener, and returns how to take it away. What was said last it
// hears at once.
func (b *build) enter(progress func(string)) (leave func()) {
	if progress == nil {
		return func() {}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listeners[&progress] = struct{}{}
	if b.last != "" {
		progress(b.last)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, &progress)
	}
}

func (b *build) say(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = text
	for progress := range b.listeners {
		(*progress)(text)
	}
}

// build makes the image while it holds the image's lock against other processes.
// It appears under its name complete, or not at all.
func (s *Store) build(ctx context.Context, wanted Image, r recipe, say func(string)) (made Image, err error) {
	key := wanted.directory()
	say("waiting for another process that prepares " + wanted.Ref)
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if found, there, err := s.read(key); err != nil || there {
		return found, err // that other process has done it
	}
	// We hold the lock, so what is there of a build is of one that died.
	dir := filepath.Join(s.dir, buildsDirectory, key)
	if err := os.RemoveAll(dir); err != nil {
		return Image{}, fmt.Errorf("image %s: what an earlier build left: %w", wanted.Ref, err)
	}
	if err := s.fill(ctx, dir, wanted, r, say); err != nil {
		return Image{}, errors.Join(err, os.RemoveAll(dir))
	}
	if err := os.Rename(dir, filepath.Join(s.dir, key)); err != nil {
		return Image{}, errors.Join(fmt.Errorf("image %s: %w", wanted.Ref, err), os.RemoveAll(dir))
	}
	if err := syncDirectory(s.dir); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	say(wanted.Ref + " is ready")
	made, _, err = s.read(key)
	return made, err
}

// fill builds into dir, and returns when all of it is on the disk.
func (s *Store) fill(ctx context.Context, dir string, wanted Image, r recipe, say func(string)) error {
	root := filepath.Join(dir, rootName)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	// Modes are set apart from making: the process's umask is not the image's.
	if err := errors.Join(os.Mkdir(root, 0o755), os.Chmod(root, 0o755)); err != nil {
		return fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	if err := r.build(ctx, root, say); err != nil {
		return err
	}
	size, err := sizeOf(root)
	if err != nil {
		return fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	wanted.Size, wanted.BuiltAt = size, s.config.Now().UTC()
	if c, ok := r.(configured); ok {
		wanted.Defaults = c.defaults()
	}
	data, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifestName), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	say("writing " + wanted.Ref + " to disk")
	if err := syncFileSystem(dir); err != nil {
		return fmt.Errorf("image %s: %w", wanted.Ref, err)
	}
	return nil
}

// lock takes the lock of one image. Locks are files beside the builds: they end
// with their process, however it ends.
func (s *Store) lock(ctx context.Context, key string) (unlock func() error, err error) {
	builds := filepath.Join(s.dir, buildsDirectory)
	if err := os.MkdirAll(builds, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(builds, key+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(lockEvery)
	defer ticker.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		}
	}
}

// lockEvery is how often a lock held by another process is tried again; the
// kernel offers no wait for it that a context could end.
const lockEvery = 50 * time.Millisecond

func sizeOf(root string) (int64, error) {
	var size int64
	err := filepath.WalkDir(root, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}

func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

func syncDirectory(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
