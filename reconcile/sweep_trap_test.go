package reconcile_test

import (
	"context"
	"sync"
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

// trap T30: replicas that start together do not sweep together.
func TestT30_FirstRunsOfReplicasThatStartTogetherAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var first [2]time.Duration
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var replicas sync.WaitGroup
		for i := range first {
			config := quiet()
			config.Jitter = func(string, int) float64 { return 0.25 + 0.5*float64(i) }
			r := runner(t, config, reconcile.Sweep{Name: "s", Every: time.Minute, First: 40 * time.Second,
				Page: func(context.Context, string, int) ([]reconcile.Item, string, error) {
					if first[i] == 0 {
						first[i] = time.Since(began)
					}
					return nil, "", nil
				}})
			replicas.Go(func() { r.Run(ctx) })
		}
		replicas.Wait()
		if first != [2]time.Duration{10 * time.Second, 30 * time.Second} {
			t.Errorf("they swept first after %v", first)
		}
	})
}
