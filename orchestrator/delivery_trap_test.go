package orchestrator

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
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

// contract: B8. Trap T42: a guest that was frozen for days, or whose clock is off, is
// honest: its id and its boot tell a repeat, not its time.
func TestT42_AGuestWhoseClockIsOffIsHeard(t *testing.T) {
	h := newHarness(t)
	for i, off := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		sb := h.pendingCreate(fmt.Sprint("r", i))
		payload := fmt.Appendf(nil, `{"type":%q,"data":{"instance":%q,"incarnation":1}}`, holdfast.DeliveryReady, sb.Instance)
		r := httptest.NewRequest(http.MethodPost, "/deliveries/instances", bytes.NewReader(payload))
		r.Header = delivery.Sign(delivery.InstanceSecret([]byte("key"), string(sb.Instance), 1), "ev-1", time.Now().Add(off), payload)
		r.Header.Set(holdfast.HeaderInstance, string(sb.Instance))
		r.Header.Set(holdfast.HeaderIncarnation, "1")
		w := httptest.NewRecorder()
		h.DeliveryHandler().ServeHTTP(w, r)
		if got := h.get(sb.ID); w.Code != http.StatusNoContent || got.State != holdfast.SandboxReady {
			t.Errorf("signed %s from now: answered %d, and the sandbox is %s", off, w.Code, got.State)
		}
	}
}
