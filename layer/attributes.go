package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attributes gives an entry its owner, extended attributes, mode and times, in
// this order: a change of the owner takes setuid away, and a mode may forbid
// writing.
func (u *unpacker) attributes(name string, h *tar.Header) error {
	if u.chown {
		if err := u.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return u.failed(h.Name, err)
		}
	}
	if h.Typeflag == tar.TypeSymlink { // has neither mode nor attributes, and its time is nobody's business
		return nil
	}
	if err := u.xattrs(name, h); err != nil {
		return err
	}
	if err := u.root.Chmod(name, modeOf(h)); err != nil {
		return u.failed(h.Name, err)
	}
	if h.Typeflag == tar.TypeDir {
		u.dirs = append(u.dirs, directoryTime{name, h.ModTime})
		return nil
	}
	if err := u.root.Chtimes(name, time.Time{}, h.ModTime); err != nil {
		return u.failed(h.Name, err)
	}
	return nil
}

func modeOf(h *tar.Header) fs.FileMode {
	mode := fs.FileMode(h.Mode & 0o777)
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if h.Mode&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

// xattrs sets what programs set; the kernel's own notes of an overlay are refused,
// since they would speak for the layers below. A file system that keeps none is
// no reason to fail, but for a program's capabilities.
func (u *unpacker) xattrs(name string, h *tar.Header) (err error) {
	for record, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(record, xattrPAX)
		if !ok {
			continue
		}
		if strings.HasPrefix(attr, xattrOverlay) || strings.HasPrefix(attr, "user.overlay.") {
			return malformed(h.Name, "it carries the overlay's own note %q", attr)
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			continue
		}
		if err := u.setXattr(name, attr, value); err != nil {
			if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) && !u.chown {
				continue
			}
			return u.failed(h.Name, fmt.Errorf("set %s: %w", attr, err))
		}
	}
	return nil
}

func (u *unpacker) setXattr(name, attr, value string) (err error) {
	f, err := u.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return unix.Fsetxattr(int(f.Fd()), attr, []byte(value), 0)
}

// finish sets the directories' times, the deepest first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		info, err := u.root.Lstat(d.name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() { // a later entry took its place
			continue
		}
		if err == nil {
			err = u.root.Chtimes(d.name, time.Time{}, d.at)
		}
		if err != nil {
			return u.failed(d.name, err)
		}
	}
	return nil
}
