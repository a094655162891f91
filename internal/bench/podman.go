package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// podman is one with storage and namespaces of its own, so that the machine's is left
// alone, and with one container that runs on, so that its bridge is up, as ours is.
type podman struct {
	dir    string
	holder *exec.Cmd // of the namespaces
}

const podmanImage = "localhost/bench"

// podmanConfig is podman's own but for what would touch the machine's. netavark is
// its network since version 4, where it is installed.
const podmanConfig = `[network]
network_config_dir = %q
%s
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
`

// newPodman returns nil and why where podman cannot run a container with a network.
func newPodman(ctx context.Context) (_ *podman, why string, err error) {
	if _, err := exec.LookPath("podman"); err != nil {
		return nil, "podman is not installed (apt-get install podman netavark iptables)", nil
	}
	p := &podman{}
	if p.dir, err = os.MkdirTemp("", "holdfast-bench-podman-"); err != nil {
		return nil, "", err
	}
	if err := p.prepare(ctx); err != nil {
		return nil, "podman does not run: " + strings.Join(strings.Fields(err.Error()), " "), p.close()
	}
	return p, "", nil
}

func (p *podman) prepare(ctx context.Context) error {
	backend := ""
	if found, err := filepath.Glob("/usr/l*/podman/netavark"); err != nil {
		return err
	} else if len(found) > 0 {
		backend = `network_backend = "netavark"`
	}
	config := fmt.Sprintf(podmanConfig, filepath.Join(p.dir, "networks"), backend)
	err := errors.Join(os.WriteFile(filepath.Join(p.dir, "containers.conf"), []byte(config), 0o600), os.Mkdir(filepath.Join(p.dir, "networks"), 0o700))
	if err != nil {
		return err
	}
	p.holder = exec.CommandContext(ctx, "sleep", "infinity")
	p.holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if err := p.holder.Start(); err != nil {
		p.holder = nil
		return err
	}
	rootfs := filepath.Join(p.dir, "rootfs.tar")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	for _, cmd := range []*exec.Cmd{
		p.inside(ctx, "mount", "--make-rprivate", "/"), // or its mounts would show everywhere
		p.inside(ctx, "ip", "link", "set", "lo", "up"),
		exec.CommandContext(ctx, "tar", "-C", "/", "-cf", rootfs, "--dereference", "--transform", "s,.*,bin/busybox,", strings.TrimPrefix(busybox, "/")),
		p.command(ctx, "import", rootfs, podmanImage),
		p.command(ctx, append(p.runArgs("-d"), "/bin/busybox", "sleep", "3600")...),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// inside is a command in the namespaces.
func (p *podman) inside(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(p.holder.Process.Pid), "-n", "-m"}, args...)...)
}

func (p *podman) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := p.inside(ctx, append([]string{"podman", "--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"),
		"--runtime", "runc"}, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+filepath.Join(p.dir, "containers.conf"))
	return cmd
}

// runArgs run a container with podman's own network. Limits beyond the caller's own are refused in some places.
func (p *podman) runArgs(how string) []string {
	return []string{"run", how, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", podmanImage}
}

// run times podman run from its start to the first byte.
func (p *podman) run(ctx context.Context) (time.Duration, error) {
	return untilOutput(p.command(ctx, append(p.runArgs("--rm"), firstCommand()...)...))
}

// untilOutput runs a command and tells how long it was until its first byte.
func untilOutput(cmd *exec.Cmd) (time.Duration, error) {
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, readErr := io.ReadFull(out, make([]byte, 1))
	took := time.Since(began)
	_, restErr := io.Copy(io.Discard, out)
	if err := errors.Join(readErr, restErr, cmd.Wait()); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, complaint.String())
	}
	return took, nil
}

// close removes the containers and all that was made for them.
func (p *podman) close() error {
	var err error
	if p.holder != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, failed := p.command(ctx, "rm", "--all", "--force", "--time", "0").CombinedOutput(); failed != nil {
			err = fmt.Errorf("podman rm: %w: %s", failed, out)
		}
		err = errors.Join(err, p.holder.Process.Kill())
		_ = p.holder.Wait() // it was killed
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}
