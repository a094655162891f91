package hostagent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// safely turns a panic of a step into the attempt's error: one instance must
// not take the others' agent down.
func (m *machine) safely(ctx context.Context, v view) (done bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return m.advance(ctx, v)
}

// advance takes one step. done: what is recorded is reached, or this attempt
// may do nothing about it.
func (m *machine) advance(ctx context.Context, v view) (done bool, err error) {
	for _, r := range v.leftover {
		if err := m.release(ctx, r.Ref); err != nil {
			return false, err
		}
		m.cleaned(r.Ref.Incarnation)
	}
	// An older incarnation is gone before a newer one begins (traps T37, T49).
	for _, r := range v.others {
		if v.asked || r.Orphan {
			if err := m.remove(ctx, r); err != nil {
				return false, err
			}
		}
	}
	if !v.has {
		return true, nil
	}
	next, seen, err := m.next(ctx, v)
	if err != nil {
		return false, err
	}
	if !v.asked && !next.step.settling() {
		return true, m.note(v.current, seen)
	}
	return m.take(ctx, v.current, next, seen)
}

// next looks at the runtime, where that matters, and plans. A failed look is
// never taken for "gone" (trap T27).
func (m *machine) next(ctx context.Context, v view) (planned, runtime.Status, error) {
	if p, ok := blind(v.current); ok {
		return p, runtime.Status{}, nil
	}
	a := m.agent
	seen, err := a.config.Driver.Inspect(ctx, v.current.Ref)
	if err != nil {
		return planned{}, seen, fmt.Errorf("inspect: %w", err)
	}
	return plan(v.current, seen.Phase, surroundings{
		bootID: a.bootID, survivesHost: a.capabilities.SurvivesHost, now: a.config.Clock(),
		boot: a.config.Timing.Boot, prepare: a.config.Timing.Prepare, asked: v.asked,
	}), seen, nil
}

func (m *machine) take(ctx context.Context, r record, next planned, seen runtime.Status) (done bool, err error) {
	switch next.step {
	case stepNone:
		return true, m.note(r, seen)
	case stepBoot:
		if seen.Phase == runtime.PhasePrepared {
			// By an attempt that ended before it was recorded from which image: that may
			// be another one now.
			if err := m.release(ctx, r.Ref); err != nil {
				return false, err
			}
		}
		return m.boot(ctx, r)
	case stepStart:
		return m.start(ctx, r)
	case stepAwait:
		m.watch(r.Ref)
		m.verify(r.Ref.Incarnation)
		return m.await(ctx, r)
	case stepSuspend:
		return m.suspend(ctx, r)
	case stepResume:
		return m.resume(ctx, r)
	case stepEnd:
		return true, m.end(ctx, r, next.failure)
	case stepRemove:
		return true, m.remove(ctx, r)
	}
	return false, fmt.Errorf("no such step: %q", next.step)
}

// note records what the runtime says where it differs from what is recorded,
// and watches what lives.
func (m *machine) note(r record, seen runtime.Status) error {
	if seen.Phase == runtime.PhaseRunning || seen.Phase == runtime.PhaseSuspended {
		m.watch(r.Ref)
	}
	if seen.Phase == runtime.PhaseSuspended && r.State != holdfast.InstanceSuspended {
		if err := m.commit(r.Ref.Incarnation, func(now *record) error {
			now.State = holdfast.InstanceSuspended
			return nil
		}); err != nil {
			return err
		}
	}
	m.verify(r.Ref.Incarnation)
	return nil
}

// verify notes that what is recorded was seen in the runtime by this process.
func (m *machine) verify(incarnation int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.verified[incarnation] = true
	m.broadcast()
}

func (m *machine) cleaned(incarnation int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leftover, incarnation)
}

// ending records why the incarnation must end; the next step ends it. The first
// reason stays.
func (m *machine) ending(r record, reason holdfast.Failure) error {
	reason.LogTail = m.agent.tail(r.Ref)
	return m.commit(r.Ref.Incarnation, func(now *record) error {
		if now.Ending == nil && !now.final() {
			now.Ending = &reason
		}
		return nil
	})
}

// refused turns a refusal of a boot into the incarnation's end, and leaves every
// other error as it is: the caller may try again.
func (m *machine) refused(ctx context.Context, r record, fallback holdfast.Reason, err error) error {
	if !isRefusal(ctx, err) {
		return err
	}
	e := holdfast.AsError(err)
	reason := e.Reason
	if reason == "" || reason == holdfast.ReasonBug {
		reason = fallback
	}
	return m.ending(r, holdfast.Failure{Reason: reason, Message: err.Error()})
}

// isRefusal reports an error that the same call would meet again. A step that was
// cut short tells nothing.
func isRefusal(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !holdfast.Transient(err)
}

// unavailable is what a caller hears of an attempt that failed but may succeed.
func (a *Agent) unavailable(id holdfast.InstanceID, err error) error {
	if a.life.Err() != nil {
		return draining(id).Because(err)
	}
	var e *holdfast.Error
	if errors.As(err, &e) && (e.Code == holdfast.Unavailable || !holdfast.Transient(e)) {
		return err
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonRuntime, "the runtime did not do it").On(string(id)).Because(err)
}
