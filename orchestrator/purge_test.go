package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// shifted is a clock that runs as it does, so far ahead of the real one.
type shifted struct{ by atomic.Int64 }

func (c *shifted) Now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

func (c *shifted) pass(d time.Duration) { c.by.Add(int64(d)) }

// aged is an orchestrator whose database's clock the test moves.
type aged struct {
	*harness
	clock *shifted
}

func newAged(t *testing.T) aged {
	t.Helper()
	clock := &shifted{}
	var db store.DB
	var err error
	if url, schema, ok := testenv.PostgresSchema(t); ok {
		db, err = postgres.Open(t.Context(), postgres.Config{URL: url, Schema: schema, Clock: clock.Now}, Migrations()...)
	} else {
		db, err = sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "orchestrator.db"), Clock: clock.Now}, Migrations()...)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return aged{harness: newHarnessOn(t, db, newFleet()), clock: clock}
}

func (h *harness) exec(query string, args ...any) {
	h.t.Helper()
	err := h.db.Update(h.t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(h.t.Context(), query, args...)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) run(name string) reconcile.Report {
	h.t.Helper()
	report, err := h.sweeps.RunOnce(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return report
}

// rowsOf counts what the tables hold of a sandbox.
func (h *harness) rowsOf(sb holdfast.Sandbox) map[string]int {
	return map[string]int{
		"sandbox":         h.count(`SELECT COUNT(*) FROM sandbox WHERE id = $1`, string(sb.ID)),
		"sandbox_label":   h.count(`SELECT COUNT(*) FROM sandbox_label WHERE sandbox = $1`, string(sb.ID)),
		"operation":       h.count(`SELECT COUNT(*) FROM operation WHERE resource_id = $1`, string(sb.ID)),
		"process_request": h.count(`SELECT COUNT(*) FROM process_request WHERE sandbox = $1`, string(sb.ID)),
		"delivery":        h.count(`SELECT COUNT(*) FROM delivery WHERE source LIKE $1`, "instance/"+string(sb.Instance)+"/%"),
		"request":         h.count(`SELECT COUNT(*) FROM request WHERE resource = $1`, string(sb.ID)),
	}
}

// furnished is a sandbox with a row in every table.
func (h *harness) furnished(requestID string) holdfast.Sandbox {
	h.t.Helper()
	sb, err := h.CreateSandbox(h.t.Context(), alice, holdfast.CreateSandbox{RequestID: requestID, Environment: "base", Labels: map[string]string{"a": "b", "c": "d"}})
	if err != nil {
		h.t.Fatal(err)
	}
	if status := h.guestSays("ev-"+requestID, holdfast.DeliveryReady, sb.Instance, 1); status != http.StatusNoContent {
		h.t.Fatalf("status %d", status)
	}
	if err := h.use(sb, "p1"); err != nil {
		h.t.Fatal(err)
	}
	return sb
}

// use is the first use of a process's request id.
func (h *harness) use(sb holdfast.Sandbox, requestID string) error {
	return h.update(h.t.Context(), "use", func(tx store.Tx, now time.Time) error {
		r, _, _, err := lockRow(h.t.Context(), tx, sb.ID)
		if err != nil {
			return err
		}
		return claimProcessRequest(h.t.Context(), tx, now, r, requestID)
	})
}

// contract: A3, A4; trap T5: 7 days after its deletion nothing is known of a
// sandbox but what its request id stands for.
func TestA3_A4_TheDetailsOfTheDeletedGoAfterSevenDaysAndItsRequestIDNever(t *testing.T) {
	h := newAged(t)
	sb, alive := h.furnished("r1"), h.furnished("r2")
	was := h.rowsOf(alive)
	for table, n := range h.rowsOf(sb) {
		if n == 0 {
			t.Errorf("the test has no row in %s", table)
		}
	}
	h.mutateOK(h.DeleteSandbox, sb.ID)
	journal, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(sb.ID)})
	if err != nil || len(journal.Operations) != 2 {
		t.Fatalf("%+v, %v", journal, err)
	}
	h.clock.pass(holdfast.TombstoneKept - time.Second)
	h.run(SweepPurge)
	if got := h.mutateOK(h.DeleteSandbox, sb.ID); got.State != holdfast.SandboxDeleted || got.Environment != "base" {
		t.Fatalf("a second before its time: %+v", got)
	}
	h.clock.pass(time.Second)
	if report := h.run(SweepPurge); report.Acted != 1 || report.Failed != 0 {
		t.Fatalf("%+v", report)
	}
	in := holdfast.CreateSandbox{RequestID: "r1", Environment: "base", Labels: map[string]string{"a": "b", "c": "d"}}
	again, err := h.CreateSandbox(t.Context(), alice, in)
	if err != nil || again.ID != sb.ID || again.State != holdfast.SandboxDeleted || again.Environment != "" || again.Instance != "" || !again.CreatedAt.IsZero() {
		t.Errorf("the repeated create: %+v, %v", again, err)
	}
	in.Environment, in.Name = "base", "other"
	_, err = h.CreateSandbox(t.Context(), alice, in)
	if holdfast.CodeOf(err) != holdfast.AlreadyExists {
		t.Errorf("its request id with other input: %v", err)
	}
	for what, err := range map[string]error{
		"get":       second(h.GetSandbox(t.Context(), alice, sb.ID)),
		"delete":    second(h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})),
		"resume":    second(h.ResumeSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})),
		"extend":    second(h.extend(sb.ID, time.Hour)),
		"journal":   second(h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(sb.ID)})),
		"operation": second(h.GetOperation(t.Context(), alice, journal.Operations[0].ID)),
	} {
		if holdfast.CodeOf(err) != holdfast.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
	for table, n := range h.rowsOf(sb) {
		if want := map[string]int{"request": 1}[table]; n != want {
			t.Errorf("%s has %d rows of it, want %d", table, n, want)
		}
	}
	for table, n := range h.rowsOf(alive) {
		if n != was[table] {
			t.Errorf("%s has %d rows of one that lives, had %d", table, n, was[table])
		}
	}
	if n := h.fleet.bootsOf(sb.Instance); n[1] != 1 || len(h.fleet.boots) != 2 {
		t.Errorf("boots %v", h.fleet.boots)
	}
	if report := h.run(SweepPurge); report.Seen != 0 {
		t.Errorf("another run has %+v", report)
	}
	if status := h.guestSays("ev-late", holdfast.DeliveryReady, sb.Instance, 1); status < 500 {
		t.Errorf("a delivery of what is purged: %d, and must not be recorded", status)
	}
}

func second[T any](_ T, err error) error { return err }

// contract: A5: who was away for longer than tombstones are kept misses no deletion
// without a word.
func TestA5_AWatcherThatWasAwayLongerThanTombstonesBeginsAnew(t *testing.T) {
	h := newAged(t)
	kept, gone, unnoticed := h.mustCreate("r1"), h.mustCreate("r2"), h.mustCreate("r3")
	_, first := h.watchOnce("")
	h.mutateOK(h.DeleteSandbox, gone.ID)
	events, second := h.watchOnce(first)
	if len(events) != 1 || events[gone.ID] != holdfast.SandboxDeleted {
		t.Fatalf("%v", events)
	}
	part := second + "." + string(kept.ID) + "@" + second // a watch that broke off while it began
	expect := func(after string, want ...holdfast.SandboxID) {
		t.Helper()
		got, version := h.watchOnce(after)
		if want == nil {
			if version != string(holdfast.ReasonBeginAnew) {
				t.Errorf("after %q: %v, %s", after, got, version)
			}
			return
		}
		for _, id := range want {
			if _, ok := got[id]; !ok && id != "" {
				t.Errorf("after %q: %s is not told: %v, %s", after, id, got, version)
			}
		}
		if version == string(holdfast.ReasonBeginAnew) {
			t.Errorf("after %q it had to begin anew", after)
		}
	}
	h.clock.pass(holdfast.TombstoneKept)
	h.run(SweepPurge)
	expect(first)       // it has seen gone, and not its deletion
	expect(second, "")  // it has seen the deletion
	expect(part, "")    // what was deleted before it began was never shown
	expect("", kept.ID) // what there is
	expect("0.sb_a@0")  // begun before anything was
	_, third := h.watchOnce("")
	h.mutateOK(h.DeleteSandbox, unnoticed.ID) // and nobody watches, so that it gets no number
	h.clock.pass(holdfast.TombstoneKept)
	h.run(SweepPurge)
	for _, after := range []string{second, part, third} {
		expect(after)
	}
	events, fourth := h.watchOnce("")
	if _, ok := events[kept.ID]; !ok || len(events) != 1 {
		t.Errorf("anew: %v", events)
	}
	h.mutateOK(h.SuspendSandbox, kept.ID)
	expect(fourth, kept.ID)
}

// watchOnce reads a watch until it has caught up, and returns its version; or the
// reason why it was refused.
func (h *harness) watchOnce(after string) (events map[holdfast.SandboxID]holdfast.SandboxState, version string) {
	h.t.Helper()
	events, enough := map[holdfast.SandboxID]holdfast.SandboxState{}, errors.New("enough")
	err := h.WatchSandboxes(h.t.Context(), alice, holdfast.WatchSandboxes{After: after}, func(e holdfast.SandboxEvent) error {
		if e.Sandbox == nil {
			version = e.Version
			return enough
		}
		events[e.Sandbox.ID] = e.Sandbox.State
		return nil
	})
	if !errors.Is(err, enough) {
		if holdfast.CodeOf(err) != holdfast.OutOfRange {
			h.t.Fatalf("watch after %q: %v", after, err)
		}
		version = string(holdfast.ReasonOf(err))
	}
	return events, version
}

// traps T19, T29: a tombstone that cannot be purged keeps no other, and is seen.
func TestT19_ATombstoneThatCannotBePurgedKeepsNoOther(t *testing.T) {
	h := newAged(t)
	var all []holdfast.Sandbox
	for i := range 2*purgeGroup + 3 {
		all = append(all, h.mutateOK(h.DeleteSandbox, h.mustCreate(fmt.Sprint("r", i)).ID))
	}
	odd, poison := all[3], all[2*purgeGroup]
	h.exec(`UPDATE operation SET state = 'PENDING', kind = 'SUSPEND' WHERE resource_id = $1 AND kind = 'DELETE'`, string(odd.ID))
	if h.locksRows() {
		h.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a bad page'; END $$`)
		h.exec(`CREATE TRIGGER poison BEFORE DELETE ON sandbox FOR EACH ROW WHEN (OLD.id = '` + string(poison.ID) + `') EXECUTE FUNCTION refuse()`)
	} else {
		h.exec(`CREATE TRIGGER poison BEFORE DELETE ON sandbox WHEN OLD.id = '` + string(poison.ID) + `' BEGIN SELECT RAISE(ABORT, 'a bad page'); END`)
	}
	h.clock.pass(holdfast.TombstoneKept)
	report := h.run(SweepPurge)
	if n := h.count(`SELECT COUNT(*) FROM sandbox`); n != 2 || report.Failed != 2 {
		t.Errorf("%d are left, want the two bad ones: %+v", n, report)
	}
	text := fmt.Sprint(report.Err())
	if !strings.Contains(text, string(odd.ID)) || !strings.Contains(text, string(poison.ID)) {
		t.Errorf("the report names %s", text)
	}
}

// A long journal goes in many short transactions, and the tombstone last.
func TestAPurgeIsManySmallTransactions(t *testing.T) {
	h := newAged(t)
	sb := h.furnished("r1")
	const many = 2*purgeRows + 50
	for i := range many {
		h.exec(`INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at)
			VALUES ($1, 'sandbox', $2, 'SUSPEND', 1, 'DONE', 1, 1, 1, 1)`, fmt.Sprintf("op_%06d", i), string(sb.ID))
	}
	h.mutateOK(h.DeleteSandbox, sb.ID)
	h.clock.pass(holdfast.TombstoneKept)
	ctx, cancel := context.WithCancel(t.Context())
	small := &cutting{DB: h.db, after: 2, cut: cancel}
	h.config.DB = small
	err := h.purgeDeleted(ctx, []holdfast.SandboxID{sb.ID})
	h.config.DB = h.db
	if left := h.rowsOf(sb); err == nil || left["sandbox"] != 1 || left["operation"] == 0 || left["operation"] >= many {
		t.Errorf("cut after two transactions: %v, %v", left, err)
	}
	h.run(SweepPurge)
	if left := h.rowsOf(sb); left["sandbox"]+left["operation"]+left["process_request"]+left["delivery"]+left["sandbox_label"] != 0 {
		t.Errorf("left %v", left)
	}
}

// cutting ends a context after some transactions.
type cutting struct {
	store.DB
	after int
	cut   context.CancelFunc
}

func (c *cutting) Update(ctx context.Context, fn func(store.Tx) error) error {
	err := c.DB.Update(ctx, fn)
	if c.after--; c.after == 0 {
		c.cut()
	}
	return err
}

// contract: A14; lifecycle.md, the last deadline: what a boot left that is over for
// 7 days goes, and what the present one has stays.
func TestA14_WhatOldBootsLeftGoesAfterSevenDays(t *testing.T) {
	h := newAged(t)
	sb := h.createFresh("r1")
	for i := range 3 {
		if err := h.use(sb, fmt.Sprint("old-", i)); err != nil {
			t.Fatal(err)
		}
	}
	h.guestSays("ev-1", holdfast.DeliveryReady, sb.Instance, 1)
	h.fleetSays("ev-lost", lost(sb))
	again := h.awaitState(sb.ID, holdfast.SandboxReady)
	if again.Incarnation != 2 {
		t.Fatal(again.Incarnation)
	}
	h.guestSays("ev-1", holdfast.DeliveryReady, sb.Instance, 2)
	if err := h.use(sb, "new"); err != nil {
		t.Fatal(err)
	}
	minted := h.count(`SELECT minted_at FROM sandbox WHERE id = $1`, string(sb.ID))
	h.clock.pass(holdfast.TombstoneKept - h.clock.Now().Sub(store.FromMicros(int64(minted))) - time.Second)
	h.run(SweepBoots)
	h.run(SweepInbox)
	wantError(t, h.use(sb, "old-1"), holdfast.FailedPrecondition, holdfast.ReasonIncarnation)
	if left := h.rowsOf(sb); left["process_request"] != 4 || left["delivery"] != 2 || h.count(`SELECT COUNT(*) FROM delivery WHERE source = 'fleet'`) != 1 {
		t.Fatalf("a second before: %v", left)
	}
	h.clock.pass(2 * time.Second)
	if report := h.run(SweepBoots); report.Acted != 1 {
		t.Fatalf("%+v", report)
	}
	h.run(SweepInbox)
	if left := h.rowsOf(sb); left["process_request"] != 1 || left["delivery"] != 1 || h.count(`SELECT COUNT(*) FROM delivery WHERE source = 'fleet'`) != 0 {
		t.Errorf("left %v", left)
	}
	if n := h.count(`SELECT COUNT(*) FROM delivery WHERE source = $1`, "instance/"+string(sb.Instance)+"/2"); n != 1 {
		t.Error("what the present boot said is gone")
	}
	if report := h.run(SweepBoots); report.Seen != 0 {
		t.Errorf("another run has %+v", report)
	}
}

// trap T28: two replicas that purge at once, while others create, delete and watch.
func TestT28_TwoPurgesAtOnceDoNoMoreThanOne(t *testing.T) {
	h := newAged(t)
	other := newHarnessOn(t, h.db, h.fleet)
	for i := range 120 {
		h.mutateOK(h.DeleteSandbox, h.mustCreate(fmt.Sprint("r", i)).ID)
	}
	h.clock.pass(holdfast.TombstoneKept)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	go func() {
		ended <- h.WatchSandboxes(ctx, alice, holdfast.WatchSandboxes{}, func(holdfast.SandboxEvent) error { return nil })
	}()
	for _, s := range []*harness{h.harness, other} {
		go func() {
			report, err := s.sweeps.RunOnce(t.Context(), SweepPurge)
			ended <- errors.Join(err, report.Err())
		}()
	}
	var kept []holdfast.Sandbox
	for i := range 20 {
		kept = append(kept, h.mustCreate(fmt.Sprint("new", i)))
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := h.count(`SELECT COUNT(*) FROM sandbox`); n != len(kept) {
		t.Errorf("%d sandboxes, want %d", n, len(kept))
	}
	if n := h.count(`SELECT COUNT(*) FROM request`); n != 140 {
		t.Errorf("%d request ids, want 140", n)
	}
}
