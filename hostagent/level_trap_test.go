package hostagent

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// trap T40: an order that does not say when its incarnation was placed is as old as
// can be: the tombstone of what it is about may be gone.
func TestT40_AnOrderWithoutAnAgeIsTooOld(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	l := b.level(1, 1, holdfast.DesiredRunning)
	l.PlacedAt = time.Time{}
	b.refused(l, holdfast.ReasonTooOld)
}
