package simulated

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// instance is one boot on the simulated host.
type instance struct {
	bundle  runtime.Bundle
	address string
	socket  *listener
	gate    *gate
	ended   chan struct{} // closed when it no longer runs, or never will

	mu      sync.Mutex
	started bool
	copying bool // it stands still for a checkpoint
	detail  string
	cancel  context.CancelFunc
}

func newInstance(b runtime.Bundle, address string) *instance {
	return &instance{bundle: b, address: address, socket: newListener(addr(address + ":1")), gate: newGate(), ended: make(chan struct{})}
}

// boot lets the guest run. The caller holds the host's lock.
func (i *instance) boot(newGuest NewGuest) {
	// Not the caller's context: an instance outlives the call that starts it.
	ctx, cancel := context.WithCancel(context.Background())
	i.mu.Lock()
	i.started, i.cancel = true, cancel
	i.mu.Unlock()
	go func() {
		defer close(i.ended)
		defer i.gate.end()
		defer i.socket.shut()
		defer cancel()
		err := i.run(ctx, newGuest)
		if err != nil && !errors.Is(err, context.Canceled) {
			err = errors.Join(err, say(i.bundle, "guest: "+err.Error()))
			i.mu.Lock()
			i.detail = err.Error()
			i.mu.Unlock()
		}
	}()
}

func (i *instance) run(ctx context.Context, newGuest NewGuest) error {
	if newGuest == nil {
		<-ctx.Done() // an instance without a guest runs, and answers nobody
		return nil
	}
	g, err := newGuest(ctx, i.bundle)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	i.socket.onCall(func() { served <- g.Serve(i.socket) })
	err = g.Run(ctx)
	i.socket.shut()
	if i.socket.idle() != nil { // nobody called, and nobody can any more
		served <- nil
	}
	err = errors.Join(err, g.Close())
	return errors.Join(err, <-served)
}

// kill ends the guest, frozen or not, and returns when it has ended.
func (i *instance) kill(ctx context.Context) error {
	i.mu.Lock()
	started, cancel := i.started, i.cancel
	if !started {
		i.started = true // it never will
		close(i.ended)
	}
	i.mu.Unlock()
	i.gate.thaw()
	i.socket.shut()
	if cancel != nil {
		cancel()
	}
	select {
	case <-i.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i *instance) phase() runtime.Phase {
	if i == nil {
		return runtime.PhaseAbsent
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.phaseLocked()
}

func (i *instance) phaseLocked() runtime.Phase {
	select {
	case <-i.ended:
		return runtime.PhaseExited
	default:
	}
	switch {
	case !i.started:
		return runtime.PhasePrepared
	case i.gate.frozen() && !i.copying:
		return runtime.PhaseSuspended
	}
	return runtime.PhaseRunning
}

func (i *instance) status(ref holdfast.InstanceRef) runtime.Status {
	if i == nil {
		return runtime.Status{Ref: ref, Phase: runtime.PhaseAbsent}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return runtime.Status{Ref: ref, Phase: i.phaseLocked(), Address: i.address, Detail: i.detail}
}
