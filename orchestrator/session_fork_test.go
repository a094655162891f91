package orchestrator

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: E4, A3; trap T50. A fork of a session is another session on another sandbox,
// with the disk and the hooks of the other, none of its tasks and nothing pending.
func TestT50_AForkOfASessionIsAnotherSessionWithItsDisk(t *testing.T) {
	h := newHarness(t)
	source := h.mustCreateSession("r1", func(in *holdfast.CreateSession) { in.Env = map[string]string{"A": "1"} })
	h.withHooks(source.ID, holdfast.Hooks{OnResume: "true"})
	c, err := h.CreateCheckpoint(t.Context(), alice, holdfast.CreateCheckpoint{RequestID: "c", Source: string(source.ID)})
	if err != nil || c.State != holdfast.CheckpointReady || c.Source != string(source.ID) || c.Sandbox != source.Sandbox {
		t.Fatalf("the checkpoint: %+v, %v", c, err)
	}
	wantSession(t, h.getSession(source.ID), nil, holdfast.SessionReady)
	fork := func(in *holdfast.CreateSession) { in.Environment, in.Source = "", c.ID }
	made := h.mustCreateSession("f", fork)
	wantSession(t, made, nil, holdfast.SessionReady)
	box, own := h.get(made.Sandbox), h.get(source.Sandbox)
	if made.ID == source.ID || box.ID == own.ID || box.Instance == own.Instance || made.Source != c.ID || made.Environment != "base" || made.Env["A"] != "1" ||
		made.Running != "" || made.Queued != 0 {
		t.Errorf("the fork: %+v on %+v", made, box)
	}
	if keys := h.keysOf(box); len(keys) != 1 || !strings.Contains(keys[0], string(c.ID)) {
		t.Errorf("it is made of %v", keys)
	}
	if again := h.mustCreateSession("f", fork); again.ID != made.ID {
		t.Errorf("a repeat is %s beside %s", again.ID, made.ID)
	}
	if _, err := h.deleteCheckpoint(c.ID); err != nil {
		t.Fatal(err)
	}
	_, err = h.createSession("g", fork)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	if n := h.count(`SELECT COUNT(*) FROM session`); n != 2 {
		t.Errorf("%d sessions", n)
	}
	got, err := h.deleteSession(source.ID)
	wantSession(t, got, err, holdfast.SessionDeleted)
	wantSession(t, h.getSession(made.ID), nil, holdfast.SessionReady)
}

// contract: A13. A checkpoint waits for what is pending on its session, and a suspend
// for a checkpoint that is being taken.
func TestA13_ACheckpointAndASuspendOfASessionWaitForEachOther(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1")
	speak := h.silent()
	_, err := h.suspendSession(se.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonUnreachable)
	_, err = h.CreateCheckpoint(t.Context(), alice, holdfast.CreateCheckpoint{RequestID: "c", Source: string(se.ID)})
	wantError(t, err, holdfast.Aborted, holdfast.ReasonConflict)
	speak()
	got, err := h.suspendSession(se.ID)
	wantSession(t, got, err, holdfast.SessionSuspended)
	c, err := h.CreateCheckpoint(t.Context(), alice, holdfast.CreateCheckpoint{RequestID: "c", Source: string(se.ID)})
	if err != nil || c.State != holdfast.CheckpointReady {
		t.Errorf("of a suspended one: %+v, %v", c, err)
	}
}
