package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// WipeMachine takes from the machine what a loss of power would take of the
// server with this data directory, which has been killed: the processes of its
// instances, its mounts, links, tables and cgroups, and what is in /run. Its files stay.
func WipeMachine(dataDir string) error {
	name := RuntimeName(dataDir)
	ended := func() bool {
		pids, err := inCgroupsOf(name)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // what is gone already is no matter
		}
		return err == nil && len(pids) == 0
	}
	if err := thaw(name); err != nil {
		return err
	}
	if !Eventually(10*time.Second, ended) {
		return errors.New("wipe the machine: processes of instances live on")
	}
	run := "/run/holdfast/" + name
	mounted, err := mountsBelow(dataDir, run)
	if err != nil {
		return err
	}
	var errs []error
	for _, at := range slices.Backward(mounted) {
		errs = append(errs, syscall.Unmount(at, syscall.MNT_DETACH))
	}
	names, err := linksOf(name)
	errs = append(errs, err)
	for _, link := range names {
		if out, err := exec.Command("ip", "link", "del", link).CombinedOutput(); err != nil && !strings.Contains(string(out), "Cannot find device") {
			errs = append(errs, fmt.Errorf("ip link del %s: %w %s", link, err, out)) // the other end of a pair goes with the first
		}
	}
	rules, err := tablesOf(name)
	errs = append(errs, err)
	for _, table := range rules {
		if out, err := exec.Command("nft", append([]string{"delete", "table"}, strings.Fields(table)...)...).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("nft delete table %s: %w %s", table, err, out))
		}
	}
	return errors.Join(append(errs, removeCgroups(name), os.RemoveAll(run))...)
}

// inCgroupsOf are the living processes of a runtime's instances.
func inCgroupsOf(name string) (pids []int, err error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, path := range groups {
		group, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(group), "/holdfast-"+name+"/") {
			continue // another's, or gone meanwhile
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// thaw lets frozen instances take the signal that ends them, with cgroups of
// version 1.
func thaw(name string) error {
	states, err := filepath.Glob("/sys/fs/cgroup/freezer/holdfast-" + name + "/*/freezer.state")
	if err != nil {
		return err
	}
	for _, state := range states {
		if err := os.WriteFile(state, []byte("THAWED"), 0); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
			return fmt.Errorf("thaw: %w", err)
		}
	}
	return nil
}

func removeCgroups(name string) error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/*/holdfast-%s/*", "/sys/fs/cgroup/holdfast-%s/*", "/sys/fs/cgroup/*/holdfast-%s", "/sys/fs/cgroup/holdfast-%s"} {
		found, err := filepath.Glob(fmt.Sprintf(pattern, name))
		if err != nil {
			return err
		}
		for _, path := range found {
			info, err := os.Stat(path)
			if err != nil || !info.IsDir() {
				continue
			}
			removed := func() bool {
				err = os.Remove(path)
				return err == nil || errors.Is(err, os.ErrNotExist)
			}
			if !Eventually(5*time.Second, removed) { // the kernel empties it on its own time
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Descendants are the process ids of a process's children and theirs, as they
// are now.
func Descendants(pid int) ([]int, error) {
	var all []int
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		children, err := childrenOf(strconv.Itoa(next[0]))
		if err != nil {
			return nil, err
		}
		for _, dir := range children {
			child, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return nil, err
			}
			all, next = append(all, child), append(next, child)
		}
	}
	return all, nil
}
