package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// realServer is a holdfast serve of this run.
type realServer struct {
	cmd *exec.Cmd
	url string
	key string
}

// startServer starts one on a data directory, with more flags, and returns once it
// takes calls.
func startServer(ctx context.Context, binaries, dir string, flags ...string) (*realServer, error) {
	args := append([]string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0"}, flags...)
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "holdfast"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(dir, "server.log"))
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return nil, err
	}
	s := &realServer{cmd: cmd}
	first, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		raw, _ := os.ReadFile(filepath.Join(dir, "server.log")) // the error says enough without it
		return nil, errors.Join(fmt.Errorf("the server did not start: %s", raw), s.stop())
	}
	s.url = strings.TrimSpace(first[strings.LastIndex(first, " at ")+len(" at "):])
	raw, err := os.ReadFile(filepath.Join(dir, "admin.key"))
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.key = strings.TrimSpace(string(raw))
	return s, nil
}

// stop ends the server in order.
func (s *realServer) stop() error {
	return errors.Join(s.cmd.Process.Signal(syscall.SIGTERM), s.cmd.Wait())
}

var updatesLine = regexp.MustCompile(`(?m)^holdfast_store_updates_total\{party="(\w+)"\} (\S+)$`)

// updates is how many transactions each party of a server has made, as its metrics say.
func updates(ctx context.Context, url string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for _, m := range updatesLine.FindAllStringSubmatch(string(raw), -1) {
		if found[m[1]], err = strconv.ParseFloat(m[2], 64); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// cpuTime is the processor time of this process so far.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0 // it cannot fail for oneself
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
