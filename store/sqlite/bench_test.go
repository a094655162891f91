package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// BenchmarkGroupedCommits is the floor that every durable path is measured against: one small insert per update, at
// synchronous=FULL. updates/commit is how many shared an fsync.
func BenchmarkGroupedCommits(b *testing.B) {
	for _, writers := range []int{1, 8, 32, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			db := openFile(b, filepath.Join(b.TempDir(), "bench.db"))
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range writers {
				wg.Go(func() {
					for {
						n := next.Add(1)
						if n > int64(b.N) {
							return
						}
						if err := db.Update(context.Background(), func(tx store.Tx) error {
							return storetest.Put(tx, fmt.Sprint(n), n)
						}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			s := db.Stats()
			b.ReportMetric(float64(s.Updates)/float64(s.Groups), "updates/commit")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
		})
	}
}

// BenchmarkUpdateInMemory is the store's own cost, without a disk.
func BenchmarkUpdateInMemory(b *testing.B) {
	db := openMemory(b)
	b.ReportAllocs()
	for n := range b.N {
		if err := db.Update(context.Background(), func(tx store.Tx) error {
			return storetest.Put(tx, fmt.Sprint(n), int64(n))
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkView is one read of one row.
func BenchmarkView(b *testing.B) {
	db := openFile(b, filepath.Join(b.TempDir(), "bench.db"))
	if err := db.Update(b.Context(), func(tx store.Tx) error { return storetest.Put(tx, "k", 1) }); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := db.View(context.Background(), func(tx store.Tx) error {
			_, err := storetest.Get(tx, "k")
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
}

func openFile(tb testing.TB, path string) *sqlite.DB {
	tb.Helper()
	return openConfig(tb, sqlite.Config{Path: path})
}

func openMemory(tb testing.TB) *sqlite.DB {
	tb.Helper()
	return openConfig(tb, sqlite.Config{Memory: true})
}

func openConfig(tb testing.TB, cfg sqlite.Config) *sqlite.DB {
	tb.Helper()
	db, err := sqlite.Open(tb.Context(), cfg, storetest.Migrations())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}
