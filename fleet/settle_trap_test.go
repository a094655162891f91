package fleet

import (
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: B4. Trap T16: that an instance ended, that its delivery was taken, and that
// the orchestrator is to be told are one transaction: no crash comes in between.
func TestT16_AnEndAndTheWordOfItAreOneTransaction(t *testing.T) {
	w := newWorld(t)
	m := w.host(1)
	id := w.running()
	before := w.db.updates.Load()
	check(t, w.fact("ev-1", holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, State: holdfast.InstanceExited, Host: m.id}))
	if n := w.db.updates.Load() - before; n != 1 {
		t.Errorf("it took %d transactions, want 1", n)
	}
	if rows := w.outbox(); len(rows) != 1 || w.row(id).state != holdfast.InstanceExited {
		t.Errorf("%d rows for the orchestrator, and the instance is %s", len(rows), w.row(id).state)
	}
}
