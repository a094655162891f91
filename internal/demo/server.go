package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// serverProcess is a real holdfast serve, to be killed and started again.
type serverProcess struct{ *testenv.Server }

func startServer(binaries, dir string) (*serverProcess, error) {
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
	if err := l.Close(); err != nil {
		return nil, err
	}
	s := &serverProcess{Server: &testenv.Server{Name: "the server", DataDir: dir, Program: program, Listen: l.Addr().String(),
		Args: []string{"--sweep-every", "2s"}, LogFile: filepath.Join(dir, "server.log"), WithParent: syscall.SIGKILL}}
	return s, s.Start()
}

// restart ends it as a crash would and starts it again.
func (s *serverProcess) restart() error { return errors.Join(s.Kill(), s.Start()) }

func (s *serverProcess) client(more ...client.Option) (*client.Client, error) {
	raw, err := os.ReadFile(filepath.Join(s.DataDir, "admin.key"))
	if err != nil {
		return nil, err
	}
	return client.New(s.URL(), append(more, client.WithAPIKey(strings.TrimSpace(string(raw))))...)
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
