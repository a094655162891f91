package kill

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// bootOf names an instance's boot in the path of its cgroup: in-….1 is the first
// incarnation's.
var bootOf = regexp.MustCompile(`in-[0-9a-z]{26}\.[0-9]+`)

// watchBoots looks at the machine until stop is closed, and remembers when each
// incarnation's PID 1 began to run the guest agent. One incarnation that does so
// twice was booted twice, whether or not anybody was told of the first time.
func (r *round) watchBoots(stop <-chan struct{}) {
	began, ran := map[string]string{}, map[string]string{}
	tick := time.NewTicker(60 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		guests, err := r.d.guests()
		if err != nil {
			r.violate("watch the boots: %v", err)
			return
		}
		for _, g := range guests {
			boot, at := readBoot(g.pid)
			if at == "" {
				continue
			}
			if before := began[boot]; before != "" && before != at {
				r.violate("%s was booted twice: PID 1 began at %s, and at %s", boot, before, at)
			}
			began[boot] = at
		}
		if err := r.watchTasks(ran); err != nil {
			r.violate("watch the tasks: %v", err)
			return
		}
	}
}

// taskOf names a task of a round in the command line of its process.
var taskOf = regexp.MustCompile(`echo ([a-z0-9-]+-task-[0-9]+) >>` + taskLines)

// watchTasks remembers on which boot each task was seen to run: a task that is seen on
// another was run again, whatever became of the first.
func (r *round) watchTasks(ran map[string]string) error {
	all, err := inside(r.d.dirs)
	if err != nil {
		return err
	}
	for _, p := range all {
		command, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.pid), "cmdline"))
		if err != nil {
			continue // gone meanwhile
		}
		task := taskOf.FindSubmatch(command)
		if task == nil {
			continue
		}
		name := string(task[1])
		if before := ran[name]; before != "" && before != p.boot {
			r.violate("%s ran on %s, and on %s", name, before, p.boot)
		}
		ran[name] = p.boot
	}
	return nil
}

// readBoot is which boot a process is PID 1 of, and when it began, in the
// kernel's ticks; at is "" before it runs the guest agent, and when it is gone.
func readBoot(pid int) (boot, at string) {
	dir := filepath.Join("/proc", fmt.Sprint(pid))
	group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return "", ""
	}
	command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || !strings.Contains(string(command), "--listen-fd") {
		return "", ""
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return "", ""
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	if fields := strings.Fields(after); len(fields) > 19 {
		at = fields[19]
	}
	return bootOf.FindString(string(group)), at
}
