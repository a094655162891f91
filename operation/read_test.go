package operation_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/operation"
)

func (w world) due(now time.Time, f operation.DueFilter) []operation.Operation {
	w.t.Helper()
	var ops []operation.Operation
	w.must(func(tx operation.Tx) (err error) {
		ops, err = operation.Due(context.Background(), tx, now, f)
		return err
	})
	return ops
}

func ids(ops []operation.Operation) []string {
	out := make([]string, 0, len(ops))
	for _, o := range ops {
		out = append(out, o.ID)
	}
	return out
}

func numbered(i int) operation.Resource {
	return operation.Resource{Kind: "sandbox", ID: fmt.Sprintf("sbx_%03d", i)}
}

// contract: A15, C1
func TestA15_WhatNobodyWorksOnBecomesDue(t *testing.T) {
	w := newWorld(t)
	for i, id := range []string{"fresh", "claimed", "released", "backing-off", "abandoned", "ended"} {
		w.record(id, numbered(i), "CREATE")
	}
	now := epoch.Add(time.Minute)
	w.must(func(tx operation.Tx) error {
		_, err := tx.ExecContext(context.Background(), `UPDATE operation SET due_at = $1 WHERE id = 'fresh'`, now.UnixMicro())
		return err
	})
	w.take("claimed", epoch, 0)
	w.take("abandoned", epoch, 10*time.Second)
	for id, backoff := range map[string]time.Duration{"released": 0, "backing-off": time.Hour} {
		if err := w.release(w.take(id, epoch, 0), epoch, operation.Report{Backoff: backoff}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.finish(w.take("ended", epoch, 0), epoch, done); err != nil {
		t.Fatal(err)
	}
	f := operation.DueFilter{Idle: 30 * time.Second}
	if got, want := ids(w.due(now, f)), []string{"released", "abandoned"}; !slices.Equal(got, want) {
		t.Errorf("due after a minute: %v, want %v", got, want)
	}
	if got := w.due(now, operation.DueFilter{Idle: 30 * time.Second, ResourceKind: "session"}); len(got) != 0 {
		t.Errorf("of another kind: %v", ids(got))
	}
	if got := ids(w.due(epoch.Add(2*time.Hour), f)); len(got) != 5 || slices.Contains(got, "ended") {
		t.Errorf("due after two hours: %v", got)
	}
}

// trap T29: a page is filled with what is due, so a crowd that is not due hides nothing.
func TestT29_WhatIsNotDueHidesNothing(t *testing.T) {
	w := newWorld(t)
	for i := range 40 {
		id := fmt.Sprintf("op%02d", i)
		w.record(id, numbered(i), "CREATE")
		if i%4 != 3 {
			w.take(id, epoch, 0)
		}
	}
	f := operation.DueFilter{Idle: 30 * time.Second, Limit: 3}
	var got []string
	for {
		ops := w.due(epoch.Add(time.Minute), f)
		if len(ops) == 0 {
			break
		}
		got = append(got, ids(ops)...)
		f.After = ops[len(ops)-1].DueKey()
	}
	if len(got) != 10 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 10 {
		t.Errorf("due: %v", got)
	}
}

// trap T29: taking what a page named moves it behind the ones that are still to come, and a sweep meets it no second time.
func TestT29_ActingOnAPageNeitherSkipsNorRepeats(t *testing.T) {
	w := newWorld(t)
	for i := range 20 { // the order of ids is not that of time
		id := fmt.Sprintf("op%02d", (i*7)%20)
		w.record(id, numbered(i), "CREATE")
		at := epoch.Add(time.Duration(i/2) * time.Second)
		if err := w.release(w.take(id, at, 0), at, operation.Report{}); err != nil {
			t.Fatal(err)
		}
	}
	now, f := epoch.Add(time.Minute), operation.DueFilter{Idle: 30 * time.Second, Limit: 4}
	seen := map[string]int{}
	for {
		ops := w.due(now, f)
		if len(ops) == 0 {
			break
		}
		for i, o := range ops {
			seen[o.ID]++
			if i%2 == 0 { // half of them fail before they are touched
				if err := w.release(w.take(o.ID, now, 0), now, operation.Report{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.After = ops[len(ops)-1].DueKey()
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s: met %d times", id, n)
		}
	}
	if len(seen) != 20 {
		t.Errorf("met %d of 20", len(seen))
	}
}

// The sweep's cost follows what is due: the plan reads the partial index in its order, and sorts nothing.
func TestC1_DueReadsItsIndexInOrder(t *testing.T) {
	w := newWorld(t)
	explain := "EXPLAIN QUERY PLAN "
	if w.postgres {
		explain = "EXPLAIN " // which prefers to scan a table as small as this one
		w.db.SetMaxOpenConns(1)
		if _, err := w.db.Exec("SET enable_seqscan = off"); err != nil {
			t.Fatal(err)
		}
	}
	var plan []string
	w.must(func(tx operation.Tx) error {
		rows, err := tx.QueryContext(context.Background(), explain+`SELECT id FROM operation WHERE state = 'PENDING'
			AND due_at <= $1 AND claim_expires <= $2 AND (due_at, id) > ($3, $4) ORDER BY due_at, id LIMIT 10`, 1, 1, 0, "")
		if err != nil {
			return err
		}
		for rows.Next() {
			var a, b, c int
			var detail string
			columns := []any{&a, &b, &c, &detail}
			if w.postgres {
				columns = columns[3:]
			}
			if err := rows.Scan(columns...); err != nil {
				return err
			}
			plan = append(plan, detail)
		}
		return rows.Close()
	})
	text := strings.Join(plan, "\n")
	if !strings.Contains(text, "operation_due") || strings.Contains(text, "Sort") || strings.Contains(text, "TEMP B-TREE") {
		t.Errorf("plan: %s", text)
	}
}

func TestDue_RefusesAKeyThatIsNone(t *testing.T) {
	w := newWorld(t)
	for _, key := range []string{"op1", "x/op1"} {
		if err := update(w.db, func(tx operation.Tx) error {
			_, err := operation.Due(context.Background(), tx, epoch, operation.DueFilter{After: key})
			return err
		}); err == nil {
			t.Errorf("%q was taken for a key", key)
		}
	}
}

func TestList_PagesTheJournal(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		w.record(fmt.Sprintf("op%d", i), sandbox, "SUSPEND")
		if i < 4 {
			w.end(fmt.Sprintf("op%d", i), epoch)
		}
	}
	w.record("op9", numbered(9), "CREATE")
	for _, c := range []struct {
		filter operation.Filter
		want   string
	}{
		{operation.Filter{}, "op0 op1 op2 op3 op4 op9"},
		{operation.Filter{Resource: sandbox}, "op0 op1 op2 op3 op4"},
		{operation.Filter{Resource: sandbox, After: "op1", Limit: 2}, "op2 op3"},
		{operation.Filter{Pending: true}, "op4 op9"},
		{operation.Filter{Resource: operation.Resource{Kind: "sandbox"}, Pending: true, After: "op4"}, "op9"},
		{operation.Filter{Resource: operation.Resource{Kind: "session"}}, ""},
	} {
		var got []operation.Operation
		w.must(func(tx operation.Tx) (err error) {
			got, err = operation.List(context.Background(), tx, c.filter)
			return err
		})
		if s := strings.Join(ids(got), " "); s != c.want {
			t.Errorf("%+v: %q, want %q", c.filter, s, c.want)
		}
	}
}

func TestPurge_TakesTheJournalInBatchesAndLeavesWhatIsPending(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.record(fmt.Sprintf("op%d", i), sandbox, "SUSPEND")
		if i < 3 {
			w.end(fmt.Sprintf("op%d", i), epoch)
		}
	}
	for _, want := range []int{2, 1, 0} {
		w.must(func(tx operation.Tx) error {
			n, err := operation.Purge(context.Background(), tx, sandbox, 2)
			if n != want {
				t.Errorf("purged %d, want %d", n, want)
			}
			return err
		})
	}
	w.get("op3")
	err := update(w.db, func(tx operation.Tx) error {
		_, err := operation.Get(context.Background(), tx, "op0")
		return err
	})
	wantErr(t, err, operation.ErrNotFound)
}
