package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"github.com/holdfast-dev/holdfast"
)

// tarOf makes a tar of files by name; a name ending in "/" is a directory, content
// that begins with "->" a symbolic link, with "=" a hard link, with "device" one.
func tarOf(t testing.TB, entries ...[2]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e[0], Mode: 0o755, Size: int64(len(e[1])), Typeflag: tar.TypeReg, ModTime: time.Unix(1e9, 0)}
		content := e[1]
		switch {
		case strings.HasSuffix(e[0], "/"):
			h.Typeflag = tar.TypeDir
		case strings.HasPrefix(content, "->"):
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, content[2:], 0, ""
		case strings.HasPrefix(content, "="):
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeLink, content[1:], 0, ""
		case content == "device":
			h.Typeflag, h.Devmajor, h.Size, content = tar.TypeBlock, 8, 0, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// hub is a registry in this process, which can be made to fail.
type hub struct {
	address string
	broken  atomic.Int64 // status that everything is answered with; 0: none
	asked   atomic.Int64
}

func newHub(t testing.TB) *hub {
	t.Helper()
	h := &hub{}
	serve := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		if status := h.broken.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.address = strings.TrimPrefix(server.URL, "http://")
	return h
}

// push puts an image of these layers under a tag.
func (h *hub) push(t testing.TB, tag, architecture string, layers ...[]byte) v1.Image {
	t.Helper()
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: architecture})
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, l); err != nil {
			t.Fatal(err)
		}
	}
	h.put(t, tag, image)
	return image
}

func (h *hub) put(t testing.TB, tag string, image v1.Image) {
	t.Helper()
	ref, err := name.ParseReference(h.address + "/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
}

func ensured(t testing.TB, s *Store, ref string) Image {
	t.Helper()
	image, err := s.Ensure(context.Background(), ref, nil)
	if err != nil {
		t.Fatalf("%s: %v", ref, err)
	}
	return image
}

func read(t testing.TB, image Image, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(image.RootFS, file))
	if err != nil {
		t.Errorf("%v", err)
	}
	return string(data)
}

// nothingLeft checks that a refused image left neither an image nor half of one.
func nothingLeft(t testing.TB, s *Store) {
	t.Helper()
	all, err := s.List()
	if err != nil || len(all) != 0 {
		t.Errorf("images are there: %v, %v", all, err)
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, buildsDirectory))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			t.Errorf("half an image is left: %s", e.Name())
		}
	}
}

func TestE1_AnImageOfARegistryIsItsLayersOneOverTheOther(t *testing.T) {
	h, s := newHub(t), newTestStore(t, t.TempDir())
	h.push(t, "team/tool:1", goruntime.GOARCH,
		tarOf(t, [2]string{"bin/", ""}, [2]string{"bin/tool", "one"}, [2]string{"etc/old", "gone soon"}, [2]string{"etc/kept", "kept"}),
		tarOf(t, [2]string{"bin/tool", "two"}, [2]string{"etc/.wh.old", ""}, [2]string{"lib", "->usr/lib"}, [2]string{"usr/lib/x", "x"}))
	image := ensured(t, s, "oci:"+h.address+"/team/tool:1")
	if got := read(t, image, "bin/tool"); got != "two" {
		t.Errorf("bin/tool is %q", got)
	}
	if got := read(t, image, "etc/kept") + read(t, image, "lib/x"); got != "keptx" {
		t.Errorf("etc/kept and lib/x are %q", got)
	}
	if _, err := os.Lstat(filepath.Join(image.RootFS, "etc/old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a layer says is gone is there: %v", err)
	}
	if again := ensured(t, s, "oci:"+h.address+"/team/tool:1"); again.RootFS != image.RootFS {
		t.Errorf("the second time it is %+v", again)
	}
}

func TestE1_ATagThatMovedIsAnotherImageAndAPinnedOneIsNot(t *testing.T) {
	h, s := newHub(t), newTestStore(t, t.TempDir())
	tag := "oci:" + h.address + "/tool:latest"
	h.push(t, "tool:latest", goruntime.GOARCH, tarOf(t, [2]string{"v", "1"}))
	pinned, err := Pin(t.Context(), tag)
	if err != nil || !strings.Contains(pinned, "@sha256:") {
		t.Fatalf("pinned: %q, %v", pinned, err)
	}
	first := ensured(t, s, tag)
	h.push(t, "tool:latest", goruntime.GOARCH, tarOf(t, [2]string{"v", "2"}))
	if second := ensured(t, s, tag); read(t, first, "v") != "1" || read(t, second, "v") != "2" {
		t.Error("the tag's images are not what was pushed")
	}
	byDigest := ensured(t, s, pinned)
	if got := read(t, byDigest, "v"); got != "1" {
		t.Errorf("the pinned image is %q", got)
	}
	for ref, want := range map[string]string{pinned: pinned, "base": "base", "debian:sid": "debian:sid"} {
		if got, err := Pin(t.Context(), ref); err != nil || got != want {
			t.Errorf("pinning %s gives %q, %v", ref, got, err)
		}
	}
	h.broken.Store(http.StatusServiceUnavailable)
	if again, err := s.Ensure(t.Context(), pinned, nil); err != nil || again.RootFS != byDigest.RootFS {
		t.Errorf("a pinned image that is there needs its registry: %v", err)
	}
}

func TestE1_WhatARegistryCannotGiveIsTold(t *testing.T) {
	h := newHub(t)
	other := "arm64"
	if goruntime.GOARCH == other {
		other = "amd64"
	}
	h.push(t, "elsewhere:1", other, tarOf(t, [2]string{"a", "1"}))
	for name, c := range map[string]struct {
		ref    string
		broken int64
		code   holdfast.Code
		says   string
	}{
		"an image for another machine":   {"oci:" + h.address + "/elsewhere:1", 0, holdfast.FailedPrecondition, "not made for linux/" + goruntime.GOARCH},
		"a repository that is not there": {"oci:" + h.address + "/none:1", 0, holdfast.FailedPrecondition, "no image"},
		"no right to it":                 {"oci:" + h.address + "/none:1", http.StatusForbidden, holdfast.FailedPrecondition, "log in"},
		"a registry that is down":        {"oci:" + h.address + "/none:1", http.StatusBadGateway, holdfast.Unavailable, "cannot be reached"},
		"too many requests":              {"oci:" + h.address + "/none:1", http.StatusTooManyRequests, holdfast.Unavailable, "cannot be reached"},
		"nobody listens":                 {"oci:127.0.0.1:1/none:1", 0, holdfast.Unavailable, "cannot be reached"},
		"no reference":                   {"oci:UPPER CASE", 0, holdfast.InvalidArgument, "no reference"},
	} {
		t.Run(name, func(t *testing.T) {
			h.broken.Store(c.broken)
			before := h.asked.Load()
			s := newTestStore(t, t.TempDir())
			_, err := s.Ensure(t.Context(), c.ref, nil)
			if holdfast.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %s that says %q", err, c.code, c.says)
			}
			if asked := h.asked.Load() - before; asked > 2 && c.broken != 0 {
				t.Errorf("the registry was asked %d times: only the outermost caller retries", asked) // trap T22
			}
			nothingLeft(t, s)
		})
	}
}

func TestE1_AnImageThatReachesOutIsRefusedAndLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		entries [][2]string
		says    string
	}{
		"by dots":            {[][2]string{{"../out", "x"}}, "leaves the root"},
		"a device":           {[][2]string{{"disk", "device"}}, "device node"},
		"a hard link out":    {[][2]string{{"x", "=../../secret"}}, "out of the root"},
		"more than it may":   {[][2]string{{"big", strings.Repeat("0", 2<<20)}}, "bytes in all"},
		"a little too often": {[][2]string{{"a", strings.Repeat("0", 600<<10)}, {"b", strings.Repeat("0", 600<<10)}}, "bytes in all"},
	} {
		data := tarOf(t, c.entries...)
		h, dir := newHub(t), t.TempDir()
		layers := [][]byte{tarOf(t, [2]string{"fine", "x"})}
		for _, e := range c.entries {
			layers = append(layers, tarOf(t, e))
		}
		h.push(t, "bad:1", goruntime.GOARCH, layers...)
		if err := os.WriteFile(filepath.Join(dir, "bad.tar"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, ref := range []string{"oci:" + h.address + "/bad:1", "tar:bad.tar"} {
			t.Run(name+" by "+ref[:4], func(t *testing.T) {
				s, err := NewStore(t.TempDir(), Config{Local: dir, MaxBytes: 1 << 20})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
				_, err = s.Ensure(t.Context(), ref, nil)
				if holdfast.CodeOf(err) != holdfast.FailedPrecondition || holdfast.ReasonOf(err) != holdfast.ReasonImageFailed || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want a refusal that says %q", err, c.says)
				}
				nothingLeft(t, s)
			})
		}
	}
}

func TestE1_ALayerOfOtherContentsIsRefused(t *testing.T) {
	h, s := newHub(t), newTestStore(t, t.TempDir())
	image := h.push(t, "fine:1", goruntime.GOARCH, tarOf(t, [2]string{"a", "1"}))
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	lying, err := mutate.ConfigFile(image, config)
	if err != nil {
		t.Fatal(err)
	}
	h.put(t, "lying:1", lying)
	_, err = s.Ensure(t.Context(), "oci:"+h.address+"/lying:1", nil)
	if holdfast.ReasonOf(err) != holdfast.ReasonImageFailed || !strings.Contains(err.Error(), "digest") {
		t.Errorf("%v, want a refusal that says which digest", err)
	}
	nothingLeft(t, s)
}

func TestE1_LocalTarsAndDirectories(t *testing.T) {
	dir := t.TempDir()
	data := tarOf(t, [2]string{"bin/tool", "tool"})
	var zipped, squeezed bytes.Buffer
	z := gzip.NewWriter(&zipped)
	zs, err := zstd.NewWriter(&squeezed)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{z, zs} {
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for file, content := range map[string][]byte{"plain.tar": data, "below/zipped.tgz": zipped.Bytes(), "squeezed": squeezed.Bytes(),
		"root/bin/tool": []byte("tool"), "cut.tgz": zipped.Bytes()[:len(zipped.Bytes())-12], "text": []byte("this is no archive, whoever reads it, however long")} {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	store := func(t *testing.T, local string) *Store {
		s, err := NewStore(t.TempDir(), Config{Local: local})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	for _, ref := range []string{"tar:plain.tar", "tar:below/zipped.tgz", "tar:squeezed", "dir:root"} {
		if got := read(t, ensured(t, store(t, dir), ref), "bin/tool"); got != "tool" {
			t.Errorf("%s: bin/tool is %q", ref, got)
		}
	}
	for ref, says := range map[string]string{
		"tar:missing": "no \"missing\"", "dir:plain.tar": "tar: takes these", "tar:root": "dir: takes these", "tar:cut.tgz": "refused", "tar:text": "refused",
		"dir:out": "escapes", "tar:out/passwd": "escapes",
	} {
		s := store(t, dir)
		if _, err := s.Ensure(t.Context(), ref, nil); holdfast.CodeOf(err) != holdfast.FailedPrecondition || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want a refusal that says %q", ref, err, says)
		}
		nothingLeft(t, s)
	}
	if _, err := store(t, "").Ensure(t.Context(), "dir:root", nil); !strings.Contains(fmt.Sprint(err), "--local-images") {
		t.Errorf("without a directory of local images: %v", err)
	}
}

func TestE1_AnotherTarUnderTheSameNameIsAnotherImage(t *testing.T) {
	dir := t.TempDir()
	s, err := NewStore(t.TempDir(), Config{Local: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, version := range []string{"1", "2"} {
		if err := os.WriteFile(filepath.Join(dir, "t"), tarOf(t, [2]string{"v", version}), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := read(t, ensured(t, s, "tar:t"), "v"); got != version {
			t.Errorf("it is %q, want %q", got, version)
		}
	}
}

// contract: E1. The variables, the user and the working directory of a registry's image
// are its processes' defaults; its entrypoint and command are not run.
func TestE1_AnImageOfARegistrySaysHowItsProcessesRun(t *testing.T) {
	h := newHub(t)
	push := func(tag string, config v1.Config) string {
		image, err := mutate.Config(h.push(t, tag, goruntime.GOARCH, tarOf(t, [2]string{"a", "1"})), config)
		if err != nil {
			t.Fatal(err)
		}
		h.put(t, tag, image)
		return "oci:" + h.address + "/" + tag
	}
	dir := t.TempDir()
	ref := push("app:1", v1.Config{Env: []string{"PATH=/opt/bin:/bin", "EMPTY=", "EQUALS=a=b"}, User: "node:100", WorkingDir: "srv//app/",
		Entrypoint: []string{"/never"}, Cmd: []string{"run"}})
	want := holdfast.ProcessDefaults{Env: map[string]string{"PATH": "/opt/bin:/bin", "EMPTY": "", "EQUALS": "a=b"}, User: "node:100", Workdir: "/srv/app"}
	for range 2 { // as it is built, and as another process finds it
		if got := ensured(t, newTestStore(t, dir), ref).Base().Defaults; !reflect.DeepEqual(got, want) {
			t.Errorf("it says %+v", got)
		}
	}
	many := make([]string, maxVariables+1)
	for i := range many {
		many[i] = fmt.Sprintf("V%d=", i)
	}
	for name, c := range map[string]struct {
		config v1.Config
		says   string
	}{
		"a variable without a name": {v1.Config{Env: []string{"=x"}}, "no variable"},
		"no variable":               {v1.Config{Env: []string{"x"}}, "no variable"},
		"a variable with a zero":    {v1.Config{Env: []string{"x=\x00"}}, "no variable"},
		"too many":                  {v1.Config{Env: many}, "more than"},
		"too much":                  {v1.Config{Env: []string{"x=" + strings.Repeat("y", maxVariableBytes)}}, "more than"},
		"a user that is none":       {v1.Config{User: "-x y"}, "its user"},
		"a directory that is none":  {v1.Config{WorkingDir: "/a\x00"}, "its working directory"},
	} {
		s := newTestStore(t, t.TempDir())
		_, err := s.Ensure(t.Context(), push("bad:1", c.config), nil)
		if holdfast.CodeOf(err) != holdfast.FailedPrecondition || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want a refusal that says %q", name, err, c.says)
		}
		nothingLeft(t, s)
	}
}

// contract: E4. What was made above an image boots above that very one, on any host,
// wherever its tag has moved to.
func TestE4_AnImageIsFoundAgainByItsID(t *testing.T) {
	h, s := newHub(t), newTestStore(t, t.TempDir())
	tag := "oci:" + h.address + "/tool:latest"
	h.push(t, "tool:latest", goruntime.GOARCH, tarOf(t, [2]string{"v", "1"}))
	first := ensured(t, s, tag)
	id := first.Base().ID
	if pinned, err := Pin(t.Context(), tag); err != nil || id != pinned {
		t.Fatalf("its id is %q; pinned, the tag is %q, %v", id, pinned, err)
	}
	h.push(t, "tool:latest", goruntime.GOARCH, tarOf(t, [2]string{"v", "2"}))
	for name, store := range map[string]*Store{"a host that has it": s, "another host": newTestStore(t, t.TempDir())} {
		for _, ref := range []string{tag, id} {
			got, err := store.EnsureSame(t.Context(), ref, id, nil)
			if err != nil || read(t, got, "v") != "1" || got.Base().ID != id {
				t.Errorf("%s by %s: %+v, %v", name, ref, got, err)
			}
		}
	}
	if got, err := s.EnsureSame(t.Context(), tag, id, nil); err != nil || got.RootFS != first.RootFS {
		t.Errorf("a host that has it fetched it again: %+v, %v", got, err)
	}
	if got, err := s.EnsureSame(t.Context(), tag, "", nil); err != nil || read(t, got, "v") != "2" {
		t.Errorf("without an id: %+v, %v", got, err)
	}
	for _, bad := range []string{"x", "sha256:1", "oci:" + h.address + "/tool:latest", "../..", "sha256:../../" + strings.Repeat("0", 58)} {
		if _, err := s.EnsureSame(t.Context(), tag, bad, nil); holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("the id %q: %v", bad, err)
		}
	}
}

// contract: E4
func TestE4_WhatHasChangedUnderALayerIsRefusedUnlessItWasKept(t *testing.T) {
	dir := t.TempDir()
	store := func() *Store {
		s, err := NewStore(t.TempDir(), Config{Local: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	write := func(version string) {
		if err := os.WriteFile(filepath.Join(dir, "t"), tarOf(t, [2]string{"v", version}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	here, elsewhere := store(), store()
	id := ensured(t, here, "tar:t").Base().ID
	write("2")
	if got, err := here.EnsureSame(t.Context(), "tar:t", id, nil); err != nil || read(t, got, "v") != "1" {
		t.Errorf("where it was kept: %+v, %v", got, err)
	}
	_, err := elsewhere.EnsureSame(t.Context(), "tar:t", id, nil)
	if holdfast.CodeOf(err) != holdfast.FailedPrecondition || holdfast.ReasonOf(err) != holdfast.ReasonImageFailed || !strings.Contains(err.Error(), "build the environment again") {
		t.Errorf("where it was not: %v", err)
	}
	nothingLeft(t, elsewhere)
	write("1")
	if got, err := elsewhere.EnsureSame(t.Context(), "tar:t", id, nil); err != nil || read(t, got, "v") != "1" {
		t.Errorf("once it is there again: %+v, %v", got, err)
	}
}
