package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// idleLimit is the most that an idle server may keep in memory.
const idleLimit = 60 << 20

// idleServer reads the resident memory of a real server that has nothing to do.
func idleServer(ctx context.Context, o options) ([]line, error) {
	var sizes []int64
	for range o.rounds {
		size, err := idleOnce(ctx, o.binaries)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, size)
	}
	m := median(sizes)
	return []line{{what: "memory of an idle server, all roles", measured: fmt.Sprintf("%.0f MiB", float64(m)/(1<<20)),
		against: "60 MiB", ratio: float64(m) / idleLimit, goal: "< 1.00", met: m < idleLimit}}, nil
}

func idleOnce(ctx context.Context, binaries string) (size int64, err error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startServer(ctx, binaries, dir, "--runtime", "simulated")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	select { // what starts up has to settle: this is what an idle server keeps
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return residentOf(s.cmd.Process.Pid)
}

// residentOf is the memory that a process holds, in bytes.
func residentOf(pid int) (size int64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(raw)) {
		var kib int64
		if n, _ := fmt.Sscanf(l, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("no VmRSS in /proc/PID/status")
}
