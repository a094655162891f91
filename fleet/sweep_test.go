package fleet

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// contract: C1, C2. An order that never reached its host ends with a reason, its
// room comes back, and the orchestrator is told, once.
func TestC2_AnOrderThatWasLostEndsTheInstance(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.placed(m)
	w.clock.pass(holdfast.InstancePrepareAfter - time.Second)
	w.beat(m, 2, 2)
	check(t, w.sweep(SweepOverdue))
	check(t, w.sweep(SweepInstances))
	if r := w.row(id); r.state != holdfast.InstancePlaced {
		t.Fatalf("T26: %s before its deadline", r.state)
	}
	w.clock.pass(time.Second)
	var sweeps sync.WaitGroup
	for range 4 { // T28: overlapping sweeps do no more than one
		sweeps.Go(func() {
			if err := w.fleet.resolve(t.Context(), id); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
				t.Error(err)
			}
		})
	}
	sweeps.Wait()
	// EXITED, or ABSENT where another sweep asked between the tombstone and its record: it ended either way.
	r := w.row(id)
	if !final(r.state) || r.failure == nil || r.failure.Reason != holdfast.ReasonInstanceLost {
		t.Errorf("%s, %+v", r.state, r.failure)
	}
	if rows := w.outbox(); len(rows) != 1 {
		t.Errorf("told %d times", len(rows))
	}
	w.sound()
	// T49: the order that was under way finds the tombstone.
	if _, err := m.EnsureInstance(t.Context(), w.level(id, 1, holdfast.DesiredRunning)); holdfast.ReasonOf(err) != holdfast.ReasonLevelConflict {
		t.Errorf("the late order is answered %v", err)
	}
	if m.boots[holdfast.InstanceRef{Instance: id, Incarnation: 1}] != 0 {
		t.Error("it booted")
	}
}

// T26: an order that arrives while the sweep concludes that it was lost is none.
func TestT26_AnOrderThatArrivesMeanwhileIsNotLost(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.placed(m)
	w.clock.pass(holdfast.InstancePrepareAfter)
	m.do(func() {
		m.onEnsure = func(holdfast.Level) {
			m.do(func() { m.onEnsure = nil })
			_, err := m.EnsureInstance(t.Context(), w.row(id).level(0))
			check(t, err)
		}
	})
	check(t, w.sweep(SweepOverdue))
	if r := w.row(id); final(r.state) || m.seen[id].State != holdfast.InstanceRunning {
		t.Errorf("recorded %s, on the host %s", r.state, m.seen[id].State)
	}
	check(t, w.sweep(SweepInstances))
	if r := w.row(id); r.state != holdfast.InstanceRunning {
		t.Errorf("recorded %s after the host was asked", r.state)
	}
}

// contract: C1. A boot that nobody reported on is asked about at its deadline.
func TestC1_AnUnreportedBootIsAskedAbout(t *testing.T) {
	for _, state := range []holdfast.InstanceState{holdfast.InstanceRunning, holdfast.InstanceExited} {
		w := newWorld(t)
		m := w.host(2)
		id := w.booting(m)
		m.do(func() {
			o := m.seen[id]
			o.State = state
			m.seen[id] = o
		})
		w.clock.pass(holdfast.InstanceBootAfter)
		check(t, w.sweep(SweepOverdue))
		if r := w.row(id); r.state != state {
			t.Errorf("recorded %s, want %s", r.state, state)
		}
		w.sound()
	}
}

// booting is an instance that its host reported as that, and nothing since.
func (w *world) booting(m *machine) holdfast.InstanceID {
	w.t.Helper()
	id := w.placed(m)
	o := holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, Desired: holdfast.DesiredRunning, State: holdfast.InstanceBooting, Host: m.id}
	m.do(func() { m.seen[id] = o })
	check(w.t, w.fact("boot-"+string(id), o))
	return id
}

// T31: looking at what is overdue does not move its deadline; it only looks again later.
func TestT31_LookingDoesNotMoveTheDeadline(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.booting(m)
	entered := w.row(id).enteredAt
	w.clock.pass(holdfast.InstanceBootAfter)
	for range 3 {
		check(t, w.sweep(SweepOverdue))
		gets := m.gets
		check(t, w.sweep(SweepOverdue)) // not due again yet
		if m.gets != gets {
			t.Fatal("asked twice within a period")
		}
		w.clock.pass(w.fleet.limits.SweepEvery)
	}
	if r := w.row(id); !r.enteredAt.Equal(entered) || r.state != holdfast.InstanceBooting || m.gets != 3 {
		t.Errorf("entered %s, want %s; asked %d times", r.enteredAt, entered, m.gets)
	}
}

// contract: C1. An end that is wanted is sent again until the host confirms it.
func TestC1_AWantedEndIsSentAgain(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.running()
	m.do(func() { m.down = true })
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 2, holdfast.DesiredAbsent))
	wantReason(t, err, holdfast.ReasonHostUnreachable)
	w.clock.pass(holdfast.InstanceStoppingAfter)
	if err := w.sweep(SweepOverdue); err == nil {
		t.Error("the silence was not reported")
	}
	if r := w.row(id); r.state != holdfast.InstanceUnknown || !r.held {
		t.Fatalf("T32: %s on a silent host", r.state)
	}
	m.do(func() { m.down = false })
	w.clock.pass(w.fleet.limits.SweepEvery)
	check(t, w.sweep(SweepOverdue))
	if r := w.row(id); r.state != holdfast.InstanceAbsent {
		t.Errorf("recorded %s", r.state)
	}
	w.sound()
}

// contract: C4. Recorded but gone, by the host's own word alone.
func TestC4_AnInstanceThatItsHostDoesNotKnowHasEnded(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id, frozen, kept := w.running(), w.running(), w.running()
	w.ensure(w.level(frozen, 2, holdfast.DesiredSuspended))
	m.do(func() { m.down = true })
	if err := w.sweep(SweepInstances); err == nil {
		t.Error("the silence was not reported")
	}
	if r := w.row(id); r.state != holdfast.InstanceUnknown || len(w.outbox()) != 0 {
		t.Fatalf("T27: silence made it %s", r.state)
	}
	m.do(func() {
		m.down = false
		delete(m.seen, id)
		delete(m.seen, frozen)
	})
	check(t, w.sweep(SweepInstances))
	check(t, w.sweep(SweepInstances))
	for _, gone := range []holdfast.InstanceID{id, frozen} {
		if r := w.row(gone); r.state != holdfast.InstanceExited || r.failure.Reason != holdfast.ReasonInstanceLost {
			t.Errorf("recorded %s %+v", r.state, r.failure)
		}
	}
	if r := w.row(kept); r.state != holdfast.InstanceRunning || len(w.outbox()) != 2 {
		t.Errorf("the other is %s; told %d times", r.state, len(w.outbox()))
	}
	w.sound()
}

// T27: a reinstalled machine at a host's address says nothing about that host's instances.
func TestT27_AnotherHostAtTheAddressIsNoAnswer(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.running()
	fresh := newMachine(holdfast.HostID(w.ids.New(holdfast.PrefixHost)))
	url := "http://" + string(m.id)
	w.urls[url] = fresh
	w.clock.pass(time.Second)
	b := w.heartbeat(fresh, 1, 4)
	b.URL = url
	check(t, w.fleet.Heartbeat(t.Context(), b))
	if err := w.sweep(SweepInstances); err == nil {
		t.Error("the stranger was not reported")
	}
	if r := w.row(id); r.state != holdfast.InstanceUnknown || !r.held {
		t.Errorf("recorded %s", r.state)
	}
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 2, holdfast.DesiredAbsent))
	wantReason(t, err, holdfast.ReasonHostUnreachable)
	if r := w.row(id); final(r.state) || !r.held {
		t.Errorf("a stranger's ABSENT made it %s", r.state)
	}
	w.clock.pass(holdfast.HostSuspectAfter)
	check(t, w.sweep(SweepHosts))
	for _, h := range w.hosts() {
		if h.ID == m.id && h.Health != holdfast.HostSuspect {
			t.Errorf("the host is %s", h.Health)
		}
	}
	w.sound()
}

func (m *machine) orphan(id holdfast.InstanceID) {
	m.do(func() {
		m.seen[id] = holdfast.Observation{Instance: id, Incarnation: 1, Generation: 3, Desired: holdfast.DesiredRunning, State: holdfast.InstanceRunning, Host: m.id}
	})
}

// contract: C4. An orphan is destroyed after the grace period, not before.
func TestC4_AnOrphanIsDestroyedAfterTheGracePeriod(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	wanted, deleted, ghost := w.running(), w.running(), w.instance()
	w.ensure(w.level(deleted, 2, holdfast.DesiredAbsent))
	m.orphan(deleted) // the host forgot its tombstone
	m.orphan(ghost)
	check(t, w.sweep(SweepInstances))
	w.clock.pass(holdfast.OrphanGrace - time.Second)
	w.beat(m, 2, 8)
	check(t, w.sweep(SweepInstances))
	if m.seen[ghost].State != holdfast.InstanceRunning {
		t.Fatal("destroyed within the grace period")
	}
	w.clock.pass(time.Second)
	check(t, w.sweep(SweepInstances))
	if m.seen[ghost].State != holdfast.InstanceAbsent || m.seen[deleted].State != holdfast.InstanceAbsent || m.seen[wanted].State != holdfast.InstanceRunning {
		t.Errorf("ghost %s, deleted %s, wanted %s", m.seen[ghost].State, m.seen[deleted].State, m.seen[wanted].State)
	}
	if _, err := w.fleet.GetInstance(t.Context(), ghost); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("the orphan was recorded: %v", err)
	}
	w.sound()
}

// T26: recorded between the list and the destruction, it is wanted.
func TestT26_AnOrphanThatBecameWantedIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	id := w.running()
	err := w.fleet.destroy(t.Context(), hostRow{Host: w.hosts()[0]}, doomed{ref: holdfast.InstanceRef{Instance: id, Incarnation: 1}, generation: 9})
	if !errors.Is(err, reconcile.ErrSkipped) || m.seen[id].State != holdfast.InstanceRunning {
		t.Errorf("%v, and it is %s", err, m.seen[id].State)
	}
}

// T52: an empty or restored database makes everything look unwanted: nothing is destroyed.
func TestT52_AWrongDatabaseDestroysNothing(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	for range 4 {
		w.running()
	}
	w.exec(`DELETE FROM instance`)
	check(t, w.sweep(SweepInstances))
	w.clock.pass(holdfast.OrphanGrace)
	w.beat(m, 2, 8)
	if err := w.sweep(SweepInstances); !errors.Is(err, reconcile.ErrTooMany) {
		t.Errorf("reported %v", err)
	}
	for id, o := range m.seen {
		if o.State != holdfast.InstanceRunning {
			t.Errorf("%s is %s", id, o.State)
		}
	}
}

// T20, T40: what a late retry may need is kept for its time, and no longer.
func TestT40_TombstonesAndInboxRowsAreKeptLongEnough(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id, alive := w.running(), w.running()
	check(t, w.fact("ev-1", exit(id, m)))
	w.ensure(w.level(id, 2, holdfast.DesiredAbsent))
	w.clock.pass(holdfast.TombstoneKept - time.Second)
	check(t, w.sweep(SweepPurge))
	if r := w.row(id); r.state != holdfast.InstanceAbsent || w.outcome(m, "ev-1") != "applied" {
		t.Fatal("purged too soon")
	}
	w.clock.pass(2 * time.Second)
	check(t, w.sweep(SweepPurge))
	_, err := w.fleet.GetInstance(t.Context(), id)
	if holdfast.CodeOf(err) != holdfast.NotFound || w.outcome(m, "ev-1") != "not recorded" {
		t.Errorf("kept: %v", err)
	}
	if r := w.row(alive); r.state != holdfast.InstanceRunning {
		t.Errorf("the other is %s", r.state)
	}
	late := w.level(id, 1, holdfast.DesiredRunning)
	late.MintedAt = w.clock.Now().Add(-holdfast.TombstoneKept)
	_, err = w.fleet.EnsureInstance(t.Context(), late)
	wantReason(t, err, holdfast.ReasonTooOld)
	check(t, w.db.View(t.Context(), func(tx store.Tx) error {
		sources, err := inbox.Sources(t.Context(), tx, "", 10)
		if len(sources) != 0 {
			t.Errorf("sources %v", sources)
		}
		return err
	}))
}

// T29, T19: one instance that cannot be settled hides no other.
func TestT29_WhatCannotBeSettledHidesNothing(t *testing.T) {
	w := newWorld(t)
	sick, well := w.host(1), w.host(400)
	w.exec(`UPDATE host SET duty = 'CORDONED' WHERE id = $1`, string(well.id))
	stuck := w.booting(sick)
	w.exec(`UPDATE host SET duty = 'ACTIVE' WHERE id = $1`, string(well.id))
	var ids []holdfast.InstanceID
	for range 150 { // more than a page
		ids = append(ids, w.booting(well))
	}
	sick.do(func() { sick.down = true })
	well.do(func() {
		for id, o := range well.seen {
			o.State = holdfast.InstanceRunning
			well.seen[id] = o
		}
	})
	w.clock.pass(holdfast.InstanceBootAfter)
	if err := w.sweep(SweepOverdue); err == nil {
		t.Error("the silent host was not reported")
	}
	for _, id := range ids {
		if r := w.row(id); r.state != holdfast.InstanceRunning {
			t.Fatalf("%s is %s", id, r.state)
		}
	}
	if r := w.row(stuck); r.state != holdfast.InstanceUnknown {
		t.Errorf("the stuck one is %s", r.state)
	}
}

// contract: C4. A host that is still at it has not confirmed an end: nothing is
// lost, and no room is given away, before it has.
func TestC4_NothingIsLostBeforeItsHostConfirmsTheTombstone(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.placed(m)
	w.clock.pass(holdfast.InstancePrepareAfter)
	m.do(func() { m.slow = true })
	check(t, w.sweep(SweepOverdue))
	if r := w.row(id); r.state != holdfast.InstancePlaced || !r.held {
		t.Errorf("recorded %s, held %v", r.state, r.held)
	}
	m.do(func() { m.slow = false })
	w.clock.pass(w.fleet.limits.SweepEvery)
	check(t, w.sweep(SweepOverdue))
	check(t, w.sweep(SweepOverdue))
	w.sound()
}
