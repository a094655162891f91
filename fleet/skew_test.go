package fleet

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// replica is another process of the world's fleet, whose own clock is wrong.
func (w *world) replica(by time.Duration) *Service {
	w.t.Helper()
	clock := func() time.Time { return w.clock.Now().Add(by) }
	s, err := New(Config{
		DB: w.db, Cluster: cluster, Holder: holdfast.IDs{Now: clock}.New("fl"),
		Dial: func(url string) holdfast.HostService {
			w.mu.Lock()
			defer w.mu.Unlock()
			if m, ok := w.urls[url]; ok {
				return m
			}
			return &machine{down: true}
		},
		SendUp: func(_ context.Context, row outbox.Row) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sent = append(w.sent, row)
			return nil
		},
		Outbox: outbox.Config{Clock: clock}, Sweeping: reconcile.Config{Clock: clock},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	check(w.t, err)
	check(w.t, s.Join(w.t.Context()))
	return s
}

// trap T42: the deadlines, suspicions, tombstones and outbox rows of fleets whose own
// clocks differ by days are judged by the database's.
func TestT42_FleetsWhoseClocksDifferByDays(t *testing.T) {
	w := newWorld(t)
	ahead, behind := w.replica(holdfast.TombstoneKept+24*time.Hour), w.replica(-7*time.Hour)
	host, still := w.host(8), w.host(8)
	still.do(func() { still.down = true }) // it does not answer, and beats
	running := map[holdfast.InstanceID]bool{}
	var gone []holdfast.InstanceID
	for i, s := range []*Service{ahead, behind, ahead, behind} {
		id := w.instance()
		o, err := s.EnsureInstance(t.Context(), w.level(id, 1, holdfast.DesiredRunning))
		if holdfast.ReasonOf(err) != holdfast.ReasonHostUnreachable {
			check(t, err)
			running[id] = o.State == holdfast.InstanceRunning
		}
		other := []*Service{behind, ahead}[i%2]
		over := w.instance()
		if _, err := s.EnsureInstance(t.Context(), w.level(over, 1, holdfast.DesiredAbsent)); err != nil {
			t.Fatal(err)
		}
		if o, err := other.EnsureInstance(t.Context(), w.level(over, 1, holdfast.DesiredRunning)); err == nil && o.State == holdfast.InstanceRunning {
			t.Error("a tombstone of the other's runs")
		}
		gone = append(gone, over)
	}
	w.clock.pass(holdfast.HostSuspectAfter - time.Second)
	for _, s := range []*Service{ahead, behind} {
		for _, name := range s.sweeps.Names() {
			if name == SweepInstances { // it asks, and hears nothing of the host that is down
				continue
			}
			if _, err := s.Sweep(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, h := range w.hosts() {
		if h.Health != holdfast.HostReady {
			t.Errorf("%s is %s before its time", h.ID, h.Health)
		}
	}
	for id, runs := range running {
		if r := w.row(id); runs && r.state != holdfast.InstanceRunning {
			t.Errorf("%s is %s", id, r.state)
		}
	}
	for _, id := range gone {
		if r := w.row(id); r.state != holdfast.InstanceAbsent {
			t.Errorf("%s is %s", id, r.state)
		}
	}
	w.clock.pass(2 * time.Second)
	w.beat(host, 2, 8)
	if _, err := behind.Sweep(t.Context(), SweepHosts); err != nil {
		t.Fatal(err)
	}
	for _, h := range w.hosts() {
		if want := map[holdfast.HostID]holdfast.HostHealth{host.id: holdfast.HostReady, still.id: holdfast.HostSuspect}[h.ID]; h.Health != want {
			t.Errorf("%s is %s, want %s", h.ID, h.Health, want)
		}
	}
	w.clock.pass(holdfast.TombstoneKept)
	if _, err := behind.Sweep(t.Context(), SweepPurge); err != nil {
		t.Fatal(err)
	}
	for _, id := range gone {
		if _, err := ahead.GetInstance(t.Context(), id); holdfast.CodeOf(err) != holdfast.NotFound {
			t.Errorf("the tombstone of %s: %v", id, err)
		}
	}
}

// trap T42: what one fleet enqueued, the other sends at once, and once.
func TestT42_AnEndIsToldByAFleetWithAnotherClock(t *testing.T) {
	w := newWorld(t)
	ahead, behind := w.replica(9*24*time.Hour), w.replica(-7*time.Hour)
	m := w.host(4)
	id := w.running()
	w.fleet = ahead
	check(t, w.fact("ev-1", exit(id, m)))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		behind.outbox.Run(ctx)
	}()
	deadline := time.After(10 * time.Second)
	for told := 0; told == 0; {
		select {
		case <-deadline:
			t.Fatalf("nothing was told: %+v", w.outbox())
		case <-time.After(5 * time.Millisecond): // nothing signals that a row is sent
			w.mu.Lock()
			told = len(w.sent)
			w.mu.Unlock()
		}
	}
	stop()
	<-ended
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.sent) != 1 {
		t.Errorf("told %d times", len(w.sent))
	}
}
