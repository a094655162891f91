package kill

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// disk is an ext4 file system of its own, in a file, whose power can be cut: what
// was written and not synced is lost then.
type disk struct {
	image, dir string
}

// newDisk makes a disk and mounts it below dir until the test ends.
func newDisk(t *testing.T, dir, name string, size int64) (*disk, error) {
	t.Helper()
	d := &disk{image: filepath.Join(dir, name+".img"), dir: filepath.Join(dir, name)}
	if err := errors.Join(os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, size), os.Mkdir(d.dir, 0o700)); err != nil {
		return nil, err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", d.image).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a file system: %w %s", err, out)
	}
	if err := d.mount(); err != nil {
		t.Skipf("needs to mount a file system in a file: %v", err)
	}
	t.Cleanup(func() {
		if err := d.unmount(); err != nil {
			t.Error(err)
		}
	})
	return d, nil
}

func (d *disk) mount() error {
	if out, err := exec.Command("mount", "-o", "loop", d.image, d.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w %s", d.dir, err, out)
	}
	return nil
}

// renew gives the disk its power back, with what got there before. The file
// system is read from a copy of its file: some process that has just been started
// may still hold the old one mounted, which would then be mounted again as it is.
func (d *disk) renew() error {
	if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", d.dir, err)
	}
	copied := d.image + ".copy"
	if out, err := exec.Command("cp", "--sparse=always", d.image, copied).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w %s", d.image, err, out)
	}
	if err := os.Rename(copied, d.image); err != nil {
		return err
	}
	return d.mount()
}

// unmount waits for those who were killed and are not quite gone.
func (d *disk) unmount() error {
	var out []byte
	var err error
	unmounted := func() bool {
		out, err = exec.Command("umount", d.dir).CombinedOutput()
		return err == nil
	}
	if !testenv.Eventually(20*time.Second, unmounted) {
		return fmt.Errorf("unmount %s: %w %s", d.dir, err, out)
	}
	return nil
}

// The request to ext4 that ends all of its writing at once, its journal's too
// (EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH of linux/ext4.h).
const (
	shutdown   = 0x8004587d
	noLogFlush = 2
)

// cut lets nothing reach the disk any more: not what was written before either,
// unless it was synced or has got there by itself.
func (d *disk) cut() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), shutdown, noLogFlush); err != nil {
		err = fmt.Errorf("shut %s down: %w", d.dir, err)
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func (d *disk) sync() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// The sizes: a host's has to hold images and layers, the control plane's is small
// enough to be filled in no time.
const (
	controlDisk = 64 << 20
	hostDisk    = 256 << 20
)

// startUnplugged is a control plane and a host on two machines, as far as power
// and disks go.
func startUnplugged(t *testing.T, dir string) (*deployment, error) {
	key := filepath.Join(dir, "cluster.key")
	if err := os.WriteFile(key, []byte(rand.Text()+rand.Text()+"\n"), 0o600); err != nil {
		return nil, err
	}
	control, err := newDisk(t, dir, "control", controlDisk)
	if err != nil {
		return nil, err
	}
	host, err := newDisk(t, dir, "machine", hostDisk)
	if err != nil {
		return nil, err
	}
	front := testenv.FreeAddress(t)
	return startSQLite(t, dir, map[string]part{
		"orchestrator": {listen: front, disk: control, args: []string{"--roles", "orchestrator,fleet", "--cluster-key-file", key}},
		"host":         {disk: host, args: []string{"--roles", "host", "--cluster-key-file", key, "--orchestrator-url", "http://" + front, "--fleet-url", "http://" + front}},
	})
}

// atPower cuts the power of a server's machine: its processes end, its disk keeps
// what was synced, and everything else is gone.
func (s *striker) atPower(b strike) error {
	server := s.d.servers[b.victim%len(s.d.servers)]
	disk := s.d.disks[server]
	s.goingOn.Wait()
	if server.Name == "host" {
		s.hostDeaths()
		// Nothing more is begun or answered from here on.
		if err := server.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		guests, err := guestsOf(server.DataDir)
		if err != nil {
			return err
		}
		for _, g := range guests {
			s.struck(g.instance, unplugged)
		}
	}
	s.hit(server.Name + " unplugged")
	// A server that sees its disk go first must not answer for what it lost.
	first, then := disk.cut, server.Kill
	if b.victim%3 == 0 {
		first, then = then, first
	}
	helpers, err := testenv.Descendants(server.PID())
	if err != nil {
		return err
	}
	if err := errors.Join(first(), then()); err != nil {
		return err
	}
	for _, pid := range helpers {
		s.note(syscall.Kill(pid, syscall.SIGKILL))
	}
	if server.Name == "host" {
		if err := testenv.WipeMachine(server.DataDir); err != nil {
			return err
		}
	}
	if err := disk.renew(); err != nil {
		return err
	}
	wait(b.down)
	return server.Start()
}

// atRoom fills the control plane's disk, and makes room again.
func (s *striker) atRoom(b strike) error {
	for _, server := range s.d.servers {
		if server.Name == "host" {
			continue
		}
		filler := filepath.Join(s.d.disks[server].dir, "filler")
		s.hit(server.Name + "'s disk filled")
		out, err := exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=4k").CombinedOutput() // ends when the disk is full
		if err == nil {
			return fmt.Errorf("the disk is not full: %s", out)
		}
		wait(b.after + b.down)
		if err := os.Remove(filler); err != nil {
			return err
		}
		if err := syncDirectory(filepath.Dir(filler)); err != nil { // or it comes back with the power
			return err
		}
	}
	return nil
}

func syncDirectory(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
