package guestagent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
)

func (a agent) write(t *testing.T, in holdfast.WriteFile, content string) holdfast.FileWritten {
	t.Helper()
	got, err := a.Files.WriteFile(t.Context(), in, strings.NewReader(content))
	if err != nil {
		t.Fatalf("write %s: %v", in.Path, err)
	}
	return got
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// contract: A14; trap T44
func TestA14_WriteReplacesWhollyAndKeepsModeAndOwner(t *testing.T) {
	a, dir := start(t, nil), t.TempDir()
	path := filepath.Join(dir, "f")
	got := a.write(t, holdfast.WriteFile{Path: path}, "first")
	sum := sha256.Sum256([]byte("first"))
	if got.Bytes != 5 || got.SHA256 != hex.EncodeToString(sum[:]) || got.Info.Mode != 0o644 || got.Info.Size != 5 || got.Info.Kind != holdfast.FileRegular {
		t.Errorf("%+v", got)
	}
	if err := errors.Join(os.Chown(path, 12, 34), unix.Chmod(path, 0o4750)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path) // sees all of the old, also now
	if err != nil {
		t.Fatal(err)
	}
	got = a.write(t, holdfast.WriteFile{Path: path}, "second and longer")
	if got.Info.Mode != 0o4750 || got.Info.UID != 12 || got.Info.GID != 34 {
		t.Errorf("%+v", got.Info)
	}
	if got = a.write(t, holdfast.WriteFile{Path: path, Mode: 0o600}, "third"); got.Info.Mode != 0o600 || got.Info.UID != 12 {
		t.Errorf("%+v", got.Info)
	}
	if old, err := io.ReadAll(reader); err != nil || string(old) != "first" {
		t.Errorf("%q, %v", old, err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	// A link is followed to what it names, also one that names nothing yet.
	if err := errors.Join(os.Symlink("f", filepath.Join(dir, "link")), os.Symlink(filepath.Join(dir, "new"), filepath.Join(dir, "dangling"))); err != nil {
		t.Fatal(err)
	}
	if got = a.write(t, holdfast.WriteFile{Path: filepath.Join(dir, "link")}, "by link"); got.Info.Path != path || got.Info.Mode != 0o600 {
		t.Errorf("%+v", got.Info)
	}
	a.write(t, holdfast.WriteFile{Path: filepath.Join(dir, "dangling")}, "by link")
	if got := entries(t, dir); !slices.Equal(got, []string{"dangling", "f", "link", "new"}) {
		t.Errorf("%v", got)
	}
	if st, err := os.Lstat(filepath.Join(dir, "link")); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
	a.write(t, holdfast.WriteFile{Path: filepath.Join(dir, "x/y/z"), CreateParents: true}, "deep")
	if st, err := os.Stat(filepath.Join(dir, "x/y")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
}

// contract: A14; trap T44
func TestT44_BrokenWriteLeavesTheOldFileAndNothingElse(t *testing.T) {
	a, dir := start(t, nil), t.TempDir()
	path := filepath.Join(dir, "f")
	a.write(t, holdfast.WriteFile{Path: path}, "old")
	for name, broken := range map[string]error{"some error": errors.New("broke"), "a cut": io.ErrUnexpectedEOF, "a wrapped end": fmt.Errorf("odd: %w", io.EOF)} {
		_, err := a.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: path}, io.MultiReader(strings.NewReader("new"), iotest.ErrReader(broken)))
		wantError(t, err, holdfast.Unavailable, holdfast.ReasonInterrupted)
		if raw, readErr := os.ReadFile(path); readErr != nil || string(raw) != "old" || holdfast.AsError(err).Details["written"] != "0" {
			t.Errorf("%s: %q, %v", name, raw, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Files.WriteFile(ctx, holdfast.WriteFile{Path: path}, strings.NewReader("new")); err == nil {
		t.Error("a cancelled write succeeded")
	}
	if got := entries(t, dir); !slices.Equal(got, []string{"f"}) {
		t.Errorf("%v", got)
	}
}

// contract: A14
func TestA14_AppendSaysHowMuchItLeft(t *testing.T) {
	a, dir := start(t, nil), t.TempDir()
	path := filepath.Join(dir, "log")
	if got := a.write(t, holdfast.WriteFile{Path: path, Append: true, Mode: 0o640}, "one"); got.Info.Mode != 0o640 || got.Bytes != 3 {
		t.Errorf("%+v", got)
	}
	sum := sha256.Sum256([]byte("two"))
	if got := a.write(t, holdfast.WriteFile{Path: path, Append: true}, "two"); got.Bytes != 3 || got.SHA256 != hex.EncodeToString(sum[:]) || got.Info.Size != 6 {
		t.Errorf("%+v", got)
	}
	_, err := a.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: path, Append: true}, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("broke"))))
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonInterrupted)
	if raw, readErr := os.ReadFile(path); readErr != nil || string(raw) != "onetwohalf" || holdfast.AsError(err).Details["written"] != "4" {
		t.Errorf("%q, %v", raw, err)
	}
}

func TestFullDiskIsSaidAndLeavesNothing(t *testing.T) {
	a, dir := start(t, nil), t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs root to mount a small file system: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "f")
	a.write(t, holdfast.WriteFile{Path: path}, "old")
	_, err := a.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: path}, bytes.NewReader(make([]byte, 1<<20)))
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonNoSpace)
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "old" || len(entries(t, dir)) != 1 {
		t.Errorf("%q, %v, %v", raw, entries(t, dir), err)
	}
}

// Bad input: each a clear code, at once, and nothing touched.
func TestBadPathsAreRefusedClearly(t *testing.T) {
	// Below a directory of the test's own: were a check missing, some of these
	// calls would change the machine.
	dir := t.TempDir()
	a := start(t, func(c *guestagent.Config) { c.Root, c.Executor = dir, guestagent.NewSimulatedExecutor(nil) })
	at := func(name string) string { return "/" + name }
	on := func(name string) string { return filepath.Join(dir, name) }
	a.write(t, holdfast.WriteFile{Path: at("file")}, "content")
	if err := errors.Join(unix.Mkfifo(on("pipe"), 0o600), os.Mkdir(on("dir"), 0o755), os.WriteFile(on("dir/inner"), nil, 0o600),
		os.Symlink("loop", on("loop")), unix.Mknod(on("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))); err != nil {
		t.Fatal(err)
	}
	read := func(path string) error {
		_, content, err := a.Files.ReadFile(t.Context(), holdfast.ReadFile{Path: path})
		if err == nil {
			err = content.Close()
		}
		return err
	}
	write := func(path string) error {
		_, err := a.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: path}, strings.NewReader("x"))
		return err
	}
	add := func(path string) error {
		_, err := a.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: path, Append: true}, strings.NewReader("x"))
		return err
	}
	list := func(path string) error { _, err := a.Files.ListDirectory(t.Context(), path); return err }
	stat := func(path string) error { _, err := a.Files.StatFile(t.Context(), path); return err }
	makeDir := func(path string) error { _, err := a.Files.MakeDirectory(t.Context(), path, 0); return err }
	remove := func(path string) error { return a.Files.RemoveFile(t.Context(), path, false) }
	removeAll := func(path string) error { return a.Files.RemoveFile(t.Context(), path, true) }
	move := func(path string) error { _, err := a.Files.MoveFile(t.Context(), path, at("dir")); return err }
	watch := func(path string) error {
		return a.Files.WatchDirectory(t.Context(), holdfast.WatchDirectory{Path: path}, nil)
	}
	everything := []func(string) error{read, write, add, list, stat, makeDir, remove, removeAll, move, watch}
	cases := []struct {
		path   string
		calls  []func(string) error
		code   holdfast.Code
		reason holdfast.Reason
	}{
		{"relative", everything, holdfast.InvalidArgument, holdfast.ReasonBadField},
		{"", everything, holdfast.InvalidArgument, holdfast.ReasonBadField},
		{"/nul\x00", everything, holdfast.InvalidArgument, holdfast.ReasonBadField},
		{"/" + strings.Repeat("a", 5000), everything, holdfast.InvalidArgument, holdfast.ReasonBadField},
		{"/" + strings.Repeat("a/", 2500), everything, holdfast.InvalidArgument, holdfast.ReasonBadField},
		{"/" + strings.Repeat("a", 300), everything, holdfast.InvalidArgument, holdfast.ReasonBadField},
		{at("none"), []func(string) error{read, list, stat, remove, removeAll, move, watch}, holdfast.NotFound, holdfast.ReasonNoSuchFile},
		{at("none/none"), []func(string) error{read, write, add, list, stat, remove, removeAll, move}, holdfast.NotFound, holdfast.ReasonNoSuchFile},
		{at("dir"), []func(string) error{read, write, add}, holdfast.FailedPrecondition, holdfast.ReasonNotAFile},
		{at("pipe"), []func(string) error{read, write, add}, holdfast.FailedPrecondition, holdfast.ReasonNotAFile},
		{at("device"), []func(string) error{read, write, add}, holdfast.FailedPrecondition, holdfast.ReasonNotAFile},
		{"/", []func(string) error{read, write, add}, holdfast.FailedPrecondition, holdfast.ReasonNotAFile},
		{"/", []func(string) error{remove, removeAll}, holdfast.InvalidArgument, holdfast.ReasonBadField},
		{at("file"), []func(string) error{list, makeDir, watch}, holdfast.FailedPrecondition, holdfast.ReasonNotADirectory},
		{at("file/under"), []func(string) error{read, write, add, list, stat, makeDir, remove, removeAll}, holdfast.FailedPrecondition, holdfast.ReasonNotADirectory},
		{at("dir"), []func(string) error{remove}, holdfast.FailedPrecondition, holdfast.ReasonNotEmpty},
		{at("file"), []func(string) error{move}, holdfast.AlreadyExists, holdfast.ReasonFileExists},
		{at("loop"), []func(string) error{read, write, list}, holdfast.FailedPrecondition, holdfast.ReasonState},
	}
	before := entries(t, dir)
	for _, c := range cases {
		for i, call := range c.calls {
			if err := call(c.path); holdfast.CodeOf(err) != c.code || holdfast.ReasonOf(err) != c.reason {
				t.Errorf("%.60q call %d: %v (%s), want %s %s", c.path, i, err, holdfast.ReasonOf(err), c.code, c.reason)
			} else if len(err.Error()) > 600 {
				t.Errorf("%.60q: a message of %d bytes", c.path, len(err.Error()))
			}
		}
	}
	if after := entries(t, dir); !slices.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
	_, _, err := a.Files.ReadFile(t.Context(), holdfast.ReadFile{Path: at("file"), Offset: 8})
	wantError(t, err, holdfast.OutOfRange, holdfast.ReasonBadField)
}

func TestStatListMoveRemove(t *testing.T) {
	a, dir := start(t, nil), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	a.write(t, holdfast.WriteFile{Path: at("b"), Mode: 0o600}, "12345")
	if err := errors.Join(os.Symlink("b", at("link")), unix.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Files.MakeDirectory(t.Context(), at("a/deep/er"), 0o711); err != nil || got.Mode != 0o711 || got.Kind != holdfast.FileDirectory {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := a.Files.MakeDirectory(t.Context(), at("a/deep/er"), 0); err != nil {
		t.Errorf("again: %v", err)
	}
	list, err := a.Files.ListDirectory(t.Context(), dir+"/./a/..")
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	want := []holdfast.FileInfo{{Path: at("a"), Kind: holdfast.FileDirectory}, {Path: at("b"), Kind: holdfast.FileRegular, Size: 5, Mode: 0o600},
		{Path: at("link"), Kind: holdfast.FileSymlink, Target: "b"}, {Path: at("pipe"), Kind: holdfast.FileOther}}
	for i, w := range want {
		got := list[i]
		if got.Path != w.Path || got.Kind != w.Kind || got.Target != w.Target || w.Size != 0 && (got.Size != w.Size || got.Mode != w.Mode) || got.ModifiedAt.IsZero() {
			t.Errorf("%+v, want %+v", got, w)
		}
		if stat, err := a.Files.StatFile(t.Context(), w.Path); err != nil || stat != got {
			t.Errorf("%+v, %v", stat, err)
		}
	}
	if got, err := a.Files.StatFile(t.Context(), "/"); err != nil || got.Kind != holdfast.FileDirectory || got.Path != "/" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := a.Files.MoveFile(t.Context(), at("a"), at("c")); err != nil || got.Path != at("c") {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = a.Files.MoveFile(t.Context(), at("c"), at("c/into"))
	wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
	// Removing a tree removes links in it, and not what they lead to.
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600), os.Symlink(outside, at("c/out"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"c", "link", "b", "pipe"} {
		if err := a.Files.RemoveFile(t.Context(), at(path), true); err != nil {
			t.Error(err)
		}
	}
	if len(entries(t, dir)) != 0 || len(entries(t, outside)) != 1 {
		t.Errorf("%v, %v", entries(t, dir), entries(t, outside))
	}
}

// A simulation's files are below its directory, whatever links are made there.
func TestRootIsNotEscaped(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := start(t, func(c *guestagent.Config) { c.Root, c.Executor = root, guestagent.NewSimulatedExecutor(nil) })
	up, err := filepath.Rel(root, outside)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(outside, filepath.Join(root, "absolute")), os.Symlink(up, filepath.Join(root, "relative")), os.Symlink("/inside", filepath.Join(root, "rooted"))); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/absolute", "/relative", "/../" + up} {
		path := dir + "/secret"
		if _, content, err := a.Files.ReadFile(t.Context(), holdfast.ReadFile{Path: path}); err == nil {
			t.Errorf("%s was read", path)
			_ = content.Close()
		}
		if _, err := a.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: path}, strings.NewReader("x")); err == nil {
			t.Errorf("%s was written", path)
		}
		if err := a.Files.RemoveFile(t.Context(), path, true); err == nil {
			t.Errorf("%s was removed", path)
		}
		if list, err := a.Files.ListDirectory(t.Context(), dir); err == nil {
			t.Errorf("%s was listed: %v", dir, list)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(raw) != "outside" || len(entries(t, outside)) != 1 {
		t.Errorf("%q, %v", raw, err)
	}
	if got := a.write(t, holdfast.WriteFile{Path: "/rooted"}, "x"); got.Info.Path != "/inside" {
		t.Errorf("%+v", got)
	}
	if err := a.Files.RemoveFile(t.Context(), "/absolute", true); err != nil || len(entries(t, outside)) != 1 {
		t.Errorf("a link is removed alone: %v", err)
	}
}

func TestWatchSeesChangesAlsoInNewDirectories(t *testing.T) {
	a, real := start(t, nil), t.TempDir()
	link := filepath.Join(t.TempDir(), "link") // shown as it was asked for
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	seen := map[holdfast.FileEvent]bool{}
	steps := []struct {
		do   func() error
		want holdfast.FileEvent
	}{
		{func() error { return os.MkdirAll(filepath.Join(real, "d/e"), 0o755) }, holdfast.FileEvent{Path: filepath.Join(link, "d/e"), Kind: holdfast.FileCreated}},
		{func() error { return os.WriteFile(filepath.Join(real, "d/e/f"), []byte("x"), 0o600) }, holdfast.FileEvent{Path: filepath.Join(link, "d/e/f"), Kind: holdfast.FileWrote}},
		{func() error { return os.Rename(filepath.Join(real, "d/e/f"), filepath.Join(real, "g")) }, holdfast.FileEvent{Path: filepath.Join(link, "d/e/f"), Kind: holdfast.FileRenamed}},
		{func() error { return os.Chmod(filepath.Join(real, "g"), 0o644) }, holdfast.FileEvent{Path: filepath.Join(link, "g"), Kind: holdfast.FileModified}},
		{func() error { return os.Remove(filepath.Join(real, "g")) }, holdfast.FileEvent{Path: filepath.Join(link, "g"), Kind: holdfast.FileRemoved}},
	}
	at := 0
	act := func() {
		if err := steps[at].do(); err != nil {
			t.Error(err)
		}
	}
	err := a.Files.WatchDirectory(ctx, holdfast.WatchDirectory{Path: link, Recursive: true, Started: act}, func(e holdfast.FileEvent) error {
		seen[e] = true
		for at < len(steps) && seen[steps[at].want] {
			if at++; at < len(steps) {
				act()
			} else {
				cancel()
			}
		}
		return nil
	})
	if holdfast.CodeOf(err) != holdfast.Cancelled || at != len(steps) {
		t.Errorf("step %d, %v, seen %v", at, err, seen)
	}
}
