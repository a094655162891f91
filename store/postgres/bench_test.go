package postgres_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// What an update costs beyond its statements: a durable one that asks for the clock and inserts one row. Three round trips.
func BenchmarkUpdate(b *testing.B) {
	server := testenv.StartPostgres(b, "fsync=on")
	for _, writers := range []int{1, 8, 32} {
		b.Run(fmt.Sprint("writers=", writers), func(b *testing.B) {
			db, err := postgres.Open(b.Context(), postgres.Config{URL: server.URL(server.Database(b)), Schema: "bench", MaxConns: writers},
				storetest.Migrations())
			if err != nil {
				b.Fatal(err)
			}
			var n atomic.Int64
			b.SetParallelism(max(1, writers/2))
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					err := db.Update(b.Context(), func(tx store.Tx) error {
						if _, err := tx.Now(b.Context()); err != nil {
							return err
						}
						_, err := tx.ExecContext(b.Context(), "INSERT INTO thing (k, v) VALUES ($1, 1)", fmt.Sprint(n.Add(1)))
						return err
					})
					if err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
