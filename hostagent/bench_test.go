package hostagent

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// BenchmarkCreate is what a host adds to a create: everything but the runtime.
func BenchmarkCreate(b *testing.B) {
	for _, clients := range []int{1, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			w := newWorld()
			agent := start(b, w, b.TempDir(), newClock())
			var next atomic.Int64
			b.SetParallelism(clients)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l := agent.level(1, 1, holdfast.DesiredRunning)
					l.Instance = holdfast.InstanceID(fmt.Sprintf("in-%026d", next.Add(1)))
					if o, err := agent.EnsureInstance(b.Context(), l); err != nil || o.State != holdfast.InstanceRunning {
						b.Errorf("%s, %v", o.State, err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}
