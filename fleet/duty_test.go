package fleet

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// say is the operators' word on a host.
func (w *world) say(m *machine, duty holdfast.HostDuty, force bool) holdfast.Host {
	w.t.Helper()
	h, err := w.fleet.SetHostDuty(w.t.Context(), holdfast.SetHostDuty{Host: m.id, Duty: duty, Reason: "a test", Force: force})
	check(w.t, err)
	return h
}

func (w *world) known(m *machine) holdfast.Host {
	w.t.Helper()
	for _, h := range w.hosts() {
		if h.ID == m.id {
			return h
		}
	}
	w.t.Fatalf("there is no host %s", m.id)
	return holdfast.Host{}
}

// Every pair of duties: what may follow is done, twice the same is success, and
// RETIRED is for ever.
func TestTheOperatorsWordOnAHost(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	follows := holdfast.HostDutyTransitions()
	for from := range follows {
		for to := range follows {
			h := hostRow{Host: holdfast.Host{ID: "ho-1", Duty: from, DutyReason: "before", Health: holdfast.HostReady}}
			next, changed, err := judgeDuty(h, holdfast.SetHostDuty{Host: "ho-1", Duty: to}, now)
			switch {
			case from == to:
				if err != nil || changed || next.DutyReason != "before" {
					t.Errorf("%s again: changed %v, reason %q, %v", to, changed, next.DutyReason, err)
				}
				if next, changed, err = judgeDuty(h, holdfast.SetHostDuty{Host: "ho-1", Duty: to, Reason: "after"}, now); err != nil || !changed || next.DutyReason != "after" {
					t.Errorf("%s again with a reason: changed %v, reason %q, %v", to, changed, next.DutyReason, err)
				}
			case from == holdfast.HostRetired:
				if holdfast.CodeOf(err) != holdfast.FailedPrecondition || changed {
					t.Errorf("%s after RETIRED: %v", to, err)
				}
			default:
				if err != nil || !changed || next.Duty != to || !next.DutyAt.Equal(now) || next.DutyReason != "" {
					t.Errorf("%s after %s: %+v, %v", to, from, next.Host, err)
				}
			}
		}
	}
}

func TestTheOperatorsWordIsCheckedAndItsHostMustExist(t *testing.T) {
	w := newWorld(t)
	m := w.host(1)
	for name, in := range map[string]holdfast.SetHostDuty{
		"id":     {Host: "h", Duty: holdfast.HostCordoned},
		"duty":   {Host: m.id, Duty: "ASLEEP"},
		"reason": {Host: m.id, Duty: holdfast.HostCordoned, Reason: strings.Repeat("x", holdfast.MaxDutyReason+1)},
	} {
		if _, err := w.fleet.SetHostDuty(t.Context(), in); holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	stranger := holdfast.HostID(w.ids.New(holdfast.PrefixHost))
	if _, err := w.fleet.SetHostDuty(t.Context(), holdfast.SetHostDuty{Host: stranger, Duty: holdfast.HostCordoned}); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("an unknown host: %v", err)
	}
	if _, err := w.fleet.FindInstances(t.Context(), holdfast.FindInstances{Host: stranger}); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("an unknown host's instances: %v", err)
	}
}

// A cordoned host gets nothing new, and what it has goes on; its heartbeats do
// not change the operators' word.
func TestACordonedHostGetsNothingNewAndKeepsWhatItHas(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	id := w.running()
	if h := w.say(m, holdfast.HostCordoned, false); h.Duty != holdfast.HostCordoned || h.DutyReason != "a test" {
		t.Fatalf("answered %+v", h)
	}
	other := w.host(8)
	w.beat(m, 2, 8)
	for range 4 {
		if r := w.row(w.running()); r.host != other.id {
			t.Fatal("placed on a cordoned host")
		}
	}
	w.ensure(w.level(id, 2, holdfast.DesiredSuspended))
	if o := w.ensure(w.level(id, 3, holdfast.DesiredRunning)); o.State != holdfast.InstanceRunning || o.HostDuty != holdfast.HostCordoned {
		t.Errorf("resumed: %s on a host that is %s", o.State, o.HostDuty)
	}
	w.say(m, holdfast.HostActive, false)
	w.say(other, holdfast.HostCordoned, false)
	if r := w.row(w.running()); r.host != m.id {
		t.Error("an uncordoned host gets nothing")
	}
	w.sound()
}

// Placement races the operators' word: what was placed is on the host before it,
// and nothing comes after.
func TestT53_NothingIsPlacedOnAHostAfterItWasCordoned(t *testing.T) {
	w := newWorld(t)
	m := w.host(200)
	var asks sync.WaitGroup
	var cordoned holdfast.Host
	for n := range 40 {
		id := w.instance()
		asks.Go(func() {
			if n == 20 {
				h, err := w.fleet.SetHostDuty(t.Context(), holdfast.SetHostDuty{Host: m.id, Duty: holdfast.HostCordoned})
				if err != nil {
					t.Error(err)
				}
				cordoned = h
			}
			_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 1, holdfast.DesiredRunning))
			if err != nil && holdfast.ReasonOf(err) != holdfast.ReasonNoCapacity {
				t.Error(err)
			}
		})
	}
	asks.Wait()
	if used := w.known(m).Used.Instances; used != cordoned.Used.Instances {
		t.Errorf("%d were there when it was cordoned, %d are now", cordoned.Used.Instances, used)
	}
	w.sound()
}

// A draining host shows what is left on it, and is CORDONED when nothing is: no
// instance, and no output that is still kept.
func TestADrainingHostIsCordonedWhenNothingIsLeft(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	if h := w.say(m, holdfast.HostDraining, false); h.Duty != holdfast.HostCordoned {
		t.Errorf("an empty host is %s", h.Duty)
	}
	w.say(m, holdfast.HostActive, false)
	id, ended := w.running(), w.running()
	w.ensure(w.level(ended, 2, holdfast.DesiredExited))
	if h := w.say(m, holdfast.HostDraining, false); h.Duty != holdfast.HostDraining {
		t.Fatalf("it is %s", h.Duty)
	}
	if r := w.row(id).observation(); r.HostDuty != holdfast.HostDraining {
		t.Errorf("whoever owns it sees %q", r.HostDuty)
	}
	left := func() (ids []holdfast.InstanceID) {
		page, err := w.fleet.FindInstances(t.Context(), holdfast.FindInstances{Host: m.id})
		check(t, err)
		for _, o := range page.Instances {
			ids = append(ids, o.Instance)
		}
		return ids
	}
	for _, step := range []struct {
		end  holdfast.InstanceID
		left int
		duty holdfast.HostDuty
	}{{"", 2, holdfast.HostDraining}, {id, 1, holdfast.HostDraining}, {ended, 0, holdfast.HostCordoned}} {
		if step.end != "" {
			w.ensure(w.level(step.end, 3, holdfast.DesiredAbsent))
		}
		check(t, w.sweep(SweepDraining))
		if h := w.known(m); h.Duty != step.duty || len(left()) != step.left {
			t.Errorf("after %q: %s, with %v", step.end, h.Duty, left())
		}
	}
	w.sound()
}

// contract: T49. What moves off a draining host moves as a new incarnation: it is
// placed elsewhere, and the host is not drained before the old one is gone.
func TestAnInstanceMovesOffADrainingHostAsANewIncarnation(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	id := w.running()
	other := w.host(8)
	w.say(m, holdfast.HostDraining, false)
	again := w.level(id, 2, holdfast.DesiredRunning)
	again.Incarnation = 2
	m.do(func() { m.slow = true }) // what is stopped takes its time
	other.do(func() {
		other.onEnsure = func(l holdfast.Level) {
			m.do(func() {
				if o := m.seen[id]; l.Incarnation == 2 && o.State != holdfast.InstanceStopping {
					t.Errorf("the new incarnation begins, and the old one is %s: it was not told to end", o.State)
				}
			})
		}
	})
	if o := w.ensure(again); o.Host != other.id {
		t.Fatalf("placed on %s", o.Host)
	}
	check(t, w.sweep(SweepDraining))
	if d := w.known(m).Duty; d != holdfast.HostDraining {
		t.Errorf("it is %s while the old incarnation is there", d)
	}
	m.do(func() { m.slow = false })
	check(t, w.sweep(SweepInstances)) // ends the leftover
	check(t, w.sweep(SweepDraining))
	if h := w.known(m); h.Duty != holdfast.HostCordoned || h.Used != (holdfast.Capacity{}) {
		t.Errorf("it is %s and counts %+v", h.Duty, h.Used)
	}
	w.sound()
}

// Retiring ends what a host had, by the operators' word: lost, told upward once,
// its room given back once; deletes that waited for the host are done.
func TestC5_ARetiredHostsInstancesAreLost(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	id, deleted, frozen := w.running(), w.running(), w.running()
	w.ensure(w.level(frozen, 2, holdfast.DesiredSuspended))
	_, err := w.fleet.SetHostDuty(t.Context(), holdfast.SetHostDuty{Host: m.id, Duty: holdfast.HostRetired})
	if holdfast.CodeOf(err) != holdfast.FailedPrecondition || holdfast.AsError(err).Details["instances"] != "3" {
		t.Fatalf("a host that answers was retired without force: %v", err)
	}
	m.do(func() { m.down = true })
	_, err = w.fleet.EnsureInstance(t.Context(), w.level(deleted, 2, holdfast.DesiredAbsent))
	wantReason(t, err, holdfast.ReasonHostUnreachable)
	w.clock.pass(holdfast.HostSuspectAfter)
	check(t, w.sweep(SweepHosts))
	for range 2 { // idempotent
		if h := w.say(m, holdfast.HostRetired, false); h.Duty != holdfast.HostRetired || h.Used != (holdfast.Capacity{}) || h.GoneAt.IsZero() {
			t.Errorf("retired: %+v", h)
		}
	}
	for _, lost := range []holdfast.InstanceID{id, frozen} {
		if r := w.row(lost); r.state != holdfast.InstanceExited || r.failure.Reason != holdfast.ReasonInstanceLost || !strings.Contains(r.failure.Message, "retired") {
			t.Errorf("%s is %s: %+v", lost, r.state, r.failure)
		}
	}
	if r := w.row(deleted); r.state != holdfast.InstanceAbsent {
		t.Errorf("what was to be deleted is %s", r.state)
	}
	if rows := w.outbox(); len(rows) != 2 {
		t.Errorf("told %d times", len(rows))
	}
	if o := w.ensure(w.level(id, 2, holdfast.DesiredAbsent)); o.State != holdfast.InstanceAbsent {
		t.Errorf("deleting what was lost is answered %s", o.State)
	}
	_, err = w.fleet.EnsureInstance(t.Context(), w.level(w.instance(), 1, holdfast.DesiredRunning))
	wantReason(t, err, holdfast.ReasonNoCapacity)
	w.sound()
}

// A retired host that is heard again ends what it has, and gets nothing.
func TestC5_ARetiredHostThatRunsOnEndsWhatItHas(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	id := w.running()
	w.say(m, holdfast.HostRetired, true)
	w.beat(m, 2, 8)
	check(t, w.sweep(SweepReturns))
	if s := m.seen[id].State; s != holdfast.InstanceAbsent {
		t.Errorf("it is %s on the retired host", s)
	}
	w.beat(m, 3, 8)
	if h := w.known(m); h.Duty != holdfast.HostRetired {
		t.Errorf("it is %s", h.Duty)
	}
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(w.instance(), 1, holdfast.DesiredRunning))
	wantReason(t, err, holdfast.ReasonNoCapacity)
	w.sound()
}

// "No free slots" with sixteen free: neither an image that only a full host holds,
// nor hosts that are out of duty, keep an instance from the room there is.
func TestAFullHostWithTheImageHidesNoRoom(t *testing.T) {
	w := newWorld(t)
	full, free, cordoned := w.host(2), w.host(16), w.host(16)
	w.hold(full, "base")
	w.say(cordoned, holdfast.HostCordoned, false)
	var asks sync.WaitGroup
	for range 18 {
		id := w.instance()
		asks.Go(func() {
			if _, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 1, holdfast.DesiredRunning)); err != nil {
				t.Error(err)
			}
		})
	}
	asks.Wait()
	if a, b := w.known(full).Used.Instances, w.known(free).Used.Instances; a != 2 || b != 16 {
		t.Errorf("%d and %d are placed, want 2 and 16", a, b)
	}
	w.sound()
}

// hold says which images a host has.
func (w *world) hold(m *machine, images ...string) {
	w.t.Helper()
	var sequence int64
	check(w.t, w.db.View(w.t.Context(), func(tx store.Tx) error {
		return tx.QueryRowContext(w.t.Context(), `SELECT sequence FROM host WHERE id = $1`, string(m.id)).Scan(&sequence)
	}))
	beat := w.heartbeat(m, sequence+1, w.known(m).Capacity.Instances)
	beat.Images = images
	check(w.t, w.fleet.Heartbeat(w.t.Context(), beat))
}

// A host that holds the image is preferred, until it is nearly full; among equals
// the emptier one.
func TestPlacementPrefersAHostThatHoldsTheImage(t *testing.T) {
	w := newWorld(t)
	var cold []*machine
	for range 5 {
		cold = append(cold, w.host(10))
	}
	warm := w.host(10)
	w.hold(warm, "debian:bookworm", "base")
	if images := w.known(warm).Images; len(images) != 2 {
		t.Fatalf("it holds %v", images)
	}
	for n := range 8 {
		w.clock.pass(rosterAge) // what is known of the hosts is read anew
		if r := w.row(w.running()); r.host != warm.id {
			t.Errorf("the %dth is on a host without the image", n)
		}
	}
	for range 4 { // it is nearly full
		w.clock.pass(rosterAge)
		w.running()
	}
	var elsewhere int64
	for _, m := range cold {
		elsewhere += w.known(m).Used.Instances
	}
	if elsewhere < 3 {
		t.Errorf("%d of 4 elsewhere: everything is piled on the one host that holds the image", elsewhere)
	}
	w.sound()
}
