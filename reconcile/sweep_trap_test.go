package reconcile_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/reconcile"
)

// trap T30: without a pace too, a page of overdue items is no more work at once than
// the sweep says.
func TestT30_ABacklogWithoutAPaceIsBoundedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at, most atomic.Int32
		r := runner(t, quiet(), reconcile.Sweep{Name: "s", Every: time.Minute, Concurrency: 3,
			Page: paged(items(100, func(context.Context, int) error {
				n := at.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(20 * time.Millisecond) // virtual: work
				at.Add(-1)
				return nil
			}))})
		report, err := r.RunOnce(t.Context(), "s")
		if err != nil || report.Acted != 100 || most.Load() != 3 {
			t.Errorf("%+v, %v, %d at once, want 3", report, err, most.Load())
		}
	})
}
