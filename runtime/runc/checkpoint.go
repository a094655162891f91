package runc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/layer"
	"github.com/holdfast-dev/holdfast/runtime"
)

// ofThisBoot is what the driver itself puts into a writable layer, or has the OCI
// runtime put there to mount on: names, addresses and mount points of one boot, which
// the next one gets anew (trap T50). The guest's secret, its socket and its agent's
// state are outside of the layer anyway.
func ofThisBoot() []string {
	return []string{"etc/hostname", "etc/hosts", "etc/resolv.conf", ".holdfast", "run/holdfast"}
}

// Checkpoint implements runtime.Driver: what runs is frozen while its layer is read.
// The mark beside it says so to whoever looks, and to a later process.
func (d *Driver) Checkpoint(ctx context.Context, ref holdfast.InstanceRef, w io.Writer) (err error) {
	if err := d.endCopy(ctx, ref); err != nil { // of an earlier call that could not
		return fmt.Errorf("runc: checkpoint: %w", err)
	}
	seen, err := d.look(ctx, ref)
	if err != nil {
		return fmt.Errorf("runc: checkpoint: %w", err)
	}
	switch phase, _ := seen.phase(); phase {
	case runtime.PhaseSuspended:
	case runtime.PhaseRunning:
		defer func() { err = errors.Join(err, d.endCopy(ctx, ref)) }()
		if err := mark(d.files(ref).copying()); err != nil {
			return fmt.Errorf("runc: checkpoint: %w", err)
		}
		if _, err := d.oci.run(ctx, "pause", containerID(ref)); err != nil {
			return errors.Join(d.lost(ctx, ref), fmt.Errorf("runc: checkpoint: %w", err))
		}
	default:
		return d.judge(ctx, ref, "checkpoint", nil)
	}
	if _, err := layer.Pack(ctx, d.files(ref).upper(), w, ofThisBoot()...); errors.Is(err, layer.ErrUnfit) {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCheckpointFailed, "its disk cannot be copied").On(string(ref.Instance)).Because(err)
	} else if err != nil {
		return errors.Join(d.lost(ctx, ref), fmt.Errorf("runc: checkpoint: %w", err))
	}
	return nil
}

// lost is a refusal if the instance is gone, which explains what else went wrong.
func (d *Driver) lost(ctx context.Context, ref holdfast.InstanceRef) error {
	if err := d.judge(ctx, ref, "checkpoint", nil, runtime.PhaseRunning, runtime.PhaseSuspended); holdfast.ReasonOf(err) == holdfast.ReasonInstanceLost {
		return err
	}
	return nil
}

// endCopy lets what stands still for a checkpoint run on. Nothing does: success.
func (d *Driver) endCopy(ctx context.Context, ref holdfast.InstanceRef) error {
	copying, err := exists(d.files(ref).copying())
	if err != nil || !copying {
		return err
	}
	id := containerID(ref)
	frozen, err := d.cgroups.frozen(id)
	if err == nil && frozen {
		// What froze it thaws it; but for that program's troubles no guest stands still.
		if _, failed := d.oci.run(ctx, "resume", id); failed != nil {
			if err = d.cgroups.thaw(id); err != nil {
				err = errors.Join(failed, err)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("letting it run on: %w", err)
	}
	if err := os.Remove(d.files(ref).copying()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("letting it run on: %w", err)
	}
	return nil
}

// endCopies lets everything run on that an earlier process had stand still. What
// cannot is logged, and tried again by whatever is done with it next: it must not
// keep the others' driver from opening.
func (d *Driver) endCopies(ctx context.Context) error {
	boots, err := os.ReadDir(d.instancesDirectory())
	if err != nil {
		return err
	}
	for _, b := range boots {
		ref, ok := parseContainerID(b.Name())
		if !ok {
			continue
		}
		if err := d.endCopy(ctx, ref); err != nil {
			d.config.Logger.Error("an instance stands still since a checkpoint of it was cut off", "instance", ref.Instance,
				"incarnation", ref.Incarnation, "error", err)
		}
	}
	return nil
}

// thaw ends a freeze without the OCI runtime.
func (c cgroups) thaw(id string) error {
	dirs, err := c.directories(id)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, writeIfThere(filepath.Join(dir, "freezer.state"), "THAWED"), writeIfThere(filepath.Join(dir, "cgroup.freeze"), "0"))
	}
	return errors.Join(errs...)
}
