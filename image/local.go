package image

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/layer"
)

// What references to files of the host begin with. Their paths are below the
// directory that the host's operator names for them (Config.Local).
const (
	RefTar = "tar:" // a root file system as a tar, plain or compressed by gzip or zstd
	RefDir = "dir:" // a directory that is copied
)

const localVersion = "local/1"

// checkLocal refuses a path that is not plainly below the directory.
func checkLocal(ref, below string) error {
	clean := path.Clean(below)
	if below == "" || clean != below || clean == "." || !fs.ValidPath(clean) || len(below) > 1024 {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage,
			"%q names no file: a path below the host's directory of local images is expected, without \"..\"", short(ref))
	}
	return nil
}

// local is the recipe of what the host has already.
type local struct {
	ref    string // whole
	dir    string // Config.Local; "": the operator named none
	path   string // below it
	isDir  bool
	limits layer.Limits
}

func (l local) open() (*os.Root, error) {
	if l.dir == "" {
		return nil, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchImage,
			"the host has no directory of local images for %q: its operator names one with --local-images", short(l.ref))
	}
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", short(l.ref), err)
	}
	return root, nil
}

// stream yields the root file system as a tar.
func (l local) stream(ctx context.Context, use func(io.Reader) error) (err error) {
	root, err := l.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	f, err := root.Open(l.path)
	if err != nil {
		return l.failed(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return l.failed(err)
	case l.isDir != info.IsDir(), !l.isDir && !info.Mode().IsRegular():
		return l.refused("it is %s", kindOf(info))
	case !l.isDir:
		return use(f)
	}
	// The directory is read through its own descriptor: a link that is put in its
	// place meanwhile is not followed.
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := layer.Pack(ctx, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), w)
		packed <- errors.Join(err, w.CloseWithError(err))
	}()
	useErr := use(r)
	closeErr := r.Close() // a packer that is not through ends by it
	if packErr := <-packed; useErr == nil {
		useErr = packErr
	}
	return errors.Join(useErr, closeErr)
}

func kindOf(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "a directory: dir: takes these"
	case info.Mode().IsRegular():
		return "a file: tar: takes these"
	}
	return "neither a file nor a directory"
}

// digest is of the contents: another tar under the same name is another image.
func (l local) digest(ctx context.Context) (string, error) {
	sum := sha256.New()
	err := l.stream(ctx, func(r io.Reader) error {
		_, err := io.Copy(sum, readerOf(ctx, r))
		return err
	})
	if err != nil {
		return "", l.failed(err)
	}
	return digestOf(localVersion, l.ref[:4], hex.EncodeToString(sum.Sum(nil))), nil
}

func (l local) build(ctx context.Context, root string, progress func(string)) error {
	progress("unpacking " + short(l.ref))
	err := l.stream(ctx, func(r io.Reader) (err error) {
		if !l.isDir {
			opened, err := decompress(r)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, opened.Close()) }()
			r = opened
		}
		_, err = unpackWhole(ctx, root, r, l.limits)
		return err
	})
	if err != nil {
		return l.failed(err)
	}
	return nil
}

// decompress looks at the first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		return gzip.NewReader(b)
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

// isDamage tells contents that cannot be what they say they are.
func isDamage(err error) bool {
	for _, damage := range []error{gzip.ErrHeader, gzip.ErrChecksum, io.ErrUnexpectedEOF, zstd.ErrMagicMismatch, zstd.ErrCRCMismatch,
		zstd.ErrReservedBlockType, zstd.ErrWindowSizeExceeded, zstd.ErrDecoderSizeExceeded} {
		if errors.Is(err, damage) {
			return true
		}
	}
	return false
}

func (l local) refused(format string, args ...any) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed, "the image %q is refused: %s", short(l.ref), fmt.Sprintf(format, args...))
}

func (l local) failed(err error) error {
	var domain *holdfast.Error
	switch {
	case errors.As(err, &domain):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchImage,
			"there is no %q in the host's directory of local images", filepath.Base(l.path)).Because(err)
	case errors.Is(err, layer.ErrMalformed), isDamage(err), strings.Contains(err.Error(), "escapes from parent"):
		return l.refused("%s", err)
	}
	return fmt.Errorf("image %s: %w", short(l.ref), err)
}

// readerOf ends a long read with its context.
func readerOf(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
