package fleet

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

// alive registers a host whose agent says which process it is.
func (w *world) alive(n int64) *machine {
	w.t.Helper()
	m := newMachine(holdfast.HostID(w.ids.New(holdfast.PrefixHost)))
	m.life = w.ids.New("hl")
	w.urls["http://"+string(m.id)] = m
	w.beat(m, 1, n)
	return m
}

// Of two agents with one id, as of a copied data directory, the second is refused
// while the first one answers, whatever its numbers say; and its facts change nothing.
func TestOneAgentAloneIsAHost(t *testing.T) {
	w := newWorld(t)
	first := w.alive(4)
	id := w.running()
	second := newMachine(first.id)
	second.life = w.ids.New("hl")
	w.urls["http://copy"] = second
	for _, sequence := range []int64{1, 2, 1 << 31} {
		b := w.heartbeat(second, sequence, 4)
		b.URL = "http://copy"
		err := w.fleet.Heartbeat(t.Context(), b)
		wantReason(t, err, holdfast.ReasonHostTwin)
		if holdfast.CodeOf(err) != holdfast.FailedPrecondition || holdfast.AsError(err).Details["url"] != "http://"+string(first.id) {
			t.Errorf("refused with %v", err)
		}
	}
	// What the copy believes of the instances in its records is not the host's word.
	o := exit(id, first)
	o.Life = second.life
	if err := w.fact("ev-1", o); !errors.Is(err, delivery.ErrNotYet) {
		t.Errorf("its fact: %v", err)
	}
	if r := w.row(id); r.state != holdfast.InstanceRunning {
		t.Errorf("a copy's fact made it %s", r.state)
	}
	o.Life = first.life
	check(t, w.fact("ev-1", o))
	if r := w.row(id); r.state != holdfast.InstanceExited {
		t.Errorf("the host's own fact left it %s", r.state)
	}
	w.beat(first, 2, 4)
	if h := w.known(first); h.URL != "http://"+string(first.id) {
		t.Errorf("it is at %s", h.URL)
	}
}

// The next run of the same agent is the host at once where it was, and elsewhere
// when the one before does not answer any more: after a move, a reinstalled
// machine, a restored directory whose numbers are lower.
func TestTheNextRunOfAnAgentIsTheHost(t *testing.T) {
	for name, next := range map[string]struct {
		url      string
		sequence int64
		old      func(*machine)
	}{
		"restarted":                             {"", 1 << 31, nil},
		"restarted elsewhere":                   {"http://elsewhere", 1 << 31, func(m *machine) { m.down = true }},
		"restored, with lower numbers":          {"", 1, nil},
		"restored elsewhere, with lower ones":   {"http://elsewhere", 1, func(m *machine) { m.down = true }},
		"another host answers at its old place": {"http://elsewhere", 1 << 31, func(m *machine) { m.id = "ho-00000000000000000000000009" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.alive(4)
			id, life := m.id, w.ids.New("hl")
			w.beat(m, 2, 4)
			if next.old != nil {
				m.do(func() { next.old(m) })
			} else {
				m.do(func() { m.life = life })
			}
			w.clock.pass(time.Second)
			b := holdfast.Heartbeat{Host: id, Life: life, Cluster: cluster, Name: "h", URL: "http://" + string(id), Runtime: "simulated",
				BootID: "boot-2", Capacity: small(7), Sequence: next.sequence}
			if next.url != "" {
				b.URL = next.url
			}
			check(t, w.fleet.Heartbeat(t.Context(), b))
			h := w.hosts()[0]
			if len(w.hosts()) != 1 || h.URL != b.URL || h.Capacity != small(7) || !h.SeenAt.Equal(w.clock.Now()) {
				t.Errorf("recorded %+v", h)
			}
		})
	}
}

// A late heartbeat of a run that is over changes nothing.
func TestALateHeartbeatOfAnEarlierRunChangesNothing(t *testing.T) {
	w := newWorld(t)
	m := w.alive(4)
	late := w.heartbeat(m, 2, 9)
	m.do(func() { m.life = w.ids.New("hl") })
	w.beat(m, 1<<31, 4)
	err := w.fleet.Heartbeat(t.Context(), late)
	wantReason(t, err, holdfast.ReasonHostTwin)
	if h := w.known(m); h.Capacity != small(4) {
		t.Errorf("recorded %+v", h.Capacity)
	}
}
