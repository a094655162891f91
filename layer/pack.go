package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pack writes the writable directory of an overlay as a layer, without what omit
// names below it. Nothing writes to it meanwhile. The same directory always gives
// the same bytes.
func Pack(ctx context.Context, upper string, w io.Writer, omit ...string) (Stats, error) {
	return pack(ctx, &packer{omit: omit}, []string{upper}, w, unknown)
}

// Merge writes one layer that is as several on top of each other, the topmost
// first: directories as Pack takes them, or as Unpack with Overlay leaves them. Base
// is what is below them all: what they hide is marked only where it is there, since
// the kernel shows a mark over nothing as a name without a file.
func Merge(ctx context.Context, layers []string, base string, w io.Writer) (_ Stats, err error) {
	root, err := os.OpenRoot(base)
	if err != nil {
		return Stats{}, fmt.Errorf("merge layers: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return pack(ctx, &packer{base: root}, layers, w, some)
}

func pack(ctx context.Context, p *packer, layers []string, w io.Writer, under below) (_ Stats, err error) {
	p.ctx, p.archive, p.links = ctx, tar.NewWriter(w), map[inode]string{}
	var roots []*os.Root
	defer func() {
		for _, r := range roots {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, dir := range layers {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return Stats{}, fmt.Errorf("pack a layer: %w", err)
		}
		roots = append(roots, root)
	}
	if err := p.directory(".", roots, false, under); err != nil {
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
	archive *tar.Writer
	stats   Stats
	links   map[inode]string // files with several names, by the first of them
	omit    []string
	base    *os.Root // nil: what is below is not known
}

// below says whether a directory is in the base too.
type below int

const (
	unknown below = iota
	some
	none
)

// has reports whether a mark that hides name is of use: whether the base has it, in
// a directory of which is known what under says.
func (p *packer) has(name string, under below) (is below, err error) {
	if under != some {
		return under, nil
	}
	_, err = p.base.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	return some, err
}

// hasDirectory is the same of a directory, for what is in it.
func (p *packer) hasDirectory(name string, under below) (below, error) {
	if under != some {
		return under, nil
	}
	info, err := p.base.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return none, nil
	}
	return some, err
}

// directory packs a directory's own entry, its opaque mark, then what is in it by
// name. It is seen in these layers, the topmost first; opaque says that something
// hides it from those below them.
func (p *packer) directory(name string, in []*os.Root, opaque bool, under below) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	children := map[string]bool{}
	for i, root := range in {
		hides, err := p.open(name, root, i == 0, children)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if hides {
			in, opaque = in[:i+1], true
			break
		}
	}
	if opaque && under != none {
		if err := p.mark(path.Join(name, opaqueMark)); err != nil {
			return err
		}
	}
	if opaque && under == some {
		under = none
	}
	for _, child := range slices.Sorted(maps.Keys(children)) {
		if child = path.Join(name, child); slices.Contains(p.omit, child) {
			continue
		}
		if err := p.entry(child, in, under); err != nil {
			return err
		}
	}
	return nil
}

// open adds what one layer has in a directory, and reports whether it hides what
// the layers below have there. The topmost layer's directory gives the entry.
func (p *packer) open(name string, root *os.Root, topmost bool, children map[string]bool) (hides bool, err error) {
	f, err := root.Open(name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hides, attrs, err := readXattrs(f)
	if err != nil {
		return false, err
	}
	if topmost {
		info, err := f.Stat()
		if err != nil {
			return false, err
		}
		if err := p.header(name+"/", info, "", attrs); err != nil {
			return false, err
		}
	}
	names, err := f.Readdirnames(-1)
	for _, n := range names {
		children[n] = true
	}
	return hides, err
}

// entry packs what is seen under a name: the topmost layer's, and where that is a
// directory, with those of the layers below that it does not hide.
func (p *packer) entry(name string, in []*os.Root, under below) error {
	if strings.HasPrefix(path.Base(name), whiteoutPrefix) {
		return fmt.Errorf("%w: %s: a name that begins with %s has another meaning in a layer: rename it", ErrUnfit, name, whiteoutPrefix)
	}
	var seen []*os.Root
	opaque := false
	for _, root := range in {
		info, err := root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.IsDir():
			seen = append(seen, root)
			continue
		case len(seen) == 0:
			return p.leaf(name, root, info, under)
		}
		opaque = true // what is no directory hides all below it
		break
	}
	if len(seen) == 0 {
		return fmt.Errorf("%s: it vanished: %w", name, fs.ErrNotExist)
	}
	under, err := p.hasDirectory(name, under)
	if err != nil {
		return err
	}
	return p.directory(name, seen, opaque, under)
}

// leaf packs what is no directory.
func (p *packer) leaf(name string, root *os.Root, info fs.FileInfo, under below) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: the system tells nothing of it", name)
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeCharDevice != 0 && stat.Rdev == 0:
		if there, err := p.has(name, under); err != nil || there == none {
			return err
		}
		return p.mark(path.Join(path.Dir(name), whiteoutPrefix+path.Base(name)))
	case mode&(fs.ModeSocket|fs.ModeDevice) != 0:
		p.stats.Skipped++
		return nil
	case mode&fs.ModeSymlink != 0:
		target, err := root.Readlink(name)
		if err != nil {
			return err
		}
		return p.header(name, info, target, nil)
	case mode&fs.ModeNamedPipe != 0:
		return p.header(name, info, "", nil)
	}
	return p.file(name, root, info, inode{stat.Dev, stat.Ino})
}

func (p *packer) file(name string, root *os.Root, info fs.FileInfo, id inode) (err error) {
	several := info.Sys().(*syscall.Stat_t).Nlink > 1
	if first, known := p.links[id]; known && several {
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		return p.write(name, h, nil)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
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
			return false, nil, fmt.Errorf("%w: it carries %s: the overlay was mounted with a feature that a layer cannot express", ErrUnfit, attr)
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
