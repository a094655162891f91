package guestagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// fileSystem is the files that a guest offers: all of the instance's, or, for a
// simulation, those below a directory, which no link leads out of. Every change
// is made relative to an open directory, so that it happens where it was checked.
type fileSystem struct {
	mu     sync.Mutex
	root   string
	fd     *os.File // of root; nil where that is "/", or not made yet
	closed bool
}

// newFileSystem offers what is below root. Late, root is made and opened by the
// first use; nothing reads its name before.
func newFileSystem(root string, late bool) (*fileSystem, error) {
	root = filepath.Clean(root)
	if root == "/" || late {
		return &fileSystem{root: root}, nil
	}
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("the root of the files: %w", err)
	}
	fd, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("the root of the files: %w", err)
	}
	return &fileSystem{root: root, fd: fd}, nil
}

// base is root's descriptor; nil where root is "/".
func (f *fileSystem) base() (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.root == "/" {
		return nil, nil
	}
	if f.closed {
		return nil, fmt.Errorf("the root of the files: %w", os.ErrClosed) // never the host's own root instead
	}
	if f.fd != nil {
		return f.fd, nil
	}
	err := os.MkdirAll(f.root, 0o755)
	if err == nil {
		f.root, err = filepath.EvalSymlinks(f.root)
	}
	if err == nil {
		f.fd, err = os.Open(f.root)
	}
	if err != nil {
		return nil, fmt.Errorf("the root of the files: %w", err)
	}
	return f.fd, nil
}

func (f *fileSystem) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.fd == nil {
		return nil
	}
	return f.fd.Close()
}

// open opens path, following links as the instance would.
func (f *fileSystem) open(path string, flags int, mode uint32) (*os.File, error) {
	base, err := f.base()
	if err != nil {
		return nil, err
	}
	var fd int
	for {
		if base == nil {
			fd, err = unix.Open(path, flags|unix.O_CLOEXEC, mode)
		} else {
			how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: unix.RESOLVE_IN_ROOT}
			fd, err = unix.Openat2(int(base.Fd()), path, &how)
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break
		}
		if base == nil && errors.Is(err, unix.EAGAIN) {
			break // a lease; a renamed parent is what openat2 means by it
		}
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// place is a name in an open directory.
type place struct {
	dir  *os.File
	name string // "." for the root
	path string
}

func (p place) fd() int      { return int(p.dir.Fd()) }
func (p place) close() error { return p.dir.Close() }

// place opens the directory that path is in. path must be clean.
func (f *fileSystem) place(path string) (place, error) {
	dir, name := filepath.Split(path)
	if path == "/" {
		name = "."
	}
	fd, err := f.open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	return place{dir: fd, name: name, path: path}, err
}

// actual is the path of an open directory, without links.
func (f *fileSystem) actual(dir *os.File) (string, error) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())))
	if err != nil {
		return "", err
	}
	if f.root == "/" {
		return path, nil
	}
	inside, ok := strings.CutPrefix(path+"/", f.root+"/")
	if !ok {
		return "", unix.EXDEV
	}
	return filepath.Clean("/" + inside), nil
}

// maxLinks is how many symbolic links in a row are followed, as the kernel does.
const maxLinks = 40

// target follows the links at path's end, so that a replacement replaces the
// file and not the link that led to it. What does not exist is its own target.
func (f *fileSystem) target(path string) (string, error) {
	for range maxLinks {
		next, err := f.follow(path)
		if err != nil || next == "" {
			return path, err
		}
		path = next
	}
	return "", unix.ELOOP
}

// follow returns where the link at path leads, "" if it is none.
func (f *fileSystem) follow(path string) (next string, err error) {
	at, err := f.place(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	text, err := readLink(at)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if filepath.IsAbs(text) {
		return filepath.Clean(text), nil
	}
	dir, err := f.actual(at.dir)
	if err != nil {
		return "", err
	}
	return filepath.Join("/", dir, text), nil
}

func readLink(at place) (string, error) {
	buffer := make([]byte, holdfast.MaxPath+1)
	n, err := unix.Readlinkat(at.fd(), at.name, buffer)
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

// makeDirectories makes path and what is missing above it.
func (f *fileSystem) makeDirectories(path string, mode uint32) (err error) {
	dir, err := f.open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		return dir.Close()
	}
	if !errors.Is(err, unix.ENOENT) || path == "/" {
		return err
	}
	if err := f.makeDirectories(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	at, err := f.place(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	err = unix.Mkdirat(at.fd(), at.name, 0o700)
	if errors.Is(err, unix.EEXIST) {
		return nil // made by another meanwhile, or a dangling link, which what comes next says
	}
	if err != nil {
		return err
	}
	// Exactly this mode, whatever the umask.
	return unix.Fchmodat(at.fd(), at.name, mode, 0)
}

// home is what HOME is unless the sandbox says otherwise.
func (f *fileSystem) home() string {
	if f.isDirectory("/root") {
		return "/root"
	}
	return "/"
}

func (f *fileSystem) isDirectory(path string) bool {
	dir, err := f.open(filepath.Clean("/"+path), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	return err == nil && dir.Close() == nil
}

// fileError says what the kernel said about a path, as one of the shared codes.
func fileError(verb, path string, err error) error {
	var known *holdfast.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if len(path) > 256 {
		path = strings.ToValidUTF8(path[:256], "") + "…"
	}
	for _, kind := range fileErrors() {
		if errors.Is(err, kind.errno) {
			return holdfast.E(kind.code, kind.reason, "%s %s: %s", verb, path, kind.text)
		}
	}
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s %s", verb, path).Because(err)
}

type errnoMeaning struct {
	errno  unix.Errno
	code   holdfast.Code
	reason holdfast.Reason
	text   string
}

func fileErrors() []errnoMeaning {
	return []errnoMeaning{
		{unix.ENOENT, holdfast.NotFound, holdfast.ReasonNoSuchFile, "no such file or directory"},
		{unix.ENOTDIR, holdfast.FailedPrecondition, holdfast.ReasonNotADirectory, "a part of the path is not a directory"},
		{unix.EISDIR, holdfast.FailedPrecondition, holdfast.ReasonNotAFile, "it is a directory"},
		{unix.EEXIST, holdfast.AlreadyExists, holdfast.ReasonFileExists, "something is there already"},
		{unix.ENOTEMPTY, holdfast.FailedPrecondition, holdfast.ReasonNotEmpty, "the directory is not empty"},
		{unix.ENAMETOOLONG, holdfast.InvalidArgument, holdfast.ReasonBadField, "the name is too long"},
		{unix.ELOOP, holdfast.FailedPrecondition, holdfast.ReasonState, "too many symbolic links"},
		{unix.ENOSPC, holdfast.FailedPrecondition, holdfast.ReasonNoSpace, "no space is left; remove something"},
		{unix.EDQUOT, holdfast.FailedPrecondition, holdfast.ReasonNoSpace, "the disk quota is used up; remove something"},
		{unix.EFBIG, holdfast.FailedPrecondition, holdfast.ReasonNoSpace, "the file would be larger than the file system takes"},
		{unix.EROFS, holdfast.FailedPrecondition, holdfast.ReasonState, "the file system is read-only"},
		{unix.EACCES, holdfast.FailedPrecondition, holdfast.ReasonState, "not permitted in this instance"},
		{unix.EPERM, holdfast.FailedPrecondition, holdfast.ReasonState, "not permitted in this instance"},
		{unix.EBUSY, holdfast.FailedPrecondition, holdfast.ReasonState, "it is in use, or a mount point"},
		{unix.EXDEV, holdfast.FailedPrecondition, holdfast.ReasonState, "the two paths are on different file systems; copy, then remove, with a command"},
		{unix.EMFILE, holdfast.Unavailable, holdfast.ReasonTooLarge, "too many files are open"},
		{unix.ENFILE, holdfast.Unavailable, holdfast.ReasonTooLarge, "too many files are open"},
		{unix.ENOMEM, holdfast.Unavailable, holdfast.ReasonTooLarge, "the instance is out of memory"},
	}
}

// spoolError says what kept a process's record from being written.
func spoolError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSpace, "no space is left for the process's record and output").Because(err)
	}
	return err
}
