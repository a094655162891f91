package orchestrator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// trap T27: a fleet that answers wrongly "not found" once ends nothing; one that
// keeps saying so is believed.
func TestT27_AFleetsNotFoundIsBelievedTheSecondTimeAlone(t *testing.T) {
	h := newHarness(t)
	h.config.SweepEvery = time.Hour
	sb := h.mustCreate("r1")
	notFound := func(holdfast.InstanceID) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "never heard of it")
	}
	ask := func() {
		t.Helper()
		was := holdfast.Observation{Instance: sb.Instance, Incarnation: 1}
		if err := h.confirmEnded(t.Context(), was); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
			t.Fatal(err)
		}
	}
	wants := func(state holdfast.SandboxState) {
		t.Helper()
		if got := h.get(sb.ID); got.State != state {
			t.Fatalf("%s, want %s", got.State, state)
		}
	}
	h.fleet.get = notFound
	ask()
	ask() // at once: the same mistake
	wants(holdfast.SandboxReady)
	h.fleet.get = nil
	h.sweep(SweepInstances) // it knows the instance after all
	h.fleet.get = notFound
	ask()
	wants(holdfast.SandboxReady)
	h.missing.since[sb.Instance] = h.config.Clock().Add(-31 * time.Second)
	ask()
	wants(holdfast.SandboxFailed)
}

// trap T52: a fleet that lacks many instances at once has the wrong database.
func TestT52_AFleetThatLacksManyInstancesFailsNoSandbox(t *testing.T) {
	now := time.Now()
	ids := holdfast.IDs{Now: func() time.Time { return now.Add(-time.Hour) }}
	var recorded []row
	for range 20 {
		recorded = append(recorded, row{Sandbox: holdfast.Sandbox{State: holdfast.SandboxReady, Incarnation: 1, Generation: 1,
			Instance: holdfast.InstanceID(ids.New(holdfast.PrefixInstance)), UpdatedAt: now.Add(-time.Hour)}})
	}
	if plan := planInstances(recorded, nil, lineage.Lineage{}, now); len(plan.ended) != 0 || plan.alarm == nil {
		t.Errorf("%d sandboxes are taken for ended, alarm %v", len(plan.ended), plan.alarm)
	}
}

// trap T52: what a restored database does with what it does not know, and with
// what others know better.
func TestT52_ARestoredDatabaseWaitsForAPersonsWord(t *testing.T) {
	now := time.Now()
	ids := holdfast.IDs{Now: func() time.Time { return now.Add(-time.Hour) }}
	known, unknown := holdfast.InstanceID(ids.New(holdfast.PrefixInstance)), holdfast.InstanceID(ids.New(holdfast.PrefixInstance))
	recorded := []row{{Sandbox: holdfast.Sandbox{ID: "sb", State: holdfast.SandboxReady, Instance: known, Incarnation: 1, Generation: 3, UpdatedAt: now}}}
	seen := func(generation, incarnation int64) []holdfast.Observation {
		return []holdfast.Observation{{Instance: known, Incarnation: incarnation, Generation: generation, State: holdfast.InstanceRunning},
			{Instance: unknown, Incarnation: 1, Generation: 1, State: holdfast.InstanceRunning}}
	}
	restored := lineage.Lineage{Cluster: "cl", RecoveredAt: now.Add(-time.Minute)}
	forgotten := lineage.Lineage{Cluster: "cl", RecoveredAt: now.Add(-time.Minute), ForgottenAt: now}
	for name, c := range map[string]struct {
		at                         lineage.Lineage
		generation, incarnation    int64
		kept, ended, behind, alarm bool
	}{
		"an ordinary orphan":           {lineage.Lineage{}, 3, 1, false, true, false, false},
		"behind, nobody said so":       {lineage.Lineage{}, 4, 1, false, false, false, true},
		"an earlier boot, likewise":    {lineage.Lineage{}, 1, 2, false, false, false, true},
		"recovered":                    {restored, 4, 1, true, false, true, false},
		"recovered, an earlier boot":   {restored, 1, 2, true, false, true, false},
		"recovered, and not behind":    {restored, 3, 1, true, false, false, false},
		"forgotten by a person's word": {forgotten, 3, 1, false, true, false, false},
	} {
		plan := planInstances(recorded, seen(c.generation, c.incarnation), c.at, now)
		if (len(plan.kept) == 1) != c.kept || (len(plan.levels) == 1) != c.ended || (len(plan.behind) == 1) != c.behind || (plan.alarm != nil) != c.alarm {
			t.Errorf("%s: kept %v, levels %v, behind %v, alarm %v", name, plan.kept, plan.levels, plan.behind, plan.alarm)
		}
	}
}

// trap T52: an order that a restored database repeats under a generation that was
// seen, or for a boot that was followed, is issued anew above it, not refused for ever.
func TestT52_ARestoredDatabaseIsNotRefusedForEver(t *testing.T) {
	for name, refusal := range map[string]*holdfast.Error{
		"another content":   holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonLevelConflict, "seen").With("seen", "9"),
		"a later boot":      holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "seen").With("seen", "4"),
		"a higher one seen": holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "seen").With("seen", "9"),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			sb := h.mustCreate("r1")
			first := true
			h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
				if first {
					first = false
					return holdfast.Observation{}, refusal
				}
				return holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, State: holdfast.InstanceSuspended}, nil
			})
			got, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
			if err != nil || got.State != holdfast.SandboxSuspended {
				t.Fatalf("%+v %v", got, err)
			}
			if refusal.Reason == holdfast.ReasonStaleIncarnation && got.Incarnation != 4 || refusal.Reason != holdfast.ReasonStaleIncarnation && got.Generation != 10 {
				t.Errorf("incarnation %d, generation %d", got.Incarnation, got.Generation)
			}
		})
	}
}

// trap T52: the wrong cluster's fleet, or a server on an old database, leaves a
// create pending for a person to see: it is no reason to make it FAILED.
func TestT52_AnothersFleetFailsNothing(t *testing.T) {
	for _, reason := range []holdfast.Reason{holdfast.ReasonCluster, holdfast.ReasonStaleEpoch, holdfast.ReasonBehind} {
		h := newHarness(t)
		sb := h.pendingCreate("r1")
		h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
			return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, reason, "no")
		})
		h.backdate()
		h.sweep(SweepOperations)
		got := h.get(sb.ID)
		if got.State != holdfast.SandboxCreating || got.Operation == nil || got.Operation.WaitsFor != "operator" {
			t.Errorf("%s: %s %+v", reason, got.State, got.Operation)
		}
	}
}

// An operator's recovery is noticed without a restart, and orders carry it.
func TestT52_ARecoveryIsNoticedByWhoRuns(t *testing.T) {
	h := newHarness(t)
	err := h.config.DB.Update(t.Context(), func(tx store.Tx) error {
		_, err := lineage.Recover(t.Context(), tx, time.Now(), 77)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h.sweep(SweepOperations)
	h.mustCreate("r1")
	levels := h.fleet.levels()
	if last := levels[len(levels)-1]; last.Epoch != 77 || last.Cluster != h.Cluster() {
		t.Errorf("%+v", last)
	}
}
