package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"
)

// Census is what instances can leave on a machine: each kind with its sorted names.
type Census map[string][]string

// TakeCensus counts what is there now: container processes, mounts, network
// links and namespaces, cgroups, and files of instances under the given data
// directories.
func TakeCensus(t testing.TB, dataDirs ...string) Census {
	t.Helper()
	c := Census{
		"processes":  guestProcesses(t),
		"mounts":     mounts(t, dataDirs),
		"links":      links(t),
		"namespaces": globbed(t, "/run/netns/*", "/run/holdfast/*/netns/*", "/run/holdfast/*/*/netns"),
		"cgroups":    cgroups(t),
		"files":      instanceFiles(t, dataDirs),
	}
	for _, names := range c {
		sort.Strings(names)
	}
	return c
}

// Difference lists what is in c and not in before.
func (c Census) Difference(before Census) []string {
	var more []string
	for kind, names := range c {
		for _, name := range names {
			if !slices.Contains(before[kind], name) {
				more = append(more, kind+": "+name)
			}
		}
	}
	sort.Strings(more)
	return more
}

// WantNothingLeft fails unless the machine comes back to what it was; what the
// kernel takes down on its own time gets a few seconds.
func WantNothingLeft(t testing.TB, before Census, dataDirs ...string) {
	t.Helper()
	var left []string
	ok := Eventually(10*time.Second, func() bool {
		left = TakeCensus(t, dataDirs...).Difference(before)
		return len(left) == 0
	})
	if !ok {
		t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
}

// Eventually looks again until ok or the time is over. It is for what the
// operating system gives no signal of.
func Eventually(within time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok() {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return ok()
		}
	}
}

// guestProcesses are the processes in the cgroup of an instance.
func guestProcesses(t testing.TB) []string {
	t.Helper()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range groups {
		group, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(group), "/in-") {
			continue // not an instance's, or gone meanwhile
		}
		dir := filepath.Dir(path)
		raw, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(raw) == 0 {
			continue // gone, or ended and waiting for the machine's own init
		}
		found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(raw), "\x00", " "))
	}
	return found
}

func mounts(t testing.TB, dataDirs []string) []string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		for _, dir := range append([]string{"/run/holdfast"}, dataDirs...) {
			if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
				found = append(found, fields[4])
			}
		}
	}
	return found
}

func links(t testing.TB) []string {
	t.Helper()
	out, err := exec.Command("ip", "-o", "link").CombinedOutput()
	if err != nil {
		t.Fatalf("ip link: %v %s", err, out)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
			found = append(found, name)
		}
	}
	return found
}

func cgroups(t testing.TB) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone while we walked
		}
		if d.IsDir() && strings.Contains(path, "/in-") {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// instanceFiles are the files of instances, the records and tombstones apart
// that a host keeps for days.
func instanceFiles(t testing.TB, dataDirs []string) []string {
	t.Helper()
	var found []string
	for _, dir := range dataDirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return fmt.Errorf("census: %w", err)
			}
			if strings.Contains(rel, "in-") && d.Type().IsRegular() && d.Name() != "record.json" {
				found = append(found, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func globbed(t testing.TB, patterns ...string) []string {
	t.Helper()
	var found []string
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	return found
}
