package layer_test

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
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/layer"
)

var then = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

func archive(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		content := []byte(nil)
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			content = []byte("of " + h.Name)
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		h.ModTime = then
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func file(name string) tar.Header { return tar.Header{Name: name} }
func dir(name string) tar.Header {
	return tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755}
}
func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
}
func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

func unpack(t testing.TB, root string, data []byte, w layer.Whiteouts) error {
	t.Helper()
	_, err := layer.Unpack(context.Background(), root, bytes.NewReader(data), w, layer.Limits{})
	return err
}

// tree describes everything below a directory: kind, mode, owner, content, links'
// targets, attributes; not times of directories, which mounting changes.
func tree(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	names := map[uint64]string{} // files with several names
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(root, path)
		says := fmt.Sprintf("%v %d:%d", info.Mode(), stat.Uid, stat.Gid)
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			says += fmt.Sprintf(" %q %d", data, info.ModTime().Unix())
			if stat.Nlink > 1 {
				if first, ok := names[stat.Ino]; ok {
					says += " same as " + first
				}
				names[stat.Ino] = rel
			}
			value := make([]byte, 100)
			if n, err := unix.Getxattr(path, "user.note", value); err == nil {
				says += " note " + string(value[:n])
			}
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			says += " -> " + target
		}
		out[rel] = says
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t interface {
	Helper()
	Errorf(string, ...any)
}, what string, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: %s is %q, want %q", what, name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s is there: %s", what, name, got[name])
		}
	}
}

// TestNothingOutsideOfTheRootIsTouched holds every way out that an archive may try
// against a neighbour of the root, and says which archives are refused.
func TestNothingOutsideOfTheRootIsTouched(t *testing.T) {
	for name, c := range map[string]struct {
		entries []tar.Header
		refused bool
	}{
		"dots":                          {[]tar.Header{file("../neighbour/new")}, true},
		"dots in the middle":            {[]tar.Header{file("a/../../neighbour/new")}, true},
		"dots at the end":               {[]tar.Header{dir("a/..")}, true},
		"an absolute name":              {[]tar.Header{file("/etc/passwd")}, false},
		"through a link, relative":      {[]tar.Header{link("out", "../neighbour"), file("out/secret")}, false},
		"through a link, absolute":      {[]tar.Header{link("out", "/NEIGHBOUR"), file("out/secret")}, false},
		"through two links":             {[]tar.Header{link("a", ".."), link("b", "a/neighbour"), file("b/secret")}, false},
		"over a link":                   {[]tar.Header{link("secret", "/NEIGHBOUR/secret"), file("secret")}, false},
		"a whiteout through a link":     {[]tar.Header{link("out", "/NEIGHBOUR"), file("out/.wh.secret")}, false},
		"a whiteout of dots":            {[]tar.Header{file(".wh...")}, true},
		"a whiteout of nothing":         {[]tar.Header{file("a/.wh.")}, true},
		"opaque through a link":         {[]tar.Header{link("out", "/NEIGHBOUR"), file("out/.wh..wh..opq")}, false},
		"a hard link out by dots":       {[]tar.Header{hard("x", "../neighbour/secret")}, true},
		"a hard link out, absolute":     {[]tar.Header{hard("x", "/NEIGHBOUR/secret")}, true},
		"a hard link through a link":    {[]tar.Header{link("out", "/NEIGHBOUR"), hard("x", "out/secret")}, true},
		"a hard link to a link":         {[]tar.Header{link("l", "/NEIGHBOUR/secret"), hard("x", "l"), file("x")}, false},
		"a hard link to a directory":    {[]tar.Header{dir("d"), hard("x", "d")}, true},
		"a hard link to nothing":        {[]tar.Header{hard("x", "missing")}, true},
		"a directory over a link":       {[]tar.Header{link("d", "/NEIGHBOUR"), dir("d"), file("d/secret")}, false},
		"links in a circle":             {[]tar.Header{link("a", "b"), link("b", "a"), file("a/x")}, true},
		"below a file":                  {[]tar.Header{file("f"), file("f/x")}, true},
		"a device":                      {[]tar.Header{{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8}}, true},
		"a device where there are some": {[]tar.Header{{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, false},
		"dev is a link":                 {[]tar.Header{link("dev", "x"), {Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, true},
		"an overlay's note":             {[]tar.Header{{Name: "d/", Typeflag: tar.TypeDir, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/NEIGHBOUR"}}}, true},
		"a name of 5,000 bytes":         {[]tar.Header{file(strings.Repeat("n", 5000))}, true},
		"a path of 5,000 bytes":         {[]tar.Header{file(strings.Repeat("n/", 2500) + "x")}, true},
		"the root as a file":            {[]tar.Header{file(".")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			root, neighbour := filepath.Join(parent, "root"), filepath.Join(parent, "neighbour")
			for _, d := range []string{root, neighbour} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(neighbour, "secret"), []byte("kept"), 0o600); err != nil {
				t.Fatal(err)
			}
			for i := range c.entries {
				for _, s := range []*string{&c.entries[i].Name, &c.entries[i].Linkname} {
					*s = strings.ReplaceAll(*s, "/NEIGHBOUR", neighbour)
				}
			}
			before := tree(t, neighbour)
			err := unpack(t, root, archive(t, c.entries...), layer.Remove)
			if c.refused != (err != nil) || err != nil && !errors.Is(err, layer.ErrMalformed) {
				t.Errorf("unpack: %v; refused should be %v", err, c.refused)
			}
			same(t, "the neighbour", tree(t, neighbour), before)
		})
	}
}

func TestLinksLeadWhereTheyWouldInTheRoot(t *testing.T) {
	root := t.TempDir()
	err := unpack(t, root, archive(t, dir("usr"), dir("usr/lib"), link("lib", "/usr/lib"), link("usr/lib64", "../lib"), file("usr/lib64/x")), layer.Remove)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(root, "usr/lib/x")); err != nil || string(data) != "of usr/lib64/x" {
		t.Errorf("usr/lib/x: %q, %v", data, err)
	}
}

func TestALayerRemovesWhatItSaysIsGone(t *testing.T) {
	below := archive(t, dir("kept"), file("kept/a"), dir("emptied"), file("emptied/old"), file("gone"), dir("gonedir"), file("gonedir/x"), dir("again"), file("again/old"))
	above := archive(t, file(".wh.gone"), file(".wh.gonedir"), dir("emptied"), file("emptied/new"), file("emptied/.wh..wh..opq"),
		file(".wh.again"), dir("again"), file("again/new"), file(".wh.never"))
	root := t.TempDir()
	for _, l := range [][]byte{below, above} {
		if err := unpack(t, root, l, layer.Remove); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{".", "again", "again/new", "emptied", "emptied/new", "kept", "kept/a"}
	if got := slices.Sorted(maps.Keys(tree(t, root))); !slices.Equal(got, want) {
		t.Errorf("there is %v, want %v", got, want)
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting an overlay needs root")
	}
	parent := t.TempDir()
	lower := []string{filepath.Join(parent, "above"), filepath.Join(parent, "below")}
	for i, l := range [][]byte{above, below} {
		if err := os.Mkdir(lower[i], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unpack(t, lower[i], l, layer.Overlay); err != nil {
			t.Fatal(err)
		}
	}
	if got := slices.Sorted(maps.Keys(tree(t, overlay(t, lower, filepath.Join(parent, "upper"))))); !slices.Equal(got, want) {
		t.Errorf("through an overlay there is %v, want %v", got, want)
	}
}

func TestWhatGrowsPastItsLimitsIsRefused(t *testing.T) {
	data := archive(t, file("one"), file("two"), file("three"))
	for limits, ok := range map[layer.Limits]bool{
		{Entries: 3}: true, {Entries: 2}: false, {Bytes: 20}: true, {Bytes: 19}: false, {}: true,
	} {
		_, err := layer.Unpack(t.Context(), t.TempDir(), bytes.NewReader(data), layer.Remove, limits)
		if (err == nil) != ok || err != nil && !errors.Is(err, layer.ErrMalformed) {
			t.Errorf("%+v: %v", limits, err)
		}
	}
}

func TestDamageIsToldFromASourceThatFails(t *testing.T) {
	data := archive(t, file("one"), file("two"))
	if err := unpack(t, t.TempDir(), data[:515], layer.Remove); !errors.Is(err, layer.ErrMalformed) {
		t.Errorf("a cut archive: %v", err)
	}
	garbage := bytes.Clone(data)
	copy(garbage[100:], bytes.Repeat([]byte{0xff}, 100))
	if err := unpack(t, t.TempDir(), garbage, layer.Remove); !errors.Is(err, layer.ErrMalformed) {
		t.Errorf("a damaged archive: %v", err)
	}
	broken := errors.New("the network went away")
	source := io.MultiReader(bytes.NewReader(data[:515]), failing{broken})
	if _, err := layer.Unpack(t.Context(), t.TempDir(), source, layer.Remove, layer.Limits{}); !errors.Is(err, broken) || errors.Is(err, layer.ErrMalformed) {
		t.Errorf("a source that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := layer.Unpack(ctx, t.TempDir(), bytes.NewReader(data), layer.Remove, layer.Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// overlay mounts lower directories, the topmost first, below a writable one.
func overlay(t testing.TB, lower []string, upper string) string {
	t.Helper()
	work, merged := upper+".work", upper+".merged"
	for _, d := range []string{upper, work, merged} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + strings.Join(lower, ":") + ",upperdir=" + upper + ",workdir=" + work + ",redirect_dir=off,metacopy=off,index=off"
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatalf("mount an overlay: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // the test itself unmounts
			t.Errorf("unmount: %v", err)
		}
	})
	return merged
}

// scribble changes a tree as a guest might.
func scribble(r *rapid.T, root string) {
	names := []string{"a", "b", "c", "d"}
	pick := func(label string) string {
		depth := rapid.IntRange(1, 3).Draw(r, label+" depth")
		path := root
		for range depth {
			path = filepath.Join(path, rapid.SampledFrom(names).Draw(r, label))
		}
		return path
	}
	for range rapid.IntRange(1, 12).Draw(r, "steps") {
		path := pick("path")
		// What does not fit what is there fails, and changes nothing: that is fine.
		switch rapid.SampledFrom([]string{"file", "mkdir", "remove", "removeall", "symlink", "link", "rename", "chmod", "chown", "xattr", "fifo", "append"}).Draw(r, "step") {
		case "file":
			content := []byte(rapid.StringN(0, 30, -1).Draw(r, "content"))
			if f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o640); err == nil { // a pipe blocks nobody
				_, _ = f.Write(content)
				_ = f.Close()
			}
		case "append":
			if f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err == nil {
				_, _ = f.WriteString("more")
				_ = f.Close()
			}
		case "mkdir":
			_ = os.MkdirAll(path, 0o750)
		case "remove":
			_ = os.Remove(path)
		case "removeall":
			if info, err := os.Lstat(filepath.Dir(path)); err == nil && info.IsDir() { // it would open a pipe, and wait
				_ = os.RemoveAll(path)
			}
		case "symlink":
			_ = os.Symlink(rapid.SampledFrom([]string{"a", "../b", "/nowhere", "a/b/c"}).Draw(r, "target"), path)
		case "link":
			_ = os.Link(pick("from"), path)
		case "rename":
			_ = os.Rename(pick("from"), path)
		case "chmod":
			if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink == 0 {
				_ = os.Chmod(path, rapid.SampledFrom([]fs.FileMode{0o700, 0o755, 0o444, 0o755 | fs.ModeSetuid, 0o777 | fs.ModeSticky}).Draw(r, "mode"))
			}
		case "chown":
			_ = os.Lchown(path, rapid.IntRange(0, 3).Draw(r, "uid"), 7)
		case "xattr":
			_ = unix.Lsetxattr(path, "user.note", []byte("noted"), 0)
		case "fifo":
			_ = unix.Mkfifo(path, 0o600)
		}
	}
}

// TestALayerCarriesEverythingAGuestChanged makes random trees, lets a guest change
// them through the kernel's overlay twice, carries both layers elsewhere, and holds
// both ways of unpacking against what the guest saw.
func TestALayerCarriesEverythingAGuestChanged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting an overlay needs root")
	}
	parent := t.TempDir()
	round := 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		at := filepath.Join(parent, fmt.Sprint(round))
		base := filepath.Join(at, "base")
		if err := os.MkdirAll(base, 0o755); err != nil {
			t.Fatal(err)
		}
		scribble(r, base)
		flat := filepath.Join(at, "flat")
		copied := carry(t, base, flat, layer.Remove)
		same(r, "a plain copy", tree(t, flat), tree(t, base))
		if copied == 0 {
			r.Fatal("nothing was copied, not even the root")
		}
		lower := []string{base}     // of the guest
		elsewhere := []string{base} // the same, unpacked from layers
		for i := range 2 {
			upper := filepath.Join(at, fmt.Sprintf("upper%d", i))
			merged := overlay(t, lower, upper)
			scribble(r, merged)
			seen := tree(t, merged)
			if err := unix.Unmount(merged, 0); err != nil {
				t.Fatal(err)
			}
			carry(t, upper, flat, layer.Remove)
			same(r, "unpacked over what was below", tree(t, flat), seen)

			carried := filepath.Join(at, fmt.Sprintf("carried%d", i))
			carry(t, upper, carried, layer.Overlay)
			elsewhere = append([]string{carried}, elsewhere...)
			view := overlay(t, elsewhere, filepath.Join(at, fmt.Sprintf("view%d", i)))
			got := tree(t, view)
			if err := unix.Unmount(view, 0); err != nil {
				t.Fatal(err)
			}
			same(r, "unpacked for an overlay", got, seen)
			lower = append([]string{upper}, lower...)

			one := filepath.Join(at, fmt.Sprintf("one%d", i))
			mergeInto(t, one, elsewhere[:len(elsewhere)-1], base)
			view = overlay(t, []string{one, base}, filepath.Join(at, fmt.Sprintf("oneview%d", i)))
			got = tree(t, view)
			if err := unix.Unmount(view, 0); err != nil {
				t.Fatal(err)
			}
			same(r, "merged into one layer", got, seen)
		}
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
	})
}

func carry(t testing.TB, from, to string, w layer.Whiteouts) int64 {
	t.Helper()
	var packed, again bytes.Buffer
	for _, out := range []*bytes.Buffer{&packed, &again} {
		if _, err := layer.Pack(context.Background(), from, out); err != nil {
			t.Fatalf("pack: %v", err)
		}
	}
	if !bytes.Equal(packed.Bytes(), again.Bytes()) {
		t.Error("the same directory gave other bytes")
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	stats, err := layer.Unpack(context.Background(), to, &packed, w, layer.Limits{})
	if err != nil {
		t.Fatalf("unpack: %v", err)
	}
	return stats.Entries
}

// mergeInto unpacks what several layers are as one, the topmost first.
func mergeInto(t testing.TB, to string, from []string, base string) {
	t.Helper()
	var packed bytes.Buffer
	if _, err := layer.Merge(context.Background(), from, base, &packed); err != nil {
		t.Fatalf("merge: %v", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unpack(t, to, packed.Bytes(), layer.Overlay); err != nil {
		t.Fatalf("unpack: %v", err)
	}
}

func TestWhatIsOmittedIsNotInTheLayer(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, name := range []string{"etc/hosts", "etc/passwd", "run/own/secret", "run/other", "own"} {
		path := filepath.Join(from, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	if _, err := layer.Pack(context.Background(), from, &packed, "etc/hosts", "run/own"); err != nil {
		t.Fatal(err)
	}
	if err := unpack(t, to, packed.Bytes(), layer.Remove); err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(tree(t, to)))
	if want := []string{".", "etc", "etc/passwd", "own", "run", "run/other"}; !slices.Equal(names, want) {
		t.Errorf("the layer has %q, want %q", names, want)
	}
}
