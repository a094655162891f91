package orchestrator

import (
	"context"
	"net/http"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: B7. Trap T36: a guest knows nothing of generations, so what it reports
// about a create that a delete superseded changes nothing of the delete.
func TestT36_AReportAboutASupersededCreateChangesNothing(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	})
	_, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonUnreachable)
	before := h.get(sb.ID)
	for id, kind := range map[string]holdfast.DeliveryKind{"ev-1": holdfast.DeliveryReady, "ev-2": holdfast.DeliveryFailed} {
		if status := h.guestSays(id, kind, sb.Instance, 1); status != http.StatusNoContent {
			t.Errorf("%s is answered %d", kind, status)
		}
		after := h.get(sb.ID)
		if after.State != holdfast.SandboxDeleting || after.Failure != nil || after.Operation == nil || after.Operation.ID != before.Operation.ID {
			t.Errorf("after %s: %s, failure %+v, operation %+v", kind, after.State, after.Failure, after.Operation)
		}
	}
	h.fleet.script(nil)
	if gone, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil || gone.State != holdfast.SandboxDeleted {
		t.Errorf("the delete, repeated: %s, %v", gone.State, err)
	}
}
