package orchestrator

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// change makes the fleet see an instance otherwise.
func (f *fleet) change(id holdfast.InstanceID, change func(*holdfast.Observation)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.seen[id]
	change(&o)
	f.seen[id] = o
}

func onDraining(o *holdfast.Observation) {
	o.HostHealth, o.HostDuty = holdfast.HostReady, holdfast.HostDraining
}

func onLost(o *holdfast.Observation) {
	o.HostHealth, o.State, o.Stale = holdfast.HostLost, holdfast.InstanceUnknown, true
}

// contract: C5. What is on a host that is drained or lost is booted anew
// elsewhere if its policy says so, once, as the next incarnation; the rest stays.
func TestC5_WhatIsOnADrainedOrLostHostMovesByItsPolicy(t *testing.T) {
	for name, away := range map[string]func(*holdfast.Observation){"drained": onDraining, "lost": onLost} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			fresh, frozen, stays := h.createFresh("r1"), h.createFresh("r2"), h.mustCreate("r3")
			h.mutateOK(h.SuspendSandbox, frozen.ID)
			for _, sb := range []holdfast.Sandbox{fresh, frozen, stays} {
				h.fleet.change(sb.Instance, away)
			}
			var sweeps sync.WaitGroup
			for range 3 { // T28
				sweeps.Go(func() { h.sweep(SweepInstances) })
			}
			sweeps.Wait()
			for _, sb := range []holdfast.Sandbox{fresh, frozen} {
				got := h.awaitState(sb.ID, holdfast.SandboxReady)
				if got.Incarnation != 2 {
					t.Errorf("%s has incarnation %d", sb.ID, got.Incarnation)
				}
				h.bootedOnce(sb.Instance, 2)
			}
			if got := h.get(stays.ID); got.State != holdfast.SandboxReady || got.Incarnation != 1 {
				t.Errorf("without a policy: %s, incarnation %d", got.State, got.Incarnation)
			}
			page, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(fresh.ID)})
			want := map[string]string{"drained": string(holdfast.ReasonHostDraining), "lost": string(holdfast.ReasonInstanceLost)}[name]
			if err != nil || page.Operations[0].Kind != holdfast.OperationReplace || string(page.Operations[0].Cause) != want {
				t.Errorf("the journal says %+v, %v", page.Operations, err)
			}
		})
	}
}

// Nothing moves that need not, or that somebody is at.
func TestWhatLeavesItsHostAndWhatDoesNot(t *testing.T) {
	base := row{Sandbox: holdfast.Sandbox{State: holdfast.SandboxReady, Incarnation: 2, Restart: holdfast.RestartFresh}}
	seen := holdfast.Observation{Incarnation: 2, State: holdfast.InstanceRunning, HostHealth: holdfast.HostReady, HostDuty: holdfast.HostActive}
	for _, tc := range []struct {
		name string
		row  func(*row)
		obs  func(*holdfast.Observation)
		want holdfast.Reason
	}{
		{name: "in its place", want: ""},
		{name: "drained", obs: onDraining, want: holdfast.ReasonHostDraining},
		{name: "cordoned", obs: func(o *holdfast.Observation) { o.HostDuty = holdfast.HostCordoned }},
		{name: "lost", obs: onLost, want: holdfast.ReasonInstanceLost},
		{name: "suspected", obs: func(o *holdfast.Observation) { onLost(o); o.HostHealth = holdfast.HostSuspect }},
		{name: "lost, and heard (C4)", obs: func(o *holdfast.Observation) { onLost(o); o.State = holdfast.InstanceRunning }},
		{name: "drained, and not heard", obs: func(o *holdfast.Observation) { onDraining(o); o.Stale = true }},
		{name: "drained while it is made", obs: onDraining, row: func(r *row) { r.State = holdfast.SandboxCreating }},
		{name: "lost while it is made anew", obs: onLost, row: func(r *row) { r.State = holdfast.SandboxCreating }, want: holdfast.ReasonInstanceLost},
		{name: "no policy", obs: onLost, row: func(r *row) { r.Restart = holdfast.RestartNone }},
		{name: "to be deleted", obs: onLost, row: func(r *row) { r.DeleteWanted = true }},
		{name: "an older incarnation (T37)", obs: func(o *holdfast.Observation) { onLost(o); o.Incarnation = 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, o := base, seen
			if tc.row != nil {
				tc.row(&r)
			}
			if tc.obs != nil {
				tc.obs(&o)
			}
			got := holdfast.Reason("")
			if f := leaving(r, o); f != nil {
				got = f.Reason
			}
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// A sandbox that is being deleted or whose create is not done does not move, and
// what is pending on a draining host is not cut off.
func TestWhatIsPendingDoesNotMoveOffADrainingHost(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	})
	if _, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err == nil {
		t.Fatal("suspended by a fleet that is silent")
	}
	h.fleet.change(sb.Instance, onDraining)
	h.sweep(SweepInstances)
	if got := h.get(sb.ID); got.State != holdfast.SandboxReady || got.Incarnation != 1 || got.Operation == nil || got.Operation.Kind != holdfast.OperationSuspend {
		t.Errorf("%s, incarnation %d, pending %+v", got.State, got.Incarnation, got.Operation)
	}
	h.fleet.change(sb.Instance, onLost) // but a lost host ends what waits for it
	h.fleet.script(nil)
	h.sweep(SweepInstances)
	if got := h.awaitState(sb.ID, holdfast.SandboxReady); got.Incarnation != 2 {
		t.Errorf("incarnation %d after its host was lost", got.Incarnation)
	}
}

// operators is a fleet that says whose hosts do not answer.
type operators struct {
	mu     sync.Mutex
	silent []holdfast.InstanceID
	err    error
	asked  atomic.Int64
	gate   chan struct{} // when set, an answer waits for it
}

func (o *operators) ListHosts(context.Context) ([]holdfast.Host, error) { return nil, nil }

func (o *operators) SetHostDuty(context.Context, holdfast.SetHostDuty) (holdfast.Host, error) {
	return holdfast.Host{}, nil
}

func (o *operators) FindInstances(ctx context.Context, in holdfast.FindInstances) (holdfast.InstancePage, error) {
	o.asked.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gate != nil {
		select {
		case <-o.gate:
		case <-ctx.Done():
			return holdfast.InstancePage{}, ctx.Err()
		}
	}
	var page holdfast.InstancePage
	for _, id := range o.silent { // pages of one
		if id > in.After && len(page.Instances) == 0 {
			page.Instances = append(page.Instances, holdfast.Observation{Instance: id})
			page.Next = string(id)
		}
	}
	return page, o.err
}

func (o *operators) set(err error, silent ...holdfast.InstanceID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.silent, o.err = silent, err
}

// hand is a clock that the test moves.
type hand struct{ at atomic.Int64 }

func (c *hand) now() time.Time       { return time.UnixMicro(c.at.Load()) }
func (c *hand) pass(d time.Duration) { c.at.Add(d.Microseconds()) }

// contract: C5, A5. A sandbox on a host that does not answer keeps its state and
// says so, in Get and in List; nothing is recorded by it, and it ends with the
// silence. D2: a fleet that does not answer leaves what was known.
func TestC5_ASandboxShowsThatItsHostIsUnreachable(t *testing.T) {
	ops, clock := &operators{}, &hand{}
	clock.at.Store(time.Now().UnixMicro())
	h := newHarness(t, func(c *Config) { c.Operators = ops })
	one, other := h.mustCreate("r1"), h.mustCreate("r2")
	h.reach.clock = clock.now
	shown := func(step string, want bool) {
		t.Helper()
		clock.pass(reachAge)
		got := h.get(one.ID)
		if got.HostUnreachable != want || got.State != holdfast.SandboxReady || !got.UpdatedAt.Equal(one.UpdatedAt) {
			t.Errorf("%s: unreachable %v, %s, updated %s", step, got.HostUnreachable, got.State, got.UpdatedAt)
		}
		if h.get(other.ID).HostUnreachable {
			t.Errorf("%s: so is the other", step)
		}
		page, err := h.ListSandboxes(t.Context(), alice, holdfast.ListSandboxes{})
		if err != nil || len(page.Sandboxes) != 2 || page.Sandboxes[1].HostUnreachable != want {
			t.Errorf("%s: the list says %+v, %v", step, page.Sandboxes, err)
		}
	}
	shown("heard", false)
	ops.set(nil, "in-00000000000000000000000001", one.Instance) // two pages
	shown("silent", true)
	ops.set(errors.New("no answer"))
	shown("the fleet is silent too", true)
	ops.set(nil)
	shown("heard again", false)
	ops.set(nil, one.Instance)
	shown("silent again", true)
	if got := h.mutateOK(h.DeleteSandbox, one.ID); got.HostUnreachable {
		t.Error("what is gone has a host")
	}
}

// T35: a storm of reads is one question, which no reader waits for for long.
func TestT35_ManyReadersAskTheFleetOnce(t *testing.T) {
	ops, clock := &operators{gate: make(chan struct{})}, &hand{}
	clock.at.Store(time.Now().UnixMicro())
	h := newHarness(t, func(c *Config) { c.Operators = ops })
	h.reach.clock = clock.now
	sb := h.mustCreate("r1")
	var readers sync.WaitGroup
	for range 50 {
		readers.Go(func() { h.get(sb.ID) })
	}
	readers.Wait()
	if n := ops.asked.Load(); n != 1 {
		t.Errorf("%d questions", n)
	}
	h.reach.mu.Lock()
	answered := h.reach.pending
	h.reach.mu.Unlock()
	close(ops.gate)
	<-answered
	h.get(sb.ID) // the answer is fresh
	if n := ops.asked.Load(); n != 1 {
		t.Errorf("%d questions within %s", n, reachAge)
	}
	clock.pass(reachAge)
	h.get(sb.ID)
	if n := ops.asked.Load(); n != 2 {
		t.Errorf("%d questions after %s", n, reachAge)
	}
}

// contract: C5, A8. A guest call to a host that does not answer says that, and
// that it may have happened; what the host itself says stays what it is.
func TestC5_AGuestCallToASilentHostSaysSo(t *testing.T) {
	silence := holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer").Because(errors.New("connection refused"))
	wantError(t, hostSilent(silence), holdfast.Unavailable, holdfast.ReasonHostUnreachable)
	if holdfast.AsError(hostSilent(silence)).RetryAfter == 0 {
		t.Error("no hint when to retry")
	}
	itsWord := holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "the guest does not answer")
	wantError(t, hostSilent(itsWord), holdfast.Unavailable, holdfast.ReasonUnreachable)
	mine := holdfast.AsError(context.DeadlineExceeded)
	wantError(t, hostSilent(mine), holdfast.DeadlineExceeded, holdfast.ReasonUnreachable)
}
