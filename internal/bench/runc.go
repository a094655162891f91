package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
)

// firstCommand is what is run on either side.
func firstCommand() []string { return []string{"/bin/busybox", "echo", "hello"} }

// firstOutput times a create until the first byte of a command's output on runc,
// against `runc run` of the same bundle until the same command's first byte: the
// same image, layers, namespaces, limits and system-call filter, but nobody's
// records, network, guest agent or API. Where podman runs, its `podman run` with a
// network is timed too. They take turns.
func firstOutput(ctx context.Context, o options) (_ []line, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containers need root: use make bench, or sudo")
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startServer(ctx, o.binaries, dir, "--runtime", "runc")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	other, why, err := newPodman(ctx)
	if err != nil {
		return nil, err
	}
	if other != nil {
		defer func() { err = errors.Join(err, other.close()) }()
	}
	f, err := takeTurns(ctx, rpc.Dial(rpc.NewHTTPClient(), s.url, s.key), dir, max(o.rounds, 5), other)
	if err != nil {
		return nil, err
	}
	const what = "create to a command's first output, runc"
	ours, bare := median(f.ours), median(f.bare)
	beside := line{what: what, against: "podman run with a network", goal: "<= 0.20", skipped: why}
	if other != nil {
		ratio := ours / median(f.podman)
		beside.measured, beside.against = spread(f.ours), beside.against+", "+spread(f.podman)
		beside.ratio, beside.met = ratio, ratio <= 0.2
	}
	return []line{{
		what: what, measured: spread(f.ours), against: "runc run of the same bundle, " + spread(f.bare),
		ratio: ours / bare, goal: "<= 1.50", met: ours <= 1.5*bare,
	}, beside}, nil
}

// firstOutputs are in milliseconds.
type firstOutputs struct{ ours, bare, podman []float64 }

// takeTurns measures each n times; other may be nil.
func takeTurns(ctx context.Context, api rpc.Services, dir string, n int, other *podman) (f firstOutputs, err error) {
	warm, _, err := createAndSpeak(ctx, api, "warm") // the image is prepared once
	if err != nil {
		return f, err
	}
	bare, err := newBareBundle(dir, warm)
	if err != nil {
		return f, err
	}
	var sb holdfast.Sandbox
	turns := []struct {
		into *[]float64
		run  func(i int) (time.Duration, error)
	}{
		{&f.ours, func(i int) (took time.Duration, err error) {
			sb, took, err = createAndSpeak(ctx, api, fmt.Sprint("pair-", i))
			return took, err
		}},
		{&f.bare, func(i int) (time.Duration, error) { return bare.run(ctx, fmt.Sprint("bare-", i)) }},
		{&f.podman, func(int) (time.Duration, error) { return other.run(ctx) }},
	}
	if other == nil {
		turns = turns[:2]
	}
	for i := range n {
		for _, turn := range turns {
			if err := pause(ctx, settle); err != nil {
				return f, err
			}
			took, err := turn.run(i)
			if err != nil {
				return f, err
			}
			*turn.into = append(*turn.into, took.Seconds()*1000)
		}
		if _, err := api.Sandboxes.DeleteSandbox(ctx, holdfast.Caller{}, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			return f, err
		}
	}
	_, err = api.Sandboxes.DeleteSandbox(ctx, holdfast.Caller{}, holdfast.MutateSandbox{ID: warm.ID})
	return f, err
}

// settle is left before each measurement: the kernel goes on for a while with what
// the one before left behind, network namespaces above all.
const settle = 300 * time.Millisecond

// spread is the median and the range, in milliseconds.
func spread(values []float64) string {
	low, high := values[0], values[0]
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return fmt.Sprintf("%.0f ms (%.0f-%.0f)", median(values), low, high)
}

// createAndSpeak creates a sandbox, runs the command in it, and tells how long it
// was from the first call to the first output.
func createAndSpeak(ctx context.Context, api rpc.Services, request string) (holdfast.Sandbox, time.Duration, error) {
	began := time.Now()
	var sb holdfast.Sandbox
	var err error
	for { // a fresh server's host may not have told of itself yet, nor its image be there
		sb, err = api.Sandboxes.CreateSandbox(ctx, holdfast.Caller{}, holdfast.CreateSandbox{RequestID: request, Environment: "base"})
		if err == nil || !holdfast.Transient(err) || ctx.Err() != nil {
			break
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return sb, 0, err
		}
	}
	if err != nil {
		return sb, 0, fmt.Errorf("create: %w", err)
	}
	p, err := api.Processes.StartProcess(ctx, holdfast.Caller{}, sb.ID, holdfast.StartProcess{Command: firstCommand()[0], Args: firstCommand()[1:]})
	if err != nil {
		return sb, 0, fmt.Errorf("exec: %w", err)
	}
	var took time.Duration
	_, err = api.Processes.StreamProcessOutput(ctx, holdfast.Caller{}, sb.ID, holdfast.ReadOutput{Process: p.ID, Follow: true},
		func(c holdfast.OutputChunk) error {
			if took == 0 && len(c.Data) > 0 {
				took = time.Since(began)
			}
			return nil
		})
	if err == nil && took == 0 {
		err = errors.New("the command printed nothing")
	}
	return sb, took, err
}

// bareBundle is a live instance's bundle, to be run by runc alone.
type bareBundle struct {
	dir  string // of the runs
	base string // the image's root
	spec specs.Spec
}

func newBareBundle(dataDir string, sb holdfast.Sandbox) (*bareBundle, error) {
	instance := filepath.Join(dataDir, "runtime", "instances", fmt.Sprintf("%s.%d", sb.Instance, sb.Incarnation))
	raw, err := os.ReadFile(filepath.Join(instance, "config.json"))
	if err != nil {
		return nil, err
	}
	b := &bareBundle{dir: filepath.Join(dataDir, "bare")}
	if err := json.Unmarshal(raw, &b.spec); err != nil {
		return nil, fmt.Errorf("the instance's bundle: %w", err)
	}
	pid, err := os.ReadFile(filepath.Join(instance, "pid"))
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "mountinfo"))
	if err != nil {
		return nil, err
	}
	for l := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(l); len(fields) > 4 && fields[4] == "/" {
			_, rest, _ := strings.Cut(l, "lowerdir=")
			b.base, _, _ = strings.Cut(rest, ",")
		}
	}
	if b.base == "" {
		return nil, errors.New("the instance's root is no overlay")
	}
	b.spec.Process.Args = firstCommand()
	for i, n := range b.spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			b.spec.Linux.Namespaces[i].Path = "" // its own, with nothing in it
		}
	}
	return b, os.Mkdir(b.dir, 0o700)
}

// run prepares a bundle like the driver does, then times runc from its start to
// the first byte.
func (b *bareBundle) run(ctx context.Context, id string) (took time.Duration, err error) {
	bundle := filepath.Join(b.dir, id)
	for _, d := range []string{bundle, bundle + "/upper", bundle + "/work", bundle + "/merged"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return 0, err
		}
	}
	spec := b.spec
	spec.Root = &specs.Root{Path: bundle + "/merged"}
	linux := *b.spec.Linux
	linux.CgroupsPath = filepath.Join(filepath.Dir(linux.CgroupsPath), id) // the server removes their parent
	spec.Linux = &linux
	raw, err := json.Marshal(spec)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(bundle+"/config.json", raw, 0o600); err != nil {
		return 0, err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work,volatile", b.base, bundle, bundle)
	if err := unix.Mount("overlay", bundle+"/merged", "overlay", 0, options); err != nil {
		return 0, fmt.Errorf("mount the root: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(bundle+"/merged", unix.MNT_DETACH)) }()
	cmd := exec.CommandContext(ctx, "runc", "--root", filepath.Join(b.dir, "state"), "run", "--bundle", bundle, id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return untilOutput(cmd)
}
