package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/runtime"
	"golang.org/x/sys/unix"
)

// mountRoot mounts the writable layer over the shared base, and what is between.
// The host's view of it lasts only until the OCI runtime has entered it: from then
// on the mount lives and dies with the guest's namespace, and cannot be left behind.
func mountRoot(b runtime.Bundle, f files) error {
	if len(b.Layers) == 0 {
		if err := mountOverlay(f.merged(), escaped(b.RootFS), escaped(f.upper()), escaped(f.work())); err != nil {
			return fmt.Errorf("mounting the root: %w", err)
		}
		return nil
	}
	if err := makeDirectory(f.lower(), 0o700); err != nil {
		return err
	}
	var lower []string
	for i, directory := range append([]string{b.RootFS}, b.Layers...) {
		link := filepath.Join(f.lower(), strconv.Itoa(i))
		if err := os.Symlink(directory, link); err != nil {
			return err
		}
		lower = append(lower, relative(f, link))
	}
	slices.Reverse(lower) // the topmost first
	err := within(string(f), func() error {
		return mountOverlay(relative(f, f.merged()), strings.Join(lower, ":"), relative(f, f.upper()), relative(f, f.work()))
	})
	if err != nil {
		return fmt.Errorf("mounting the root of %d layers: %w", len(lower), err)
	}
	return nil
}

// relative is a path below the boot's directory as it is called in there: a mount's
// options have one page, which holds the names of few directories.
func relative(f files, path string) string { return strings.TrimPrefix(path, string(f)+"/") }

func escaped(path string) string {
	return strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(path)
}

func mountOverlay(on, lower, upper, work string) error {
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	// What a layer cannot say is off: else a checkpoint could not be made of it.
	const plain = ",redirect_dir=off,metacopy=off,index=off"
	// volatile: the layer ends with the instance and never outlives its host's
	// boot, so nothing waits for its disk. Kernels before 5.10 do not know it, and
	// those before 4.19 not all of the others.
	const volatile = ",volatile"
	if len(options) >= os.Getpagesize()-len(plain)-len(volatile) {
		return fmt.Errorf("the paths are too long (%d bytes)", len(options))
	}
	err := unix.Mount("overlay", on, "overlay", 0, options+plain+volatile)
	for _, fewer := range []string{plain, ""} {
		if errors.Is(err, unix.EINVAL) {
			err = unix.Mount("overlay", on, "overlay", 0, options+fewer)
		}
	}
	return err
}

// within calls a function whose relative paths are below a directory.
func within(directory string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread, which alone goes there, ends with this.
		goruntime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chdir(directory)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// unmountRoot unmounts whatever is mounted on the root, be it nothing.
func unmountRoot(ctx context.Context, f files) error {
	for tries := 0; ; tries++ {
		err := unix.Unmount(f.merged(), unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // not a mount point, or not there
		case errors.Is(err, unix.EBUSY) && tries == 100:
			// Somebody on the host looks into it; it ends when they leave.
			err = unix.Unmount(f.merged(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("unmounting the root: %w", err)
		}
		if err != nil {
			if pauseErr := pause(ctx, unmountPause); pauseErr != nil {
				return errors.Join(fmt.Errorf("unmounting the root: %w", err), pauseErr)
			}
		}
	}
}

// writeLayer puts what every instance needs into the fresh layer: as files of
// its own, never through a path of the image, whose links are not followed.
func writeLayer(f files, hostname, address string, nameservers []string) error {
	etc := filepath.Join(f.upper(), "etc")
	if err := makeDirectory(etc, 0o755); err != nil {
		return err
	}
	var resolv strings.Builder
	for _, n := range nameservers {
		fmt.Fprintf(&resolv, "nameserver %s\n", n)
	}
	for name, text := range map[string]string{
		"hostname":    hostname + "\n",
		"hosts":       "127.0.0.1\tlocalhost\n" + address + "\t" + hostname + "\n",
		"resolv.conf": resolv.String(),
	} {
		path := filepath.Join(etc, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chmod(path, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// makeDirectory makes it with that mode, whatever the process's umask.
func makeDirectory(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// remove removes a boot's directory, its marks last: a half-removed boot that
// ran must not look like one that never did (trap T49).
func (f files) remove() error {
	entries, err := os.ReadDir(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := f.path(e.Name()); path != f.started() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(string(f))
}
