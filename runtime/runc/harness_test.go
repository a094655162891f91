package runc

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/runtimetest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guestBinaryOnce builds the suite's guest once for all tests.
var guestBinaryOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "holdfast-probe-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "guest")
	build := exec.Command("go", "build", "-o", path, "./testdata/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		err = errors.New(string(out))
	}
	return path, err
})

func TestMain(m *testing.M) {
	if text := os.Getenv(victimVariable); text != "" {
		if err := beVictim(text); err != nil {
			fmt.Fprintln(os.Stderr, "the process to be killed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if path, err := guestBinaryOnce(); err == nil {
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			code = 1
		}
	}
	os.Exit(code)
}

// needRoot skips by name what only root can do.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, needs root: " + t.Name())
	}
	for _, tool := range []string{"runc", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: apt-get install runc busybox-static", tool)
		}
	}
}

// testRoot makes a base of busybox alone.
func testRoot(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"bin", "etc", "proc", "sys", "dev", "tmp", "run"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"sh", "nc", "wget", "ip", "cat", "ls", "id", "sleep", "arping"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// newTestDriver makes a driver whose every trace is removed with the test.
func newTestDriver(t testing.TB) *Driver {
	t.Helper()
	needRoot(t)
	guest, err := guestBinaryOnce()
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	d, err := New(Config{Directory: filepath.Join(base, "driver"), RunDirectory: filepath.Join(base, "run"), Guest: guest})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(d.config.Directory, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if d.cgroups.roots == nil {
			return // never opened
		}
		left, err := d.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, s := range left {
			if err := d.Stop(ctx, s.Ref); err != nil {
				t.Error(err)
			}
		}
		if err := d.Uninstall(ctx); err != nil {
			t.Error(err)
		}
	})
	return d
}

func reopen(t *testing.T, old *Driver) *Driver {
	t.Helper()
	d, err := New(old.config)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	needRoot(t)
	runtimetest.Run(t, runtimetest.Harness{New: func(t *testing.T) runtimetest.Host {
		d := newTestDriver(t)
		return runtimetest.Host{
			Driver:  d,
			RootFS:  testRoot(t),
			Restart: func(t *testing.T) runtime.Driver { return reopen(t, d) },
			Census:  func(t *testing.T) []string { return census(t, d) },
			Half:    halfSteps(),
		}
	}})
}

// census lists everything on the host that is of d's instances.
func census(t *testing.T, d *Driver) []string {
	t.Helper()
	var found []string
	add := func(kind, what string) { found = append(found, kind+" "+what) }
	check := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{d.instancesDirectory(), d.oci.root} {
		entries, err := os.ReadDir(dir)
		check(err)
		for _, e := range entries {
			add("file", filepath.Join(dir, e.Name()))
		}
	}
	roots, err := cgroupRoots()
	check(err)
	for _, root := range roots {
		entries, err := os.ReadDir(filepath.Join(root, d.cgroups.parent))
		check(err)
		for _, e := range entries {
			if e.IsDir() {
				add("cgroup", filepath.Join(root, d.cgroups.parent, e.Name()))
			}
		}
	}
	found = append(found, mountsUnder(t, d.config.Directory, d.config.RunDirectory)...)
	links, err := undisturbed(netlink.LinkList)
	check(err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, d.network.prefix) {
			add("link", l.Attrs().Name)
		}
	}
	found = append(found, processesOf(t, d)...)
	found = append(found, elements(t, d)...)
	slices.Sort(found)
	return found
}

func mountsUnder(t *testing.T, dirs ...string) []string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	var found []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		point := strings.Fields(lines.Text())[4]
		for _, dir := range dirs {
			if strings.HasPrefix(point, dir+"/") {
				found = append(found, "mount "+point)
			}
		}
	}
	return found
}

// processesOf finds living processes in d's control groups, and any that run
// its guest or hold a network namespace that is not the host's.
func processesOf(t *testing.T, d *Driver) []string {
	t.Helper()
	var found []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		groups, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err != nil {
			continue
		}
		if strings.Contains(string(groups), d.cgroups.parent+"/") {
			line, err := os.ReadFile("/proc/" + e.Name() + "/stat")
			if err == nil && !strings.Contains(string(line), ") Z ") {
				found = append(found, "process "+string(line))
			}
		}
	}
	return found
}

func elements(t *testing.T, d *Driver) []string {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, s := range []*nftables.Set{d.network.guestSet(), d.network.addressSet(setInternet)} {
		all, err := c.GetSetElements(s)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			t.Fatal(err)
		}
		for _, e := range all {
			a, _ := netip.AddrFromSlice(e.Key[len(e.Key)-4:])
			found = append(found, "admitted "+s.Name+" "+a.String())
		}
	}
	return found
}

// halfSteps makes what a process killed in Prepare (or after) leaves, one step
// at a time.
func halfSteps() map[string]func(*testing.T, runtime.Driver, runtime.Bundle) {
	step := func(act func(t *testing.T, d *Driver, b runtime.Bundle) error) func(*testing.T, runtime.Driver, runtime.Bundle) {
		return func(t *testing.T, driver runtime.Driver, b runtime.Bundle) {
			t.Helper()
			if err := act(t, driver.(*Driver), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	prepare := func(t *testing.T, d *Driver, b runtime.Bundle) error { return d.Prepare(t.Context(), b) }
	return map[string]func(*testing.T, runtime.Driver, runtime.Bundle){
		"an empty directory": step(func(_ *testing.T, d *Driver, b runtime.Bundle) error {
			return os.Mkdir(string(d.files(b.Ref)), 0o700)
		}),
		"torn settings": step(func(_ *testing.T, d *Driver, b runtime.Bundle) error {
			f := d.files(b.Ref)
			return errors.Join(os.Mkdir(string(f), 0o700), os.WriteFile(f.settings(), []byte(`{"ind`), 0o600))
		}),
		"a link without a container": step(func(_ *testing.T, d *Driver, b runtime.Bundle) error {
			f := d.files(b.Ref)
			index, err := d.network.reserve(containerID(b.Ref))
			if err != nil {
				return err
			}
			namespace, err := newNamespace()
			if err != nil {
				return err
			}
			return errors.Join(os.Mkdir(string(f), 0o700), f.writeSettings(settings{Index: index, Spool: b.Spool}),
				d.network.connect(namespace, index), d.network.admit(guest{index: index}, nil), namespace.Close())
		}),
		"a mounted root": step(func(_ *testing.T, d *Driver, b runtime.Bundle) error {
			f := d.files(b.Ref)
			err := os.Mkdir(string(f), 0o700)
			for _, dir := range []string{f.upper(), f.work(), f.merged()} {
				err = errors.Join(err, os.Mkdir(dir, 0o755))
			}
			return errors.Join(err, mountRoot(b, f))
		}),
		"a create cut off early": step(func(_ *testing.T, d *Driver, b runtime.Bundle) error {
			return os.Mkdir(filepath.Join(d.oci.root, containerID(b.Ref)), 0o700)
		}),
		"a container without its mark": step(func(t *testing.T, d *Driver, b runtime.Bundle) error {
			return errors.Join(prepare(t, d, b), os.Remove(d.files(b.Ref).prepared()))
		}),
		"a container whose directory is gone": step(func(t *testing.T, d *Driver, b runtime.Bundle) error {
			if err := prepare(t, d, b); err != nil {
				return err
			}
			// As after a crash in the middle of Stop, which removes links first.
			s, _, err := d.files(b.Ref).readSettings()
			return errors.Join(err, d.network.disconnect(containerID(b.Ref), s.Index), d.files(b.Ref).remove())
		}),
		"a running one that the OCI runtime forgot": step(func(t *testing.T, d *Driver, b runtime.Bundle) error {
			err := errors.Join(prepare(t, d, b), d.Start(t.Context(), b.Ref))
			booted := filepath.Join(b.Spool, "booted")
			for err == nil {
				if _, statErr := os.Stat(booted); statErr == nil {
					break
				}
				err = pause(t.Context(), time.Millisecond)
			}
			return errors.Join(err, os.RemoveAll(filepath.Join(d.oci.root, containerID(b.Ref))))
		}),
		"a stop cut off after the kill": step(func(t *testing.T, d *Driver, b runtime.Bundle) error {
			if err := prepare(t, d, b); err != nil {
				return err
			}
			return d.cgroups.kill(t.Context(), containerID(b.Ref))
		}),
	}
}
