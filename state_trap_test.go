package holdfast

import (
	"testing"
	"time"
)

// trap T40: whoever takes an order of an unknown incarnation still has the tombstone
// of what it is about, with a day to spare for clocks and for orders on their way.
func TestT40_AnOrderIsTooOldBeforeItsTombstoneGoes(t *testing.T) {
	if LevelTooOldAfter+24*time.Hour > TombstoneKept {
		t.Errorf("orders are taken for %s, tombstones kept for %s", LevelTooOldAfter, TombstoneKept)
	}
}
