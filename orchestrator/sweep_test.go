package orchestrator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// contract: A15, C1
func TestA15_AnAbandonedOperationConvergesWithoutItsClient(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	h.backdate()
	h.sweep(SweepOperations)
	if got := h.get(sb.ID); got.State != holdfast.SandboxReady {
		t.Fatalf("%s %+v", got.State, got.Operation)
	}
}

// backdate makes what is pending due for the sweep, as time would.
func (h *harness) backdate() {
	h.t.Helper()
	err := h.db.Update(h.t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(h.t.Context(), `UPDATE operation SET due_at = 1 WHERE state = 'PENDING'`)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// contract: A15
func TestA15_ADeleteIsNeverGivenUpAndACreateIs(t *testing.T) {
	h := newHarness(t)
	stuck := func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if l.Desired == holdfast.DesiredExited {
			return h.fleet.reach(l)
		}
		return holdfast.Observation{}, holdfast.E(holdfast.Internal, holdfast.ReasonBug, "the host cannot")
	}
	h.fleet.script(stuck)
	_, err := h.create("r1")
	id := holdfast.SandboxID(holdfast.AsError(err).Resource)
	for range 12 {
		h.backdate()
		h.sweep(SweepOperations)
	}
	sb := h.get(id)
	if sb.State != holdfast.SandboxFailed || sb.Failure.Reason != holdfast.ReasonGaveUp {
		t.Fatalf("after 12 answered attempts: %s %+v", sb.State, sb.Failure)
	}
	if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: id}); err == nil {
		t.Fatal("deleted by a fleet that cannot")
	}
	for range 12 {
		h.backdate()
		h.sweep(SweepOperations)
	}
	if sb := h.get(id); sb.State != holdfast.SandboxDeleting || sb.Operation == nil || sb.Operation.LastError == nil {
		t.Fatalf("the delete was given up: %s %+v", sb.State, sb.Operation)
	}
	h.fleet.script(nil)
	h.backdate()
	h.sweep(SweepOperations)
	if sb := h.get(id); sb.State != holdfast.SandboxDeleted {
		t.Fatalf("the delete did not converge: %s", sb.State)
	}
}

// contract: A15: unreachable never counts.
func TestA15_UnreachableNeverCountsTowardsGivingUp(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "silent")
	})
	for range 15 {
		h.backdate()
		h.sweep(SweepOperations)
	}
	got := h.get(sb.ID)
	if got.State != holdfast.SandboxCreating || got.Operation.WaitsFor != "host" || got.Operation.Attempts < 15 {
		t.Fatalf("%s %+v", got.State, got.Operation)
	}
}

func TestC4_PlanInstancesBothWays(t *testing.T) {
	now := time.Now()
	ids := holdfast.IDs{Now: func() time.Time { return now.Add(-time.Hour) }}
	in := func() holdfast.InstanceID { return holdfast.InstanceID(ids.New(holdfast.PrefixInstance)) }
	sandbox := func(state holdfast.SandboxState, i holdfast.InstanceID) row {
		return row{Sandbox: holdfast.Sandbox{ID: "sb", State: state, Instance: i, Incarnation: 1, Generation: 3, UpdatedAt: now.Add(-time.Hour)}}
	}
	seen := func(i holdfast.InstanceID, state holdfast.InstanceState) holdfast.Observation {
		return holdfast.Observation{Instance: i, Incarnation: 1, Generation: 3, State: state}
	}
	fine, exited, missing, deleted, failed, orphan := in(), in(), in(), in(), in(), in()
	young := holdfast.InstanceID(holdfast.IDs{}.New(holdfast.PrefixInstance))
	plan := planInstances(
		[]row{sandbox(holdfast.SandboxReady, fine), sandbox(holdfast.SandboxReady, exited), sandbox(holdfast.SandboxSuspended, missing),
			sandbox(holdfast.SandboxDeleted, deleted), sandbox(holdfast.SandboxFailed, failed)},
		[]holdfast.Observation{seen(fine, holdfast.InstanceRunning), seen(exited, holdfast.InstanceExited), seen(deleted, holdfast.InstanceRunning),
			seen(failed, holdfast.InstanceRunning), seen(orphan, holdfast.InstanceRunning), seen(young, holdfast.InstanceRunning)}, lineage.Lineage{}, now)
	if len(plan.ended) != 2 || plan.ended[0].Instance != exited || plan.ended[1].Instance != missing {
		t.Fatalf("ended: %+v", plan.ended)
	}
	want := map[holdfast.InstanceID]holdfast.Desired{deleted: holdfast.DesiredAbsent, failed: holdfast.DesiredExited, orphan: holdfast.DesiredAbsent}
	for _, l := range plan.levels {
		if want[l.Instance] != l.Desired || l.Generation != 4 {
			t.Errorf("level %+v", l)
		}
		delete(want, l.Instance)
	}
	if len(want) != 0 || plan.alarm != nil {
		t.Fatalf("left %v, alarm %v", want, plan.alarm)
	}
}

// trap T52
func TestT52_AnEmptyDatabaseDestroysNothing(t *testing.T) {
	ids := holdfast.IDs{Now: func() time.Time { return time.Now().Add(-time.Hour) }}
	var observed []holdfast.Observation
	for range 20 {
		observed = append(observed, holdfast.Observation{Instance: holdfast.InstanceID(ids.New("in")), Incarnation: 1, State: holdfast.InstanceRunning})
	}
	plan := planInstances(nil, observed, lineage.Lineage{}, time.Now())
	if len(plan.levels) != 0 || plan.alarm == nil {
		t.Fatalf("%d levels, alarm %v", len(plan.levels), plan.alarm)
	}
}

// trap T27
func TestT27_AnInstanceMissingFromAPageIsAskedForByName(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	h.fleet.mu.Lock()
	h.fleet.get = func(holdfast.InstanceID) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "silent")
	}
	h.fleet.mu.Unlock()
	if err := h.confirmEnded(t.Context(), holdfast.Observation{Instance: sb.Instance, Incarnation: 1}); err == nil {
		t.Fatal("unreachable was taken for gone")
	}
	if got := h.get(sb.ID); got.State != holdfast.SandboxReady {
		t.Fatalf("%s", got.State)
	}
	h.fleet.get = nil
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.sweep(SweepInstances)
	if got := h.get(sb.ID); got.State != holdfast.SandboxFailed || got.Failure.Reason != holdfast.ReasonInstanceLost {
		t.Fatalf("gone by the fleet's own word: %s %+v", got.State, got.Failure)
	}
}

// trap T28
func TestT28_TwoOverlappingSweepsDoNoMoreThanOne(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	h.backdate()
	before := len(h.fleet.levels())
	first, _, err := h.dueOperations(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := h.dueOperations(t.Context(), "", 10)
	if err != nil || len(first) != 1 || len(second) != 1 {
		t.Fatalf("%d and %d due, %v", len(first), len(second), err)
	}
	for _, item := range []reconcile.Item{first[0], second[0]} {
		if err := item.Act(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.fleet.levels()) - before; n != 1 || h.get(sb.ID).State != holdfast.SandboxReady {
		t.Fatalf("%d levels issued", n)
	}
}

// traps T29, T52: a fleet that has lost nearly all of its instances is compared in
// pages too, and not one sandbox is failed for it.
func TestT29_SandboxesThatTheFleetLacksAreComparedInPages(t *testing.T) {
	h := newHarness(t)
	const many = 2*recordedPage + 50
	h.backlog(0, many)
	kept := holdfast.InstanceID(fmt.Sprint("in-", 10_000_000+recordedPage+5))
	h.fleet.set(kept, holdfast.InstanceRunning)
	report := h.run(SweepInstances)
	if n := h.count(`SELECT COUNT(*) FROM sandbox WHERE state = 'READY'`); n != many || report.Pages != 3 {
		t.Errorf("%d are READY after %d pages, want %d after 3: %v", n, report.Pages, many, report.Err())
	}
	for _, l := range h.fleet.levels() {
		t.Errorf("ordered %+v", l)
	}
}
