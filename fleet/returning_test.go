package fleet

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// loses makes a host LOST, as long silence does.
func (w *world) loses(m *machine) {
	w.t.Helper()
	m.do(func() { m.down = true })
	w.clock.pass(holdfast.HostSuspectAfter)
	check(w.t, w.sweep(SweepHosts))
	w.clock.pass(holdfast.HostLostAfter)
	check(w.t, w.sweep(SweepHosts))
	if h := w.known(m).Health; h != holdfast.HostLost {
		w.t.Fatalf("it is %s, want LOST", h)
	}
}

// contract: C5. A host that comes back keeps what was neither replaced, failed nor
// deleted meanwhile, and ends the rest before it gets work.
func TestC5_AReturningHostEndsWhatIsNoLongerItsOwnBeforeItGetsWork(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	kept, deleted, replaced, failed := w.running(), w.running(), w.running(), w.running()
	other := w.host(8)
	w.loses(m)
	w.beat(other, 2, 8)
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(deleted, 2, holdfast.DesiredAbsent))
	wantReason(t, err, holdfast.ReasonHostUnreachable)
	again := w.level(replaced, 2, holdfast.DesiredRunning)
	again.Incarnation = 2
	if o := w.ensure(again); o.Host != other.id {
		t.Fatalf("replaced on %s", o.Host)
	}
	w.exec(`UPDATE instance SET state = 'EXITED', known = 'EXITED', held = 0 WHERE id = $1`, string(failed))
	w.exec(`UPDATE host SET used_cpu_millis = used_cpu_millis - 1000, used_memory_bytes = used_memory_bytes - 536870912,
		used_instances = used_instances - 1 WHERE id = $1`, string(m.id))
	w.sound()

	m.do(func() { m.down, m.slow = false, true }) // it is heard again, and stops nothing at once
	w.beat(m, 3, 8)
	w.say(other, holdfast.HostCordoned, false)
	if err := w.sweep(SweepReturns); err == nil {
		t.Error("what is not gone yet was not reported")
	}
	_, err = w.fleet.EnsureInstance(t.Context(), w.level(w.instance(), 1, holdfast.DesiredRunning))
	wantReason(t, err, holdfast.ReasonNoCapacity)
	m.do(func() {
		m.slow = false
		for id, o := range m.seen { // what was being stopped is gone by now
			if o.State == holdfast.InstanceStopping {
				o.State = holdfast.InstanceAbsent
				m.seen[id] = o
			}
		}
	})
	w.beat(m, 4, 8)
	check(t, w.sweep(SweepReturns))
	for _, gone := range []holdfast.InstanceID{deleted, replaced, failed} {
		if s := m.seen[gone].State; s != holdfast.InstanceAbsent {
			t.Errorf("%s is %s on the host that is back", gone, s)
		}
	}
	if r := w.row(kept); m.seen[kept].State != holdfast.InstanceRunning || r.state != holdfast.InstanceRunning || r.incarnation != 1 {
		t.Errorf("what it keeps is %s, recorded %s", m.seen[kept].State, r.state)
	}
	if r := w.row(deleted); r.state != holdfast.InstanceAbsent {
		t.Errorf("the deleted one is recorded %s", r.state)
	}
	if r := w.row(w.running()); r.host != m.id {
		t.Error("it gets no work")
	}
	w.sound()
}

// T52: what the fleet does not know at all is not destroyed by a return: the
// database may be the wrong one. It is the orphans' sweep's, with grace and guard.
func TestT52_AReturnDestroysNothingThatTheFleetDoesNotKnow(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	ids := []holdfast.InstanceID{w.running(), w.running(), w.running(), w.running(), w.running()}
	w.loses(m)
	w.exec(`DELETE FROM instance`)
	w.exec(`UPDATE host SET used_cpu_millis = 0, used_memory_bytes = 0, used_instances = 0`)
	m.do(func() { m.down = false })
	w.beat(m, 2, 8)
	check(t, w.sweep(SweepReturns))
	if h := w.known(m).Health; h != holdfast.HostReady {
		t.Errorf("it is %s", h)
	}
	for _, id := range ids {
		if s := m.seen[id].State; s != holdfast.InstanceRunning {
			t.Errorf("%s is %s", id, s)
		}
	}
}

// contract: C5. A host that stays silent is given up after host_loss_after, and not
// before: what it had is lost, told upward once, its room given back once.
func TestC5_AHostThatStaysSilentIsGivenUp(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	id, ending := w.running(), w.running()
	left := w.running()
	other := w.host(8)
	w.loses(m)
	w.beat(other, 2, 8)
	again := w.level(left, 2, holdfast.DesiredRunning)
	again.Incarnation = 2
	w.ensure(again)
	if _, err := w.fleet.EnsureInstance(t.Context(), w.level(ending, 2, holdfast.DesiredAbsent)); err == nil {
		t.Fatal("a silent host was taken for one that confirmed")
	}
	seen := w.known(m).SeenAt
	w.clock.pass(holdfast.HostLossAfter - w.clock.Now().Sub(seen) - time.Second)
	check(t, w.sweep(SweepLosses))
	if r := w.row(id); r.state != holdfast.InstanceUnknown || len(w.outbox()) != 0 {
		t.Fatalf("given up before its time: %s", r.state)
	}
	w.clock.pass(time.Second)
	var sweeps sync.WaitGroup
	for range 4 { // T28
		sweeps.Go(func() {
			if err := w.fleet.giveUpHost(t.Context(), hostRow{Host: w.known(m), healthAt: seen.Add(holdfast.HostLostAfter)}); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
				t.Error(err)
			}
		})
	}
	sweeps.Wait()
	if r := w.row(id); r.state != holdfast.InstanceExited || r.failure == nil || r.failure.Reason != holdfast.ReasonInstanceLost || r.held {
		t.Errorf("%s, %+v", r.state, r.failure)
	}
	if r := w.row(ending); r.state != holdfast.InstanceAbsent {
		t.Errorf("stuck deleting: it is %s", r.state)
	}
	if rows := w.outbox(); len(rows) != 1 {
		t.Errorf("told %d times, want once", len(rows))
	}
	if used := w.known(m).Used; used != (holdfast.Capacity{}) {
		t.Errorf("it still counts %+v", used)
	}
	if o := w.ensure(w.level(id, 2, holdfast.DesiredAbsent)); o.State != holdfast.InstanceAbsent {
		t.Errorf("deleting what was lost is answered %s", o.State)
	}
	w.sound()

	// It comes back after all: what was lost is ended, and it is as any other host.
	m.do(func() { m.down = false })
	w.beat(m, 2, 8)
	check(t, w.sweep(SweepReturns))
	for _, gone := range []holdfast.InstanceID{id, ending, left} {
		if s := m.seen[gone].State; s != holdfast.InstanceAbsent {
			t.Errorf("%s is %s on the host that is back", gone, s)
		}
	}
	if h := w.known(m); h.Health != holdfast.HostReady || !h.GoneAt.IsZero() {
		t.Errorf("it is %s, given up %s", h.Health, h.GoneAt)
	}
	w.sound()
}

func TestOverdueLoss(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	limits := Limits{}.withDefaults()
	for _, tc := range []struct {
		name         string
		health       holdfast.HostHealth
		silent, lost time.Duration
		gone         time.Time
		want         bool
	}{
		{"silent and lost for long", holdfast.HostLost, 30 * time.Minute, 25 * time.Minute, time.Time{}, true},
		{"not silent for so long", holdfast.HostLost, 30*time.Minute - 1, 25 * time.Minute, time.Time{}, false},
		{"T30 not lost for so long: the fleet was down itself", holdfast.HostLost, 24 * time.Hour, 25*time.Minute - 1, time.Time{}, false},
		{"only suspected", holdfast.HostSuspect, 24 * time.Hour, 24 * time.Hour, time.Time{}, false},
		{"given up already", holdfast.HostLost, 24 * time.Hour, 24 * time.Hour, now, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := hostRow{Host: holdfast.Host{Health: tc.health, SeenAt: now.Add(-tc.silent), GoneAt: tc.gone}, healthAt: now.Add(-tc.lost)}
			if got := overdueLoss(h, now, limits); got != tc.want {
				t.Errorf("%v", got)
			}
		})
	}
}

// T30: a fleet that was down itself has heard nobody; and a host that answers is
// not given up, whatever its heartbeats do.
func TestT30_AFleetThatWasDownGivesNobodyUp(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	id := w.running()
	w.clock.pass(24 * time.Hour)
	m.do(func() { m.down = true })
	for range 3 {
		check(t, w.sweep(SweepHosts))
		check(t, w.sweep(SweepLosses))
	}
	if h, r := w.known(m), w.row(id); h.Health != holdfast.HostSuspect || r.state != holdfast.InstanceUnknown {
		t.Fatalf("after a day off: %s, its instance %s", h.Health, r.state)
	}
	w.loses(m)
	w.clock.pass(holdfast.HostLossAfter)
	m.do(func() { m.down = false })
	check(t, w.sweep(SweepLosses))
	if r := w.row(id); r.state != holdfast.InstanceUnknown {
		t.Fatalf("a host that answers was given up: %s", r.state)
	}
	check(t, w.sweep(SweepReturns))
	if h, r := w.known(m), w.row(id); h.Health != holdfast.HostReady || r.state != holdfast.InstanceRunning {
		t.Errorf("it is %s, its instance %s", h.Health, r.state)
	}
}

// A host that is given up while it comes back is taken back only rid of what was
// given up, however the two interleave.
func TestC5_GivenUpAndBackAtTheSameTime(t *testing.T) {
	for round := range 10 {
		w := newWorld(t)
		m := w.host(16)
		var ids []holdfast.InstanceID
		for range 8 {
			ids = append(ids, w.running())
		}
		w.loses(m)
		w.clock.pass(holdfast.HostLossAfter)
		silent := hostRow{Host: w.known(m), healthAt: w.clock.Now().Add(-holdfast.HostLossAfter)}
		done, err := w.fleet.recordLoss(t.Context(), silent, false)
		if err != nil || !done {
			t.Fatalf("given up: %v %v", done, err)
		}
		m.do(func() { m.down = false })
		w.beat(m, 2, 16)
		back := hostRow{Host: w.known(m)}
		var race sync.WaitGroup
		race.Go(func() { check(t, w.fleet.giveUpInstances(t.Context(), silent)) })
		race.Go(func() {
			for range round {
				w.known(m)
			}
			if err := w.fleet.takeBack(t.Context(), back); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
				t.Error(err)
			}
		})
		race.Wait()
		ready := w.known(m).Health == holdfast.HostReady
		for _, id := range ids {
			r, o := w.row(id), m.seen[id]
			if ready && final(r.state) && o.State != holdfast.InstanceAbsent {
				t.Errorf("round %d: it has work, and %s, which is %s, is %s on it", round, id, r.state, o.State)
			}
		}
		check(t, w.sweep(SweepReturns))
		check(t, w.sweep(SweepLosses))
		check(t, w.sweep(SweepInstances))
		for _, id := range ids {
			r, o := w.row(id), m.seen[id]
			if final(r.state) != (o.State == holdfast.InstanceAbsent) {
				t.Errorf("round %d: in the end %s is %s, and %s on the host", round, id, r.state, o.State)
			}
		}
		w.sound()
	}
}

// T29: one host that cannot be taken back keeps no other away.
func TestT29_OneHostThatCannotBeTakenBackHidesNoOther(t *testing.T) {
	w := newWorld(t)
	var all []*machine
	for range 5 {
		all = append(all, w.host(2))
	}
	for _, m := range all {
		m.do(func() { m.down = true })
	}
	w.clock.pass(holdfast.HostSuspectAfter)
	check(t, w.sweep(SweepHosts))
	w.clock.pass(holdfast.HostLostAfter)
	check(t, w.sweep(SweepHosts))
	for i, m := range all {
		m.do(func() { m.down = i == 0 }) // the first one beats, and does not answer
		w.beat(m, 2, 2)
	}
	if err := w.sweep(SweepReturns); err == nil {
		t.Error("the one that does not answer was not reported")
	}
	for i, m := range all {
		if h := w.known(m).Health; (h == holdfast.HostReady) == (i == 0) {
			t.Errorf("host %d is %s", i, h)
		}
	}
}

// Hundreds of ends whose answers are lost leave nothing behind: not on the host,
// and not in what is counted ("435 of 500 taps orphaned").
func TestC4_HundredsOfLostEndsLeaveNothingBehind(t *testing.T) {
	w := newWorld(t)
	m := w.host(500)
	var ids []holdfast.InstanceID
	for range 500 {
		ids = append(ids, w.running())
	}
	for i, id := range ids {
		m.do(func() { m.down = i%8 != 0 })
		_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 2, holdfast.DesiredAbsent))
		if (err != nil) != (i%8 != 0) {
			t.Fatalf("%d: %v", i, err)
		}
	}
	m.do(func() { m.down = false })
	w.beat(m, 2, 500)
	w.clock.pass(holdfast.InstanceStoppingAfter)
	check(t, w.sweep(SweepOverdue))
	for _, id := range ids {
		if r := w.row(id); r.state != holdfast.InstanceAbsent || m.seen[id].State != holdfast.InstanceAbsent {
			t.Fatalf("%s is %s, on its host %s", id, r.state, m.seen[id].State)
		}
	}
	if used := w.known(m).Used; used != (holdfast.Capacity{}) {
		t.Errorf("counted: %+v", used)
	}
	w.sound()
}

// planReturn, case by case.
func TestPlanReturn(t *testing.T) {
	const id, host = holdfast.InstanceID("in-1"), holdfast.HostID("ho-1")
	seen := holdfast.Observation{Instance: id, Incarnation: 2, Generation: 5, State: holdfast.InstanceRunning, Host: host}
	base := row{id: id, incarnation: 2, generation: 5, host: host, state: holdfast.InstanceUnknown, known: holdfast.InstanceRunning, desired: holdfast.DesiredRunning}
	for _, tc := range []struct {
		name string
		row  func(*row)
		obs  func(*holdfast.Observation)
		left bool
		want string
	}{
		{name: "its own", want: "[]"},
		{name: "deleted", row: func(r *row) { r.state, r.generation = holdfast.InstanceAbsent, 7 }, want: "[ABSENT at 7]"},
		{name: "failed", row: func(r *row) { r.state = holdfast.InstanceExited }, want: "[ABSENT at 6]"},
		{name: "failed, and ended there too", row: func(r *row) { r.state = holdfast.InstanceExited },
			obs: func(o *holdfast.Observation) { o.State = holdfast.InstanceExited }, want: "[]"},
		{name: "to be removed", row: func(r *row) { r.desired, r.generation = holdfast.DesiredAbsent, 6 }, want: "[ABSENT at 6]"},
		{name: "to be ended", row: func(r *row) { r.desired, r.generation = holdfast.DesiredExited, 6 }, want: "[EXITED at 6]"},
		{name: "replaced", row: func(r *row) { r.incarnation, r.generation, r.host = 3, 9, "ho-2" }, want: "[ABSENT at 9]"},
		{name: "replaced, with a leftover", row: func(r *row) { r.incarnation, r.host = 3, "ho-2" }, left: true, want: "[]"},
		{name: "newer than the fleet knows (T52)", row: func(r *row) { r.incarnation = 1 }, want: "[]"},
		{name: "another's (T49)", row: func(r *row) { r.host = "ho-2" }, want: "[ABSENT at 6]"},
		{name: "a tombstone", obs: func(o *holdfast.Observation) { o.State = holdfast.InstanceAbsent },
			row: func(r *row) { r.state = holdfast.InstanceExited }, want: "[]"},
		{name: "only placed (T26)", row: func(r *row) { r.state = holdfast.InstancePlaced }, want: "[]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, o := base, seen
			if tc.row != nil {
				tc.row(&r)
			}
			if tc.obs != nil {
				tc.obs(&o)
			}
			var got []string
			for _, d := range planReturn(host, []holdfast.Observation{o}, map[holdfast.InstanceID]row{id: r}, map[holdfast.InstanceRef]bool{{Instance: id, Incarnation: 2}: tc.left}) {
				got = append(got, fmt.Sprintf("%s at %d", d.desired, d.generation))
			}
			if fmt.Sprint(got) != tc.want {
				t.Errorf("%v, want %s", got, tc.want)
			}
		})
	}
	if got := planReturn(host, []holdfast.Observation{seen}, nil, nil); len(got) != 0 {
		t.Errorf("T52: what is not known at all: %v", got)
	}
}
