package runtimetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

func phases(t *testing.T, b *bench) {
	made := b.bundle()
	b.phase(made, runtime.PhaseAbsent)
	b.must(b.driver.Prepare(t.Context(), made), "prepare")
	b.phase(made, runtime.PhasePrepared)
	if b.booted(made) {
		t.Fatal("guest code ran before Start")
	}
	b.must(b.driver.Start(t.Context(), made.Ref), "start")
	b.nonce(made)
	b.phase(made, runtime.PhaseRunning)
	if !b.booted(made) {
		t.Fatal("the guest did not reach its spool")
	}
	b.must(b.driver.Suspend(t.Context(), made.Ref), "suspend")
	b.phase(made, runtime.PhaseSuspended)
	b.must(b.driver.Resume(t.Context(), made.Ref), "resume")
	b.phase(made, runtime.PhaseRunning)
	if _, err := b.ask(made, "exit", 5*time.Second); err != nil {
		t.Log("the guest's last answer was cut off, as it may be:", err)
	}
	b.must(b.driver.Wait(t.Context(), made.Ref), "wait")
	b.phase(made, runtime.PhaseExited)
	b.must(b.driver.Stop(t.Context(), made.Ref), "stop")
	b.phase(made, runtime.PhaseAbsent)
	if !b.booted(made) {
		t.Fatal("Stop took the spool away")
	}
}

func repeats(t *testing.T, b *bench) {
	made := b.bundle()
	twice := func(what string, call func() error) {
		t.Helper()
		b.must(call(), what)
		b.must(call(), what+", repeated")
	}
	twice("prepare", func() error { return b.driver.Prepare(t.Context(), made) })
	b.phase(made, runtime.PhasePrepared)
	twice("start", func() error { return b.driver.Start(t.Context(), made.Ref) })
	nonce := b.nonce(made)
	b.must(b.driver.Prepare(t.Context(), made), "prepare of what runs")
	twice("suspend", func() error { return b.driver.Suspend(t.Context(), made.Ref) })
	b.must(b.driver.Start(t.Context(), made.Ref), "start of what is suspended")
	b.must(b.driver.Prepare(t.Context(), made), "prepare of what is suspended")
	b.phase(made, runtime.PhaseSuspended)
	twice("resume", func() error { return b.driver.Resume(t.Context(), made.Ref) })
	if again := b.nonce(made); again != nonce {
		t.Fatalf("another boot answers: %q, was %q", again, nonce)
	}
	twice("stop", func() error { return b.driver.Stop(t.Context(), made.Ref) })
	b.phase(made, runtime.PhaseAbsent)
}

func order(t *testing.T, b *bench) {
	made := b.bundle()
	b.refused(b.driver.Start(t.Context(), made.Ref), "start of what is absent")
	b.refused(b.driver.Suspend(t.Context(), made.Ref), "suspend of what is absent")
	b.refused(b.driver.Resume(t.Context(), made.Ref), "resume of what is absent")
	b.phase(made, runtime.PhaseAbsent)
	if b.booted(made) {
		t.Fatal("start of what is absent booted it")
	}
	b.must(b.driver.Prepare(t.Context(), made), "prepare")
	if err := b.driver.Suspend(t.Context(), made.Ref); err == nil {
		t.Fatal("what never started was suspended")
	}
	b.phase(made, runtime.PhasePrepared)
	b.must(b.driver.Start(t.Context(), made.Ref), "start")
	nonce := b.nonce(made)
	if _, err := b.ask(made, "exit", 5*time.Second); err != nil {
		t.Log("cut off:", err)
	}
	b.must(b.driver.Wait(t.Context(), made.Ref), "wait")
	b.refused(b.driver.Start(t.Context(), made.Ref), "start of what exited")
	b.refused(b.driver.Prepare(t.Context(), made), "prepare of what exited")
	b.refused(b.driver.Resume(t.Context(), made.Ref), "resume of what exited")
	b.phase(made, runtime.PhaseExited)
	if again, err := b.ask(made, "nonce", time.Second); err == nil {
		t.Fatalf("%q answers after %q ended", again, nonce)
	}
	b.must(b.driver.Stop(t.Context(), made.Ref), "stop")
	b.refused(b.driver.Start(t.Context(), made.Ref), "start of what was stopped")
	b.phase(made, runtime.PhaseAbsent)
}

func stops(t *testing.T, b *bench) {
	before := b.Census(t)
	none := b.bundle()
	b.must(b.driver.Stop(t.Context(), none.Ref), "stop of what never was")

	prepared := b.bundle()
	b.must(b.driver.Prepare(t.Context(), prepared), "prepare")
	suspended := b.running()
	b.must(b.driver.Suspend(t.Context(), suspended.Ref), "suspend")
	running, exited := b.running(), b.running()
	if _, err := b.ask(exited, "exit", 5*time.Second); err != nil {
		t.Log("cut off:", err)
	}
	b.must(b.driver.Wait(t.Context(), exited.Ref), "wait")

	for what, made := range map[string]runtime.Bundle{"prepared": prepared, "suspended": suspended, "running": running, "exited": exited} {
		b.must(b.driver.Stop(t.Context(), made.Ref), "stop of a "+what+" instance")
		b.phase(made, runtime.PhaseAbsent)
	}
	if after := b.Census(t); !slices.Equal(before, after) {
		t.Fatalf("left: %q, before: %q", after, before)
	}
}

func halves(t *testing.T, b *bench) {
	before := b.Census(t)
	for name, half := range b.Half {
		made := b.bundle()
		half(t, b.driver, made)
		all, err := b.driver.List(t.Context())
		b.must(err, name+": list")
		if len(all) != 1 || all[0].Ref != made.Ref || all[0].Phase == runtime.PhaseAbsent {
			t.Fatalf("%s: the list is %v", name, all)
		}
		b.must(b.driver.Stop(t.Context(), made.Ref), name+": stop")
		b.phase(made, runtime.PhaseAbsent)
		if after := b.Census(t); !slices.Equal(before, after) {
			t.Fatalf("%s: left: %q, before: %q", name, after, before)
		}
		half(t, b.driver, made)
		b.restart()
		if b.booted(made) { // it ran: only Stop is left for it
			b.must(b.driver.Stop(t.Context(), made.Ref), name+": stop")
			continue
		}
		b.must(b.driver.Prepare(t.Context(), made), name+": prepare")
		b.phase(made, runtime.PhasePrepared)
		b.must(b.driver.Start(t.Context(), made.Ref), name+": start")
		b.nonce(made)
		b.must(b.driver.Stop(t.Context(), made.Ref), name+": stop after all")
	}
}

func restarts(t *testing.T, b *bench) {
	prepared := b.bundle()
	b.must(b.driver.Prepare(t.Context(), prepared), "prepare")
	running, suspended := b.running(), b.running()
	nonce, other := b.nonce(running), b.nonce(suspended)
	b.must(b.driver.Suspend(t.Context(), suspended.Ref), "suspend")
	url := b.url

	b.restart()
	if b.url != url {
		t.Fatalf("the gateway moved from %s to %s", url, b.url)
	}
	b.phase(prepared, runtime.PhasePrepared)
	b.phase(running, runtime.PhaseRunning)
	b.phase(suspended, runtime.PhaseSuspended)
	if again := b.nonce(running); again != nonce {
		t.Fatalf("another boot answers: %q, was %q", again, nonce)
	}
	b.must(b.driver.Resume(t.Context(), suspended.Ref), "resume")
	if again := b.nonce(suspended); again != other {
		t.Fatalf("another boot answers: %q, was %q", again, other)
	}
	b.must(b.driver.Start(t.Context(), prepared.Ref), "start")
	b.nonce(prepared)
	for _, made := range []runtime.Bundle{running, prepared} {
		if answer, err := b.ask(made, "get "+url, 10*time.Second); err != nil || answer != "204 No Content" {
			t.Fatalf("the gateway after the restart: %q, %v", answer, err)
		}
	}
	if _, err := b.ask(running, "exit", 5*time.Second); err != nil {
		t.Log("cut off:", err)
	}
	b.must(b.driver.Wait(t.Context(), running.Ref), "wait for what an earlier driver started")
	b.phase(running, runtime.PhaseExited)
}

func lists(t *testing.T, b *bench) {
	prepared := b.bundle()
	b.must(b.driver.Prepare(t.Context(), prepared), "prepare")
	running := b.running()
	b.restart()
	all, err := b.driver.List(t.Context())
	b.must(err, "list")
	seen := map[holdfast.InstanceRef]runtime.Phase{}
	for _, s := range all {
		seen[s.Ref] = s.Phase
	}
	if len(seen) != 2 || seen[prepared.Ref] != runtime.PhasePrepared || seen[running.Ref] != runtime.PhaseRunning {
		t.Fatalf("the list is %v", all)
	}
	for ref := range seen {
		b.must(b.driver.Stop(t.Context(), ref), "stop of what nobody recorded")
	}
	all, err = b.driver.List(t.Context())
	b.must(err, "list")
	if len(all) != 0 {
		t.Fatalf("the list is %v after all were stopped", all)
	}
}

func waits(t *testing.T, b *bench) {
	none := b.bundle()
	b.must(b.driver.Wait(t.Context(), none.Ref), "wait for what never was")

	made := b.running()
	over, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.driver.Wait(over, made.Ref); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait for what runs: %v, want the context's end", err)
	}
	ended := make(chan error, 2)
	wait := func() { ended <- b.driver.Wait(t.Context(), made.Ref) }
	go wait()
	b.must(b.driver.Suspend(t.Context(), made.Ref), "suspend")
	go wait()
	select {
	case err := <-ended:
		t.Fatalf("a suspended instance was taken for ended: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	b.must(b.driver.Stop(t.Context(), made.Ref), "stop")
	for range 2 {
		select {
		case err := <-ended:
			b.must(err, "wait")
		case <-time.After(5 * time.Second):
			t.Fatal("wait did not notice the end")
		}
	}
}

func suspends(t *testing.T, b *bench) {
	made := b.running()
	nonce := b.nonce(made)
	b.must(b.driver.Suspend(t.Context(), made.Ref), "suspend")
	if answer, err := b.ask(made, "nonce", 300*time.Millisecond); err == nil {
		t.Fatalf("a suspended guest answers %q", answer)
	}
	b.must(b.driver.Resume(t.Context(), made.Ref), "resume")
	if again := b.nonce(made); again != nonce {
		t.Fatalf("another boot answers: %q, was %q", again, nonce)
	}
}

func gateways(t *testing.T, b *bench) {
	made := b.running()
	if answer, err := b.ask(made, "get "+b.url+"/deliveries", 10*time.Second); err != nil || answer != "204 No Content" {
		t.Fatalf("the gateway answers %q, %v", answer, err)
	}
	status, err := b.driver.Inspect(t.Context(), made.Ref)
	b.must(err, "inspect")
	if status.Address == "" {
		t.Fatal("a running instance has no address")
	}
}

func many(t *testing.T, b *bench) {
	const count = 8
	var all []runtime.Bundle
	for range count {
		all = append(all, b.bundle())
	}
	var group sync.WaitGroup
	errs := make(chan error, 3*count)
	for _, made := range all {
		group.Go(func() {
			errs <- b.driver.Prepare(t.Context(), made)
			errs <- b.driver.Start(t.Context(), made.Ref)
		})
	}
	group.Wait()
	nonces := map[string]bool{}
	for _, made := range all {
		nonces[b.nonce(made)] = true
	}
	if len(nonces) != count {
		t.Errorf("%d guests answer, want %d", len(nonces), count)
	}
	for _, made := range all {
		group.Go(func() { errs <- b.driver.Stop(t.Context(), made.Ref) })
	}
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// A caller that gives up must not hide what was begun: it is listed, or gone.
func cancelled(t *testing.T, b *bench) {
	for _, after := range []time.Duration{0, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond} {
		made := b.bundle()
		ctx, cancel := context.WithTimeout(t.Context(), after)
		err := b.driver.Prepare(ctx, made)
		cancel()
		all, listErr := b.driver.List(t.Context())
		b.must(listErr, "list")
		listed := slices.ContainsFunc(all, func(s runtime.Status) bool { return s.Ref == made.Ref })
		if err == nil && !listed {
			t.Fatal("Prepare succeeded and List does not have it")
		}
		b.must(b.driver.Prepare(t.Context(), made), "prepare after a cancelled one")
		b.must(b.driver.Start(t.Context(), made.Ref), "start")
		b.nonce(made)
		b.must(b.driver.Stop(t.Context(), made.Ref), "stop")
	}
}
