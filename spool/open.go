package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// errNotRegular is what openRegular says of everything but a regular file.
var errNotRegular = errors.New("not a regular file")

// openDirectory opens a directory whose parent is trusted, and itself is not.
func openDirectory(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openRegular opens a regular file in dir without following a link and without
// opening, even for an instant, anything else: a pipe would block and a device
// might act. O_NONBLOCK is for leases, which a guest can hold on its files.
func openRegular(dir *os.File, name string) (_ *os.File, err error) {
	handle, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer func() { err = errors.Join(err, unix.Close(handle)) }()
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// regularSize is the size of a regular file in dir, without opening it.
func regularSize(dir *os.File, name string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, &fs.PathError{Op: "stat", Path: name, Err: errNotRegular}
	}
	return st.Size, nil
}

// names lists a directory from its beginning, at most maxEntries of it.
func names(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	list, err := dir.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return list, nil
}
