package hostagent

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// How often a booting guest is asked whether it is ready.
const (
	firstPause = 25 * time.Millisecond // mostly the guest has said so itself by then
	lastPause  = 100 * time.Millisecond
	maxMessage = 4 << 10 // bytes of a guest's own words that are kept
)

// await waits for the guest's word that it is ready: its signed callback, as that
// passes by, which costs no call; and since a callback may be lost or late, the
// guest is also asked over its own socket (contract: D1).
func (m *machine) await(ctx context.Context, r record) (done bool, err error) {
	a := m.agent
	limit, since := a.config.Timing.Boot, r.StartedAt
	booting := r.ReadyAt.IsZero()
	if !booting {
		limit, since = a.config.Timing.Resume, a.config.Clock()
	}
	deadline := time.NewTimer(max(0, limit-a.config.Clock().Sub(since)))
	defer deadline.Stop()
	exited := m.watch(r.Ref)
	looking, stopLooking := context.WithCancel(ctx)
	look := m.look(looking, r.Ref)
	defer func() { stopLooking(); <-look.ended }() // calls on one instance never overlap

	var status holdfast.GuestStatus
	var askErr error
	for pause := firstPause; ; pause = min(pause*2, lastPause) {
		// One that resumes says nothing by itself; one that boots may, in a moment.
		if !booting || pause > firstPause {
			status, askErr = m.ask(ctx, r.Ref)
		}
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case booting && pause == firstPause:
		case askErr == nil && status.Failure != nil:
			return false, m.ending(r, holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: clip(status.Failure.Message, maxMessage)})
		case askErr == nil && status.Ready:
			return m.ready(ctx, r, look)
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
		case said := <-m.word:
			if booting && said == r.Ref.Incarnation {
				next.Stop()
				return m.ready(ctx, r, look)
			}
		case <-exited:
			next.Stop()
			return false, nil // the next step looks at what became of it
		case <-ctx.Done():
			next.Stop()
			return false, context.Cause(ctx)
		case <-deadline.C:
			next.Stop()
			if booting && m.said(r.Ref.Incarnation) { // both at once: what happened says more than that time is over
				return m.ready(ctx, r, look)
			}
			if booting {
				return false, m.ending(r, *bootTimeout(limit))
			}
			return false, fmt.Errorf("the guest did not answer within %s of its resume: %w", limit, askErr)
		}
		next.Stop()
	}
}

// ask is one question to the guest about itself.
func (m *machine) ask(ctx context.Context, ref holdfast.InstanceRef) (holdfast.GuestStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, m.agent.config.Timing.Ask)
	defer cancel()
	status, err := m.guest(ref).Status(ctx)
	if err == nil && (status.Instance != ref.Instance || status.Incarnation != ref.Incarnation) {
		err = fmt.Errorf("the guest says that it is %s/%d", status.Instance, status.Incarnation)
	}
	return status, err
}

// look reads the runtime's facts while the guest boots.
func (m *machine) look(ctx context.Context, ref holdfast.InstanceRef) *look {
	l := &look{ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		l.seen, l.err = m.agent.config.Driver.Inspect(ctx, ref)
	}()
	return l
}

type look struct {
	ended chan struct{} // then the rest is set
	seen  runtime.Status
	err   error
}

func (m *machine) ready(ctx context.Context, r record, facts *look) (done bool, err error) {
	select {
	case <-facts.ended:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if facts.err != nil {
		return false, fmt.Errorf("inspect: %w", facts.err)
	}
	suspend, told := false, false
	err = m.commit(r.Ref.Incarnation, func(now *record) error {
		now.State, now.Ports, now.Address = holdfast.InstanceRunning, facts.seen.Ports, facts.seen.Address
		now.Started = true
		if now.ReadyAt.IsZero() {
			now.ReadyAt = m.agent.config.Clock()
		}
		if now.BootID == "" {
			now.BootID, now.StartedAt = m.agent.bootID, now.ReadyAt
		}
		suspend, told = now.Desired == holdfast.DesiredSuspended, m.awaited(r.Ref.Incarnation)
		return nil
	})
	if err != nil {
		return false, err
	}
	m.verify(r.Ref.Incarnation)
	if !told {
		m.report(r.Ref.Incarnation)
	}
	return !suspend, nil
}

// guest is the client of the guest's own listener, one for each boot.
func (m *machine) guest(ref holdfast.InstanceRef) holdfast.Guest {
	m.mu.Lock()
	defer m.mu.Unlock()
	g, ok := m.guests[ref.Incarnation]
	if !ok {
		driver := m.agent.config.Driver
		g = m.agent.config.DialGuest(func(ctx context.Context) (net.Conn, error) { return driver.DialGuest(ctx, ref) })
		m.guests[ref.Incarnation] = g
	}
	return g
}

// said reports whether a boot's guest has said that it is ready, unheard until now.
func (m *machine) said(incarnation int64) bool {
	select {
	case said := <-m.word:
		return said == incarnation
	default:
		return false
	}
}
