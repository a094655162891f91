package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DirLock is the exclusive use of a data directory. It proves that no earlier process is still at work on what is in
// it, so that its claims can be released at start (contract: A6).
type DirLock struct{ file *os.File }

// LockedError: another process uses the data directory.
type LockedError struct {
	Dir string // the directory
	PID int    // the process, as it wrote it; 0 if it could not be read
}

// Error implements error.
func (e *LockedError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("data directory %s is in use by %s: stop that one first, or choose another directory", e.Dir, who)
}

// LockDir takes the lock DIR/lock, creating the directory (mode 0700) if it is missing. While another process holds it,
// for longer than a killed one's child could by accident (3 s), the error is a *LockedError. The kernel releases it when the process dies, however it dies; child
// processes do not inherit it.
func LockDir(dir string) (*DirLock, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(abs, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := lockFile(f); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &LockedError{Dir: abs, PID: readPID(f)}
		} else {
			err = fmt.Errorf("lock data directory %s: %w", abs, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := writePID(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w", abs, err), f.Close())
	}
	return &DirLock{file: f}, nil
}

// lockPatience is how long a lock that is held is tried again: a process that was killed while it started another one
// leaves its lock to that one's first moments, before it has become the other program.
const lockPatience = 3 * time.Second

// lockFile takes the flock, which belongs to this open file and so to this process.
func lockFile(f *os.File) error {
	deadline := time.Now().Add(lockPatience)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		<-time.NewTimer(wait).C // the kernel tells nobody when a lock is given up
	}
}

// readPID is for the message only: a holder that has not written its id yet, or a file that cannot be read, is 0.
func readPID(f *os.File) int {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// Unlock gives the directory back. The file stays: to remove it would let two processes lock two files of one name.
func (l *DirLock) Unlock() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("unlock data directory: %w", err)
	}
	return nil
}
