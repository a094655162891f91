package fleet

import (
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// trap T38: a create is superseded while its order is on its way to a host. The
// order arrives after all; what it boots is ended, and its room given back, once.
func TestT38_ACreateThatWasSupersededOnItsWayLeaksNothing(t *testing.T) {
	w := newWorld(t)
	first := w.host(1)
	id := w.placed(first)
	second := w.host(1)
	first.do(func() { first.down = true })
	l := w.level(id, 2, holdfast.DesiredRunning)
	l.Incarnation = 2
	if o := w.ensure(l); o.State != holdfast.InstanceRunning || o.Host != second.id {
		t.Fatalf("the new incarnation is %s on %s", o.State, o.Host)
	}
	w.sound()
	first.do(func() { first.down = false })
	late := w.level(id, 1, holdfast.DesiredRunning)
	if _, err := first.EnsureInstance(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		check(t, w.sweep(SweepInstances))
	}
	w.sound()
	var left holdfast.InstanceState
	first.do(func() { left = first.seen[id].State })
	if left != holdfast.InstanceAbsent {
		t.Errorf("what the late order booted is %s", left)
	}
	for _, h := range w.hosts() {
		if want := map[holdfast.HostID]int64{first.id: 0, second.id: 1}[h.ID]; h.Used.Instances != want {
			t.Errorf("%s counts %d instances, want %d", h.ID, h.Used.Instances, want)
		}
	}
}
