package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

func newTestStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := NewStore(dir, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func needBusybox(t *testing.T) {
	t.Helper()
	if _, err := (busybox{}).find(); err != nil {
		t.Fatal(err)
	}
}

func TestKnown(t *testing.T) {
	for ref, known := range map[string]bool{
		"base": true, "debian": true, "debian:bookworm": true, "debian:sid": true,
		"": false, "Base": false, "debian:": false, "debian:Bookworm": false, "debian:../etc": false, "debian:a b": false,
		"oci:alpine": true, "oci:registry.example:5000/a/b:1.2": true, "oci:registry.example/a@sha256:" + strings.Repeat("0", 64): true,
		"oci:": false, "oci:A B": false, "oci:a@sha256:1": false, "oci:" + strings.Repeat("x", 5000): false,
		"tar:a/b.tar": true, "dir:root": true, "tar:": false, "tar:/etc": false, "dir:..": false, "dir:a/../../b": false, "dir:.": false, "dir:a/": false,
		"ubuntu": false, "base:1": false, "debian:-x": false, strings.Repeat("x", 5000): false,
	} {
		err := Known(ref)
		if known != (err == nil) {
			t.Errorf("%q: %v", ref, err)
		}
		if err == nil {
			continue
		}
		if holdfast.CodeOf(err) != holdfast.InvalidArgument || holdfast.ReasonOf(err) != holdfast.ReasonNoSuchImage {
			t.Errorf("%q: %v", ref, err)
		}
		if !strings.Contains(err.Error(), "expected") && !strings.Contains(err.Error(), `"base"`) || len(err.Error()) > 400 {
			t.Errorf("%q does not say, briefly, what there is: %v", ref, err)
		}
	}
}

func TestBaseIsARootFileSystem(t *testing.T) {
	needBusybox(t)
	s := newTestStore(t, t.TempDir())
	var said []string
	image, err := s.Ensure(t.Context(), "base", func(line string) { said = append(said, line) })
	if err != nil {
		t.Fatal(err)
	}
	if image.Ref != "base" || !strings.HasPrefix(image.Digest, "sha256:") || image.Size < 100_000 || len(said) == 0 {
		t.Errorf("%+v, progress %q", image, said)
	}
	for path, mode := range map[string]fs.FileMode{
		"bin/busybox": 0o755, "bin/sh": 0o755, "etc/passwd": 0o644, "etc/shadow": 0o600,
		"tmp": fs.ModeDir | fs.ModeSticky | 0o777, "root": fs.ModeDir | 0o700, ".": fs.ModeDir | 0o755,
	} {
		info, err := os.Stat(filepath.Join(image.RootFS, path))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", path, info, err, mode)
		}
	}
	again, err := s.Ensure(t.Context(), "base", nil)
	if err != nil || !reflect.DeepEqual(again, image) {
		t.Errorf("the second time: %+v, %v", again, err)
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || !reflect.DeepEqual(all[0], image) {
		t.Errorf("the list is %+v, %v", all, err)
	}
}

func TestAMissingBusyboxNamesThePackage(t *testing.T) {
	s, err := NewStore(t.TempDir(), Config{Busybox: filepath.Join(t.TempDir(), "none")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	_, err = s.Ensure(t.Context(), "base", nil)
	if holdfast.CodeOf(err) != holdfast.FailedPrecondition || !strings.Contains(err.Error(), "apt-get install busybox-static") {
		t.Errorf("%v", err)
	}
}

// counted is a recipe that counts its builds and can fail or wait.
type counted struct {
	builds *atomic.Int64
	begun  chan struct{}
	goOn   <-chan struct{}
	fails  error
}

func (counted) digest(context.Context) (string, error) { return digestOf("counted"), nil }

func (c counted) build(ctx context.Context, root string, progress func(string)) error {
	c.builds.Add(1)
	progress("begun")
	if err := os.WriteFile(filepath.Join(root, "file"), []byte("half"), 0o600); err != nil {
		return err
	}
	if c.begun != nil {
		c.begun <- struct{}{}
	}
	if c.goOn != nil {
		select {
		case <-c.goOn:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return c.fails
}

// ensure is Ensure with a recipe of the test's own.
func ensure(ctx context.Context, s *Store, r recipe) (Image, error) {
	b, err := s.join(Image{Ref: "counted", Digest: digestOf("counted")}, r)
	if err != nil {
		return Image{}, err
	}
	select {
	case <-b.done:
		return b.image, b.err
	case <-ctx.Done():
		return Image{}, ctx.Err()
	}
}

func TestBuildsThatRaceBuildOnce(t *testing.T) {
	dir := t.TempDir()
	// Two stores are two processes to each other: they share files alone.
	stores := []*Store{newTestStore(t, dir), newTestStore(t, dir), newTestStore(t, dir)}
	r := counted{builds: &atomic.Int64{}}
	var group sync.WaitGroup
	images := make(chan Image, 30)
	for i := range 30 {
		group.Go(func() {
			image, err := ensure(t.Context(), stores[i%len(stores)], r)
			if err != nil {
				t.Error(err)
			}
			images <- image
		})
	}
	group.Wait()
	close(images)
	first := <-images
	for image := range images {
		if image.RootFS != first.RootFS {
			t.Errorf("%+v is not %+v", image, first)
		}
	}
	if n := r.builds.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}

func TestAFailedBuildLeavesNothingAndIsNotRemembered(t *testing.T) {
	s := newTestStore(t, t.TempDir())
	r := counted{builds: &atomic.Int64{}, fails: errors.New("no")}
	if _, err := ensure(t.Context(), s, r); !errors.Is(err, r.fails) {
		t.Fatalf("%v", err)
	}
	if left := remains(t, s); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	r.fails = nil
	if _, err := ensure(t.Context(), s, r); err != nil {
		t.Errorf("the next build: %v", err)
	}
}

func TestACallersEndDoesNotEndTheBuild(t *testing.T) {
	s := newTestStore(t, t.TempDir())
	goOn := make(chan struct{})
	r := counted{builds: &atomic.Int64{}, begun: make(chan struct{}, 1), goOn: goOn}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := ensure(ctx, s, r)
		first <- err
	}()
	<-r.begun
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := ensure(t.Context(), s, r)
		second <- err
	}()
	close(goOn)
	if err := <-second; err != nil || r.builds.Load() != 1 {
		t.Errorf("%v after %d builds", err, r.builds.Load())
	}
}

func TestAClosedStoreLeavesNothingOfItsBuilds(t *testing.T) {
	s := newTestStore(t, t.TempDir())
	r := counted{builds: &atomic.Int64{}, begun: make(chan struct{}, 1), goOn: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := ensure(t.Context(), s, r)
		ended <- err
	}()
	<-r.begun
	s.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if left := remains(t, s); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if _, err := ensure(t.Context(), s, r); holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Errorf("after the close: %v", err)
	}
}

func TestWhatADeadBuildLeftIsRemoved(t *testing.T) {
	s := newTestStore(t, t.TempDir())
	key := Image{Ref: "counted", Digest: digestOf("counted")}.directory()
	left := filepath.Join(s.dir, buildsDirectory, key, rootName)
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "junk"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	image, err := ensure(t.Context(), s, counted{builds: &atomic.Int64{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(image.RootFS, "junk")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an earlier build's file is in the image: %v", err)
	}
}

// remains lists what is in the store but locks.
func remains(t *testing.T, s *Store) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path != s.dir && e.Name() != buildsDirectory && !strings.HasSuffix(path, ".lock") {
			left = append(left, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func TestSources(t *testing.T) {
	host := apt{targets: []target{
		{"http://m.example/debian/", "bookworm", "main", ""},
		{"http://m.example/debian/", "bookworm", "contrib", ""},
		{"http://m.example/debian/", "bookworm-updates", "main", "/k.gpg"},
		{"http://m.example/debian-security/", "bookworm-security", "main", ""},
		{"http://other.example/node/", "nodistro", "main", ""},
	}}
	for suite, want := range map[string]string{
		"bookworm": "deb http://m.example/debian/ bookworm main;deb [signed-by=/k.gpg] http://m.example/debian/ bookworm-updates main;" +
			"deb http://m.example/debian-security/ bookworm-security main",
		"trixie": "deb http://m.example/debian/ trixie main",
	} {
		if got := strings.Join(host.sources(suite), ";"); got != want {
			t.Errorf("%s: %s", suite, got)
		}
	}
	if got := (apt{}).sources("bookworm"); len(got) != 0 {
		t.Errorf("a host without apt: %q", got)
	}
}

func TestFailuresOfMmdebstrap(t *testing.T) {
	for said, want := range map[string]holdfast.Reason{
		"E: The repository 'http://x nope Release' does not have a Release file.": holdfast.ReasonNoSuchImage,
		"E: postinst returned 1": holdfast.ReasonImageFailed,
	} {
		err := debian{suite: "nope"}.failed(t.Context(), errors.New("exit status 1"), []string{"I: x", said})
		if holdfast.ReasonOf(err) != want || holdfast.Transient(err) {
			t.Errorf("%s: %v", said, err)
		}
	}
	err := debian{suite: "nope"}.failed(t.Context(), errors.New("exit status 1"),
		[]string{"W: Failed to fetch http://x  Temporary failure resolving 'x'", "E: Unable to fetch"})
	if !holdfast.Transient(err) {
		t.Errorf("an unreachable mirror is final: %v", err)
	}
}
