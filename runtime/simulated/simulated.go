// Package simulated runs instances in memory: a guest is a goroutine, its
// network a pair of pipes. It is for simulation and benchmarks of the control
// plane, works under testing/synctest, and can be made to fail, stall and lie in
// every call, and to lose its host.
package simulated

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// Guest is what runs inside an instance.
type Guest interface {
	Serve(listener net.Listener) error // answers the host (H11) until the listener closes
	Run(ctx context.Context) error     // boots, calls home, and returns when it exits; ctx ends when the instance is killed
	Close() error                      // after Run returned; everything of it ends
}

// NewGuest makes the guest of one boot. Its error is the instance's exit.
type NewGuest func(ctx context.Context, b runtime.Bundle) (Guest, error)

// Config says what a simulated host is like.
type Config struct {
	NewGuest NewGuest
	Faults   Faults // may be nil; see SetFaults
}

// GatewayURL is where guests reach the host agent, by DialGateway.
const GatewayURL = "http://gateway.simulated"

// Driver is a runtime.Driver over a simulated host.
type Driver struct {
	host *host

	mu     sync.Mutex
	opened bool
}

var _ runtime.Driver = (*Driver)(nil)

// host is the machine; it outlives the drivers on it.
type host struct {
	config Config

	mu        sync.Mutex
	faults    Faults
	gateway   *listener // of the driver that is open; nil while none is
	instances map[holdfast.InstanceRef]*instance
	boots     map[holdfast.InstanceRef]int
	addresses int
}

// New makes a driver on a host of its own.
func New(config Config) *Driver {
	return &Driver{host: &host{config: config, faults: config.Faults,
		instances: map[holdfast.InstanceRef]*instance{}, boots: map[holdfast.InstanceRef]int{}}}
}

// Restart returns another driver on the same host, as after a crash of the
// process that held d; d refuses everything from then on.
func (d *Driver) Restart() *Driver {
	d.host.closeGateway()
	d.mu.Lock()
	d.opened = false
	d.mu.Unlock()
	return &Driver{host: d.host}
}

// SetFaults replaces what the calls are made to suffer; nil ends it.
func (d *Driver) SetFaults(f Faults) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	d.host.faults = f
}

// Boots counts how often a boot began, over all restarts of driver and host. An
// incarnation boots once: more than one is a bug (trap T49).
func (d *Driver) Boots(ref holdfast.InstanceRef) int {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	return d.host.boots[ref]
}

// CrashHost ends every instance and forgets all runtime state, as a reboot of
// the machine does. The driver must be made anew by Restart.
func (d *Driver) CrashHost(ctx context.Context) error {
	d.host.mu.Lock()
	lost := d.host.instances
	d.host.instances = map[holdfast.InstanceRef]*instance{}
	d.host.mu.Unlock()
	var errs []error
	for _, ref := range slices.SortedFunc(maps.Keys(lost), compareRefs) {
		errs = append(errs, lost[ref].kill(ctx))
	}
	return errors.Join(errs...)
}

// Truth is what the host has, whatever the faults make List say.
func (d *Driver) Truth() []runtime.Status {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	all := make([]runtime.Status, 0, len(d.host.instances))
	for _, ref := range slices.SortedFunc(maps.Keys(d.host.instances), compareRefs) {
		all = append(all, d.host.instances[ref].status(ref))
	}
	return all
}

func compareRefs(a, b holdfast.InstanceRef) int {
	return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Incarnation, b.Incarnation))
}

// Capabilities implements runtime.Driver.
func (d *Driver) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Name: "simulated", SuspendKind: "frozen", WholeLayers: true}
}

// Open implements runtime.Driver.
func (d *Driver) Open(ctx context.Context) (net.Listener, string, error) {
	var gateway net.Listener
	err := d.host.suffer(ctx, Call{Method: MethodOpen}, func() error {
		g, err := d.host.openGateway()
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.opened = true
		d.mu.Unlock()
		gateway = g
		return nil
	})
	return gateway, GatewayURL, err
}

// Close implements runtime.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened {
		d.host.closeGateway()
		d.opened = false
	}
	return nil
}

// Prepare implements runtime.Driver.
func (d *Driver) Prepare(ctx context.Context, b runtime.Bundle) error {
	return d.host.suffer(ctx, Call{MethodPrepare, b.Ref}, func() error {
		if d.host.find(b.Ref) == nil {
			if err := fill(ctx, b); err != nil {
				return err
			}
		}
		d.host.mu.Lock()
		defer d.host.mu.Unlock()
		if i := d.host.instances[b.Ref]; i != nil {
			if i.phase() == runtime.PhaseExited {
				return lost(b.Ref, "prepare", runtime.PhaseExited)
			}
			return nil
		}
		d.host.addresses++
		n := d.host.addresses
		d.host.instances[b.Ref] = newInstance(b, fmt.Sprintf("10.99.%d.%d", n>>8&0xff, n&0xff))
		return nil
	})
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.host.suffer(ctx, Call{MethodStart, ref}, func() error {
		d.host.mu.Lock()
		defer d.host.mu.Unlock()
		i := d.host.instances[ref]
		switch i.phase() {
		case runtime.PhaseRunning, runtime.PhaseSuspended:
			return nil
		case runtime.PhaseAbsent, runtime.PhaseExited:
			return lost(ref, "start", i.phase())
		}
		d.host.boots[ref]++
		i.boot(d.host.config.NewGuest)
		return nil
	})
}

// Suspend implements runtime.Driver: what the guest reads and writes stands
// still, though its goroutines do not.
func (d *Driver) Suspend(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.host.suffer(ctx, Call{MethodSuspend, ref}, func() error { return d.host.freeze(ref, true) })
}

// Resume implements runtime.Driver.
func (d *Driver) Resume(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.host.suffer(ctx, Call{MethodResume, ref}, func() error { return d.host.freeze(ref, false) })
}

func (h *host) freeze(ref holdfast.InstanceRef, frozen bool) error {
	i := h.find(ref)
	verb := map[bool]string{true: "suspend", false: "resume"}[frozen]
	switch phase := i.phase(); phase {
	case runtime.PhaseRunning, runtime.PhaseSuspended:
		i.gate.set(frozen)
		return nil
	case runtime.PhasePrepared:
		return fmt.Errorf("simulated: %s: it is %s", verb, phase)
	default:
		return lost(ref, verb, phase)
	}
}

// Stop implements runtime.Driver.
func (d *Driver) Stop(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.host.suffer(ctx, Call{MethodStop, ref}, func() error {
		i := d.host.find(ref)
		if i == nil {
			return nil
		}
		if err := i.kill(ctx); err != nil {
			return fmt.Errorf("simulated: stop: %w", err)
		}
		d.host.mu.Lock()
		defer d.host.mu.Unlock()
		if d.host.instances[ref] == i {
			delete(d.host.instances, ref)
		}
		return nil
	})
}

// Inspect implements runtime.Driver.
func (d *Driver) Inspect(ctx context.Context, ref holdfast.InstanceRef) (runtime.Status, error) {
	fault := d.host.fault(Call{MethodInspect, ref})
	var status runtime.Status
	err := fault.around(ctx, func() error {
		status = d.host.find(ref).status(ref)
		return nil
	})
	if err != nil {
		return runtime.Status{}, err
	}
	if fault.Lie != nil {
		status = *fault.Lie
	}
	return status, nil
}

// List implements runtime.Driver.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	fault := d.host.fault(Call{Method: MethodList})
	var all []runtime.Status
	err := fault.around(ctx, func() error {
		all = d.Truth()
		return nil
	})
	if err != nil {
		return nil, err
	}
	if fault.LieList != nil {
		return fault.LieList, nil
	}
	return all, nil
}

// Wait implements runtime.Driver.
func (d *Driver) Wait(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.host.suffer(ctx, Call{MethodWait, ref}, func() error {
		i := d.host.find(ref)
		if i == nil {
			return nil
		}
		select {
		case <-i.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// DialGuest implements runtime.Driver.
func (d *Driver) DialGuest(ctx context.Context, ref holdfast.InstanceRef) (net.Conn, error) {
	var conn net.Conn
	err := d.host.suffer(ctx, Call{MethodDialGuest, ref}, func() (err error) {
		i := d.host.find(ref)
		if i.phase() != runtime.PhaseRunning && i.phase() != runtime.PhaseSuspended {
			return fmt.Errorf("simulated: dial: the instance is %s", i.phase())
		}
		conn, err = i.socket.dial(ctx, addr("host"), addr(i.address+":1"), i.gate)
		return err
	})
	if err != nil {
		if conn != nil {
			err = errors.Join(err, conn.Close())
		}
		return nil, err
	}
	return conn, nil
}

// DialGateway connects a guest to the host agent, for the transport of the
// guest's HTTP client. The host sees the instance's address; a suspended
// instance's bytes stand still.
func (d *Driver) DialGateway(ctx context.Context, ref holdfast.InstanceRef) (net.Conn, error) {
	i := d.host.find(ref)
	if i == nil {
		return nil, errors.New("simulated: the instance is gone")
	}
	d.host.mu.Lock()
	gateway := d.host.gateway
	d.host.mu.Unlock()
	if gateway == nil {
		return nil, errors.New("simulated: connection refused: no host agent listens")
	}
	return gateway.dialFrom(ctx, addr(i.address+":2"), i.gate)
}

// Reach is DialGateway for a guest that needs no connection of its own: it waits
// while the instance is frozen, and is an error where a connection would be.
func (d *Driver) Reach(ctx context.Context, ref holdfast.InstanceRef) error {
	i := d.host.find(ref)
	if i == nil {
		return errors.New("simulated: the instance is gone")
	}
	if err := i.gate.pass(ctx); err != nil {
		return err
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if d.host.gateway == nil {
		return errors.New("simulated: connection refused: no host agent listens")
	}
	return nil
}

func (h *host) find(ref holdfast.InstanceRef) *instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.instances[ref]
}

func (h *host) openGateway() (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gateway != nil {
		return nil, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "simulated: another driver is open on this host")
	}
	h.gateway = newListener(addr("10.99.0.0:80"))
	return h.gateway, nil
}

func (h *host) closeGateway() {
	h.mu.Lock()
	gateway := h.gateway
	h.gateway = nil
	h.mu.Unlock()
	if gateway != nil {
		gateway.shut()
	}
}

func lost(ref holdfast.InstanceRef, verb string, phase runtime.Phase) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonInstanceLost,
		"simulated: %s: the instance is %s", verb, strings.ToLower(string(phase))).On(string(ref.Instance))
}

// say appends to the instance's console, where a real runtime redirects PID 1.
func say(b runtime.Bundle, line string) error {
	if b.Spool == "" {
		return nil
	}
	if err := os.MkdirAll(b.Spool, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(b.Spool, "console"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}
