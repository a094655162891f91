package runc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"golang.org/x/sys/unix"
)

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, ref holdfast.InstanceRef) error {
	ready, err := d.startable(ctx, ref)
	if err != nil {
		return fmt.Errorf("runc: start: %w", err)
	}
	if ready {
		// From here on it may have run, whatever becomes of us.
		if err := mark(d.files(ref).started()); err != nil {
			return fmt.Errorf("runc: start: %w", err)
		}
		var went bool
		if went, err = d.letGo(ctx, ref); err == nil && !went {
			_, err = d.oci.run(ctx, "start", containerID(ref))
		}
		if err == nil {
			return nil
		}
	}
	return d.judge(ctx, ref, "start", err, runtime.PhaseRunning, runtime.PhaseSuspended)
}

// startable reports whether there is something to start: what a reboot took
// must not be marked as if it had run. Where the OCI runtime keeps a directory
// for the container, which runc and crun do, that is seen without running it.
func (d *Driver) startable(ctx context.Context, ref holdfast.InstanceRef) (bool, error) {
	prepared, err := exists(d.files(ref).prepared())
	if err != nil || !prepared {
		return false, err
	}
	there, err := exists(filepath.Join(d.oci.root, containerID(ref)))
	if err != nil || there {
		return there, err
	}
	seen, err := d.look(ctx, ref)
	phase, _ := seen.phase()
	return phase == runtime.PhasePrepared, err
}

// Suspend implements runtime.Driver: every process of the instance is frozen.
func (d *Driver) Suspend(ctx context.Context, ref holdfast.InstanceRef) error {
	if err := d.endCopy(ctx, ref); err != nil {
		return fmt.Errorf("runc: suspend: %w", err)
	}
	// The OCI runtime would freeze what was never started, too.
	seen, err := d.look(ctx, ref)
	if err != nil {
		return fmt.Errorf("runc: suspend: %w", err)
	}
	if phase, _ := seen.phase(); phase == runtime.PhaseRunning {
		if _, err = d.oci.run(ctx, "pause", containerID(ref)); err == nil {
			return nil
		}
	}
	return d.judge(ctx, ref, "suspend", err, runtime.PhaseSuspended)
}

// Resume implements runtime.Driver.
func (d *Driver) Resume(ctx context.Context, ref holdfast.InstanceRef) error {
	if err := d.endCopy(ctx, ref); err != nil {
		return fmt.Errorf("runc: resume: %w", err)
	}
	_, err := d.oci.run(ctx, "resume", containerID(ref))
	if err == nil {
		return nil
	}
	return d.judge(ctx, ref, "resume", err, runtime.PhaseRunning)
}

// judge looks what became of a verb that failed: an error's text tells nothing
// for certain, the state does.
func (d *Driver) judge(ctx context.Context, ref holdfast.InstanceRef, verb string, failed error, wanted ...runtime.Phase) error {
	status, err := d.Inspect(ctx, ref)
	if err != nil {
		return errors.Join(fmt.Errorf("runc: %s: %w", verb, failed), err)
	}
	for _, phase := range wanted {
		if status.Phase == phase {
			return nil
		}
	}
	if status.Phase == runtime.PhaseAbsent || status.Phase == runtime.PhaseExited {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonInstanceLost,
			"runc: %s: the instance is %s", verb, strings.ToLower(string(status.Phase))).On(string(ref.Instance)).Because(failed)
	}
	if failed == nil {
		failed = errors.New("it is " + string(status.Phase))
	}
	return fmt.Errorf("runc: %s: %w", verb, failed)
}

// Stop implements runtime.Driver.
func (d *Driver) Stop(ctx context.Context, ref holdfast.InstanceRef) error {
	if _, ok := parseContainerID(containerID(ref)); !ok {
		return nil // never ours
	}
	if err := d.clean(ctx, ref); err != nil {
		return fmt.Errorf("runc: stop: %w", err)
	}
	return nil
}

// clean removes all there can be of a boot. Each step begins with looking, so
// that it works after any of the others, and each is tried whatever became of
// those before; the directory, by which a later process finds the rest, goes
// last and only if all of that is gone.
func (d *Driver) clean(ctx context.Context, ref holdfast.InstanceRef) error {
	f, id := d.files(ref), containerID(ref)
	kept, known, err := f.readSettings()
	if err != nil {
		return err
	}
	err = d.cgroups.kill(ctx, id)
	if deleteErr := d.forget(ctx, id); deleteErr != nil {
		err = errors.Join(err, fmt.Errorf("removing the container: %w", deleteErr))
	}
	err = errors.Join(err, d.cgroups.remove(ctx, id), unmountRoot(ctx, f))
	if known {
		err = errors.Join(err, d.network.disconnect(id, kept.Index))
	} else {
		d.network.release(id)
	}
	if err != nil {
		return err
	}
	if err := f.remove(); err != nil {
		return fmt.Errorf("removing the files: %w", err)
	}
	return nil
}

// forget has the OCI runtime remove its container, where it can have one.
func (d *Driver) forget(ctx context.Context, id string) error {
	ours, err := exists(string(files(d.instancesDirectory() + "/" + id)))
	if err != nil {
		return err
	}
	theirs, err := exists(d.oci.root + "/" + id)
	if err != nil || !ours && !theirs {
		return err
	}
	return d.oci.delete(ctx, id)
}

// DialGuest implements runtime.Driver. A guest that does not run answers
// nothing; one that is frozen answers when it is resumed, so give a deadline.
func (d *Driver) DialGuest(ctx context.Context, ref holdfast.InstanceRef) (net.Conn, error) {
	dir, err := os.OpenFile(string(d.files(ref)), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("runc: dial: %w", err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socketPath(dir))
	if closeErr := dir.Close(); closeErr != nil {
		if conn != nil {
			closeErr = errors.Join(closeErr, conn.Close())
		}
		return nil, errors.Join(err, closeErr)
	}
	if err != nil {
		return nil, fmt.Errorf("runc: dial: %w", err)
	}
	return conn, nil
}

// passing reports whether a refusal speaks of a shortage that passes.
func passing(message string) bool {
	message = strings.ToLower(message)
	for _, s := range []string{"cannot allocate memory", "resource temporarily unavailable", "no space left",
		"too many open files", "device or resource busy", "timed out", "timeout", "interrupted"} {
		if strings.Contains(message, s) {
			return true
		}
	}
	return false
}
