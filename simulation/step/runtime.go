package step

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// Driver is a host agent's runtime: every call is a step.
type Driver struct {
	Next  runtime.Driver
	Party string
	Hook  Hook
	// GatewayURL replaces the URL at which guests reach this host agent, where several
	// simulated hosts share one network.
	GatewayURL string
}

var _ runtime.Driver = (*Driver)(nil)

func (d *Driver) call(ctx context.Context, name string, ref holdfast.InstanceRef, do func() error) error {
	s := &Step{Party: d.Party, Kind: Call, Name: name}
	if ref.Instance != "" {
		s.Key = string(ref.Instance) + "/" + strconv.FormatInt(ref.Incarnation, 10)
	}
	return around(ctx, d.Hook, s, do)
}

// Capabilities implements runtime.Driver.
func (d *Driver) Capabilities() runtime.Capabilities { return d.Next.Capabilities() }

// Open implements runtime.Driver.
func (d *Driver) Open(ctx context.Context) (listener net.Listener, url string, err error) {
	err = d.call(ctx, "Open", holdfast.InstanceRef{}, func() (err error) {
		listener, url, err = d.Next.Open(ctx)
		return err
	})
	if err != nil && listener != nil {
		err = errors.Join(err, listener.Close())
	}
	if d.GatewayURL != "" {
		url = d.GatewayURL
	}
	return listener, url, err
}

// Prepare implements runtime.Driver.
func (d *Driver) Prepare(ctx context.Context, b runtime.Bundle) error {
	return d.call(ctx, "Prepare", b.Ref, func() error { return d.Next.Prepare(ctx, b) })
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.call(ctx, "Start", ref, func() error { return d.Next.Start(ctx, ref) })
}

// Suspend implements runtime.Driver.
func (d *Driver) Suspend(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.call(ctx, "Suspend", ref, func() error { return d.Next.Suspend(ctx, ref) })
}

// Resume implements runtime.Driver.
func (d *Driver) Resume(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.call(ctx, "Resume", ref, func() error { return d.Next.Resume(ctx, ref) })
}

// Checkpoint implements runtime.Driver.
func (d *Driver) Checkpoint(ctx context.Context, ref holdfast.InstanceRef, w io.Writer) error {
	return d.call(ctx, "Checkpoint", ref, func() error { return d.Next.Checkpoint(ctx, ref, w) })
}

// Stop implements runtime.Driver.
func (d *Driver) Stop(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.call(ctx, "Stop", ref, func() error { return d.Next.Stop(ctx, ref) })
}

// Inspect implements runtime.Driver.
func (d *Driver) Inspect(ctx context.Context, ref holdfast.InstanceRef) (status runtime.Status, err error) {
	err = d.call(ctx, "Inspect", ref, func() (err error) {
		status, err = d.Next.Inspect(ctx, ref)
		return err
	})
	return status, err
}

// List implements runtime.Driver.
func (d *Driver) List(ctx context.Context) (all []runtime.Status, err error) {
	err = d.call(ctx, "List", holdfast.InstanceRef{}, func() (err error) {
		all, err = d.Next.List(ctx)
		return err
	})
	return all, err
}

// Wait implements runtime.Driver.
func (d *Driver) Wait(ctx context.Context, ref holdfast.InstanceRef) error {
	return d.call(ctx, "Wait", ref, func() error { return d.Next.Wait(ctx, ref) })
}

// DialGuest implements runtime.Driver.
func (d *Driver) DialGuest(ctx context.Context, ref holdfast.InstanceRef) (conn net.Conn, err error) {
	err = d.call(ctx, "DialGuest", ref, func() (err error) {
		conn, err = d.Next.DialGuest(ctx, ref)
		return err
	})
	if err != nil && conn != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, err
}

// Close implements runtime.Driver.
func (d *Driver) Close() error {
	return d.call(context.Background(), "Close", holdfast.InstanceRef{}, d.Next.Close)
}

// Records makes the AroundRecord of a host agent: its durable records are steps.
func Records(party string, hook Hook) func(when string, ref holdfast.InstanceRef, state holdfast.InstanceState) error {
	var mu sync.Mutex
	writing := map[holdfast.InstanceRef]*Step{} // an incarnation's records are written one after the other
	return func(when string, ref holdfast.InstanceRef, state holdfast.InstanceState) error {
		if when == "before" {
			s := &Step{Party: party, Kind: Record, Name: string(state), Key: string(ref.Instance) + "/" + strconv.FormatInt(ref.Incarnation, 10)}
			mu.Lock()
			writing[ref] = s
			mu.Unlock()
			return hook.Before(context.Background(), s)
		}
		mu.Lock()
		s := writing[ref]
		delete(writing, ref)
		mu.Unlock()
		return hook.After(context.Background(), s, nil)
	}
}
