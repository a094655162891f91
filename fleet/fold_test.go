package fleet

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast"
)

// What a host reports in one life of an instance, in its order: every one of
// them, whatever is lost, repeated or late, leaves the fleet at or behind the
// host, never ahead of or beside it, and at its end exactly when it ended.
func TestFactsInAnyOrderNeverGoBack(t *testing.T) {
	states := []holdfast.InstanceState{holdfast.InstancePreparing, holdfast.InstanceBooting, holdfast.InstanceRunning,
		holdfast.InstanceSuspended, holdfast.InstanceStopping, holdfast.InstanceExited}
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		var life []holdfast.Observation
		at, generation := 0, int64(1)
		for range rapid.IntRange(1, 8).Draw(t, "length") {
			if s := states[at]; (s == holdfast.InstanceRunning || s == holdfast.InstanceSuspended) && rapid.Bool().Draw(t, "level") {
				generation++
				at = 5 - at // RUNNING and SUSPENDED change places
			} else if at != 3 {
				at = min(at+1, len(states)-1)
			}
			if at == 3 && generation%2 == 1 { // nobody suspends without a level
				at = 4
			}
			life = append(life, holdfast.Observation{Instance: "in-1", Incarnation: 1, Generation: generation, State: states[at], Host: "ho-1"})
		}
		cur := row{id: "in-1", incarnation: 1, generation: 1, observed: 1, desired: holdfast.DesiredRunning, host: "ho-1", held: true,
			state: holdfast.InstancePlaced, known: holdfast.InstancePlaced}
		heard, ended, freed, told := 0, false, 0, 0
		for range rapid.IntRange(1, 30).Draw(t, "deliveries") {
			i := rapid.IntRange(0, len(life)-1).Draw(t, "fact")
			o := life[i]
			if o.Generation > cur.generation { // the level came first
				cur.generation, cur.desired = o.Generation, holdfast.DesiredRunning
				if o.Generation%2 == 0 {
					cur.desired = holdfast.DesiredSuspended
				}
			}
			c := fold(cur, o, delivered, now)
			if c.ignored == "" && c.changed {
				if i < heard && !final(o.State) {
					t.Fatalf("fact %d %v was applied after %d", i, o, heard)
				}
				heard = max(heard, i)
			}
			if c.freed {
				freed++
			}
			if c.ended {
				told++
			}
			cur = c.next
			ended = ended || final(o.State)
			if ended != final(cur.state) || cur.held == ended {
				t.Fatalf("heard of the end: %v; it is %s, held %v", ended, cur.state, cur.held)
			}
		}
		if ended && (freed != 1 || told != 1) || !ended && freed+told != 0 {
			t.Fatalf("ended %v, freed %d, told %d", ended, freed, told)
		}
	})
}

// Random traffic of everybody at once leaves the books right.
func TestCapacityAddsUpWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		hosts := []*machine{w.host(2), w.host(3)}
		var ids []holdfast.InstanceID
		for range 6 {
			ids = append(ids, w.instance())
		}
		generation := map[holdfast.InstanceID]int64{}
		incarnation := map[holdfast.InstanceID]int64{}
		for step := range rapid.IntRange(5, 40).Draw(rt, "steps") {
			id := rapid.SampledFrom(ids).Draw(rt, "instance")
			m := rapid.SampledFrom(hosts).Draw(rt, "host")
			switch rapid.SampledFrom([]string{"level", "repeat", "raise", "silence", "forget", "exit", "fact", "sweep", "time"}).Draw(rt, "what") {
			case "level":
				generation[id]++
				w.try(id, incarnation[id], generation[id], rapid.SampledFrom([]holdfast.Desired{holdfast.DesiredRunning, holdfast.DesiredRunning,
					holdfast.DesiredSuspended, holdfast.DesiredExited, holdfast.DesiredAbsent}).Draw(rt, "desired"))
			case "repeat":
				w.try(id, incarnation[id], generation[id], holdfast.DesiredRunning)
			case "raise":
				incarnation[id]++
				generation[id]++
				w.try(id, incarnation[id], generation[id], holdfast.DesiredRunning)
			case "silence":
				m.do(func() { m.down = !m.down })
			case "forget":
				m.do(func() { delete(m.seen, id) })
			case "exit":
				m.do(func() {
					if o, ok := m.seen[id]; ok && o.State != holdfast.InstanceAbsent {
						o.State = holdfast.InstanceExited
						m.seen[id] = o
					}
				})
			case "fact":
				m.do(func() {
					if o, ok := m.seen[id]; ok {
						_ = w.fact(fmt.Sprint("ev-", step), o) // what it changes is what is checked
					}
				})
			case "sweep":
				name := rapid.SampledFrom([]string{SweepHosts, SweepOverdue, SweepInstances, SweepPurge}).Draw(rt, "sweep")
				_ = w.sweep(name) // hosts are silent at will
			case "time":
				w.clock.pass(time.Duration(rapid.IntRange(1, 400).Draw(rt, "seconds")) * time.Second)
				for i, m := range hosts {
					if !m.down {
						w.beat(m, int64(step+2), int64(i+2))
					}
				}
			}
			w.sound()
		}
		check(t, w.db.Close())
	})
}

// try sends a level that may be refused.
func (w *world) try(id holdfast.InstanceID, incarnation, generation int64, desired holdfast.Desired) {
	l := w.level(id, max(generation, 1), desired)
	l.Incarnation = max(incarnation, 1)
	_, _ = w.fleet.EnsureInstance(w.t.Context(), l) // what it changes is what is checked
}
