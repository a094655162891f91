package fleet

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// recover says, as an operator would, that the fleet's database was restored.
func (w *world) recover(epoch int64) {
	w.t.Helper()
	check(w.t, w.db.Update(w.t.Context(), func(tx store.Tx) error {
		now, err := tx.Now(w.t.Context())
		if err == nil {
			_, err = lineage.Recover(w.t.Context(), tx, now, epoch)
		}
		return err
	}))
	_, err := w.fleet.refreshDescent(w.t.Context())
	check(w.t, err)
}

// trap T52: orders of another cluster, and of a database from before a recovery,
// change nothing; a recovered one's are passed on in its name.
func TestT52_AFleetRefusesOrdersFromBeforeARecovery(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.running()
	ordered := func(epoch, generation int64, cluster string) error {
		l := w.level(id, generation, holdfast.DesiredSuspended)
		l.Epoch, l.Cluster = epoch, cluster
		_, err := w.fleet.EnsureInstance(t.Context(), l)
		return err
	}
	check(t, ordered(9, 10, cluster))
	if last := m.levels[len(m.levels)-1]; last.Epoch != 9 {
		t.Errorf("the host was told epoch %d, want 9", last.Epoch)
	}
	told := len(m.levels)
	if err := ordered(8, 11, cluster); holdfast.ReasonOf(err) != holdfast.ReasonStaleEpoch {
		t.Errorf("an older epoch's order: %v", err)
	}
	if err := ordered(99, 12, "cl-other"); holdfast.ReasonOf(err) != holdfast.ReasonCluster {
		t.Errorf("another cluster's order: %v", err)
	}
	w.restart()
	if err := ordered(8, 11, cluster); holdfast.ReasonOf(err) != holdfast.ReasonStaleEpoch {
		t.Errorf("after a restart: %v", err)
	}
	if len(m.levels) != told || w.row(id).generation != 10 {
		t.Errorf("a refused order changed something: %+v", w.row(id))
	}
}

// trap T52, contract: D1: a recovered fleet takes its hosts' word for instances
// that its database has lost, destroys none of them, and places none anew.
func TestT52_ARecoveredFleetAdoptsWhatItsHostsHave(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	forgotten, earlier := w.running(), w.running()
	again := w.level(earlier, 20, holdfast.DesiredRunning)
	again.Incarnation = 2
	w.ensure(again)
	check(t, w.db.Update(t.Context(), func(tx store.Tx) error { // the restore
		if _, err := tx.ExecContext(t.Context(), `DELETE FROM instance WHERE id = $1`, string(forgotten)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(t.Context(), `DELETE FROM leftover`); err != nil {
			return err
		}
		_, err := tx.ExecContext(t.Context(), `UPDATE instance SET incarnation = 1, generation = 1, observed_generation = 1 WHERE id = $1`, string(earlier))
		return err
	}))
	w.clock.pass(time.Second)
	w.recover(1)
	order := w.level(forgotten, 2, holdfast.DesiredRunning)
	order.Epoch, order.MintedAt = 1, w.clock.Now().Add(-time.Minute)
	if _, err := w.fleet.EnsureInstance(t.Context(), order); holdfast.ReasonOf(err) != holdfast.ReasonBehind {
		t.Errorf("placed before the hosts were asked: %v", err)
	}
	check(t, w.sweep(SweepInstances))
	for id, incarnation := range map[holdfast.InstanceID]int64{forgotten: 1, earlier: 2} {
		if r := w.row(id); r.incarnation != incarnation || r.host != m.id || r.state != holdfast.InstanceRunning {
			t.Errorf("%s: %+v", id, r)
		}
	}
	w.clock.pass(time.Hour)
	check(t, w.sweep(SweepInstances))
	for _, l := range m.levels {
		if ending(l.Desired) && l.Instance == forgotten {
			t.Errorf("the host was told %+v", l)
		}
	}
	o, err := w.fleet.EnsureInstance(t.Context(), order)
	if err != nil || o.State != holdfast.InstanceRunning || o.Incarnation != 1 {
		t.Errorf("it is not taken up again: %+v %v", o, err)
	}
	lost := w.level(w.instance(), 2, holdfast.DesiredRunning)
	lost.Epoch, lost.MintedAt = 1, order.MintedAt
	if _, err := w.fleet.EnsureInstance(t.Context(), lost); holdfast.ReasonOf(err) != holdfast.ReasonTooOld {
		t.Errorf("what no host has: %v", err)
	}
}

// trap T52: an empty fleet's database counts on no host that has obeyed somebody,
// until an order has told it whom it obeys itself.
func TestT52_AnEmptyFleetWaitsForItsOrchestrator(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	check(t, w.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `DELETE FROM lineage`)
		return err
	}))
	w.fleet.cluster = ""
	w.fleet.lineage.Store(nil)
	beat := w.heartbeat(m, 100, 4)
	if err := w.fleet.Heartbeat(t.Context(), beat); holdfast.ReasonOf(err) != holdfast.ReasonCluster || holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Errorf("of somebody's host: %v", err)
	}
	fresh := beat
	fresh.Cluster, fresh.Host = "", holdfast.HostID(w.ids.New(holdfast.PrefixHost))
	check(t, w.fleet.Heartbeat(t.Context(), fresh))
	w.ensure(w.level(w.instance(), 1, holdfast.DesiredExited))
	check(t, w.fleet.Heartbeat(t.Context(), beat))
}
