package runc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups counts, kills and removes by control group, on version 1, version 2
// and both at once. Making the groups is the OCI runtime's work; ending what
// they hold is ours, so that a runtime that lost its state changes nothing.
type cgroups struct {
	roots   []string // mount points of every hierarchy
	parent  string   // absolute within a hierarchy
	timeout time.Duration
}

// cgroupRoots reads where the hierarchies are mounted.
func cgroupRoots() (roots []string, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 1 || (right[0] != "cgroup" && right[0] != "cgroup2") {
			continue
		}
		if strings.HasPrefix(left[4], "/sys/fs/cgroup") {
			roots = append(roots, left[4])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(roots) == 0 {
		return nil, errors.New("no control groups are mounted under /sys/fs/cgroup")
	}
	slices.Sort(roots)
	return slices.Compact(roots), nil
}

// path is what the OCI specification calls cgroupsPath.
func (c cgroups) path(id string) string { return filepath.Join(c.parent, id) }

// directories returns those of id that exist.
func (c cgroups) directories(id string) ([]string, error) {
	var found []string
	for _, root := range c.roots {
		dir := filepath.Join(root, c.parent, id)
		there, err := exists(dir)
		if err != nil {
			return nil, err
		}
		if there {
			found = append(found, dir)
		}
	}
	return found, nil
}

// list returns the ids that have a group in any hierarchy.
func (c cgroups) list() ([]string, error) {
	var ids []string
	for _, root := range c.roots {
		entries, err := os.ReadDir(filepath.Join(root, c.parent))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() {
				ids = append(ids, e.Name())
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// processes returns the living processes of id, in all hierarchies and below.
func (c cgroups) processes(id string) ([]int, error) {
	dirs, err := c.directories(id)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		for _, sub := range below(dir) {
			data, err := os.ReadFile(filepath.Join(sub, "cgroup.procs"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
				return nil, err
			}
			for _, field := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 && alive(pid) {
					pids = append(pids, pid)
				}
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// kill ends every process of id, frozen ones too, and returns when none is left.
func (c cgroups) kill(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := c.processes(id)
		if err != nil {
			return fmt.Errorf("kill: %w", err)
		}
		if len(pids) == 0 {
			return nil
		}
		if err := c.killOnce(id, pids); err != nil {
			return fmt.Errorf("kill: %w", err)
		}
		if err := pause(ctx, wait); err != nil {
			return fmt.Errorf("kill: %d processes of %s are left, the first is %d: %w", len(pids), id, pids[0], err)
		}
	}
}

func (c cgroups) killOnce(id string, pids []int) error {
	var errs []error
	for _, pid := range pids {
		errs = append(errs, c.signal(pid, id))
	}
	dirs, err := c.directories(id)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, dir := range dirs {
		// Version 2 kills the frozen by itself; version 1 keeps a signal from the
		// frozen until they are thawed.
		errs = append(errs, writeIfThere(filepath.Join(dir, "cgroup.kill"), "1"),
			writeIfThere(filepath.Join(dir, "freezer.state"), "THAWED"),
			writeIfThere(filepath.Join(dir, "cgroup.freeze"), "0"))
	}
	return errors.Join(errs...)
}

// signal kills pid if it still is a process of id: the number may have been
// given to another since it was read.
func (c cgroups) signal(pid int, id string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd) //nolint:errcheck // a pidfd has nothing to lose
	if !c.holds(id, pid) {
		return nil // it is gone, and the number may be another's
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}

// frozen reports whether id is frozen or on its way there, in either version.
func (c cgroups) frozen(id string) (bool, error) {
	dirs, err := c.directories(id)
	if err != nil {
		return false, err
	}
	for _, dir := range dirs {
		for name, free := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				continue
			}
			if err != nil {
				return false, err
			}
			if strings.TrimSpace(string(data)) != free {
				return true, nil
			}
		}
	}
	return false, nil
}

// holds reports whether pid is in a group of id.
func (c cgroups) holds(id string, pid int) bool {
	groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	return err == nil && strings.Contains(string(groups), c.path(id))
}

// remove removes the groups of id, "" for the parent. The kernel holds a group
// for a moment after its last process is gone.
func (c cgroups) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	dirs, err := c.directories(id)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		subs := below(dir)
		slices.Reverse(subs)
		for _, sub := range subs {
			if err := removeGroup(ctx, sub); err != nil {
				return fmt.Errorf("control group %s: %w", sub, err)
			}
		}
	}
	return nil
}

func removeGroup(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if pauseErr := pause(ctx, wait); pauseErr != nil {
			return errors.Join(err, pauseErr)
		}
	}
}

// below returns dir and the groups in it, parents first. What vanishes while it
// looks is left out.
func below(dir string) []string {
	var found []string
	//nolint:errcheck // the function returns no error but "skip what is gone"
	filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir
		}
		if e.IsDir() {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// writeIfThere writes to a control file; that the file or its group is gone, or
// that this version has none, is nothing.
func writeIfThere(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if errors.Is(err, unix.ENODEV) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// alive reports whether pid is a process that is no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
