package simulated_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/runtimetest/probe"
	"github.com/holdfast-dev/holdfast/runtime/simulated"
)

var errLost = errors.New("the answer was lost")

func bundle(t *testing.T, incarnation int64) runtime.Bundle {
	t.Helper()
	id := holdfast.InstanceID(holdfast.IDs{}.New(holdfast.PrefixInstance))
	return runtime.Bundle{Ref: holdfast.InstanceRef{Instance: id, Incarnation: incarnation}, Spool: t.TempDir()}
}

func phase(t *testing.T, d *simulated.Driver, ref holdfast.InstanceRef) runtime.Phase {
	t.Helper()
	s, err := d.Inspect(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return s.Phase
}

// once makes one method suffer once.
func once(method simulated.Method, fault simulated.Fault) simulated.Faults {
	spent := make(chan struct{}, 1)
	return func(c simulated.Call) simulated.Fault {
		if c.Method != method {
			return simulated.Fault{}
		}
		select {
		case spent <- struct{}{}:
			return fault
		default:
			return simulated.Fault{}
		}
	}
}

// trap T1, T49: the effect of a call whose answer was lost is there, and the
// repeat adds nothing to it.
func TestALostAnswerLeavesItsEffectAndARepeatAddsNothing(t *testing.T) {
	d := newDriver()
	b := bundle(t, 1)
	steps := []struct {
		method simulated.Method
		call   func() error
		before runtime.Phase
		after  runtime.Phase
	}{
		{simulated.MethodPrepare, func() error { return d.Prepare(t.Context(), b) }, runtime.PhaseAbsent, runtime.PhasePrepared},
		{simulated.MethodStart, func() error { return d.Start(t.Context(), b.Ref) }, runtime.PhasePrepared, runtime.PhaseRunning},
		{simulated.MethodSuspend, func() error { return d.Suspend(t.Context(), b.Ref) }, runtime.PhaseRunning, runtime.PhaseSuspended},
		{simulated.MethodResume, func() error { return d.Resume(t.Context(), b.Ref) }, runtime.PhaseSuspended, runtime.PhaseRunning},
		{simulated.MethodStop, func() error { return d.Stop(t.Context(), b.Ref) }, runtime.PhaseRunning, runtime.PhaseAbsent},
	}
	for _, s := range steps {
		d.SetFaults(once(s.method, simulated.Fault{Err: errLost}))
		if err := s.call(); !errors.Is(err, errLost) {
			t.Fatalf("%s: %v", s.method, err)
		}
		if got := phase(t, d, b.Ref); got != s.before {
			t.Errorf("%s failed, and yet it is %s", s.method, got)
		}
		d.SetFaults(once(s.method, simulated.Fault{Err: errLost, AfterEffect: true}))
		if err := s.call(); !errors.Is(err, errLost) {
			t.Fatalf("%s: %v", s.method, err)
		}
		if got := phase(t, d, b.Ref); got != s.after {
			t.Errorf("%s happened, and yet it is %s", s.method, got)
		}
		if err := s.call(); err != nil {
			t.Errorf("%s, repeated: %v", s.method, err)
		}
	}
	if n := d.Boots(b.Ref); n != 1 {
		t.Errorf("it booted %d times", n)
	}
}

func TestAStallEndsWithItsContextOrItsWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := simulated.New(simulated.Config{})
		b := runtime.Bundle{Ref: holdfast.InstanceRef{Instance: "in-1", Incarnation: 1}}
		goOn := make(chan struct{})
		d.SetFaults(once(simulated.MethodPrepare, simulated.Fault{Stall: goOn}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		if err := d.Prepare(ctx, b); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		d.SetFaults(once(simulated.MethodPrepare, simulated.Fault{Stall: goOn}))
		time.AfterFunc(time.Minute, func() { close(goOn) })
		if err := d.Prepare(t.Context(), b); err != nil {
			t.Error(err)
		}
		if err := errors.Join(d.Start(t.Context(), b.Ref), d.Stop(t.Context(), b.Ref)); err != nil {
			t.Error(err)
		}
	})
}

func TestALieIsToldOnce(t *testing.T) {
	d := newDriver()
	b := bundle(t, 1)
	if err := d.Prepare(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	d.SetFaults(once(simulated.MethodInspect, simulated.Fault{Lie: &runtime.Status{Phase: runtime.PhaseAbsent}}))
	if got := phase(t, d, b.Ref); got != runtime.PhaseAbsent {
		t.Errorf("no lie: %s", got)
	}
	if got := phase(t, d, b.Ref); got != runtime.PhasePrepared {
		t.Errorf("the truth: %s", got)
	}
	d.SetFaults(once(simulated.MethodList, simulated.Fault{LieList: []runtime.Status{}}))
	for _, want := range []int{0, 1} {
		if all, err := d.List(t.Context()); err != nil || len(all) != want {
			t.Errorf("%v, %v, want %d", all, err, want)
		}
	}
}

// trap T49: a host that lost everything runs nothing, and counts on.
func TestT49_ACrashedHostHasNothingAndRemembersItsBoots(t *testing.T) {
	d := newDriver()
	gateway, _, err := d.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := bundle(t, 1)
	if err := errors.Join(d.Prepare(t.Context(), b), d.Start(t.Context(), b.Ref)); err != nil {
		t.Fatal(err)
	}
	conn, err := d.DialGuest(t.Context(), b.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.CrashHost(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection outlives its guest: %v", err)
	}
	again := d.Restart()
	if _, err := gateway.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the old gateway: %v", err)
	}
	if got := phase(t, again, b.Ref); got != runtime.PhaseAbsent {
		t.Errorf("it is %s", got)
	}
	if err := again.Start(t.Context(), b.Ref); holdfast.CodeOf(err) != holdfast.FailedPrecondition {
		t.Errorf("start: %v", err)
	}
	if n := again.Boots(b.Ref); n != 1 {
		t.Errorf("%d boots", n)
	}
}

// contract: C2
func TestC2_AGuestThatCannotBootEndsWithAReasonOnItsConsole(t *testing.T) {
	d := simulated.New(simulated.Config{NewGuest: func(context.Context, runtime.Bundle) (simulated.Guest, error) {
		return nil, errors.New("kernel panic")
	}})
	b := bundle(t, 1)
	if err := errors.Join(d.Prepare(t.Context(), b), d.Start(t.Context(), b.Ref), d.Wait(t.Context(), b.Ref)); err != nil {
		t.Fatal(err)
	}
	s, err := d.Inspect(t.Context(), b.Ref)
	if err != nil || s.Phase != runtime.PhaseExited || s.Detail != "kernel panic" {
		t.Errorf("%+v, %v", s, err)
	}
	console, err := os.ReadFile(filepath.Join(b.Spool, "console"))
	if err != nil || !strings.Contains(string(console), "kernel panic") {
		t.Errorf("the console says %q, %v", console, err)
	}
}

func TestASuspendedGuestsCallsHomeStandStill(t *testing.T) {
	d := newDriver()
	gateway, _, err := d.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(gateway.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	b := bundle(t, 1)
	if err := errors.Join(d.Prepare(t.Context(), b), d.Start(t.Context(), b.Ref)); err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context) (net.Conn, error) { return d.DialGuest(ctx, b.Ref) }
	if _, err := probe.Ask(t.Context(), dial, "nonce"); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan net.Conn, 1)
	go func() {
		if c, err := gateway.Accept(); err == nil {
			arrived <- c
		}
	}()
	home, err := d.DialGateway(t.Context(), b.Ref)
	if err != nil {
		t.Fatal(err)
	}
	host := <-arrived
	if s, err := d.Inspect(t.Context(), b.Ref); err != nil || !strings.HasPrefix(host.RemoteAddr().String(), s.Address+":") {
		t.Errorf("the host sees %s, the guest has %v, %v", host.RemoteAddr(), s, err)
	}
	if err := d.Suspend(t.Context(), b.Ref); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := home.Write([]byte("x"))
		wrote <- err
	}()
	if err := host.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := host.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a suspended guest said %d bytes, %v", n, err)
	}
	if err := errors.Join(d.Resume(t.Context(), b.Ref), host.SetReadDeadline(time.Time{})); err != nil {
		t.Fatal(err)
	}
	if _, err := host.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err := d.Stop(t.Context(), b.Ref); err != nil {
		t.Error(err)
	}
}
