package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountRoot mounts the writable layer over the shared base. The host's view of
// it lasts only until the OCI runtime has entered it: from then on the mount
// lives and dies with the guest's namespace, and cannot be left behind.
func mountRoot(base string, f files) error {
	// volatile: the layer ends with the instance and never outlives its host's
	// boot, so nothing waits for its disk. Kernels before 5.10 do not know it.
	escape := strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`)
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escape.Replace(base), escape.Replace(f.upper()), escape.Replace(f.work()))
	if len(options) >= os.Getpagesize()-len(",volatile") {
		return fmt.Errorf("mounting the root: the paths are too long (%d bytes)", len(options))
	}
	err := unix.Mount("overlay", f.merged(), "overlay", 0, options+",volatile")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("overlay", f.merged(), "overlay", 0, options)
	}
	if err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	return nil
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
