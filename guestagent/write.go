package guestagent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// WriteFile replaces atomically, and durably before it answers: the content goes
// to a new file in the same directory, which takes the old one's place once it is
// complete and synced. It keeps mode and owner of what it replaces, and follows a
// link to it. What breaks before that leaves the old file and nothing else.
// contract: A14, trap T44
func (f files) WriteFile(ctx context.Context, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	if err := in.Validate(); err != nil {
		return holdfast.FileWritten{}, err
	}
	path := filepath.Clean(in.Path)
	written, err := f.write(ctx, in, path, content)
	return written, fileError("write", path, err)
}

func (f files) write(ctx context.Context, in holdfast.WriteFile, path string, content io.Reader) (written holdfast.FileWritten, err error) {
	if path == "/" {
		return written, notAFile(path, "a directory")
	}
	if in.CreateParents {
		if err := f.fs.makeDirectories(filepath.Dir(path), 0o755); err != nil {
			return written, err
		}
	}
	if path, err = f.fs.target(path); err != nil {
		return written, err
	}
	if path == "/" {
		return written, notAFile(path, "a directory")
	}
	at, err := f.fs.place(path)
	if err != nil {
		return written, err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	old, err := info(at)
	switch {
	case errors.Is(err, unix.ENOENT):
		old = holdfast.FileInfo{Mode: 0o644, UID: -1, GID: -1}
	case err != nil:
		return written, err
	default:
		if err := mustBeRegular(old); err != nil {
			return written, err
		}
	}
	if in.Append {
		return f.append(ctx, in, at, content)
	}
	if in.Mode != 0 {
		old.Mode = in.Mode
	}
	return replace(ctx, at, old, content)
}

// replace writes beside the place and then takes it.
func replace(ctx context.Context, at place, like holdfast.FileInfo, content io.Reader) (written holdfast.FileWritten, err error) {
	name := ".holdfast-" + rand.Text()
	fd, err := unix.Openat(at.fd(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return written, err
	}
	next := os.NewFile(uintptr(fd), name)
	placed := false
	defer func() {
		if !placed {
			err = errors.Join(err, unix.Unlinkat(at.fd(), name, 0))
		}
	}()
	written, err = copyInto(ctx, next, content)
	if err == nil {
		err = adopt(next, like)
	}
	if err == nil {
		err = next.Sync()
	}
	if err = joinClose(err, next); err != nil {
		return holdfast.FileWritten{}, interrupted(0, err)
	}
	if err := unix.Renameat(at.fd(), name, at.fd(), at.name); err != nil {
		return holdfast.FileWritten{}, err
	}
	placed = true
	// Some file systems cannot sync a directory, and say EINVAL.
	if err := at.dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return holdfast.FileWritten{}, err
	}
	written.Info, err = info(at)
	return written, err
}

// adopt gives a file the owner and mode of another; in this order, as a change
// of owner takes mode bits away.
func adopt(file *os.File, like holdfast.FileInfo) error {
	if like.UID >= 0 {
		if err := unix.Fchown(int(file.Fd()), like.UID, like.GID); err != nil {
			return err
		}
	}
	return unix.Fchmod(int(file.Fd()), like.Mode)
}

// append adds to the end, and says how much it added when it breaks.
func (f files) append(ctx context.Context, in holdfast.WriteFile, at place, content io.Reader) (written holdfast.FileWritten, err error) {
	mode := in.Mode
	if mode == 0 {
		mode = 0o644
	}
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Openat(at.fd(), at.name, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
	created := err == nil
	if errors.Is(err, unix.EEXIST) {
		fd, err = unix.Openat(at.fd(), at.name, flags, 0)
	}
	if err != nil {
		return written, err
	}
	file := os.NewFile(uintptr(fd), at.name)
	found, err := infoOf(at.path, file)
	if err == nil {
		err = mustBeRegular(found)
	}
	if err == nil && created {
		err = unix.Fchmod(fd, mode)
	}
	if err != nil {
		return written, joinClose(err, file)
	}
	written, err = copyInto(ctx, file, content)
	if synced := file.Sync(); err == nil {
		err = synced
	}
	if err = joinClose(err, file); err != nil {
		return holdfast.FileWritten{}, interrupted(written.Bytes, err)
	}
	written.Info, err = info(at)
	return written, err
}

// copyInto copies all of content, and counts and hashes what was written.
func copyInto(ctx context.Context, to io.Writer, content io.Reader) (holdfast.FileWritten, error) {
	hash := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(to, hash), whileLive{ctx, content}, make([]byte, 128<<10))
	return holdfast.FileWritten{Bytes: n, SHA256: hex.EncodeToString(hash.Sum(nil))}, err
}

// interrupted says how much of a broken write stays in the file: nothing of a
// replacement.
func interrupted(stays int64, err error) error {
	e := new(holdfast.Error)
	switch {
	case errors.As(err, &e):
	case errors.As(err, new(contentError)):
		e = holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "the content broke off").Because(err)
	default:
		e = holdfast.AsError(fileError("write", "the content", err))
	}
	return e.With("written", strconv.FormatInt(stays, 10))
}

// whileLive stops reading once its context has ended, and marks the errors of
// what it reads, to tell them from those of what is written.
type whileLive struct {
	ctx     context.Context
	content io.Reader
}

func (r whileLive) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, contentError{err}
	}
	n, err := r.content.Read(p)
	if err != nil && err != io.EOF { // as io.Copy tells the end
		err = contentError{err}
	}
	return n, err
}

type contentError struct{ err error }

func (e contentError) Error() string { return e.err.Error() }
func (e contentError) Unwrap() error { return e.err }
