package simulated

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// Method names a method of runtime.Driver.
type Method string

// The methods that can be made to fail, stall and lie.
const (
	MethodOpen      Method = "Open"
	MethodPrepare   Method = "Prepare"
	MethodStart     Method = "Start"
	MethodSuspend   Method = "Suspend"
	MethodResume    Method = "Resume"
	MethodStop      Method = "Stop"
	MethodInspect   Method = "Inspect"
	MethodList      Method = "List"
	MethodWait      Method = "Wait"
	MethodDialGuest Method = "DialGuest"

	MethodCheckpoint Method = "Checkpoint"
)

// Call is one call of the driver. Open and List concern no instance.
type Call struct {
	Method Method
	Ref    holdfast.InstanceRef
}

// Faults decides what a call suffers. It is called once per call, from any
// goroutine; the zero Fault is none.
type Faults func(call Call) Fault

// Fault is what one call suffers.
type Fault struct {
	Stall       <-chan struct{} // the call waits until it is closed, or for its context
	Err         error           // the call returns it
	AfterEffect bool            // stall and error come after the effect: it happened and its answer was lost
	Lie         *runtime.Status // Inspect answers it
	LieList     []runtime.Status
	// LieList is what List answers, where it is not nil.
}

func (h *host) fault(call Call) Fault {
	h.mu.Lock()
	faults := h.faults
	h.mu.Unlock()
	if faults == nil {
		return Fault{}
	}
	return faults(call)
}

func (h *host) suffer(ctx context.Context, call Call, effect func() error) error {
	return h.fault(call).around(ctx, effect)
}

// around runs effect with the fault before or after it. Like a real driver's, an
// effect is not undone when the context ends; a call whose context is over
// before it begins does nothing.
func (f Fault) around(ctx context.Context, effect func() error) error {
	if f.AfterEffect {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := effect(); err != nil {
			return err
		}
		return f.suffered(ctx)
	}
	if err := f.suffered(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return effect()
}

func (f Fault) suffered(ctx context.Context) error {
	if f.Stall != nil {
		select {
		case <-f.Stall:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return f.Err
}
