package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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
	s, err := startServer(ctx, binaries, "simulated")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	select { // what starts up has to settle: this is what an idle server keeps
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
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

// realServer is a holdfast serve of this run, on a data directory of its own.
type realServer struct {
	cmd *exec.Cmd
	dir string
	url string
	key string
}

func startServer(ctx context.Context, binaries, runtime string) (*realServer, error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "holdfast"), "serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--runtime", runtime)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(dir, "server.log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &realServer{cmd: cmd, dir: dir}
	first, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		raw, _ := os.ReadFile(filepath.Join(dir, "server.log"))
		return nil, errors.Join(fmt.Errorf("the server did not start: %s", raw), s.stop())
	}
	s.url = strings.TrimSpace(first[strings.LastIndex(first, " at ")+len(" at "):])
	raw, err := os.ReadFile(filepath.Join(dir, "admin.key"))
	s.key = strings.TrimSpace(string(raw))
	return s, err
}

// stop ends the server in order and removes what it kept.
func (s *realServer) stop() error {
	err := s.cmd.Process.Signal(syscall.SIGTERM)
	if err == nil {
		err = s.cmd.Wait()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
