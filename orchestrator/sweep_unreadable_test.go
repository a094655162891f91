package orchestrator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// trap T19; contract: C1, C4: a row that cannot be read hides no other from sweeps,
// lists and watches, and its instance is no orphan.
func TestT19_ASandboxThatCannotBeReadHidesNoOther(t *testing.T) {
	born := holdfast.IDs{Now: func() time.Time { return time.Now().Add(-2 * holdfast.OrphanGrace) }} // old enough for an orphan
	h := newHarness(t, func(c *Config) { c.IDs = born })
	poison, dead, pending := h.mustCreate("r1"), h.mustCreate("r2"), h.pendingCreate("r3")
	h.fleet.script(nil)
	h.exec(`UPDATE sandbox SET spec = '{' WHERE id = $1`, string(poison.ID))
	h.exec(`UPDATE operation SET last_error = '{', due_at = 1 WHERE resource_id = $1 AND state = 'PENDING'`, string(pending.ID))
	h.fleet.set(dead.Instance, holdfast.InstanceExited)
	report := h.run(SweepInstances)
	if report.Failed != 1 || !strings.Contains(report.Err().Error(), string(poison.ID)) {
		t.Errorf("the bad row is not named: %+v", report)
	}
	if got := h.get(dead.ID); got.State != holdfast.SandboxFailed {
		t.Errorf("the dead one beside it is %s", got.State)
	}
	h.run(SweepOperations)
	if got := h.get(pending.ID); got.State != holdfast.SandboxReady {
		t.Errorf("the pending one is %s: %+v", got.State, got.Operation)
	}
	for _, l := range h.fleet.levels() {
		if l.Instance == poison.Instance && l.Desired != holdfast.DesiredRunning {
			t.Errorf("its instance is ordered %s", l.Desired)
		}
	}
	page, err := h.ListSandboxes(t.Context(), alice, holdfast.ListSandboxes{})
	if err != nil || len(page.Sandboxes) != 3 {
		t.Fatalf("listed %d, %v", len(page.Sandboxes), err)
	}
	shown := map[holdfast.SandboxID]holdfast.Sandbox{}
	enough := errors.New("enough")
	err = h.WatchSandboxes(t.Context(), alice, holdfast.WatchSandboxes{}, func(e holdfast.SandboxEvent) error {
		if e.Sandbox == nil {
			return enough
		}
		shown[e.Sandbox.ID] = *e.Sandbox
		return nil
	})
	if !errors.Is(err, enough) || len(shown) != 3 {
		t.Fatalf("watched %d, %v", len(shown), err)
	}
	for _, all := range [][]holdfast.Sandbox{page.Sandboxes, {shown[poison.ID]}} {
		for _, sb := range all {
			if sb.ID == poison.ID && (sb.State != holdfast.SandboxReady || sb.Failure == nil || sb.Failure.Reason != holdfast.ReasonBug) {
				t.Errorf("it is shown as %s, %+v", sb.State, sb.Failure)
			}
		}
	}
	if _, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: poison.ID}); holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Errorf("a decision was made on it: %v", err)
	}
}
