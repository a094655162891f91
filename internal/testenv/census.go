package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"
)

// Census is what servers leave on a machine: each kind with its sorted names.
type Census map[string][]string

// TakeCensus counts what the servers with these data directories have on the
// machine now: processes of instances, mounts, network links, the firewall's
// tables, the runtime's state, cgroups, and files of instances. What others run beside them does not
// count.
func TakeCensus(t testing.TB, dataDirs ...string) Census {
	t.Helper()
	names := make([]string, len(dataDirs))
	for i, dir := range dataDirs {
		names[i] = RuntimeName(dir)
	}
	c := Census{
		"processes": guestProcesses(t, names),
		"mounts":    mounts(t, names, dataDirs),
		"links":     links(t, names),
		"tables":    tables(t, names),
		"state":     globbed(t, names, "/run/holdfast/%s"),
		"cgroups":   globbed(t, names, "/sys/fs/cgroup/*/holdfast-%s", "/sys/fs/cgroup/holdfast-%s", "/sys/fs/cgroup/*/holdfast-%s/*", "/sys/fs/cgroup/holdfast-%s/*"),
		"files":     instanceFiles(t, dataDirs),
	}
	for _, names := range c {
		sort.Strings(names)
	}
	return c
}

// RuntimeName is how a server's runtime marks what it makes on the host: eight
// hexadecimal characters, of its directory.
func RuntimeName(dataDir string) string {
	sum := sha256.Sum256([]byte(filepath.Join(dataDir, "runtime")))
	return hex.EncodeToString(sum[:4])
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

// guestProcesses are the processes in the cgroups of instances.
func guestProcesses(t testing.TB, runtimes []string) []string {
	t.Helper()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range groups {
		group, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(runtimes, func(name string) bool { return strings.Contains(string(group), "/holdfast-"+name+"/") }) {
			continue // not an instance's of ours, or gone meanwhile
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

func mounts(t testing.TB, runtimes, dataDirs []string) []string {
	t.Helper()
	dirs := slices.Clone(dataDirs)
	for _, name := range runtimes {
		dirs = append(dirs, "/run/holdfast/"+name)
	}
	found, err := mountsBelow(dirs...)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// mountsBelow lists what is mounted below directories, the earlier mounts first.
func mountsBelow(dirs ...string) ([]string, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		for _, dir := range dirs {
			if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
				found = append(found, fields[4])
			}
		}
	}
	return found, nil
}

func links(t testing.TB, runtimes []string) []string {
	t.Helper()
	found, err := linksOf(runtimes...)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// linksOf lists the network links of runtimes.
func linksOf(runtimes ...string) ([]string, error) {
	out, err := exec.Command("ip", "-o", "link").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ip link: %w %s", err, out)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
			if slices.ContainsFunc(runtimes, func(r string) bool { return strings.HasPrefix(name, "hf"+r) }) {
				found = append(found, name)
			}
		}
	}
	return found, nil
}

func tables(t testing.TB, runtimes []string) []string {
	t.Helper()
	found, err := tablesOf(runtimes...)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// tablesOf lists the firewall's tables of runtimes, each with its family.
func tablesOf(runtimes ...string) ([]string, error) {
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("nft list tables: %w %s", err, out)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		table := strings.TrimPrefix(strings.TrimSpace(line), "table ")
		if slices.ContainsFunc(runtimes, func(r string) bool { return strings.HasSuffix(table, " holdfast-"+r) }) {
			found = append(found, table)
		}
	}
	return found, nil
}

var instancePath = regexp.MustCompile(`(^|/)in-[0-9a-z]{26}[./]`)

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
			if instancePath.MatchString(rel) && d.Type().IsRegular() && d.Name() != "record.json" {
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

func globbed(t testing.TB, runtimes []string, patterns ...string) []string {
	t.Helper()
	var found []string
	for _, runtime := range runtimes {
		for _, pattern := range patterns {
			paths, err := filepath.Glob(fmt.Sprintf(pattern, runtime))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				if info, err := os.Stat(path); err == nil && info.IsDir() {
					found = append(found, path)
				}
			}
		}
	}
	return found
}
