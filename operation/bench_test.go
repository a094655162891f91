package operation_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/operation"
)

// The cost of finding 1,000 overdue operations follows what is overdue, not what exists (proof.md, speed).
func BenchmarkDue(b *testing.B) {
	for _, ended := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("1000_due_of_%d", ended), func(b *testing.B) {
			w := newWorld(b)
			w.must(func(tx operation.Tx) error {
				_, err := tx.ExecContext(context.Background(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
					INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at)
					SELECT 'op' || i, 'sandbox', 'sbx' || i, 'CREATE', 1, CASE WHEN i % ($1 / 1000) = 0 THEN 'PENDING' ELSE 'DONE' END,
					$2, $2, $2, $2 FROM n`, ended, epoch.UnixMicro())
				return err
			})
			b.ResetTimer()
			for b.Loop() {
				found, f := 0, operation.DueFilter{Idle: time.Second, Limit: 100}
				for {
					ops := w.due(epoch.Add(time.Minute), f)
					if len(ops) == 0 {
						break
					}
					found += len(ops)
					f.After = ops[len(ops)-1].DueKey()
				}
				if found != 1000 {
					b.Fatalf("found %d", found)
				}
			}
		})
	}
}
