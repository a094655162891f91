package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// trap T19; contract: C1, C4: an instance whose row cannot be read hides no other from
// the sweeps, is listed, and is no orphan.
func TestT19_AnInstanceThatCannotBeReadHidesNoOther(t *testing.T) {
	w := newWorld(t)
	m := w.host(8)
	poison, gone, stopping := w.running(), w.running(), w.running()
	m.do(func() { m.slow = true })
	w.ensure(w.level(stopping, 2, holdfast.DesiredAbsent))
	m.do(func() { m.slow = false; delete(m.seen, gone) })
	w.exec(`UPDATE instance SET spec = '{', due_at = 1 WHERE id = $1`, string(poison))
	w.clock.pass(2 * holdfast.OrphanGrace)
	w.beat(m, 2, 8)
	for _, name := range []string{SweepOverdue, SweepInstances} {
		for range 2 {
			if err := w.sweep(name); err == nil || !strings.Contains(err.Error(), string(poison)) {
				t.Errorf("%s does not name the bad row: %v", name, err)
			}
		}
		w.clock.pass(time.Minute)
	}
	if r := w.row(stopping); r.state != holdfast.InstanceAbsent {
		t.Errorf("the one to be ended is %s", r.state)
	}
	if r := w.row(gone); !final(r.state) {
		t.Errorf("the one that is gone is %s", r.state)
	}
	if o := m.seen[poison]; o.State != holdfast.InstanceRunning {
		t.Errorf("the bad row's instance is %s on its host", o.State)
	}
	page, err := w.fleet.ListInstances(t.Context(), "", 0)
	if err != nil || len(page.Instances) != 3 {
		t.Errorf("listed %d, %v", len(page.Instances), err)
	}
	if _, err := w.fleet.EnsureInstance(t.Context(), w.level(poison, 2, holdfast.DesiredSuspended)); holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Errorf("a decision was made on it: %v", err)
	}
}
