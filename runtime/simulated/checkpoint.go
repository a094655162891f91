package simulated

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

// Files is the directory that a boot's files are in: a guest makes it its root. It
// is there when an earlier checkpoint's files are, or the guest made it.
func Files(b runtime.Bundle) string { return filepath.Join(b.Directory, "files") }

// Checkpoint implements runtime.Driver. A layer has all files of the guest and not
// only what changed, so that of several the topmost is the whole.
func (d *Driver) Checkpoint(ctx context.Context, ref holdfast.InstanceRef, w io.Writer) error {
	return d.host.suffer(ctx, Call{MethodCheckpoint, ref}, func() error {
		i := d.host.find(ref)
		switch phase := i.phase(); phase {
		case runtime.PhaseRunning, runtime.PhaseSuspended:
		case runtime.PhasePrepared:
			return fmt.Errorf("simulated: checkpoint: it is %s", phase)
		default:
			return lost(ref, "checkpoint", phase)
		}
		defer i.standStill()()
		if err := os.MkdirAll(Files(i.bundle), 0o700); err != nil {
			return fmt.Errorf("simulated: checkpoint: %w", err)
		}
		if _, err := layer.Pack(ctx, Files(i.bundle), w); err != nil {
			return fmt.Errorf("simulated: checkpoint: %w", err)
		}
		return nil
	})
}

// standStill freezes what is not, of which phase says nothing, and returns what
// ends that.
func (i *instance) standStill() (end func()) {
	if i.gate.frozen() {
		return func() {}
	}
	i.mu.Lock()
	i.copying = true
	i.mu.Unlock()
	i.gate.set(true)
	return func() {
		i.gate.set(false)
		i.mu.Lock()
		i.copying = false
		i.mu.Unlock()
	}
}

// fill gives a new instance the files of its topmost layer.
func fill(ctx context.Context, b runtime.Bundle) error {
	if len(b.Layers) == 0 {
		return nil
	}
	from, to := b.Layers[len(b.Layers)-1], Files(b)
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o700)); err != nil {
		return fmt.Errorf("simulated: prepare: %w", err)
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := layer.Pack(ctx, from, w)
		packed <- errors.Join(err, w.CloseWithError(err))
	}()
	_, err := layer.Unpack(ctx, to, r, layer.Remove, layer.Limits{})
	if err = errors.Join(err, r.Close(), <-packed); err != nil {
		return fmt.Errorf("simulated: prepare: %w", err)
	}
	return nil
}
