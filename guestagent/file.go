package guestagent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// MaxEntries bounds ListDirectory.
const MaxEntries = 1 << 16

// files is the files of this boot: holdfast.GuestFiles. Symbolic links within a
// path are followed; where a path itself is one, reading and writing follow it,
// and every other call is about the link.
type files struct{ fs *fileSystem }

// at runs fn on the place of a path that must be well formed.
func (f files) at(verb, path string, fn func(place) error) (err error) {
	if err := holdfast.CheckPath("path", path); err != nil {
		return err
	}
	path = filepath.Clean(path)
	at, err := f.fs.place(path)
	if err != nil {
		return fileError(verb, path, err)
	}
	defer func() { err = errors.Join(err, at.close()) }()
	return fileError(verb, path, fn(at))
}

// info describes what is at a place, not following a link there.
func info(at place) (holdfast.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(at.fd(), at.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return holdfast.FileInfo{}, err
	}
	found := describe(at.path, &st)
	if found.Kind == holdfast.FileSymlink {
		target, err := readLink(at)
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return holdfast.FileInfo{}, err
		}
		found.Target = target
	}
	return found, nil
}

func describe(path string, st *unix.Stat_t) holdfast.FileInfo {
	kinds := map[uint32]holdfast.FileKind{
		unix.S_IFREG: holdfast.FileRegular, unix.S_IFDIR: holdfast.FileDirectory, unix.S_IFLNK: holdfast.FileSymlink,
	}
	kind, known := kinds[st.Mode&unix.S_IFMT]
	if !known {
		kind = holdfast.FileOther
	}
	return holdfast.FileInfo{
		Path: path, Kind: kind, Size: st.Size, Mode: st.Mode & holdfast.MaxMode, UID: int(st.Uid), GID: int(st.Gid),
		ModifiedAt: time.Unix(st.Mtim.Unix()).UTC(),
	}
}

func infoOf(path string, file *os.File) (holdfast.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return holdfast.FileInfo{}, err
	}
	return describe(path, &st), nil
}

// openRegular opens what must be a regular file. It looks before it opens, as
// opening a pipe can wait for ever and opening a device can act.
func (f *fileSystem) openRegular(path string, flags int) (*os.File, holdfast.FileInfo, error) {
	look, err := f.open(path, unix.O_PATH, 0)
	if err != nil {
		return nil, holdfast.FileInfo{}, err
	}
	found, err := infoOf(path, look)
	if err = errors.Join(err, look.Close()); err != nil {
		return nil, found, err
	}
	if err := mustBeRegular(found); err != nil {
		return nil, found, err
	}
	file, err := f.open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, found, err
	}
	found, err = infoOf(path, file)
	if err == nil {
		err = mustBeRegular(found)
	}
	if err != nil {
		return nil, found, joinClose(err, file)
	}
	return file, found, nil
}

func mustBeRegular(found holdfast.FileInfo) error {
	switch found.Kind {
	case holdfast.FileRegular:
		return nil
	case holdfast.FileDirectory:
		return notAFile(found.Path, "a directory")
	}
	return notAFile(found.Path, "a device, socket or pipe")
}

func notAFile(path, what string) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotAFile, "%s is %s, not a regular file", path, what)
}

func (f files) ReadFile(_ context.Context, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	if err := in.Validate(); err != nil {
		return holdfast.FileInfo{}, nil, err
	}
	path := filepath.Clean(in.Path)
	file, found, err := f.fs.openRegular(path, unix.O_RDONLY)
	if err != nil {
		return found, nil, fileError("read", path, err)
	}
	if in.Offset > found.Size {
		err := holdfast.E(holdfast.OutOfRange, holdfast.ReasonBadField, "offset is %d, but the file has %d bytes", in.Offset, found.Size).With("field", "offset")
		return found, nil, joinClose(err, file)
	}
	if _, err := file.Seek(in.Offset, io.SeekStart); err != nil {
		return found, nil, joinClose(fileError("read", path, err), file)
	}
	if in.Length == 0 {
		return found, file, nil
	}
	return found, part{io.LimitReader(file, in.Length), file}, nil
}

// part reads a part of a file.
type part struct {
	io.Reader
	io.Closer
}

func (f files) StatFile(_ context.Context, path string) (found holdfast.FileInfo, err error) {
	err = f.at("stat", path, func(at place) (err error) {
		found, err = info(at)
		return err
	})
	return found, err
}

func (f files) ListDirectory(ctx context.Context, path string) (list []holdfast.FileInfo, err error) {
	if err := holdfast.CheckPath("path", path); err != nil {
		return nil, err
	}
	path = filepath.Clean(path)
	dir, err := f.fs.open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileError("list", path, err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	names, err := dir.Readdirnames(MaxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fileError("list", path, err)
	}
	if len(names) > MaxEntries {
		return nil, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooLarge, "list %s: it has more than %d entries; list it with a command", path, MaxEntries)
	}
	slices.Sort(names)
	list = make([]holdfast.FileInfo, 0, len(names))
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, err := info(place{dir: dir, name: name, path: filepath.Join(path, name)})
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fileError("list", path, err)
		}
		list = append(list, found)
	}
	return list, nil
}

func (f files) MakeDirectory(_ context.Context, path string, mode uint32) (found holdfast.FileInfo, err error) {
	if err := errors.Join(holdfast.CheckPath("path", path), holdfast.CheckMode("mode", mode)); err != nil {
		return found, err
	}
	if mode == 0 {
		mode = 0o755
	}
	path = filepath.Clean(path)
	if err := f.fs.makeDirectories(path, mode); err != nil {
		return found, fileError("make directory", path, err)
	}
	dir, err := f.fs.open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return found, fileError("make directory", path, err)
	}
	found, err = infoOf(path, dir)
	return found, fileError("make directory", path, joinClose(err, dir))
}

// MoveFile replaces nothing: something at the destination is FILE_EXISTS.
func (f files) MoveFile(_ context.Context, from, to string) (found holdfast.FileInfo, err error) {
	if err := holdfast.CheckPath("to", to); err != nil {
		return found, err
	}
	to = filepath.Clean(to)
	err = f.at("move", from, func(source place) (err error) {
		if _, err := info(source); err != nil {
			return err
		}
		destination, err := f.fs.place(to)
		if err != nil {
			return fileError("move to", to, err)
		}
		defer func() { err = errors.Join(err, destination.close()) }()
		err = unix.Renameat2(source.fd(), source.name, destination.fd(), destination.name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) && strings.HasPrefix(to+"/", source.path+"/") {
			return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "%s cannot be moved into itself", from).With("field", "to")
		}
		if err != nil {
			return fileError("move to", to, err)
		}
		found, err = info(destination)
		return err
	})
	return found, err
}

func (f files) RemoveFile(_ context.Context, path string, recursive bool) error {
	return f.at("remove", path, func(at place) (err error) {
		if at.path == "/" {
			return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "the root directory cannot be removed").With("field", "path")
		}
		found, err := info(at)
		switch {
		case err != nil:
			return err
		case found.Kind != holdfast.FileDirectory:
			return unix.Unlinkat(at.fd(), at.name, 0)
		case !recursive:
			return unix.Unlinkat(at.fd(), at.name, unix.AT_REMOVEDIR)
		}
		// By the descriptor, so that it is the directory that was looked at.
		dir, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(at.fd()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dir.Close()) }()
		return dir.RemoveAll(at.name)
	})
}
