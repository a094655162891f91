package fleet

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// contract: C4. T26, T27, T52: both directions of the comparison with a host.
func TestC4_PlanInstances(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	old := sightings{{Instance: "in-1", Incarnation: 1}: now.Add(-holdfast.OrphanGrace)}
	young := sightings{{Instance: "in-1", Incarnation: 1}: now.Add(-holdfast.OrphanGrace + time.Second)}
	rec := func(incarnation int64, state holdfast.InstanceState, host holdfast.HostID) *row {
		return &row{id: "in-1", incarnation: incarnation, generation: 4, observed: 4, revision: 7, desired: holdfast.DesiredRunning,
			host: host, state: state, known: state, settled: true}
	}
	has := func(incarnation int64, state holdfast.InstanceState) *holdfast.Observation {
		return &holdfast.Observation{Instance: "in-1", Incarnation: incarnation, Generation: 4, State: state}
	}
	later := rec(1, holdfast.InstanceRunning, "ho-1")
	later.revision = 8
	unknown := rec(1, holdfast.InstanceUnknown, "ho-1")
	unknown.known = holdfast.InstanceRunning
	running, exited, absent := holdfast.InstanceRunning, holdfast.InstanceExited, holdfast.InstanceAbsent
	for _, tc := range []struct {
		name                   string
		before, after          *row // nil: none
		there                  *holdfast.Observation
		seen                   sightings
		news, confirm, destroy bool
		waiting, tidy          bool
	}{
		{name: "as recorded", before: rec(1, running, "ho-1"), after: rec(1, running, "ho-1"), there: has(1, running)},
		{name: "exited unheard", before: rec(1, running, "ho-1"), after: rec(1, running, "ho-1"), there: has(1, exited), news: true},
		{name: "back from UNKNOWN", before: unknown, after: unknown, there: has(1, running), news: true},
		{name: "recorded, not there", before: rec(1, running, "ho-1"), after: rec(1, running, "ho-1"), confirm: true},
		{name: "suspended, not there", before: rec(1, holdfast.InstanceSuspended, "ho-1"), after: rec(1, holdfast.InstanceSuspended, "ho-1"), confirm: true},
		{name: "T26 placed, not there yet", before: rec(1, holdfast.InstancePlaced, "ho-1"), after: rec(1, holdfast.InstancePlaced, "ho-1")},
		{name: "placed while the host was asked", after: rec(1, running, "ho-1")},
		{name: "changed while the host was asked", before: rec(1, running, "ho-1"), after: later},
		{name: "changed while the host was asked, and listed", before: rec(1, running, "ho-1"), after: later, there: has(1, exited)},
		{name: "exited, and its record is gone", before: rec(1, exited, "ho-1"), after: rec(1, exited, "ho-1")},
		{name: "unknown to the database", there: has(1, running), waiting: true},
		{name: "for not long enough", there: has(1, running), seen: young, waiting: true},
		{name: "for the grace period", there: has(1, running), seen: old, waiting: true, destroy: true},
		{name: "its output, for the grace period", there: has(1, exited), seen: old, waiting: true, destroy: true},
		{name: "a tombstone of the host's", there: has(1, absent), seen: old},
		{name: "tombstoned, and there", after: rec(1, absent, "ho-1"), there: has(1, running), seen: old, waiting: true, destroy: true},
		{name: "T38 superseded, and there", after: rec(2, running, "ho-2"), there: has(1, running), seen: old, waiting: true, destroy: true},
		{name: "superseded, and only its output is there", after: rec(2, running, "ho-2"), there: has(1, exited), tidy: true},
		{name: "superseded and deleted, and only its output is there", after: rec(2, absent, ""), there: has(1, exited), tidy: true},
		{name: "being made anew elsewhere, and its output is there", after: rec(2, holdfast.InstancePlaced, "ho-2"), there: has(1, exited)},
		{name: "T49 placed elsewhere", after: rec(1, running, "ho-2"), there: has(1, running), seen: old, waiting: true, destroy: true},
		{name: "T26 being placed elsewhere", after: rec(2, holdfast.InstancePlaced, "ho-2"), there: has(1, running), seen: old},
		{name: "T52 newer than the database", before: rec(1, running, "ho-1"), after: rec(1, running, "ho-1"), there: has(2, running), seen: old},
		{name: "ended, and it runs", before: rec(1, exited, "ho-1"), after: rec(1, exited, "ho-1"), there: has(1, running), seen: old, waiting: true, destroy: true},
		{name: "ended, and its output is there", before: rec(1, exited, "ho-1"), after: rec(1, exited, "ho-1"), there: has(1, exited), seen: old},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := comparison{host: "ho-1", before: map[holdfast.InstanceID]row{}, after: map[holdfast.InstanceID]row{},
				unwanted: tc.seen, now: now, grace: holdfast.OrphanGrace}
			if tc.before != nil {
				c.before["in-1"] = *tc.before
			}
			if tc.after != nil {
				c.after["in-1"] = *tc.after
			}
			if tc.there != nil {
				c.observed = []holdfast.Observation{*tc.there}
			}
			p := planInstances(c)
			if (len(p.news) > 0) != tc.news || (len(p.confirm) > 0) != tc.confirm || (len(p.destroy) > 0) != tc.destroy || (len(p.unwanted) > 0) != tc.waiting {
				t.Errorf("news %v confirm %d destroy %v waiting %v", p.news, len(p.confirm), p.destroy, slices.Collect(maps.Keys(p.unwanted)))
			}
			if (len(p.tidy) > 0) != tc.tidy || tc.tidy && p.tidy[0] != (doomed{ref: holdfast.InstanceRef{Instance: "in-1", Incarnation: 1}, generation: 5, desired: holdfast.DesiredAbsent}) {
				t.Errorf("tidied up: %+v", p.tidy)
			}
			if len(p.destroy) > 0 && p.destroy[0].generation < 4 {
				t.Errorf("destroyed with generation %d, which the host would refuse", p.destroy[0].generation)
			}
		})
	}
}

// contract: C4. T38: an incarnation whose room is still held as a leftover has a
// level that ends it; a second one above that would make it stale, and the room
// would never be given back (found by the model of instance_model_test.go).
func TestC4_ALeftoversEndIsNotOrderedASecondTimeAboveItsOwnLevel(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	ref := holdfast.InstanceRef{Instance: "in-1", Incarnation: 1}
	c := comparison{
		host: "ho-1", now: now, grace: holdfast.OrphanGrace, unwanted: sightings{ref: now.Add(-2 * holdfast.OrphanGrace)},
		observed: []holdfast.Observation{{Instance: "in-1", Incarnation: 1, Generation: 4, State: holdfast.InstanceRunning}},
		after:    map[holdfast.InstanceID]row{"in-1": {id: "in-1", incarnation: 2, generation: 5, host: "ho-2", state: holdfast.InstanceRunning}},
	}
	if p := planInstances(c); len(p.destroy) != 1 {
		t.Fatalf("without a leftover: %+v, want it destroyed", p.destroy)
	}
	c.lefts = map[holdfast.InstanceRef]bool{ref: true}
	if p := planInstances(c); len(p.destroy) != 0 || len(p.unwanted) != 0 {
		t.Errorf("with one: %+v, %+v", p.destroy, p.unwanted)
	}
}
