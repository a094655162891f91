package orchestrator

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// idleFor makes a session's last activity that long ago.
func (h *harness) idleFor(id holdfast.SessionID, d time.Duration) {
	h.t.Helper()
	h.exec(`UPDATE session SET active_at = active_at - $2 WHERE id = $1`, string(id), d.Microseconds())
}

func (h *harness) awaitSession(id holdfast.SessionID, state holdfast.SessionState) holdfast.Session {
	h.t.Helper()
	var se holdfast.Session
	h.eventually(fmt.Sprintf("session %s is %s, and nothing is pending on it", id, state), func() bool {
		var err error
		if se, err = h.GetSession(h.t.Context(), alice, id); err != nil {
			h.t.Fatal(err)
		}
		return se.State == state && se.Operation == nil
	})
	return se
}

// contract: A12
func TestA12_AnIdleSessionIsSuspendedAndSaysWhyAndATaskWakesIt(t *testing.T) {
	h := newHarness(t)
	newGuests(t).serve(h)
	se := h.session("s1")
	h.sweep(SweepIdle)
	if got := h.awaitSession(se.ID, holdfast.SessionReady); got.SuspendedBy != "" {
		t.Errorf("%+v", got)
	}
	h.idleFor(se.ID, 2*holdfast.DefaultIdle)
	h.sweep(SweepIdle)
	if got := h.awaitSession(se.ID, holdfast.SessionSuspended); got.SuspendedBy != holdfast.ReasonIdle {
		t.Errorf("suspended by %q", got.SuspendedBy)
	}
	task := h.submit(se.ID, "t1", "hold")
	h.awaitTask(task.ID, false, holdfast.TaskRunning)
	if got := h.awaitSession(se.ID, holdfast.SessionReady); got.SuspendedBy != "" || got.Running != task.ID {
		t.Errorf("%+v", got)
	}
	// A task is activity, however long it runs.
	h.idleFor(se.ID, 2*holdfast.DefaultIdle)
	h.sweep(SweepIdle)
	h.awaitSession(se.ID, holdfast.SessionReady)
}

// contract: A12: a lease is committed before the first byte, and expires by itself.
func TestA12_WhatIsDoneWithASandboxDefersItsSessionsSuspension(t *testing.T) {
	h := newHarness(t)
	newGuests(t).serve(h)
	se := h.session("s1")
	sb := h.sandboxOf(se.ID)
	h.idleFor(se.ID, 2*holdfast.DefaultIdle)
	if _, err := h.StartProcess(t.Context(), alice, sb.ID, holdfast.StartProcess{Command: "hold", RequestID: "x"}); err != nil {
		t.Fatal(err)
	}
	h.sweep(SweepIdle)
	got := h.awaitSession(se.ID, holdfast.SessionReady)
	if until := time.Until(got.ActiveAt); until > holdfast.ActivityLease || until < holdfast.ActivityLease/2 {
		t.Errorf("its lease goes on for %s", until)
	}
	// To ask what became of it is no activity, and the lease ends by itself.
	h.idleFor(se.ID, 2*holdfast.DefaultIdle+holdfast.ActivityLease)
	if _, err := h.ListTasks(t.Context(), alice, holdfast.ListTasks{Session: se.ID}); err != nil {
		t.Fatal(err)
	}
	h.sweep(SweepIdle)
	h.awaitSession(se.ID, holdfast.SessionSuspended)
	// A sandbox of nobody's pays nothing.
	if err := h.active(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// contract: A12: what was done since a sweep looked is seen where it is decided.
func TestA12_ActivityIsLookedAtAgainWhereTheSuspensionIsDecided(t *testing.T) {
	h := newHarness(t)
	newGuests(t).serve(h)
	se := h.session("s1")
	h.idleFor(se.ID, 2*holdfast.DefaultIdle)
	found, _, err := h.idleSessions(t.Context(), "", 10)
	if err != nil || len(found) != 1 {
		t.Fatalf("%d idle sessions, %v", len(found), err)
	}
	if err := h.active(t.Context(), string(se.ID)); err != nil {
		t.Fatal(err)
	}
	if err := found[0].Act(t.Context()); !errors.Is(err, reconcile.ErrSkipped) {
		t.Errorf("it was acted on: %v", err)
	}
	h.awaitSession(se.ID, holdfast.SessionReady)
}

// contract: A12, A13. Whoever commits first wins: a session that was suspended takes
// no activity for granted, and one that something was done with is not suspended.
func TestA12_ActivityAndTheDecisionRaceSafely(t *testing.T) {
	h := newHarness(t)
	newGuests(t).serve(h)
	se := h.session("s1")
	for range 20 {
		h.idleFor(se.ID, 4*holdfast.DefaultIdle)
		h.activity = newActivities()
		var all sync.WaitGroup
		var noted, decided error
		all.Go(func() { noted = h.active(t.Context(), string(se.ID)) })
		all.Go(func() { decided = h.suspendIdle(t.Context(), se.ID) })
		all.Wait()
		if noted != nil {
			t.Fatal(noted)
		}
		got, err := h.GetSession(t.Context(), alice, se.ID)
		if err != nil {
			t.Fatal(err)
		}
		if suspends := got.Operation != nil || got.State == holdfast.SessionSuspended; suspends != (decided == nil) {
			t.Fatalf("decided %v, and the session is %s, %+v", decided, got.State, got.Operation)
		}
		if decided == nil {
			h.awaitSession(se.ID, holdfast.SessionSuspended)
			if _, err := h.ResumeSession(t.Context(), alice, holdfast.MutateSession{ID: se.ID}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
