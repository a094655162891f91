package fleet

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/store"
)

func exit(id holdfast.InstanceID, m *machine) holdfast.Observation {
	return holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, State: holdfast.InstanceExited, Host: m.id,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "the guest powered off", LogTail: "bye"}}
}

func (w *world) outcome(m *machine, deliveryID string) string {
	w.t.Helper()
	var entries []inbox.Entry
	check(w.t, w.db.View(w.t.Context(), func(tx store.Tx) (err error) {
		entries, err = inbox.List(w.t.Context(), tx, inbox.Filter{Source: HostSource(m.id), Limit: 1000})
		return err
	}))
	for _, e := range entries {
		if e.ID == deliveryID {
			return e.Outcome
		}
	}
	return "not recorded"
}

// contract: B3, B4. T16, T24: one effect, one follow-up, one return of capacity,
// however often and at once it arrives.
func TestB3_ARepeatedDeliveryDoesNothing(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.running()
	var sends sync.WaitGroup
	for range 8 {
		sends.Go(func() {
			if err := w.fact("ev-1", exit(id, m)); err != nil {
				t.Error(err)
			}
		})
	}
	sends.Wait()
	revision := w.row(id).revision
	check(t, w.fact("ev-1", exit(id, m)))
	check(t, w.fact("ev-2", exit(id, m))) // another event that says the same
	if got := w.row(id); got.revision != revision || got.state != holdfast.InstanceExited {
		t.Errorf("%s at revision %d, want EXITED at %d", got.state, got.revision, revision)
	}
	rows := w.outbox()
	if len(rows) != 1 || rows[0].Kind != string(holdfast.DeliveryExited) || rows[0].Destination != Orchestrator {
		t.Fatalf("the orchestrator is told %+v", rows)
	}
	var told holdfast.Observation
	check(t, json.Unmarshal(rows[0].Body, &told))
	if told.State != holdfast.InstanceExited || told.Failure.LogTail != "bye" || told.Incarnation != 1 || told.Owner != "sb-1" {
		t.Errorf("told %+v", told)
	}
	if used := w.hosts()[0].Used; used != (holdfast.Capacity{}) {
		t.Errorf("still used: %+v", used)
	}
	w.sound()
}

// contract: B7. T17: what is not known yet comes again, and counts then.
func TestB7_AFactThatComesFirstIsTakenLater(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.instance()
	if err := w.fact("ev-1", exit(id, m)); !errors.Is(err, delivery.ErrNotYet) {
		t.Fatalf("answered %v", err)
	}
	if got := w.outcome(m, "ev-1"); got != "not recorded" {
		t.Errorf("its record stayed: %q: the retry would be taken for a repeat", got)
	}
	w.ensure(w.level(id, 1, holdfast.DesiredRunning))
	check(t, w.fact("ev-1", exit(id, m)))
	if r := w.row(id); r.state != holdfast.InstanceExited {
		t.Errorf("recorded %s", r.state)
	}
	later := exit(id, m)
	later.Incarnation = 2
	if err := w.fact("ev-2", later); !errors.Is(err, delivery.ErrNotYet) {
		t.Errorf("a newer incarnation is answered %v", err)
	}
}

// contract: B7. T36, T37, and facts out of order: recorded, and ignored.
func TestB7_LateFactsAreRecordedAndIgnored(t *testing.T) {
	w := newWorld(t)
	m, stranger := w.host(4), w.host(4)
	w.exec(`UPDATE host SET duty = 'CORDONED' WHERE id = $1`, string(stranger.id))
	at := func(incarnation, generation int64, state holdfast.InstanceState, from *machine) func(holdfast.InstanceID) holdfast.Observation {
		return func(id holdfast.InstanceID) holdfast.Observation {
			return holdfast.Observation{Instance: id, Incarnation: incarnation, Generation: generation, State: state, Host: from.id}
		}
	}
	for _, tc := range []struct {
		name   string
		levels []holdfast.Desired // after RUNNING
		raised bool               // on a second incarnation
		fact   func(holdfast.InstanceID) holdfast.Observation
		want   holdfast.InstanceState
		note   string
	}{
		{name: "T36 RUNNING of generation 1 after SUSPENDED of 2", levels: []holdfast.Desired{holdfast.DesiredSuspended},
			fact: at(1, 1, holdfast.InstanceRunning, m), want: holdfast.InstanceSuspended, note: "ignored: answers an older generation"},
		{name: "RUNNING of generation 2 after SUSPENDED of 2", levels: []holdfast.Desired{holdfast.DesiredSuspended},
			fact: at(1, 2, holdfast.InstanceRunning, m), want: holdfast.InstanceSuspended, note: "ignored: older than what is known"},
		{name: "BOOTING after RUNNING", fact: at(1, 1, holdfast.InstanceBooting, m), want: holdfast.InstanceRunning, note: "ignored: older than what is known"},
		{name: "SUSPENDED of 2 after RUNNING of 3", levels: []holdfast.Desired{holdfast.DesiredSuspended, holdfast.DesiredRunning},
			fact: at(1, 2, holdfast.InstanceSuspended, m), want: holdfast.InstanceRunning, note: "ignored: answers an older generation"},
		{name: "RUNNING after EXITED", levels: []holdfast.Desired{holdfast.DesiredExited},
			fact: at(1, 9, holdfast.InstanceRunning, m), want: holdfast.InstanceExited, note: "ignored: it has ended"},
		{name: "EXITED after ABSENT", levels: []holdfast.Desired{holdfast.DesiredAbsent},
			fact: at(1, 1, holdfast.InstanceExited, m), want: holdfast.InstanceAbsent, note: "ignored: it has ended"},
		{name: "T37 EXITED of the boot before", raised: true, fact: at(1, 1, holdfast.InstanceRunning, m), want: holdfast.InstanceRunning, note: "ignored: an older incarnation"},
		{name: "from a host it was not placed on", fact: at(1, 1, holdfast.InstanceExited, stranger), want: holdfast.InstanceRunning,
			note: "ignored: another host than it was placed on"},
		{name: "a state that is the fleet's word", fact: at(1, 1, holdfast.InstanceUnknown, m), want: holdfast.InstanceRunning,
			note: "ignored: not a state that a host reports"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := w.running()
			for i, desired := range tc.levels {
				w.ensure(w.level(id, int64(i+2), desired))
			}
			if tc.raised {
				l := w.level(id, 2, holdfast.DesiredRunning)
				l.Incarnation = 2
				w.ensure(l)
			}
			o := tc.fact(id)
			from := m
			if o.Host == stranger.id {
				from = stranger
			}
			check(t, w.fact("ev-"+string(id), o))
			if got := w.row(id); got.state != tc.want {
				t.Errorf("recorded %s, want %s", got.state, tc.want)
			}
			if got := w.outcome(from, "ev-"+string(id)); got != tc.note {
				t.Errorf("noted %q, want %q", got, tc.note)
			}
			w.sound()
			w.ensure(holdfast.Level{Cluster: cluster, Instance: id, Incarnation: w.row(id).incarnation, Generation: 20, Desired: holdfast.DesiredAbsent})
		})
	}
}

// The exit that an order asked for is no news to the orchestrator.
func TestAnExitThatWasWantedIsNotReported(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.running()
	w.ensure(w.level(id, 2, holdfast.DesiredExited))
	check(t, w.fact("ev-1", exit(id, m)))
	if rows := w.outbox(); len(rows) != 0 {
		t.Errorf("told %+v", rows)
	}
}

func TestAMalformedFactIsRefusedForGood(t *testing.T) {
	w := newWorld(t)
	m, other := w.host(1), w.host(1)
	lie := exit(w.instance(), m)
	body, err := json.Marshal(lie)
	check(t, err)
	for name, d := range map[string]delivery.Received{
		"kind":  {Kind: "instance.ready", Body: body},
		"json":  {Kind: string(holdfast.DeliveryObserved), Body: []byte("[")},
		"empty": {Kind: string(holdfast.DeliveryObserved), Body: []byte("{}")},
		"host":  {Kind: string(holdfast.DeliveryObserved), Body: body},
	} {
		d.ID = "ev-1"
		if err := w.fleet.Observed(t.Context(), other.id, d); !errors.Is(err, delivery.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// H8 leaves through the outbox, and a refusing orchestrator is tried again.
func TestB5_TheEndOfAnInstanceReachesTheOrchestrator(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.running()
	check(t, w.fact("ev-1", exit(id, m)))
	w.fail = errSilent
	report, err := w.fleet.outbox.RunOnce(t.Context())
	check(t, err)
	if report.Retried != 1 {
		t.Fatalf("report %+v", report)
	}
	w.fail = nil
	w.restart() // the row outlives the process
	w.clock.pass(holdfast.HostLostAfter)
	if report, err = w.fleet.outbox.RunOnce(t.Context()); err != nil || report.Sent != 1 {
		t.Fatalf("report %+v, %v", report, err)
	}
	if want := delivery.DeriveID(string(holdfast.DeliveryExited), string(id), 1, "exited"); len(w.sent) != 1 || w.sent[0].ID != want {
		t.Errorf("sent %+v", w.sent)
	}
}

// contract: B3. A repeat is no news, even where its content would be: the host
// has fallen silent since it said so.
func TestB3_ARepeatDoesNotAnswerForASilentHost(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	id := w.placed(m)
	o := holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, State: holdfast.InstanceRunning, Host: m.id, Address: "10.0.0.9"}
	check(t, w.fact("ev-1", o))
	m.do(func() { m.down = true })
	w.clock.pass(holdfast.HostSuspectAfter)
	check(t, w.sweep(SweepHosts))
	revision := w.row(id).revision
	check(t, w.fact("ev-1", o))
	if r := w.row(id); r.state != holdfast.InstanceUnknown || r.revision != revision || w.outcome(m, "ev-1") != "applied" {
		t.Errorf("a repeat made it %s", r.state)
	}
	check(t, w.fact("ev-2", o)) // its own word, said anew
	if r := w.row(id); r.state != holdfast.InstanceRunning {
		t.Errorf("recorded %s", r.state)
	}
}
