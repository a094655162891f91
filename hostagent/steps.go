package hostagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// boot prepares, records the start, and starts. Until the start is recorded it
// can be repeated; from then on it never is.
func (m *machine) boot(ctx context.Context, r record) (done bool, err error) {
	base, err := m.image(ctx, r)
	if err != nil {
		return false, m.refused(ctx, r, holdfast.ReasonImageFailed, err)
	}
	layers, err := m.layers(ctx, r)
	if err != nil {
		return false, m.refused(ctx, r, holdfast.ReasonImageFailed, err)
	}
	a := m.agent
	dir, spool := a.places.directory(r.Ref), a.places.spool(r.Ref)
	if !a.config.Volatile { // else whoever first writes to it makes it
		if err := os.MkdirAll(spool, 0o700); err != nil {
			return false, fmt.Errorf("make the spool: %w", err)
		}
	}
	err = a.config.Driver.Prepare(ctx, runtime.Bundle{
		Ref: r.Ref, RootFS: base.RootFS, Layers: layers, Spec: *r.Spec, Directory: dir, Spool: spool,
		Guest: holdfast.GuestConfig{
			Instance: r.Ref.Instance, Incarnation: r.Ref.Incarnation, CallbackURL: a.gatewayURL,
			Secret: m.secret(r.Ref.Incarnation), ProcessDefaults: below(base.Defaults, r.Spec.Env),
		},
	})
	if err != nil {
		return false, m.refused(ctx, r, holdfast.ReasonPrepareFailed, fmt.Errorf("prepare: %w", err))
	}
	r.Base = base.ID
	return m.start(ctx, r)
}

// below puts an instance's own variables above those of its image.
func below(image holdfast.ProcessDefaults, own map[string]string) holdfast.ProcessDefaults {
	if len(image.Env) == 0 {
		image.Env = own
		return image
	}
	image.Env = maps.Clone(image.Env)
	maps.Copy(image.Env, own)
	return image
}

// image waits for the image, the very one that the layers are of where there are any.
func (m *machine) image(ctx context.Context, r record) (base holdfast.BaseImage, err error) {
	err = m.within(ctx, r, fmt.Sprintf("image %q", r.Spec.Image), func(ctx context.Context) (err error) {
		base, err = m.agent.images.ensure(ctx, wantedImage{r.Spec.Image, holdfast.BaseOf(r.Spec.Layers)}, m.say)
		return err
	})
	return base, err
}

// layers waits for the layers above the image, the lowest first.
func (m *machine) layers(ctx context.Context, r record) (directories []string, err error) {
	a, all := m.agent, r.Spec.Layers
	if len(all) > 0 && a.config.Layers == nil {
		return nil, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable, "this host has no blob store to fetch layers from")
	}
	for i, one := range all {
		what := fmt.Sprintf("layer %d of %d", i+1, len(all))
		err := m.within(ctx, r, what, func(ctx context.Context) error {
			directory, err := a.config.Layers.Ensure(ctx, one, func(text string) { m.say(what + ": " + text) })
			directories = append(directories, directory)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return directories, nil
}

// within waits for something within the deadline that counts from the first level,
// not from the latest attempt (trap T31).
func (m *machine) within(ctx context.Context, r record, what string, wait func(context.Context) error) error {
	a := m.agent
	left := a.config.Timing.Prepare - a.config.Clock().Sub(r.CreatedAt)
	late := errors.New("too late")
	within, cancel := context.WithTimeoutCause(ctx, max(left, time.Second), late)
	defer cancel()
	err := wait(within)
	m.say("")
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(within), late) {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed,
			"%s was not ready within %s", what, a.config.Timing.Prepare)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (m *machine) say(progress string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.progress = progress
}

// start records that guest code may run from now on, durably, then lets it.
func (m *machine) start(ctx context.Context, r record) (done bool, err error) {
	a := m.agent
	now := a.config.Clock()
	if !r.Started || now.Sub(r.StartedAt) >= a.config.Timing.Boot {
		err := m.commit(r.Ref.Incarnation, func(current *record) error {
			if current.Removing || current.Ending != nil {
				return errRedirected
			}
			current.Started, current.StartedAt, current.BootID, current.Base = true, now, a.bootID, r.Base
			current.State = holdfast.InstanceBooting
			r = current.clone()
			return nil
		})
		if errors.Is(err, errRedirected) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if err := a.config.Driver.Start(ctx, r.Ref); err != nil {
		if isRefusal(ctx, err) {
			return false, m.ending(r, holdfast.Failure{Reason: holdfast.ReasonBootFailed, Message: "start: " + err.Error()})
		}
		return false, fmt.Errorf("start: %w", err)
	}
	m.watch(r.Ref)
	return m.await(ctx, r)
}

func (m *machine) suspend(ctx context.Context, r record) (done bool, err error) {
	if err := m.agent.config.Driver.Suspend(ctx, r.Ref); err != nil {
		return false, unlessGone("suspend", err)
	}
	err = m.commit(r.Ref.Incarnation, func(now *record) error {
		now.State = holdfast.InstanceSuspended
		return nil
	})
	if err == nil {
		m.verify(r.Ref.Incarnation)
	}
	return err == nil, err
}

func (m *machine) resume(ctx context.Context, r record) (done bool, err error) {
	a := m.agent
	if r.BootID != a.bootID {
		// Saved on disk by an earlier boot of the host: from now on it runs on this one.
		if err := m.commit(r.Ref.Incarnation, func(now *record) error { now.BootID = a.bootID; return nil }); err != nil {
			return false, err
		}
	}
	if err := a.config.Driver.Resume(ctx, r.Ref); err != nil {
		return false, unlessGone("resume", err)
	}
	m.watch(r.Ref)
	return m.await(ctx, r)
}

// unlessGone leaves it to the next look what became of an instance that the
// runtime says is gone.
func unlessGone(verb string, err error) error {
	if holdfast.ReasonOf(err) == holdfast.ReasonInstanceLost {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// end gives back everything but the output, then says EXITED: whoever reads that
// may count on it.
func (m *machine) end(ctx context.Context, r record, why *holdfast.Failure) error {
	if r.Ending == nil {
		if err := m.ending(r, *why); err != nil {
			return err
		}
	}
	if err := m.release(ctx, r.Ref); err != nil {
		return err
	}
	err := m.commit(r.Ref.Incarnation, func(now *record) error {
		now.State, now.Failure, now.EndedAt = holdfast.InstanceExited, now.Ending, m.agent.config.Clock()
		now.Ports, now.Address = nil, ""
		return nil
	})
	if err != nil {
		return err
	}
	m.forget(r.Ref.Incarnation)
	m.report(r.Ref.Incarnation)
	return nil
}

// remove leaves nothing of the incarnation but a tombstone, which keeps a late
// RUNNING from booting it (traps T39, T40).
func (m *machine) remove(ctx context.Context, r record) error {
	if err := m.release(ctx, r.Ref); err != nil {
		return err
	}
	m.forget(r.Ref.Incarnation)
	if err := m.agent.places.empty(r.Ref); err != nil {
		return fmt.Errorf("remove the files: %w", err)
	}
	return m.commit(r.Ref.Incarnation, func(now *record) error {
		now.State, now.Removing, now.TombstoneAt = holdfast.InstanceAbsent, true, m.agent.config.Clock()
		now.Spec, now.Failure, now.Ending, now.Ports, now.Address, now.Quarantine = nil, nil, nil, nil, "", ""
		return nil
	})
}

// release stops what runs and makes sure that the runtime has nothing left.
func (m *machine) release(ctx context.Context, ref holdfast.InstanceRef) error {
	driver := m.agent.config.Driver
	if err := driver.Stop(ctx, ref); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	seen, err := driver.Inspect(ctx, ref)
	if err != nil {
		return fmt.Errorf("inspect what was stopped: %w", err)
	}
	if seen.Phase != runtime.PhaseAbsent {
		return fmt.Errorf("it was stopped, yet the runtime says %s", seen.Phase)
	}
	return nil
}
