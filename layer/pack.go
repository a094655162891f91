package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pack writes the writable directory of an overlay as a layer. Nothing writes to
// it meanwhile. The same directory always gives the same bytes.
func Pack(ctx context.Context, upper string, w io.Writer) (_ Stats, err error) {
	dir, err := os.OpenRoot(upper)
	if err != nil {
		return Stats{}, fmt.Errorf("pack a layer: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	p := &packer{ctx: ctx, root: dir, archive: tar.NewWriter(w), links: map[inode]string{}}
	if err := p.directory("."); err != nil {
		return p.stats, fmt.Errorf("pack a layer: %w", err)
	}
	if err := p.archive.Close(); err != nil {
		return p.stats, fmt.Errorf("pack a layer: %w", err)
	}
	return p.stats, nil
}

type inode struct{ dev, ino uint64 }

type packer struct {
	ctx     context.Context
	root    *os.Root
	archive *tar.Writer
	stats   Stats
	links   map[inode]string // files with several names, by the first of them
}

// directory packs a directory's own entry, its opaque mark, then what is in it by
// name.
func (p *packer) directory(name string) (err error) {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	opaque, attrs, err := readXattrs(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := p.header(name+"/", info, "", attrs); err != nil {
		return err
	}
	if opaque {
		if err := p.mark(path.Join(name, opaqueMark)); err != nil {
			return err
		}
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		if err := p.entry(path.Join(name, n)); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(name string) error {
	info, err := p.root.Lstat(name)
	if err != nil {
		return err
	}
	if strings.HasPrefix(path.Base(name), whiteoutPrefix) {
		return fmt.Errorf("%s: a name that begins with %s cannot be in a layer: rename it", name, whiteoutPrefix)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: the system tells nothing of it", name)
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return p.directory(name)
	case mode&fs.ModeCharDevice != 0 && stat.Rdev == 0:
		return p.mark(path.Join(path.Dir(name), whiteoutPrefix+path.Base(name)))
	case mode&(fs.ModeSocket|fs.ModeDevice) != 0:
		p.stats.Skipped++
		return nil
	case mode&fs.ModeSymlink != 0:
		target, err := p.root.Readlink(name)
		if err != nil {
			return err
		}
		return p.header(name, info, target, nil)
	case mode&fs.ModeNamedPipe != 0:
		return p.header(name, info, "", nil)
	}
	return p.file(name, info, inode{stat.Dev, stat.Ino}, stat.Nlink > 1)
}

func (p *packer) file(name string, info fs.FileInfo, id inode, several bool) (err error) {
	if first, known := p.links[id]; known && several {
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		return p.write(name, h, nil)
	}
	f, err := p.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, attrs, err := readXattrs(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := p.header(name, info, "", attrs); err != nil {
		return err
	}
	n, err := io.Copy(p.archive, &cancellable{p.ctx, f})
	p.stats.Bytes += n
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if several {
		p.links[id] = name
	}
	return nil
}

// cancellable ends a long copy with its context.
type cancellable struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancellable) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

func (p *packer) header(name string, info fs.FileInfo, link string, attrs map[string]string) error {
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	return p.write(name, h, attrs)
}

func (p *packer) write(name string, h *tar.Header, attrs map[string]string) error {
	h.Name, h.Uname, h.Gname, h.Format = name, "", "", tar.FormatPAX           // names of the host's users are nobody's business
	h.AccessTime, h.ChangeTime, h.PAXRecords = time.Time{}, time.Time{}, attrs // reading changes the former, copying the latter
	if err := p.archive.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p.stats.Entries++
	return nil
}

// mark writes an empty entry that says something by its name.
func (p *packer) mark(name string) error {
	return p.write(name, &tar.Header{Typeflag: tar.TypeReg, Mode: 0o600}, nil)
}

// readXattrs returns what programs set, as PAX records, and whether the directory
// is opaque. Other notes of the overlay mean that the layer cannot stand alone.
func readXattrs(f *os.File) (opaque bool, attrs map[string]string, err error) {
	names, err := listXattrs(int(f.Fd()))
	if err != nil {
		return false, nil, err
	}
	for _, attr := range names {
		value, err := readXattr(int(f.Fd()), attr)
		if err != nil {
			return false, nil, fmt.Errorf("read %s: %w", attr, err)
		}
		switch {
		case attr == xattrOpaque:
			opaque = string(value) == "y"
		case attr == xattrOverlay+"origin" || attr == xattrOverlay+"impure" || attr == xattrOverlay+"nlink" || attr == xattrOverlay+"uuid":
			// where it was copied up from: of no use elsewhere, and missed by nobody
		case strings.HasPrefix(attr, xattrOverlay):
			return false, nil, fmt.Errorf("it carries %s: the overlay was mounted with a feature that a layer cannot express", attr)
		default:
			if attrs == nil {
				attrs = map[string]string{}
			}
			attrs[xattrPAX+attr] = string(value)
		}
	}
	return opaque, attrs, nil
}

func listXattrs(fd int) ([]string, error) {
	for size := 256; ; size *= 2 {
		list := make([]byte, size)
		n, err := unix.Flistxattr(fd, list)
		switch {
		case errors.Is(err, unix.ENOTSUP):
			return nil, nil
		case errors.Is(err, unix.ERANGE):
			continue
		case err != nil:
			return nil, fmt.Errorf("list its attributes: %w", err)
		}
		var names []string
		for name := range bytes.SplitSeq(list[:n], []byte{0}) {
			if len(name) > 0 {
				names = append(names, string(name))
			}
		}
		slices.Sort(names)
		return names, nil
	}
}

func readXattr(fd int, attr string) ([]byte, error) {
	for size := 256; ; size *= 2 {
		value := make([]byte, size)
		n, err := unix.Fgetxattr(fd, attr, value)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return value[:n], nil
	}
}
