package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/layer"
	"golang.org/x/sys/unix"
)

// LayersConfig says where layers come from and how long they are kept.
type LayersConfig struct {
	Blobs    blob.Store
	Timeout  time.Duration    // of fetching and unpacking one; default 15 min, as long as an instance may be PREPARING
	MaxBytes int64            // of one, unpacked; default 16 GiB
	Kept     time.Duration    // of one that nothing needs, since its last use; default 24 h
	Spare    int64            // bytes of those together, the longest unused going first; default 10 GiB
	Now      func() time.Time // default: time.Now
}

// Layers keeps unpacked layers in one directory of a host, each fetched once, by
// what is in it, shared by many instances, and never written to afterwards.
type Layers struct {
	store  *Store
	config LayersConfig

	mu   sync.Mutex
	used map[string]time.Time // by directory: in this process
}

// justUsed is how long a layer that was asked for is needed whatever is said of it:
// whoever asked may not have used it yet.
const justUsed = 10 * time.Minute

// NewLayers makes the directory if it is missing. Fetching ends with Close.
func NewLayers(dir string, config LayersConfig) (*Layers, error) {
	if config.Kept == 0 {
		config.Kept = 24 * time.Hour
	}
	if config.Spare == 0 {
		config.Spare = 10 << 30
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	store, err := NewStore(dir, Config{BuildTimeout: config.Timeout, MaxBytes: config.MaxBytes, Now: config.Now})
	if err != nil {
		return nil, err
	}
	l := &Layers{store: store, config: config, used: map[string]time.Time{}}
	if err := l.emptyTrash(); err != nil {
		return nil, fmt.Errorf("layers: %w", err)
	}
	return l, nil
}

// Close ends what is being fetched and waits for it; nothing of it stays.
func (l *Layers) Close() { l.store.Close() }

// Ensure returns the directory of a layer, unpacked for the kernel's overlay, which
// needs root's rights where the layer removes something. It is fetched if it must
// be: once, however many ask. The caller's end does not end that. progress may be
// nil; it is called with what a person may want to read, one call at a time. A
// layer that the store has lost or damaged is FAILED_PRECONDITION, BLOB_GONE; a
// store that does not answer, or a full disk, UNAVAILABLE.
func (l *Layers) Ensure(ctx context.Context, one holdfast.Layer, progress func(string)) (string, error) {
	if err := checkLayer(one); err != nil {
		return "", err
	}
	// What is at a path is told by the whole of the sum.
	wanted := Image{Ref: "layer-" + one.SHA256[16:48], Digest: "sha256:" + one.SHA256}
	name := wanted.directory()
	l.use(name)
	found, there, err := l.store.read(name)
	if err != nil {
		return "", err
	}
	if !there {
		if found, err = l.fetch(ctx, wanted, one, progress); err != nil {
			return "", err
		}
		l.use(name)
	}
	if found.Digest != wanted.Digest {
		return "", holdfast.E(holdfast.Internal, holdfast.ReasonBug, "another layer is in the place of %s", short(one.SHA256))
	}
	now := l.config.Now()
	if err := os.Chtimes(filepath.Join(l.store.dir, name, manifestName), now, now); err != nil {
		return "", fmt.Errorf("layer %s: %w", short(one.SHA256), err)
	}
	return found.RootFS, nil
}

func checkLayer(one holdfast.Layer) error {
	err := blob.CheckKey(one.Key)
	if err == nil && (len(one.SHA256) != 64 || strings.Trim(one.SHA256, "0123456789abcdef") != "" || one.Size < 0) {
		err = errors.New("it needs its SHA-256 in hex, and its size")
	}
	if err != nil {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "a layer is malformed").Because(err).With("field", "layers")
	}
	return nil
}

func (l *Layers) use(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used[name] = l.config.Now()
}

func (l *Layers) fetch(ctx context.Context, wanted Image, one holdfast.Layer, progress func(string)) (Image, error) {
	r := &fetched{blobs: l.config.Blobs, layer: one, limits: layer.Limits{Bytes: l.store.config.MaxBytes, Entries: maxEntries}}
	b, err := l.store.join(wanted, r)
	if err != nil {
		return Image{}, err
	}
	defer b.enter(progress)()
	select {
	case <-b.done:
		return b.image, b.err
	case <-ctx.Done():
		return Image{}, fmt.Errorf("layer %s: %w", short(one.SHA256), ctx.Err())
	}
}

// fetched is the recipe of a layer.
type fetched struct {
	blobs  blob.Store
	layer  holdfast.Layer
	limits layer.Limits
}

func (f *fetched) digest(context.Context) (string, error) { return "sha256:" + f.layer.SHA256, nil }

func (f *fetched) build(ctx context.Context, root string, progress func(string)) (err error) {
	progress("fetching a layer of " + mebibytes(f.layer.Size))
	object, info, err := f.blobs.Get(ctx, f.layer.Key)
	if err != nil {
		return f.failed(ctx, err, true)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	if info.Size != f.layer.Size {
		return f.failed(ctx, fmt.Errorf("%w: it has %d bytes, not %d", blob.ErrMismatch, info.Size, f.layer.Size), true)
	}
	from := &source{r: object, size: f.layer.Size, progress: progress}
	whole := blob.Verify(from, f.layer.Size, f.layer.SHA256)
	_, err = layer.Unpack(ctx, root, whole, layer.Overlay, f.limits)
	if err == nil { // a tar ends before its file does
		_, err = io.Copy(io.Discard, whole)
	}
	if from.err != nil {
		return f.failed(ctx, from.err, true)
	}
	if err != nil {
		return f.failed(ctx, err, false)
	}
	return nil
}

// failed tells a layer that is lost from one that cannot be had now.
func (f *fetched) failed(ctx context.Context, err error, source bool) error {
	name := short(f.layer.SHA256)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("layer %s: %w", name, err)
	case errors.Is(err, blob.ErrNotFound):
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonBlobGone, "the blob store has nothing under %s any more", f.layer.Key).Because(err)
	case errors.Is(err, blob.ErrMismatch), errors.Is(err, layer.ErrMalformed) && !source:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonBlobGone, "what the blob store has under %s is damaged", f.layer.Key).Because(err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonNoSpace, "the host has no room for a layer of %s", mebibytes(f.layer.Size)).Because(err)
	case source:
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "the blob store does not yield %s", f.layer.Key).Because(err)
	}
	return fmt.Errorf("layer %s: %w", name, err)
}

// source tells a person how far a layer is, and keeps the store's own error apart
// from what follows of it.
type source struct {
	r        io.Reader
	size     int64
	progress func(string)
	read     int64
	told     int64 // tenths
	err      error
}

// Read passes on.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.read += int64(n)
	if s.size > 0 && s.read*10/s.size > s.told {
		s.told = s.read * 10 / s.size
		s.progress(fmt.Sprintf("fetching a layer of %s: %d %%", mebibytes(s.size), s.told*10))
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// kept is a layer that is on the host.
type kept struct {
	Image
	name string
	last time.Time // use
}

// Prune removes layers that nothing needs: those that were not used for long, and
// of the others the longest unused until they fit. needed is asked of each, by its
// SHA-256, just before it goes; one that was asked for in the last minutes stays.
func (l *Layers) Prune(ctx context.Context, needed func(sha256 string) bool) (removed int, err error) {
	if err := l.emptyTrash(); err != nil {
		return 0, fmt.Errorf("prune layers: %w", err)
	}
	all, err := l.list()
	if err != nil {
		return 0, fmt.Errorf("prune layers: %w", err)
	}
	slices.SortFunc(all, func(a, b kept) int { return b.last.Compare(a.last) }) // the latest used first
	var spare int64
	var errs []error
	for _, one := range all {
		if needed(sumOf(one.Image)) {
			continue
		}
		spare += one.Size
		if ctx.Err() != nil || l.config.Now().Sub(one.last) < l.config.Kept && spare <= l.config.Spare {
			continue
		}
		gone, err := l.remove(one, needed)
		errs = append(errs, err)
		if gone {
			spare -= one.Size
			removed++
		}
	}
	return removed, errors.Join(append(errs, ctx.Err())...)
}

func sumOf(i Image) string { return strings.TrimPrefix(i.Digest, "sha256:") }

func (l *Layers) list() ([]kept, error) {
	images, err := l.store.List()
	if err != nil {
		return nil, err
	}
	var all []kept
	for _, i := range images {
		name := i.directory()
		info, err := os.Stat(filepath.Join(l.store.dir, name, manifestName))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, kept{i, name, info.ModTime()})
	}
	return all, nil
}

// remove takes a layer's name away first: whoever wants it from then on fetches it.
func (l *Layers) remove(one kept, needed func(string) bool) (bool, error) {
	trash := filepath.Join(l.store.dir, buildsDirectory, trashPrefix+one.name)
	if err := l.rename(one, needed, trash); err != nil {
		if errors.Is(err, errInUse) {
			return false, nil
		}
		return false, fmt.Errorf("layer %s: %w", one.name, err)
	}
	if err := os.RemoveAll(trash); err != nil {
		return true, fmt.Errorf("layer %s: %w", one.name, err)
	}
	return true, nil
}

const trashPrefix = "gone-"

var errInUse = errors.New("it is needed")

func (l *Layers) rename(one kept, needed func(string) bool, trash string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if used, ok := l.used[one.name]; ok && l.config.Now().Sub(used) < justUsed || needed(sumOf(one.Image)) {
		return errInUse
	}
	delete(l.used, one.name)
	if err := os.MkdirAll(filepath.Dir(trash), 0o700); err != nil {
		return err
	}
	return os.Rename(filepath.Join(l.store.dir, one.name), trash)
}

// emptyTrash removes what a process that died was removing.
func (l *Layers) emptyTrash() error {
	left, err := filepath.Glob(filepath.Join(l.store.dir, buildsDirectory, trashPrefix+"*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}
