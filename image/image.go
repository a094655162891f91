// Package image prepares what instances boot from: root file systems in a
// directory of the host, each built once, shared by many instances, and never
// written to afterwards.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/layer"
)

// Image is a prepared base.
type Image struct {
	Ref     string    `json:"ref"`          // as it was asked for, "debian" being "debian:bookworm"
	Digest  string    `json:"digest"`       // "sha256:…" of what it was built from
	ID      string    `json:"id,omitempty"` // of a registry's: its reference, pinned
	RootFS  string    `json:"-"`            // directory on the host; read-only by agreement
	Size    int64     `json:"size"`         // bytes of its files
	BuiltAt time.Time `json:"built_at"`
	// Defaults is what a registry's image says of processes. What it would run itself,
	// its entrypoint and its command, is not taken over: an instance runs the guest agent.
	Defaults holdfast.ProcessDefaults `json:"defaults,omitzero"`
}

// Base is the image as the parties name it.
func (i Image) Base() holdfast.BaseImage {
	id := i.ID
	if id == "" {
		id = i.Digest
	}
	return holdfast.BaseImage{ID: id, RootFS: i.RootFS, Defaults: i.Defaults}
}

// The references there are, besides "debian:SUITE" and those that begin with
// RefOCI, RefTar and RefDir.
const (
	RefBase   = "base"   // busybox alone, ready in seconds
	RefDebian = "debian" // DebianDefault
)

// DebianDefault is the suite that "debian" means.
const DebianDefault = "bookworm"

// Config of a Store.
type Config struct {
	Busybox      string           // a static busybox; default: the one of the package busybox-static
	Mmdebstrap   string           // default: "mmdebstrap", from PATH
	BuildTimeout time.Duration    // of one image; default 15 min, as long as an instance may be PREPARING
	Local        string           // directory that tar: and dir: references are below; "": there are none
	MaxBytes     int64            // of an image from elsewhere, unpacked; default 16 GiB
	Now          func() time.Time // default: time.Now
}

// Store keeps images in one directory. Many processes may share it.
type Store struct {
	dir     string
	config  Config
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	builds map[string]*build // by key
	hashes map[string]hashed // of recipes' inputs, by path
}

// recipe is how one image comes to be.
type recipe interface {
	// digest is of everything that goes into it: another one is another image.
	digest(ctx context.Context) (string, error)
	// build fills an empty directory, and says for a person how far it is.
	build(ctx context.Context, root string, progress func(string)) error
}

// configured is a recipe that knows, once it is built, what its image says of processes.
type configured interface {
	defaults() holdfast.ProcessDefaults
}

// NewStore makes the directory if it is missing. Builds end with Close.
func NewStore(dir string, config Config) (*Store, error) {
	if config.Mmdebstrap == "" {
		config.Mmdebstrap = "mmdebstrap"
	}
	if config.BuildTimeout == 0 {
		config.BuildTimeout = holdfast.InstancePrepareAfter
	}
	if config.MaxBytes == 0 {
		config.MaxBytes = 16 << 30
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	life, end := context.WithCancel(context.Background())
	return &Store{dir: dir, config: config, life: life, end: end, builds: map[string]*build{}, hashes: map[string]hashed{}}, nil
}

// Close ends builds that are under way and waits for them; nothing of them stays.
func (s *Store) Close() {
	s.end()
	s.running.Wait()
}

// maxEntries bounds the files and directories of an image from elsewhere.
const maxEntries = 5_000_000

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

var suitePattern = regexp.MustCompile(`^debian:([a-z][a-z0-9]{1,30})$`)

// maxRef bounds a reference, in bytes.
const maxRef = 1024

// Known tells whether there can be such an image, without looking for it:
// INVALID_ARGUMENT, NO_SUCH_IMAGE otherwise, naming those there are.
func Known(ref string) error {
	if len(ref) <= maxRef {
		if behind, ok := strings.CutPrefix(ref, RefOCI); ok {
			_, err := parseOCI(behind)
			return err
		}
		for _, prefix := range []string{RefTar, RefDir} {
			if behind, ok := strings.CutPrefix(ref, prefix); ok {
				return checkLocal(ref, behind)
			}
		}
		if ref == RefBase || ref == RefDebian || suitePattern.MatchString(ref) {
			return nil
		}
	}
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage,
		"there is no image %q: there are %q, %q, \"debian:SUITE\" (lower-case, such as \"debian:%s\"), \"oci:REFERENCE\", \"tar:PATH\" and \"dir:PATH\"",
		short(ref), RefBase, RefDebian, DebianDefault).With("image", short(ref))
}

// short is a reference as messages show it.
func short(ref string) string {
	if len(ref) > 64 {
		return strings.ToValidUTF8(ref[:64], "") + "…"
	}
	return ref
}

// Known is the function of that name, for interfaces.
func (s *Store) Known(ref string) error { return Known(ref) }

// canonical spells a reference in one way.
func canonical(ref string) string {
	if ref == RefDebian {
		return RefDebian + ":" + DebianDefault
	}
	return ref
}

func (s *Store) recipe(ref string) recipe {
	limits := layer.Limits{Bytes: s.config.MaxBytes, Entries: maxEntries}
	if behind, ok := strings.CutPrefix(ref, RefOCI); ok {
		return &oci{ref: behind, limits: limits}
	}
	for _, prefix := range []string{RefTar, RefDir} {
		if behind, ok := strings.CutPrefix(ref, prefix); ok {
			return local{ref: ref, dir: s.config.Local, path: behind, isDir: prefix == RefDir, limits: limits}
		}
	}
	if match := suitePattern.FindStringSubmatch(ref); match != nil {
		return debian{suite: match[1], tool: s.config.Mmdebstrap}
	}
	return busybox{path: s.config.Busybox, hash: s.hashFile}
}

// Ensure returns the image, and builds it if it must: once, however many ask, in
// this process and in others. The caller's end does not end the build. progress
// may be nil; it is called with what a person may want to read, one call at a
// time. Refusals (no such image, a missing tool, a recipe that fails) are final;
// an unreachable mirror is UNAVAILABLE.
func (s *Store) Ensure(ctx context.Context, ref string, progress func(string)) (Image, error) {
	return s.EnsureSame(ctx, ref, "", progress)
}

// EnsureSame is Ensure for what was made above an image, which its id names: it
// returns that very image, whatever the reference names by now, or refuses. "" is any.
func (s *Store) EnsureSame(ctx context.Context, ref, id string, progress func(string)) (Image, error) {
	if err := Known(ref); err != nil {
		return Image{}, err
	}
	ref = canonical(ref)
	if id != "" {
		if found, there, err := s.readSame(ctx, ref, id); err != nil || there {
			return found, err
		}
		if strings.HasPrefix(id, RefOCI) {
			ref = id
		}
	}
	pinned, err := Pin(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	r := s.recipe(pinned)
	digest, err := r.digest(ctx)
	if err != nil {
		return Image{}, err
	}
	wanted := Image{Ref: ref, Digest: digest}
	if strings.HasPrefix(pinned, RefOCI) {
		wanted.ID = pinned
	}
	if id != "" && wanted.Base().ID != id {
		return Image{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed,
			"%q is not what it was when the checkpoint or build above it was made, and this host has not kept that: build the environment again, or restore what was there (it was %s, and is %s)",
			short(ref), short(id), short(digest))
	}
	found, there, err := s.read(wanted.directory())
	if err != nil || there {
		return found, err
	}
	b, err := s.join(wanted, r)
	if err != nil {
		return Image{}, err
	}
	defer b.enter(progress)()
	select {
	case <-b.done:
		return b.image, b.err
	case <-ctx.Done():
		return Image{}, fmt.Errorf("image %s: %w", ref, ctx.Err())
	}
}

// readSame looks for the image of an id under a reference, in this store alone.
func (s *Store) readSame(ctx context.Context, ref, id string) (Image, bool, error) {
	digest := id
	if behind, ok := strings.CutPrefix(id, RefOCI); ok {
		var err error
		if digest, err = (&oci{ref: behind}).digest(ctx); err != nil {
			return Image{}, false, err
		}
	}
	if !digestPattern.MatchString(digest) {
		return Image{}, false, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "%q is no image's id", short(id))
	}
	found, there, err := s.read(Image{Ref: ref, Digest: digest}.directory())
	return found, there && found.Digest == digest, err
}

// List returns the images that are ready, the oldest first.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	var all []Image
	for _, e := range entries {
		if e.Name() == buildsDirectory || !e.IsDir() {
			continue
		}
		image, there, err := s.read(e.Name())
		if err != nil {
			return nil, err
		}
		if there {
			all = append(all, image)
		}
	}
	slices.SortFunc(all, func(a, b Image) int { return a.BuiltAt.Compare(b.BuiltAt) })
	return all, nil
}

const (
	manifestName    = "image.json"
	rootName        = "rootfs"
	buildsDirectory = "building"
)

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// directory is where in the store the image is: its reference for a person, its
// digest for certainty.
func (i Image) directory() string {
	return unfit.ReplaceAllString(i.Ref, "-") + "-" + i.Digest[len("sha256:"):][:16]
}

// read answers false where there is no such image. A directory of that name is
// complete, since it got its name when it was.
func (s *Store) read(directory string) (Image, bool, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, directory, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, false, nil
	}
	var image Image
	if err == nil {
		err = json.Unmarshal(data, &image)
	}
	if err != nil {
		return Image{}, false, fmt.Errorf("image %s: %w", directory, err)
	}
	image.RootFS = filepath.Join(s.dir, directory, rootName)
	return image, true, nil
}
