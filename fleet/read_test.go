package fleet

import (
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: D1. The usual case, where the callback came first, makes no call.
func TestD1_WhatIsKnownIsAnsweredWithoutTheHost(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	byAnswer, suspended, ended := w.running(), w.running(), w.running()
	w.ensure(w.level(suspended, 2, holdfast.DesiredSuspended))
	w.ensure(w.level(ended, 2, holdfast.DesiredAbsent))
	byFact := w.placed(m)
	check(t, w.fact("ev-1", holdfast.Observation{Instance: byFact, Incarnation: 1, Generation: 1, State: holdfast.InstanceRunning, Host: m.id, Address: "10.0.0.9"}))
	before := m.calls()
	for id, state := range map[holdfast.InstanceID]holdfast.InstanceState{byAnswer: holdfast.InstanceRunning, byFact: holdfast.InstanceRunning,
		suspended: holdfast.InstanceSuspended, ended: holdfast.InstanceAbsent} {
		o, err := w.fleet.GetInstance(t.Context(), id)
		check(t, err)
		if o.State != state || o.Stale {
			t.Errorf("%+v, want %s", o, state)
		}
	}
	if m.calls() != before {
		t.Error("the host was asked")
	}
	_, err := w.fleet.GetInstance(t.Context(), w.instance())
	if holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("unknown: %v", err)
	}
}

// contract: D1. T33: a fact that never came is asked for, stored, and asked no more.
func TestD1_AMissingFactIsAskedStoredAndReturned(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.placed(m)
	if o, err := w.fleet.GetInstance(t.Context(), id); err != nil || o.State != holdfast.InstancePlaced || o.Stale {
		t.Fatalf("a host that was never told: %+v, %v", o, err)
	}
	_, err := m.EnsureInstance(t.Context(), w.row(id).level(0)) // it is told, and the answer is lost
	check(t, err)
	o, err := w.fleet.GetInstance(t.Context(), id)
	check(t, err)
	if o.State != holdfast.InstanceRunning || len(o.Ports) != 1 || o.Address == "" || o.HostURL == "" {
		t.Errorf("answered %+v", o)
	}
	gets := m.gets
	if _, err := w.fleet.GetInstance(t.Context(), id); err != nil || m.gets != gets {
		t.Errorf("asked again, %v", err)
	}
}

// A fact without ports is asked for once; the host's word that there are none is a fact.
func TestD1_NoPortsAreAFactOnlyFromTheHost(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.placed(m)
	bare := holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, State: holdfast.InstanceRunning, Host: m.id}
	m.do(func() { m.seen[id] = bare })
	check(t, w.fact("ev-1", bare))
	for range 3 {
		if _, err := w.fleet.GetInstance(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if m.gets != 1 {
		t.Errorf("asked %d times", m.gets)
	}
}

// T35: concurrent misses share one call.
func TestT35_AReadStormIsOneCall(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.placed(m)
	_, err := m.EnsureInstance(t.Context(), w.row(id).level(0))
	check(t, err)
	asked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.do(func() {
		m.onGet = func() {
			once.Do(func() { close(asked) })
			<-release
		}
	})
	var reads sync.WaitGroup
	read := func() {
		if o, err := w.fleet.GetInstance(t.Context(), id); err != nil || o.State != holdfast.InstanceRunning {
			t.Errorf("%+v, %v", o, err)
		}
	}
	reads.Go(read)
	wait(t, asked)
	for range 50 {
		reads.Go(read)
	}
	close(release)
	reads.Wait()
	if m.gets != 1 {
		t.Errorf("the host was asked %d times", m.gets)
	}
}

// contract: D2. T27, T32: no answer is no fact.
func TestD2_AnUnreachableHostLeavesTheLastKnownMarkedStale(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.placed(m)
	m.do(func() { m.down = true })
	before := w.row(id)
	o, err := w.fleet.GetInstance(t.Context(), id)
	check(t, err)
	if !o.Stale || o.State != holdfast.InstancePlaced {
		t.Errorf("answered %+v", o)
	}
	if after := w.row(id); after.revision != before.revision {
		t.Error("something was written")
	}
	m.do(func() { m.down = false })
	known := w.running()
	w.exec(`UPDATE host SET health = 'SUSPECT'`)
	if o, err := w.fleet.GetInstance(t.Context(), known); err != nil || !o.Stale || o.State != holdfast.InstanceRunning {
		t.Errorf("on a silent host: %+v, %v", o, err)
	}
}

// T34: what was recorded while the host was asked stands.
func TestT34_ARepairDoesNotOverwriteWhatIsNewer(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.placed(m)
	_, err := m.EnsureInstance(t.Context(), w.row(id).level(0))
	check(t, err)
	stale := m.seen[id]
	var once sync.Once
	m.do(func() {
		m.onGet = func() {
			once.Do(func() {
				check(t, w.fact("ev-1", exit(id, m)))
				m.do(func() { m.seen[id] = stale })
			})
		}
	})
	o, err := w.fleet.GetInstance(t.Context(), id)
	check(t, err)
	if o.State != holdfast.InstanceExited || w.row(id).state != holdfast.InstanceExited {
		t.Errorf("answered %s, recorded %s", o.State, w.row(id).state)
	}
	w.sound()
}
