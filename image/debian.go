package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast"
)

// debian is the recipe of a Debian suite with what agents need, fetched from the
// mirror that the host itself is configured for.
type debian struct {
	suite string
	tool  string
}

const (
	debianVersion  = "debian/1"
	debianPackages = "bash,ca-certificates,git,python3"
)

// digest covers the recipe; a suite's own contents move, and an image that is
// there is kept.
func (d debian) digest(context.Context) (string, error) {
	return digestOf(debianVersion, d.suite, debianPackages, goruntime.GOARCH), nil
}

func (d debian) build(ctx context.Context, root string, progress func(string)) error {
	tool, err := exec.LookPath(d.tool)
	if err != nil {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed,
			"the image \"debian:%s\" is made by mmdebstrap, which is not on the host: apt-get install mmdebstrap", d.suite).Because(err)
	}
	args := []string{"--mode=root", "--format=directory", "--variant=minbase", "--include=" + debianPackages}
	apt, err := readApt(ctx)
	if err != nil {
		return fmt.Errorf("image debian:%s: %w", d.suite, err)
	}
	for _, option := range apt.options {
		args = append(args, "--aptopt="+option)
	}
	args = append(args, d.suite, root)
	args = append(args, apt.sources(d.suite)...)
	progress("fetching debian:" + d.suite + " with mmdebstrap")
	tail, err := runBuilder(ctx, tool, args, func(line string) { progress("debian:" + d.suite + ": " + line) })
	if err != nil {
		return d.failed(ctx, err, tail)
	}
	return nil
}

// failed tells a mirror that cannot be reached, which may pass, from a suite that
// is not there and from a recipe that fails, which do not.
func (d debian) failed(ctx context.Context, err error, tail []string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("image debian:%s: %w", d.suite, ctx.Err())
	}
	said := strings.Join(tail, "\n")
	refuse := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed, "mmdebstrap could not make \"debian:%s\": %s", d.suite, lastError(tail))
	switch {
	case containsAny(said, "does not have a Release file", "404  Not Found", "Unable to find suite"):
		refuse = holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchImage, "the mirror has no suite %q: %s", d.suite, lastError(tail))
	case containsAny(said, "Temporary failure resolving", "Could not connect", "Could not resolve", "Connection timed out",
		"Unable to connect", "Connection failed", "Network is unreachable", "503 ", "502 "):
		refuse = holdfast.E(holdfast.Unavailable, holdfast.ReasonImageFailed, "the mirror of \"debian:%s\" cannot be reached: %s", d.suite, lastError(tail))
	}
	return refuse.Because(err)
}

func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
}

// lastError finds the line that says most.
func lastError(tail []string) string {
	for _, mark := range []string{"E:", "Err:", "W:"} {
		for _, line := range slices.Backward(tail) {
			if strings.HasPrefix(line, mark) {
				return line
			}
		}
	}
	if len(tail) == 0 {
		return "it said nothing"
	}
	return tail[len(tail)-1]
}

const tailLines = 40

// runBuilder runs the tool in mount and process namespaces of its own: whenever
// it ends, by itself or with us, its mounts and all its processes are gone.
func runBuilder(ctx context.Context, tool string, args []string, progress func(string)) (tail []string, err error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Stdout, cmd.Stderr = in, in
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true,
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWPID,
		// Unshared after the clone, which makes what is mounted in there private.
		Unshareflags: syscall.CLONE_NEWNS,
	}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The death signal comes when the thread ends that started the process.
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		ended <- cmd.Wait()
	}()
	err = <-started
	err = errors.Join(err, in.Close())
	if err == nil {
		tail, err = follow(out, progress)
		err = errors.Join(err, <-ended)
	}
	return tail, errors.Join(err, out.Close())
}

// follow passes lines on and keeps the last ones.
func follow(out io.Reader, progress func(string)) ([]string, error) {
	var tail []string
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		if tail = append(tail, line); len(tail) > tailLines {
			tail = tail[1:]
		}
		if strings.HasPrefix(line, "I:") {
			progress(strings.TrimSpace(line[2:]))
		}
	}
	return tail, lines.Err()
}
