package orchestrator

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: A5, E1. A build that waits says for what, and what its builder waits for and
// met; its journal is read as any other's, in its project alone.
func TestA5_ABuildHasAJournalAndSaysWhyItIsPending(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	w.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no host has room")
	})
	id := w.build("b1").ID
	const waits = "builder, and that for the capacity"
	b := w.awaitBuild(id, "said what its builder waits for", func(b holdfast.Build) bool { return b.Operation != nil && b.Operation.WaitsFor == waits })
	if e := b.Operation.LastError; e == nil || e.Reason != holdfast.ReasonNoCapacity || !strings.Contains(b.Operation.Next, "another build") {
		t.Errorf("pending: %+v", b.Operation)
	}
	page, err := w.ListBuilds(t.Context(), alice, holdfast.ListBuilds{Environment: "tools"})
	if err != nil || len(page.Builds) != 1 || page.Builds[0].Operation.WaitsFor != waits {
		t.Errorf("listed: %+v, %v", page.Builds, err)
	}
	journal := func() []holdfast.Operation {
		t.Helper()
		page, err := w.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(id)})
		if err != nil {
			t.Fatal(err)
		}
		return page.Operations
	}
	if ops := journal(); len(ops) != 1 || ops[0].ID != b.Operation.ID || ops[0].Kind != holdfast.OperationBuild || ops[0].State != holdfast.OperationPending {
		t.Errorf("its journal: %+v", ops)
	}
	one, err := w.GetOperation(t.Context(), alice, b.Operation.ID)
	if err != nil || one.Resource != string(id) || one.Next != b.Operation.Next {
		t.Errorf("its operation: %+v, %v", one, err)
	}
	stranger := w.limited(1)
	_, err = w.ListOperations(t.Context(), stranger, holdfast.ListOperations{Resource: string(id)})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	_, err = w.GetOperation(t.Context(), stranger, one.ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)

	w.fleet.script(nil)
	w.build("b2")
	w.awaitBuildState(id, holdfast.BuildSuperseded)
	if ops := journal(); len(ops) != 1 || ops[0].State != holdfast.OperationSuperseded || ops[0].Next != "nothing: it has ended" {
		t.Errorf("its journal, once it gave way: %+v", ops)
	}
}
