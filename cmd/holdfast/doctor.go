package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/blob"
)

// check is one thing that a machine may lack.
type check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"` // by the runtime that was asked about
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // the command, or the words, that help
}

// probe finds one thing out: what there is, or what is wrong.
type probe struct {
	name     string
	runtimes []string // which need it; none: an option
	fix      string
	look     func(context.Context) (detail string, err error)
}

func newDoctorCommand(a *app) *cobra.Command {
	var wanted, binary, blobs string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can run, and which command installs what is missing",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wanted != "runc" && wanted != "simulated" {
				return usage("--runtime is runc or simulated, not %q", wanted)
			}
			return a.doctor(wanted, examine(cmd.Context(), wanted, probes(binary, blobs)))
		},
	}
	cmd.Flags().StringVar(&wanted, "runtime", "runc", "the runtime to ask about: runc or simulated")
	cmd.Flags().StringVar(&binary, "runtime-binary", "runc", "the OCI runtime's program")
	cmd.Flags().StringVar(&blobs, "blobs", a.getenv("HOLDFAST_BLOBS"), "the store of checkpoints, as holdfast serve takes it")
	return cmd
}

// examine runs the probes and judges them for a runtime.
func examine(ctx context.Context, wanted string, all []probe) []check {
	var checks []check
	for _, p := range all {
		c := check{Name: p.name, OK: true}
		for _, r := range p.runtimes {
			c.Needed = c.Needed || r == wanted
		}
		detail, err := p.look(ctx)
		c.Detail = detail
		if err != nil {
			c.OK, c.Detail, c.Fix = false, oneLine(err.Error()), p.fix
		}
		checks = append(checks, c)
	}
	return checks
}

// doctor prints the checks; that something needed is missing is exit code 1.
func (a *app) doctor(wanted string, checks []check) error {
	fits := true
	rows := make([][]string, len(checks))
	for i, c := range checks {
		word := "ok"
		if !c.OK {
			word = "missing, optional"
			if c.Needed {
				word, fits = "MISSING", false
			}
		}
		rows[i] = []string{c.Name, word, c.Detail, dash(c.Fix)}
	}
	if a.output == "json" {
		line, err := json.Marshal(map[string]any{"runtime": wanted, "ok": fits, "checks": checks})
		if err != nil {
			return fmt.Errorf("write the checks as JSON: %w", err)
		}
		if err := write(a.out, append(line, '\n')); err != nil {
			return err
		}
	} else if err := a.table("CHECK STATUS DETAIL FIX", rows); err != nil {
		return err
	}
	if !fits {
		return hintError{fmt.Errorf("this machine cannot run the runtime %q yet", wanted), "do what FIX says above, or serve with --runtime simulated to try the API"}
	}
	return nil
}

func probes(binary, blobs string) []probe {
	runc := []string{"runc"}
	return []probe{
		{"linux", runc, "use a Linux machine", kernel},
		{"root", runc, "run as root: sudo holdfast doctor", isRoot},
		{"oci-runtime", runc, "apt-get install runc", says(binary)},
		{"guest-agent", runc, "put holdfast-guest beside holdfast: make build", guestAgent},
		{"busybox-static", runc, "apt-get install busybox-static", busybox},
		{"cgroups", runc, "mount -t cgroup2 none /sys/fs/cgroup", cgroups},
		{"overlayfs", runc, "modprobe overlay", overlay},
		{"namespaces", runc, "use a kernel, or a container, that allows new network namespaces", namespaces},
		{"nftables", runc, "modprobe nf_tables", netfilter},
		{"mmdebstrap", nil, "apt-get install mmdebstrap", says("mmdebstrap")},
		{"blob-store", nil, "serve with --blobs DIRECTORY or s3://BUCKET, the same on every host", blobStore(blobs)},
	}
}

func kernel(context.Context) (string, error) {
	if runtime.GOOS != "linux" {
		return "", errors.New("containers need Linux, this is " + runtime.GOOS)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return "Linux " + unix.ByteSliceToString(name.Release[:]), nil
}

func isRoot(context.Context) (string, error) {
	if id := os.Geteuid(); id != 0 {
		return "", fmt.Errorf("this is user %d", id)
	}
	return "user 0", nil
}

// says asks a program for its version, and returns the first line of that.
func says(name string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("no program %s", name)
		}
		said, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s does not run: %w", path, err)
		}
		line, _, _ := strings.Cut(string(said), "\n")
		return path + ": " + line, nil
	}
}

func guestAgent(context.Context) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), "holdfast-guest")
	if _, err := os.Stat(path); err != nil {
		return "", errors.New("no " + path)
	}
	return path, nil
}

func busybox(context.Context) (string, error) {
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errors.New("no busybox in /bin or /usr/bin: the image base is made of it")
}

func cgroups(context.Context) (string, error) {
	var at unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &at); err != nil {
		return "", fmt.Errorf("no control groups at /sys/fs/cgroup: %w", err)
	}
	if at.Type == unix.CGROUP2_SUPER_MAGIC {
		return "version 2", nil
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return "version 1 or hybrid", nil
	}
	return "", errors.New("no control groups are mounted below /sys/fs/cgroup")
}

// overlay asks for an overlay without layers, which a kernel that has the file
// system refuses as incomplete, and one that has not as unknown.
func overlay(context.Context) (_ string, err error) {
	dir, err := os.MkdirTemp("", "holdfast-doctor-*")
	if err != nil {
		return "", fmt.Errorf("make a directory to probe: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	switch failed := unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY, ""); {
	case failed == nil:
		return "available", unix.Unmount(dir, 0)
	case errors.Is(failed, unix.ENODEV):
		return "", errors.New("the kernel has no overlay file system")
	case errors.Is(failed, unix.EPERM):
		return "", errors.New("mounting is not allowed here")
	}
	return "available", nil
}

// namespaces runs a program in namespaces of its own.
func namespaces(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("no process can be started in new namespaces: %w", err)
	}
	return "network, mount, pid, ipc, uts", nil
}

// blobStore asks a store for what it has not.
func blobStore(place string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		if place == "" {
			return "DATA_DIR/blobs: for one host alone", nil
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		store, err := blob.Open(ctx, place)
		if err != nil {
			return "", err
		}
		if _, err := store.Stat(ctx, "doctor/asks"); err != nil && !errors.Is(err, blob.ErrNotFound) {
			return "", err
		}
		return place + " answers", nil
	}
}

func netfilter(context.Context) (string, error) {
	tables, err := new(nftables.Conn).ListTables()
	if err != nil {
		return "", fmt.Errorf("the kernel's packet filter does not answer: %w", err)
	}
	return fmt.Sprintf("available, %d tables", len(tables)), nil
}
