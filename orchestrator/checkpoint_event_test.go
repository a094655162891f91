package orchestrator

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: B9; trap T50: a checkpoint's changes are its own, and none of its source's.
func TestB9_EveryChangeOfACheckpointIsOneEventOfItsOwn(t *testing.T) {
	h := newHarness(t, quick)
	h.events("")
	sb := h.mustCreate("a")
	ck := h.mustTake("c", sb.ID)
	h.mustTake("c", sb.ID)
	for range 2 {
		if _, err := h.deleteCheckpoint(ck.ID); err != nil {
			t.Fatal(err)
		}
	}
	its := map[string][]string{}
	for _, e := range h.events("") {
		its[e.Resource] = append(its[e.Resource], string(e.Kind))
	}
	if got := strings.Join(its[string(ck.ID)], " "); got != "checkpoint.created checkpoint.ready checkpoint.deleting checkpoint.deleted" {
		t.Errorf("the checkpoint's: %s", got)
	}
	if got := strings.Join(its[string(sb.ID)], " "); got != "sandbox.created sandbox.ready" {
		t.Errorf("its source's: %s", got)
	}
	if got := kindsOf(h.events("", "checkpoint.*")); strings.Count(got, " ") != 3 {
		t.Errorf("by their kind: %s", got)
	}
	if got := checkpointEvent(holdfast.CheckpointCreating, holdfast.CheckpointFailed); got != holdfast.EventCheckpointFailed {
		t.Error(got)
	}
}
