// Package runc runs instances with an OCI runtime (runc, crun, or what takes
// the same commands): an overlay root over a shared base, PID 1 is the guest
// agent, one network namespace each behind a bridge of the host agent.
//
// What an instance needs from the host is kept under Config.Directory, one
// directory per boot, so that a driver that starts again finds it; what a reboot
// must wipe (the OCI runtime's own state) is under Config.RunDirectory. Every
// step looks at what is there and not at what it remembers.
package runc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"golang.org/x/sys/unix"
)

// Config says where a Driver keeps its things and what it runs.
type Config struct {
	Directory    string // the driver's own, durable, of one host agent alone; made if missing
	RunDirectory string // wiped when the host boots anew; default /run/holdfast
	Binary       string // the OCI runtime, a name in PATH or a path; default "runc"
	Guest        string // the guest agent: a static executable on the host, mounted read-only into every instance
	Nameservers  []string
	// Nameservers are for guests; default: the host's that are not its own loopback.

	CommandTimeout time.Duration // of one run of Binary; default 60 s
	KillTimeout    time.Duration // until killed processes must be gone; default 10 s
	ConsoleKept    int64         // bytes of a console that stay readable; default 16 MiB, as many as package spool reads
	Logger         *slog.Logger  // default: slog.Default
}

func (c Config) withDefaults() Config {
	if c.RunDirectory == "" {
		c.RunDirectory = "/run/holdfast"
	}
	if c.Binary == "" {
		c.Binary = "runc"
	}
	if c.CommandTimeout == 0 {
		c.CommandTimeout = 60 * time.Second
	}
	if c.KillTimeout == 0 {
		c.KillTimeout = 10 * time.Second
	}
	if c.ConsoleKept == 0 {
		c.ConsoleKept = 16 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Driver is a runtime.Driver on one host. Two drivers never share a Directory:
// Open takes a lock on it.
type Driver struct {
	config  Config
	name    string // eight hexadecimal characters, of the directory: names what this driver makes on the host
	oci     command
	cgroups cgroups
	network *network

	mu     sync.Mutex
	lock   *os.File
	cancel context.CancelFunc
	done   sync.WaitGroup
}

var _ runtime.Driver = (*Driver)(nil)

// New makes a driver; it touches nothing on the host before Open.
func New(config Config) (*Driver, error) {
	config = config.withDefaults()
	if config.Directory == "" || config.Guest == "" {
		return nil, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "runc: Directory and Guest are needed")
	}
	directory, err := filepath.Abs(config.Directory)
	if err != nil {
		return nil, fmt.Errorf("runc: directory: %w", err)
	}
	config.Directory = directory
	if config.Guest, err = filepath.Abs(config.Guest); err != nil {
		return nil, fmt.Errorf("runc: guest: %w", err)
	}
	sum := sha256.Sum256([]byte(directory))
	name := hex.EncodeToString(sum[:4])
	d := &Driver{config: config, name: name}
	d.oci = command{binary: config.Binary, root: filepath.Join(d.runDirectory(), "oci"), timeout: config.CommandTimeout, patience: strayPatience}
	d.cgroups = cgroups{parent: "/holdfast-" + name, timeout: config.KillTimeout}
	d.network = newNetwork(name, config.Directory)
	return d, nil
}

// Capabilities implements runtime.Driver: suspended instances are frozen and do
// not outlive their host.
func (d *Driver) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Name: "runc", SuspendKind: "frozen"}
}

// Open implements runtime.Driver. What cannot become better by trying again (no
// root, no OCI runtime, another driver on the same directory) is
// FAILED_PRECONDITION.
func (d *Driver) Open(ctx context.Context) (gateway net.Listener, url string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock != nil {
		return nil, "", holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "runc: open already")
	}
	if os.Geteuid() != 0 {
		return nil, "", holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable, "runc: running containers needs root")
	}
	if d.oci.binary, err = exec.LookPath(d.config.Binary); err != nil {
		return nil, "", holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable,
			"runc: there is no OCI runtime %q (on Debian: apt-get install runc)", d.config.Binary).Because(err)
	}
	if err := os.MkdirAll(d.instancesDirectory(), 0o700); err != nil {
		return nil, "", fmt.Errorf("runc: open: %w", err)
	}
	lock, err := lockDirectory(ctx, d.config.Directory)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := d.readyRunDirectory(ctx); err != nil {
		return nil, "", fmt.Errorf("runc: open: %w", err)
	}
	if d.cgroups.roots, err = cgroupRoots(); err != nil {
		return nil, "", fmt.Errorf("runc: open: %w", err)
	}
	if err := d.endCopies(ctx); err != nil {
		return nil, "", fmt.Errorf("runc: open: %w", err)
	}
	if err := d.adoptNetwork(); err != nil {
		return nil, "", fmt.Errorf("runc: open: network: %w", err)
	}
	gateway, err = d.network.listen()
	if err != nil {
		return nil, "", fmt.Errorf("runc: open: gateway: %w", err)
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.lock, d.cancel = lock, cancel
	d.done.Go(func() { d.boundConsoles(background) })
	return gateway, "http://" + gateway.Addr().String(), nil
}

// Close implements runtime.Driver. The gateway is its owner's to close.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock == nil {
		return nil
	}
	d.cancel()
	d.done.Wait()
	err := d.lock.Close()
	d.lock = nil
	return err
}

// Uninstall removes what Open made on the host: bridge, firewall, control
// groups, the OCI runtime's state. It refuses while an instance is left, and does
// nothing before Open.
func (d *Driver) Uninstall(ctx context.Context) error {
	if !d.network.plan.Subnet.IsValid() {
		return nil // never opened: what is there, another driver of the directory made
	}
	left, err := d.List(ctx)
	if err != nil {
		return fmt.Errorf("runc: uninstall: %w", err)
	}
	if len(left) > 0 {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "runc: %d instances are left", len(left))
	}
	return errors.Join(d.network.remove(), d.cgroups.remove(ctx, ""), os.RemoveAll(d.runDirectory()))
}

// readyRunDirectory makes the directory of the OCI runtime's state, wipes what
// an earlier boot of the host left there (where /run is no tmpfs), and waits for
// runtime processes that a killed driver left behind.
func (d *Driver) readyRunDirectory(ctx context.Context) error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	mark := filepath.Join(d.runDirectory(), "boot_id")
	seen, err := os.ReadFile(mark)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ours := string(seen) == string(boot)
	if !ours {
		if err := os.RemoveAll(d.runDirectory()); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(d.oci.root, 0o700); err != nil {
		return err
	}
	if err := d.oci.endStrays(ctx); err != nil || ours {
		return err
	}
	// All of it or nothing: the next start would take half a mark for another
	// boot's, and wipe the state of what runs.
	return writeDurably(mark, boot)
}

// strayPatience is how long a create that a killed driver began may take to end.
const strayPatience = 5 * time.Second

// lockPatience is how long a lock is awaited: a process that was killed while it
// started another leaves the lock to that one's first moments.
const lockPatience = time.Second

func lockDirectory(ctx context.Context, directory string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("runc: lock: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("runc: lock: %w", err), f.Close())
		}
		if pause(ctx, wait) != nil {
			return nil, errors.Join(holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState,
				"runc: another driver works in %s", directory), f.Close())
		}
	}
}
