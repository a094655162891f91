package fleet

import (
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// trap T49: an incarnation whose host is lost is placed on no other: its host may
// come back with it. It moves as another incarnation.
func TestT49_ALostHostsIncarnationIsPlacedNowhereElse(t *testing.T) {
	w := newWorld(t)
	lost := w.host(2)
	id := w.running()
	other := w.host(2)
	lost.do(func() { lost.down = true })
	w.exec(`UPDATE host SET health = 'LOST' WHERE id = $1`, string(lost.id))
	for generation := range int64(2) { // a repeat, and a newer intent
		_, err := w.fleet.EnsureInstance(t.Context(), w.level(id, 1+generation, holdfast.DesiredRunning))
		wantReason(t, err, holdfast.ReasonHostUnreachable)
	}
	if n := other.calls(); n != 0 {
		t.Errorf("another host was called %d times", n)
	}
	if r := w.row(id); r.host != lost.id {
		t.Errorf("it is on %s now", r.host)
	}
	w.sound()
}
