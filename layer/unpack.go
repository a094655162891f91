package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Unpack unpacks a tar below the directory root, which exists. What goes wrong
// because of the archive is ErrMalformed; what is there by then is the caller's to
// remove. An archive that was cut between two entries is whole to a tar: its digest
// is the caller's to check. Owners are set where the process may.
func Unpack(ctx context.Context, root string, r io.Reader, whiteouts Whiteouts, limits Limits) (_ Stats, err error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return Stats{}, fmt.Errorf("unpack a layer: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	u := &unpacker{root: dir, whiteouts: whiteouts, limits: limits, own: map[string]bool{}, gone: map[string]bool{}, chown: os.Geteuid() == 0}
	archive := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return u.stats, fmt.Errorf("unpack a layer: %w", err)
		}
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return u.stats, archiveError(err)
		}
		if err := u.entry(header, archive); err != nil {
			return u.stats, err
		}
	}
	return u.stats, u.finish()
}

// archiveError tells a damaged archive from a source that failed to yield it.
func archiveError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return fmt.Errorf("unpack a layer: %w", err)
}

type unpacker struct {
	root      *os.Root
	whiteouts Whiteouts
	limits    Limits
	stats     Stats
	chown     bool
	own       map[string]bool // what this layer itself has put there, and the directories above it
	gone      map[string]bool // what this layer says is gone
	dirs      []directoryTime // set last: what is put into a directory changes its time
}

type directoryTime struct {
	name string
	at   time.Time
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	u.stats.Entries++
	if u.limits.Entries > 0 && u.stats.Entries > u.limits.Entries {
		return malformed(h.Name, "more than %d entries", u.limits.Entries)
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return malformed(h.Name, "the root of a layer is a directory")
		}
		return u.attributes(".", h)
	}
	name, err = u.settle(name)
	if err != nil {
		return err
	}
	base := path.Base(name)
	switch {
	case base == opaqueMark:
		return u.opaque(path.Dir(name), h)
	case strings.HasPrefix(base, whiteoutPrefix):
		of := strings.TrimPrefix(base, whiteoutPrefix)
		if of == "" || of == "." || of == ".." {
			return malformed(h.Name, "a whiteout of nothing")
		}
		return u.whiteout(path.Join(path.Dir(name), of), h)
	}
	return u.put(name, h, content)
}

// cleanName is an entry's name below the root, "." for the root itself.
func cleanName(raw string) (string, error) {
	if strings.ContainsRune(raw, 0) {
		return "", malformed(raw, "a zero byte in the name")
	}
	for part := range strings.SplitSeq(raw, "/") {
		if part == ".." {
			return "", malformed(raw, "it leaves the root by \"..\"")
		}
		if len(part) > 255 {
			return "", malformed(raw, "a name of %d bytes: at most 255 are possible", len(part))
		}
	}
	if len(raw) > 4096 {
		return "", malformed(raw, "a path of %d bytes: at most 4096 are possible", len(raw))
	}
	return path.Clean(strings.TrimLeft(raw, "/") + "/."), nil
}

// maxLinks bounds the symbolic links that are followed for one name.
const maxLinks = 40

// settle follows the symbolic links among a name's directories, as a process whose
// root this is would: an absolute one begins at the root. Missing directories are
// made. The last part is not followed.
func (u *unpacker) settle(name string) (string, error) {
	rest := strings.Split(name, "/")
	at, links := ".", 0
	for len(rest) > 1 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		info, err := u.root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.root.Mkdir(next, 0o755); err != nil {
				return "", u.failed(name, err)
			}
			if err := u.root.Chmod(next, 0o755); err != nil { // whatever the umask is
				return "", u.failed(name, err)
			}
			at = next
		case err != nil:
			return "", u.failed(name, err)
		case info.IsDir():
			at = next
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", malformed(name, "more than %d symbolic links on the way", maxLinks)
			}
			target, err := u.root.Readlink(next)
			if err != nil {
				return "", u.failed(name, err)
			}
			if strings.HasPrefix(target, "/") {
				at = "."
			}
			rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
		default:
			return "", malformed(name, "%q is no directory", next)
		}
	}
	return path.Join(at, rest[0]), nil
}

// failed is an error of the file system about an entry; which of them are the
// archive's own fault is told here.
func (u *unpacker) failed(name string, err error) error {
	for _, fault := range []error{unix.ENAMETOOLONG, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EINVAL, unix.EMLINK} {
		if errors.Is(err, fault) {
			return malformed(name, "%v", err)
		}
	}
	return fmt.Errorf("unpack %q: %w", name, err)
}

func (u *unpacker) put(name string, h *tar.Header, content io.Reader) error {
	if err := u.clear(name, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		if err = u.root.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	case tar.TypeReg, tar.TypeGNUSparse:
		if err := u.file(name, h, content); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.ContainsRune(h.Linkname, 0) {
			return malformed(h.Name, "a symbolic link to nothing")
		}
		err = u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return u.link(name, h)
	case tar.TypeFifo:
		err = u.node(name, unix.S_IFIFO|0o600, 0)
	case tar.TypeChar, tar.TypeBlock:
		if name == "dev" || strings.HasPrefix(name, "dev/") {
			u.stats.Skipped++
			return nil
		}
		return malformed(h.Name, "a device node outside of dev/")
	default:
		return malformed(h.Name, "an entry of the unknown kind %q", h.Typeflag)
	}
	if err != nil {
		return u.failed(h.Name, err)
	}
	u.mark(name)
	if h.Typeflag == tar.TypeDir && u.gone[name] { // what was there is gone, and this is another
		if err := u.opaque(name, h); err != nil {
			return err
		}
	}
	return u.attributes(name, h)
}

// clear makes room for an entry: what is there gives way, but for a directory to a
// directory.
func (u *unpacker) clear(name string, forDirectory bool) error {
	info, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && forDirectory && info.IsDir() {
		return nil
	}
	if err == nil {
		err = u.root.RemoveAll(name)
	}
	if err != nil {
		return u.failed(name, err)
	}
	return nil
}

// mark notes what this layer put there: an opaque mark of the same layer, which may
// come later, spares it.
func (u *unpacker) mark(name string) {
	for ; name != "." && !u.own[name]; name = path.Dir(name) {
		u.own[name] = true
	}
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) (err error) {
	if h.Size < 0 || u.limits.Bytes > 0 && h.Size > u.limits.Bytes-u.stats.Bytes {
		return malformed(h.Name, "more than %d bytes in all", u.limits.Bytes)
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return u.failed(h.Name, err)
	}
	defer func() {
		if closeErr := f.Close(); closeErr != nil {
			err = errors.Join(err, u.failed(h.Name, closeErr))
		}
	}()
	n, err := io.Copy(f, content)
	u.stats.Bytes += n
	if err != nil {
		return errors.Join(archiveError(err), fmt.Errorf("unpack %q", name))
	}
	return nil
}

// link makes a hard link to what the archive has already, or what is below it.
func (u *unpacker) link(name string, h *tar.Header) error {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return malformed(h.Name, "a hard link to %q, which is out of the root", h.Linkname)
	}
	if target, err = u.settle(target); err != nil {
		return err
	}
	info, err := u.root.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return malformed(h.Name, "a hard link to %q, which is not there", h.Linkname)
	}
	if err != nil {
		return u.failed(h.Name, err)
	}
	if info.IsDir() {
		return malformed(h.Name, "a hard link to the directory %q", h.Linkname)
	}
	if err := u.root.Link(target, name); err != nil {
		return u.failed(h.Name, err)
	}
	u.mark(name)
	return nil
}

// node makes what has no content of its own. The directory is opened below the
// root, and the name in it is not followed.
func (u *unpacker) node(name string, mode uint32, device int) (err error) {
	parent, err := u.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	return unix.Mknodat(int(parent.Fd()), path.Base(name), mode, device)
}

func (u *unpacker) whiteout(name string, h *tar.Header) error {
	u.gone[name] = true
	if u.own[name] { // it means what is below; what this layer itself has there stays
		info, err := u.root.Lstat(name)
		if err != nil {
			return u.failed(h.Name, err)
		}
		if !info.IsDir() {
			return nil
		}
		return u.opaque(name, h)
	}
	if err := u.clear(name, false); err != nil {
		return err
	}
	if u.whiteouts == Remove {
		return nil
	}
	if err := u.node(name, unix.S_IFCHR, 0); err != nil {
		return u.failed(h.Name, err)
	}
	return nil
}

// opaque hides what the layers below have in a directory.
func (u *unpacker) opaque(dir string, h *tar.Header) error {
	if u.whiteouts == Overlay {
		f, err := u.root.Open(dir)
		if err != nil {
			return u.failed(h.Name, err)
		}
		err = unix.Fsetxattr(int(f.Fd()), xattrOpaque, []byte("y"), 0)
		if err = errors.Join(err, f.Close()); err != nil {
			return u.failed(h.Name, err)
		}
		return nil
	}
	f, err := u.root.Open(dir)
	if err != nil {
		return u.failed(h.Name, err)
	}
	names, err := f.Readdirnames(-1)
	if err = errors.Join(err, f.Close()); err != nil {
		return u.failed(h.Name, err)
	}
	for _, n := range names {
		if child := path.Join(dir, n); !u.own[child] {
			if err := u.root.RemoveAll(child); err != nil {
				return u.failed(h.Name, err)
			}
		}
	}
	return nil
}
