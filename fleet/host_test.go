package fleet

import (
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// contract: D3, B6. Heartbeats race and come in any order: the newest counts.
func TestD3_HeartbeatsInAnyOrderLeaveTheNewest(t *testing.T) {
	w := newWorld(t)
	m := newMachine(holdfast.HostID(w.ids.New(holdfast.PrefixHost)))
	var beats sync.WaitGroup
	for _, sequence := range []int64{3, 9, 1, 7, 9, 2, 8} {
		b := w.heartbeat(m, sequence, sequence)
		beats.Go(func() {
			if err := w.fleet.Heartbeat(t.Context(), b); err != nil {
				t.Error(err)
			}
		})
	}
	beats.Wait()
	w.exec(`UPDATE host SET duty = 'CORDONED'`)
	w.beat(m, 4, 4)
	hosts := w.hosts()
	if len(hosts) != 1 || hosts[0].Capacity != small(9) || hosts[0].Duty != holdfast.HostCordoned || hosts[0].Health != holdfast.HostReady {
		t.Errorf("recorded %+v", hosts)
	}
	w.beat(m, 10, 2)
	if h := w.hosts()[0]; h.Capacity != small(2) || h.Duty != holdfast.HostCordoned {
		t.Errorf("after the next: %+v", h)
	}
}

func TestAHeartbeatOfAnotherClusterIsRefused(t *testing.T) {
	w := newWorld(t)
	m := newMachine(holdfast.HostID(w.ids.New(holdfast.PrefixHost)))
	good := w.heartbeat(m, 1, 1)
	for name, change := range map[string]func(*holdfast.Heartbeat){
		"cluster":  func(b *holdfast.Heartbeat) { b.Cluster = "cl-other" },
		"host":     func(b *holdfast.Heartbeat) { b.Host = "h" },
		"url":      func(b *holdfast.Heartbeat) { b.URL = "host:1" },
		"capacity": func(b *holdfast.Heartbeat) { b.Capacity.Instances = -1 },
		"sequence": func(b *holdfast.Heartbeat) { b.Sequence = 0 },
	} {
		b := good
		change(&b)
		if err := w.fleet.Heartbeat(t.Context(), b); holdfast.Transient(err) || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(w.hosts()) != 0 {
		t.Error("one was registered")
	}
}

func TestPlanHost(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	ready, suspect, lost := holdfast.HostReady, holdfast.HostSuspect, holdfast.HostLost
	limits := Limits{}.withDefaults()
	for _, tc := range []struct {
		name          string
		health        holdfast.HostHealth
		silent, since time.Duration
		answered      bool
		want          holdfast.HostHealth
	}{
		{"heard a moment ago", ready, 14 * time.Second, time.Hour, false, ready},
		{"silent", ready, 15 * time.Second, time.Hour, false, suspect},
		{"silent, and answers", ready, 15 * time.Second, time.Hour, true, ready},
		{"suspect, and answers", suspect, time.Hour, time.Hour, true, ready},
		{"suspect for a while", suspect, 4 * time.Minute, 4 * time.Minute, false, suspect},
		{"suspect for long", suspect, 5 * time.Minute, 5 * time.Minute, false, lost},
		{"never straight from READY", ready, time.Hour, time.Hour, false, suspect},
		{"T30 the fleet was down itself", suspect, time.Hour, time.Minute, false, suspect},
		{"lost stays lost", lost, time.Hour, time.Hour, false, lost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := hostRow{Host: holdfast.Host{Health: tc.health, SeenAt: now.Add(-tc.silent)}, healthAt: now.Add(-tc.since)}
			if got := planHost(h, tc.answered, now, limits); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// contract: C5, C4. Silent: asked first, then SUSPECT, then LOST; its instances
// are UNKNOWN, keep their room, and are what they were once it is heard again.
func TestC5_ASilentHostIsSuspectedThenLostAndComesBack(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id, frozen := w.running(), w.running()
	w.ensure(w.level(frozen, 2, holdfast.DesiredSuspended))
	w.clock.pass(holdfast.HostSuspectAfter)
	check(t, w.sweep(SweepHosts))
	if h := w.hosts()[0]; h.Health != holdfast.HostReady || !h.SeenAt.Equal(w.clock.Now()) {
		t.Fatalf("it answered, and is %s", h.Health)
	}
	m.do(func() { m.down = true })
	w.clock.pass(holdfast.HostSuspectAfter)
	check(t, w.sweep(SweepHosts))
	if h := w.hosts()[0].Health; h != holdfast.HostSuspect {
		t.Fatalf("it is %s, want SUSPECT", h)
	}
	if r := w.row(id); r.state != holdfast.InstanceUnknown || r.known != holdfast.InstanceRunning || !r.held || !r.observation().Stale {
		t.Errorf("its instance is %s, was %s", r.state, r.known)
	}
	_, err := w.fleet.EnsureInstance(t.Context(), w.level(w.instance(), 1, holdfast.DesiredRunning))
	wantReason(t, err, holdfast.ReasonNoCapacity)
	w.clock.pass(holdfast.HostLostAfter)
	check(t, w.sweep(SweepHosts))
	if h := w.hosts()[0].Health; h != holdfast.HostLost {
		t.Fatalf("it is %s, want LOST", h)
	}
	check(t, w.sweep(SweepInstances))
	check(t, w.sweep(SweepOverdue))
	w.sound()
	if used := w.hosts()[0].Used.Instances; used != 2 || len(w.outbox()) != 0 {
		t.Fatalf("unreachable was taken for gone: %d are held", used)
	}
	m.do(func() { m.down = false })
	w.beat(m, 2, 4)
	if h := w.hosts()[0].Health; h != holdfast.HostLost {
		t.Errorf("it is %s before it was looked at", h)
	}
	check(t, w.sweep(SweepReturns))
	if h := w.hosts()[0].Health; h != holdfast.HostReady {
		t.Errorf("it is %s after its return", h)
	}
	if r, f := w.row(id), w.row(frozen); r.state != holdfast.InstanceRunning || f.state != holdfast.InstanceSuspended {
		t.Errorf("after its return: %s and %s", r.state, f.state)
	}
	w.sound()
}

// A heartbeat that comes while the host is being doubted counts.
func TestAHeartbeatDuringTheQuestionClearsTheHost(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.running()
	w.clock.pass(holdfast.HostSuspectAfter)
	m.do(func() {
		m.down = true
		m.onList = func() { w.beat(m, 2, 4) }
	})
	check(t, w.sweep(SweepHosts))
	if h := w.hosts()[0].Health; h != holdfast.HostReady || w.row(id).state != holdfast.InstanceRunning {
		t.Errorf("it is %s, its instance %s", h, w.row(id).state)
	}
}
