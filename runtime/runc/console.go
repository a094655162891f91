package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// consoleName is the file in Bundle.Spool that takes PID 1's standard output and
// error. It stays after Stop, with the rest of the spool.
const consoleName = "console"

const (
	consoleEvery = 10 * time.Second
	unmountPause = 10 * time.Millisecond
	waitPoll     = time.Second
)

// openConsole opens it for the guest. A spool is the guest's to write, so nothing
// in it is followed: what is no plain file there gives way to one.
func openConsole(spool string) (*os.File, error) {
	path := filepath.Join(spool, consoleName)
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
}

// boundConsoles gives back the disk of what guests wrote long ago.
func (d *Driver) boundConsoles(ctx context.Context) {
	for pause(ctx, consoleEvery) == nil {
		if err := d.boundConsolesOnce(); err != nil {
			d.config.Logger.Warn("a console cannot be bounded", "error", err)
		}
	}
}

func (d *Driver) boundConsolesOnce() error {
	boots, err := os.ReadDir(d.instancesDirectory())
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range boots {
		s, there, err := files(filepath.Join(d.instancesDirectory(), b.Name())).readSettings()
		if err == nil && there {
			err = boundConsole(s.Spool, d.config.ConsoleKept)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("console of %s: %w", b.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// boundConsole makes a hole of all but the last kept bytes, so that offsets
// stay what they were; a reader skips the hole with SEEK_DATA.
func boundConsole(spool string, kept int64) error {
	f, err := os.OpenFile(filepath.Join(spool, consoleName), os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Size() > 2*kept {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()-kept)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // a file system without holes keeps all of it
	}
	return errors.Join(err, f.Close())
}
