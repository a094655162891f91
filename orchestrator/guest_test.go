package orchestrator

import (
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// Found by the histories: a delete between the look at the sandbox and the call at
// its host answered NOT_FOUND, as if there had never been such a sandbox.
// contract: A4, A14
func TestA4_AHostThatNoLongerHasTheInstanceIsNotASandboxThatIsUnknown(t *testing.T) {
	h := newHarness(t)
	h.config.Guest = func(string, holdfast.InstanceRef) holdfast.Guest { return holdfast.Guest{Processes: starter{}} }
	sb := h.mustCreate("r1")
	at := guestAddress{caller: alice, sandbox: sb.ID, access: accessRecorded}
	_, err := guestCall(h.Service, t.Context(), at, func(holdfast.Guest) (nothing, error) {
		return nothing{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "never seen").On(string(sb.Instance))
	})
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonInstanceLost)
	// What is not found in the guest is the guest's to say.
	_, err = guestCall(h.Service, t.Context(), at, func(holdfast.Guest) (nothing, error) {
		return nothing{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such process").On("ps-1")
	})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}
