package fleet

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

func TestACreateIsPlacedToldStoredAndAnswered(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.instance()
	before := w.db.updates.Load()
	l := w.level(id, 1, holdfast.DesiredRunning)
	l.Wait = time.Hour
	o := w.ensure(l)
	if commits := w.db.updates.Load() - before; commits > 2 {
		t.Errorf("a create took %d commits at the fleet, want 2", commits)
	}
	if !o.Reached(l) || o.Host != m.id || o.HostURL == "" || o.Address == "" || len(o.Ports) != 1 || o.Owner != "sb-1" {
		t.Errorf("answered %+v", o)
	}
	got := m.levels[0]
	if got.PlacedAt.IsZero() || got.MintedAt.IsZero() || got.Spec == nil || got.Cluster != cluster || got.Wait != holdfast.MaxLevelWait {
		t.Errorf("the host was told %+v", got)
	}
	w.sound()
}

// contract: A8. Of what found no room, nothing is recorded.
func TestNoCapacityRecordsNothingAndSaysWhatThereIs(t *testing.T) {
	w := newWorld(t)
	w.host(1)
	w.running()
	id := w.instance()
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 1, holdfast.DesiredRunning))
	wantReason(t, err, holdfast.ReasonNoCapacity)
	e := holdfast.AsError(err)
	if e.Code != holdfast.Unavailable || e.Details["asked_cpu_millis"] != "1000" || e.Details["free_instances"] != "0" || e.RetryAfter == 0 {
		t.Errorf("answered %+v", e)
	}
	_, err = w.fleet.GetInstance(t.Context(), id)
	if holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("recorded: %v", err)
	}
	w.sound()
}

// contract: A3. A create that is repeated is the instance that there is, whether
// or not there is room for another.
func TestA3_ARepeatedFirstLevelNeedsNoRoom(t *testing.T) {
	for _, room := range []int64{1, 4} {
		w := newWorld(t)
		w.host(room)
		l := w.level(w.instance(), 1, holdfast.DesiredRunning)
		first := w.ensure(l)
		w.clock.pass(2 * rosterAge) // what the fleet remembers of its hosts is read anew
		if again := w.ensure(l); again.Host != first.Host || !again.Reached(l) {
			t.Errorf("with room for %d: repeated, it is %+v", room, again)
		}
		w.sound()
	}
}

func TestPlacementNeedsAHostThatIsReadyAndActive(t *testing.T) {
	for _, set := range []string{`health = 'SUSPECT'`, `health = 'LOST'`, `duty = 'CORDONED'`, `duty = 'DRAINING'`, `duty = 'RETIRED'`} {
		t.Run(set, func(t *testing.T) {
			w := newWorld(t)
			w.host(1)
			w.exec(`UPDATE host SET ` + set)
			_, err := w.fleet.EnsureInstance(t.Context(), w.level(w.instance(), 1, holdfast.DesiredRunning))
			wantReason(t, err, holdfast.ReasonNoCapacity)
		})
	}
}

// T53, and "no free slots with sixteen free": room is neither given twice nor withheld.
func TestT53_SixteenFreeMeansSixteenPlacedHoweverManyAsk(t *testing.T) {
	w := newWorld(t)
	for range 4 {
		w.host(4)
	}
	var asks sync.WaitGroup
	var mu sync.Mutex
	placed, full := 0, 0
	for range 40 {
		id := w.instance()
		asks.Go(func() {
			_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 1, holdfast.DesiredRunning))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				placed++
			case holdfast.ReasonOf(err) == holdfast.ReasonNoCapacity:
				full++
			default:
				t.Error(err)
			}
		})
	}
	asks.Wait()
	if placed != 16 || full != 24 {
		t.Errorf("%d placed and %d refused, want 16 and 24", placed, full)
	}
	w.sound()
}

// T49: one placement, one boot, however often and however late it is asked for.
func TestT49_AnIncarnationIsPlacedOnce(t *testing.T) {
	w := newWorld(t)
	hosts := []*machine{w.host(4), w.host(4), w.host(4)}
	id := w.instance()
	l := w.level(id, 1, holdfast.DesiredRunning)
	var asks sync.WaitGroup
	for range 12 {
		asks.Go(func() {
			if _, err := w.fleet.EnsureInstance(t.Context(), l); err != nil {
				t.Error(err)
			}
		})
	}
	asks.Wait()
	w.ensure(w.level(id, 2, holdfast.DesiredSuspended))
	w.ensure(w.level(id, 3, holdfast.DesiredRunning))
	w.ensure(w.level(id, 4, holdfast.DesiredExited))
	if o := w.ensure(w.level(id, 5, holdfast.DesiredRunning)); o.State != holdfast.InstanceExited {
		t.Errorf("RUNNING for what exited is answered %s", o.State)
	}
	boots, told := 0, 0
	for _, m := range hosts {
		boots += m.boots[holdfast.InstanceRef{Instance: id, Incarnation: 1}]
		if len(m.levels) > 0 {
			told++
		}
	}
	if boots != 1 || told != 1 {
		t.Errorf("booted %d times on %d hosts", boots, told)
	}
	w.sound()
}

// T39: a delete that arrives first wins.
func TestT39_RunningAfterAbsentBootsNothing(t *testing.T) {
	w := newWorld(t)
	m := w.host(1)
	id := w.instance()
	w.ensure(w.level(id, 2, holdfast.DesiredAbsent))
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 1, holdfast.DesiredRunning))
	wantReason(t, err, holdfast.ReasonStaleGeneration)
	if seen := holdfast.AsError(err).Details["seen"]; seen != "2" {
		t.Errorf("the refusal names %q", seen)
	}
	if o := w.ensure(w.level(id, 3, holdfast.DesiredRunning)); o.State != holdfast.InstanceAbsent {
		t.Errorf("a later RUNNING is answered %s", o.State)
	}
	if m.calls() != 0 {
		t.Error("the host was bothered")
	}
}

// contract: D2. T22, T32: a silent host is asked once, and nothing is concluded.
func TestT22_AnUnreachableHostIsToldOnceAndNothingIsWritten(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.running()
	w.ensure(w.level(id, 2, holdfast.DesiredSuspended))
	tries := 0
	m.do(func() { m.down, m.onEnsure = true, func(holdfast.Level) { tries++ } })
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 3, holdfast.DesiredRunning))
	wantReason(t, err, holdfast.ReasonHostUnreachable)
	if holdfast.CodeOf(err) != holdfast.Unavailable || tries != 1 {
		t.Errorf("code %s after %d tries", holdfast.CodeOf(err), tries)
	}
	recorded := w.row(id)
	if recorded.state != holdfast.InstanceSuspended || recorded.observed != 2 || recorded.generation != 3 {
		t.Errorf("recorded %s at %d of %d", recorded.state, recorded.observed, recorded.generation)
	}
	m.do(func() { m.down = false })
	if o := w.ensure(w.level(id, 3, holdfast.DesiredRunning)); o.State != holdfast.InstanceRunning {
		t.Errorf("the repeat is answered %s", o.State)
	}
	w.sound()
}

// T46: the host has done it, so it is recorded, though nobody waits for it.
func TestT46_AnAnswerIsStoredForACallerThatLeft(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.instance()
	ctx, leave := context.WithCancel(t.Context())
	m.onEnsure = func(holdfast.Level) { leave() }
	if _, err := w.fleet.EnsureInstance(ctx, w.level(id, 1, holdfast.DesiredRunning)); err != nil {
		t.Fatal(err)
	}
	if r := w.row(id); r.state != holdfast.InstanceRunning {
		t.Errorf("recorded %s", r.state)
	}
}

// T34: the answer to a level does not overwrite what was learned while it travelled.
func TestT34_AnAnswerOvertakenByTheExitChangesNothing(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.instance()
	m.onEnsure = func(l holdfast.Level) {
		check(t, w.fact("ev-1", holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, State: holdfast.InstanceExited, Host: m.id,
			Failure: &holdfast.Failure{Reason: holdfast.ReasonBootFailed, Message: "kernel panic"}}))
	}
	o := w.ensure(w.level(id, 1, holdfast.DesiredRunning))
	if o.State != holdfast.InstanceExited || o.Failure == nil || o.Failure.Reason != holdfast.ReasonBootFailed {
		t.Errorf("answered %+v", o)
	}
	w.sound()
}

func TestALevelIsRefusedBeforeAnythingIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.host(2)
	good := w.level(w.instance(), 1, holdfast.DesiredRunning)
	for name, change := range map[string]func(*holdfast.Level){
		"cluster":     func(l *holdfast.Level) { l.Cluster = "cl-other" },
		"instance":    func(l *holdfast.Level) { l.Instance = "sb-1" },
		"incarnation": func(l *holdfast.Level) { l.Incarnation = 0 },
		"generation":  func(l *holdfast.Level) { l.Generation = -1 },
		"desired":     func(l *holdfast.Level) { l.Desired = "PAUSED" },
		"resources":   func(l *holdfast.Level) { l.Spec = &holdfast.InstanceSpec{Resources: holdfast.Resources{CPUMillis: -1}} },
		"minted":      func(l *holdfast.Level) { l.MintedAt = time.Time{} },
	} {
		l := good
		change(&l)
		_, err := w.fleet.EnsureInstance(t.Context(), l)
		if code := holdfast.CodeOf(err); code != holdfast.InvalidArgument && holdfast.ReasonOf(err) != holdfast.ReasonCluster {
			t.Errorf("%s: %v", name, err)
		}
	}
	if page, err := w.fleet.ListInstances(t.Context(), "", 0); err != nil || len(page.Instances) != 0 {
		t.Errorf("recorded %+v, %v", page, err)
	}
}

// T38: what a superseded incarnation holds is given back when its host confirms, once.
func TestT38_ASupersededIncarnationHoldsItsRoomUntilItsHostConfirms(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.running()
	m.do(func() { m.down = true })
	l := w.level(id, 2, holdfast.DesiredRunning)
	l.Incarnation = 2
	_, err := w.fleet.EnsureInstance(t.Context(), l)
	wantReason(t, err, holdfast.ReasonHostUnreachable)
	w.sound()
	if used := w.hosts()[0].Used.Instances; used != 2 {
		t.Fatalf("%d are counted, want both", used)
	}
	m.do(func() { m.down = false })
	exited := holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, State: holdfast.InstanceExited, Host: m.id}
	check(t, w.fact("ev-1", exited))
	check(t, w.fact("ev-2", exited))
	check(t, w.sweep(SweepInstances))
	check(t, w.sweep(SweepInstances))
	if used := w.hosts()[0].Used.Instances; used != 1 {
		t.Errorf("%d are counted, want the new one", used)
	}
	w.sound()
}

func TestC6_ARestartedFleetCarriesOn(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.placed(m)
	w.restart()
	o := w.ensure(w.level(id, 1, holdfast.DesiredRunning))
	if o.State != holdfast.InstanceRunning || m.boots[holdfast.InstanceRef{Instance: id, Incarnation: 1}] != 1 {
		t.Errorf("answered %s", o.State)
	}
	w.sound()
}

func TestListInstancesPagesById(t *testing.T) {
	w := newWorld(t)
	w.host(8)
	want := map[holdfast.InstanceID]bool{}
	for range 5 {
		want[w.running()] = true
	}
	after, pages := "", 0
	for {
		page, err := w.fleet.ListInstances(t.Context(), after, 2)
		check(t, err)
		for _, o := range page.Instances {
			if !want[o.Instance] {
				t.Errorf("%s twice, or unknown", o.Instance)
			}
			delete(want, o.Instance)
		}
		pages++
		if after = page.Next; after == "" {
			break
		}
	}
	if len(want) != 0 || pages != 3 {
		t.Errorf("%d pages, missing %v", pages, want)
	}
}

// Hosts are spread over, and the same question has the same answer.
func TestChooseSpreadsAndIsDeterministic(t *testing.T) {
	var hosts []*hostRow
	for i := range 8 {
		h := &hostRow{Host: holdfast.Host{ID: holdfast.HostID(fmt.Sprint("ho-", i)), Capacity: small(100)}}
		hosts = append(hosts, h)
	}
	for n := range 400 {
		id := holdfast.InstanceID(fmt.Sprint("in-", n))
		h := choose(hosts, row{id: id})
		if h != choose(hosts, row{id: id}) {
			t.Fatal("chose differently")
		}
		u := &h.Used
		u.CPUMillis, u.MemoryBytes, u.Instances = u.CPUMillis+1000, u.MemoryBytes+1<<29, u.Instances+1
	}
	for _, h := range hosts {
		if h.Used.Instances < 35 || h.Used.Instances > 65 {
			t.Errorf("%s got %d of 400", h.ID, h.Used.Instances)
		}
	}
}
