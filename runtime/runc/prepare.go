package runc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Prepare implements runtime.Driver. A boot that ran and ended is refused: an
// incarnation boots once (trap T49). A missing guest binary, a base that is no
// directory and what the OCI runtime refuses are FAILED_PRECONDITION,
// PREPARE_FAILED; nothing is left of it then.
func (d *Driver) Prepare(ctx context.Context, b runtime.Bundle) error {
	if err := d.check(b); err != nil {
		return err
	}
	seen, err := d.look(ctx, b.Ref)
	if err != nil {
		return fmt.Errorf("runc: prepare: %w", err)
	}
	switch phase, _ := seen.phase(); phase {
	case runtime.PhasePrepared, runtime.PhaseRunning, runtime.PhaseSuspended:
		return nil
	case runtime.PhaseExited:
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonInstanceLost,
			"this boot ran and ended; an incarnation boots once").On(string(b.Ref.Instance))
	}
	if seen.remains() {
		if err := d.clean(ctx, b.Ref); err != nil {
			return fmt.Errorf("runc: prepare: removing a half-done one: %w", err)
		}
	}
	if err := d.setUp(ctx, b); err != nil {
		// The context may be over; what was begun must go all the same.
		return errors.Join(refusal(b.Ref, err), d.clean(context.WithoutCancel(ctx), b.Ref))
	}
	return nil
}

// check refuses what no repeat would make better.
func (d *Driver) check(b runtime.Bundle) error {
	if _, ok := parseContainerID(containerID(b.Ref)); !ok {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "runc: %q, incarnation %d, is no instance", b.Ref.Instance, b.Ref.Incarnation)
	}
	refuse := func(format string, args ...any) error {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonPrepareFailed, format, args...).On(string(b.Ref.Instance))
	}
	info, err := os.Stat(d.config.Guest)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return refuse("the guest agent %s is missing on the host", filepath.Base(d.config.Guest))
	case err != nil:
		return fmt.Errorf("runc: prepare: guest agent: %w", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return refuse("the guest agent %s on the host is not an executable file", filepath.Base(d.config.Guest))
	}
	needed := map[string]string{"root file system": b.RootFS, "spool": b.Spool}
	for i, path := range b.Layers {
		needed["layer "+strconv.Itoa(i+1)] = path
	}
	for what, path := range needed {
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) || err == nil && !info.IsDir() {
			return refuse("the %s of the instance is not a directory on the host", what)
		}
		if err != nil {
			return fmt.Errorf("runc: prepare: %s: %w", what, err)
		}
	}
	return nil
}

// refusal makes what the OCI runtime answered final, unless it speaks of
// something that passes.
func refusal(ref holdfast.InstanceRef, err error) error {
	var f *failure
	if !errors.As(err, &f) || !f.answered || passing(f.message) {
		return fmt.Errorf("runc: prepare: %w", err)
	}
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonPrepareFailed, "the instance cannot be set up").
		Because(f).On(string(ref.Instance))
}

// setUp makes everything anew, the settings first: whatever follows them can be
// found and removed again by a later process.
func (d *Driver) setUp(ctx context.Context, b runtime.Bundle) error {
	f, id := d.files(b.Ref), containerID(b.Ref)
	index, err := d.network.reserve(id)
	if err != nil {
		return err
	}
	if err := os.Mkdir(string(f), 0o700); err != nil {
		return err
	}
	if err := f.writeSettings(settings{Index: index, Egress: b.Spec.Egress, Spool: b.Spool}); err != nil {
		return err
	}
	namespace, err := newNamespace()
	if err != nil {
		return err
	}
	// The OCI runtime enters the namespace by our descriptor; after that the
	// instance holds it.
	err = errors.Join(d.setUpIn(ctx, b, namespace, index), namespace.Close())
	if err == nil {
		err = mark(f.prepared())
	}
	return err
}

func (d *Driver) setUpIn(ctx context.Context, b runtime.Bundle, namespace *os.File, index int) error {
	nameservers, err := d.nameservers()
	if err != nil {
		return err
	}
	var both errgroup.Group // neither needs the other, and each takes half the time
	both.Go(func() error {
		if b.Spec.Egress != holdfast.EgressNone {
			if err := forwardPackets(); err != nil {
				return err
			}
		}
		return errors.Join(d.network.connect(namespace, index),
			d.network.admit(guest{index: index, egress: b.Spec.Egress}, nameservers))
	})
	both.Go(func() error {
		if err := d.layOut(b, namespace, d.network.address(index), nameservers); err != nil {
			return err
		}
		return d.create(ctx, b)
	})
	if err := both.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// layOut writes the bundle's files.
func (d *Driver) layOut(b runtime.Bundle, namespace *os.File, address netip.Addr, nameservers []netip.Addr) error {
	f := d.files(b.Ref)
	for path, mode := range map[string]os.FileMode{f.upper(): 0o755, f.work(): 0o700, f.merged(): 0o700, f.run(): 0o700} {
		if err := makeDirectory(path, mode); err != nil {
			return err
		}
	}
	var names []string
	for _, n := range nameservers {
		names = append(names, n.String())
	}
	if err := writeLayer(f, string(b.Ref.Instance), address.String(), names); err != nil {
		return err
	}
	config, err := guestJSON(b.Guest)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.run(), "config.json"), config, 0o600); err != nil {
		return err
	}
	features, err := readHostFeatures()
	if err != nil {
		return err
	}
	return spec{
		bundle: b, files: f, guest: d.config.Guest, cgroup: d.cgroups.path(containerID(b.Ref)), host: features,
		netns: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd()),
	}.write()
}

// create has the OCI runtime make the container, up to but without the guest's
// first instruction.
func (d *Driver) create(ctx context.Context, b runtime.Bundle) (err error) {
	f := d.files(b.Ref)
	console, err := openConsole(b.Spool)
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	defer func() { err = errors.Join(err, console.Close()) }()
	socket, err := listenGuest(f)
	if err != nil {
		return fmt.Errorf("the guest's socket: %w", err)
	}
	defer func() { err = errors.Join(err, socket.Close()) }()
	if err := mountRoot(b, f); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmountRoot(context.WithoutCancel(ctx), f)) }()

	cmd, cancel := d.oci.start(ctx, "--log", f.log(), "--log-format", "json",
		"create", "--bundle", f.bundle(), "--pid-file", f.pid(), "--preserve-fds", "1", containerID(b.Ref))
	defer cancel()
	cmd.Stdout, cmd.Stderr = console, console // the container's too, from here on
	cmd.ExtraFiles = []*os.File{socket}
	if err := cmd.Run(); err != nil {
		said, readErr := os.ReadFile(f.log())
		if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
			err = errors.Join(err, readErr)
		}
		return d.oci.failed("create", err, string(said))
	}
	return nil
}

// listenGuest makes the listener that the guest inherits. The path is the
// host's alone, and is reached from a directory's descriptor since a socket's
// path has at most 107 bytes.
func listenGuest(f files) (*os.File, error) {
	dir, err := os.OpenFile(string(f), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socketPath(dir)})
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	return file, errors.Join(err, listener.Close(), dir.Close())
}

func socketPath(dir *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + socketName
}
