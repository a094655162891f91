package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/client"
)

// serverProcess is a real holdfast serve, to be killed and started again.
type serverProcess struct {
	ctx      context.Context
	program  string
	dir      string
	listen   string
	cmd      *exec.Cmd
	lastWord string
}

func startServer(ctx context.Context, binaries, dir string) (*serverProcess, error) {
	program, err := filepath.Abs(filepath.Join(binaries, "holdfast"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &serverProcess{ctx: ctx, program: program, dir: dir, listen: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, err
	}
	return s, s.start()
}

// start starts the server and returns when it takes calls.
func (s *serverProcess) start() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(s.program, "serve", "--data-dir", s.dir, "--listen", s.listen, "--sweep-every", "2s")
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	s.cmd = cmd
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("the server ended at its start: %w\n%s", errors.Join(err, cmd.Wait()), s.log())
	}
	return nil
}

// kill ends it as a crash would.
func (s *serverProcess) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// stop ends it in order.
func (s *serverProcess) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	return nil
}

func (s *serverProcess) log() string {
	raw, err := os.ReadFile(filepath.Join(s.dir, "server.log"))
	if err != nil {
		return s.lastWord
	}
	s.lastWord = string(raw[max(0, len(raw)-4096):])
	return s.lastWord
}

func (s *serverProcess) client(more ...client.Option) (*client.Client, error) {
	raw, err := os.ReadFile(filepath.Join(s.dir, "admin.key"))
	if err != nil {
		return nil, err
	}
	return client.New("http://"+s.listen, append(more, client.WithAPIKey(strings.TrimSpace(string(raw))))...)
}

// census is what containers could leave on the machine.
type census map[string][]string

func takeCensus() (census, error) {
	c := census{}
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		c["network link"] = append(c["network link"], l.Name)
	}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			c["mount"] = append(c["mount"], fields[4])
		}
	}
	for kind, pattern := range map[string]string{"cgroup": "/sys/fs/cgroup/*/holdfast-*", "runtime directory": "/run/holdfast/*"} {
		if c[kind], err = filepath.Glob(pattern); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// nothingLeft compares the machine with what it was.
func nothingLeft(before census) error {
	now, err := takeCensus()
	if err != nil {
		return err
	}
	var left []string
	for kind, names := range now {
		for _, name := range names {
			if !slices.Contains(before[kind], name) {
				left = append(left, kind+" "+name)
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return nil
}
