package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// The loops send what ended, and end with their context.
func TestRunSendsAndStops(t *testing.T) {
	w := newWorld(t)
	m := w.host(2)
	sent := make(chan outbox.Row, 1)
	var err error
	w.fleet, err = New(Config{DB: w.db, Cluster: cluster, Holder: "fl-run", Logger: w.fleet.log, Dial: w.fleet.dial,
		SendUp: func(_ context.Context, row outbox.Row) error {
			sent <- row
			return nil
		}})
	check(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.fleet.Run(ctx)
	}()
	id := w.running()
	check(t, w.fact("ev-1", exit(id, m)))
	wait(t, sent)
	stop()
	wait(t, ended)
}

func wait[T any](t *testing.T, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing in 10 s")
	}
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	if _, err := New(Config{Cluster: cluster}); err == nil {
		t.Error("made of nothing")
	}
}

// What one create costs the fleet, with the hosts free of charge.
func BenchmarkCreate(b *testing.B) {
	for _, clients := range []int{1, 32} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) {
			db, err := sqlite.Open(b.Context(), sqlite.Config{Path: b.TempDir() + "/fleet.db"}, Migrations()...)
			if err != nil {
				b.Fatal(err)
			}
			m := newMachine("ho-00000000000000000000000001")
			fleet, err := New(Config{DB: db, Cluster: cluster, Holder: "fl-bench", Dial: func(string) holdfast.HostService { return m },
				SendUp: func(context.Context, outbox.Row) error { return nil }})
			if err == nil {
				err = fleet.Heartbeat(b.Context(), holdfast.Heartbeat{Host: m.id, Cluster: cluster, URL: "http://host", Capacity: small(1 << 30), Sequence: 1})
			}
			if err != nil {
				b.Fatal(err)
			}
			var ids holdfast.IDs
			before := db.Stats()
			b.SetParallelism(max(1, clients/2))
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					_, err := fleet.EnsureInstance(b.Context(), holdfast.Level{Cluster: cluster, Instance: holdfast.InstanceID(ids.New(holdfast.PrefixInstance)),
						Incarnation: 1, Generation: 1, Desired: holdfast.DesiredRunning, Spec: &holdfast.InstanceSpec{Owner: "sb-1", Image: "base"}, MintedAt: time.Now()})
					if err != nil {
						b.Error(err)
					}
				}
			})
			stats := db.Stats()
			b.ReportMetric(float64(stats.Updates-before.Updates)/float64(b.N), "updates/op")
			b.ReportMetric(float64(stats.Updates-before.Updates)/float64(stats.Groups-before.Groups), "updates/commit")
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
