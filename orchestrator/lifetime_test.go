package orchestrator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
)

func (h *harness) extend(id holdfast.SandboxID, ttl time.Duration) (holdfast.Sandbox, error) {
	return h.ExtendSandbox(h.t.Context(), alice, holdfast.ExtendSandbox{ID: id, TTL: ttl})
}

func (h *harness) setLifetime(in holdfast.SetSandboxLifetime) holdfast.Sandbox {
	h.t.Helper()
	sb, err := h.SetSandboxLifetime(h.t.Context(), alice, in)
	if err != nil {
		h.t.Fatalf("set %+v: %v", in, err)
	}
	return sb
}

func (h *harness) mutateOK(call func(context.Context, holdfast.Caller, holdfast.MutateSandbox) (holdfast.Sandbox, error), id holdfast.SandboxID) holdfast.Sandbox {
	h.t.Helper()
	sb, err := call(h.t.Context(), alice, holdfast.MutateSandbox{ID: id})
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

// overdue moves the end of a sandbox's time into the past, as time would.
func (h *harness) overdue(id holdfast.SandboxID) {
	h.t.Helper()
	err := h.db.Update(h.t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(h.t.Context(), `UPDATE sandbox SET expires_at = 1 WHERE id = $1 AND expires_at > 0`, string(id))
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// await waits for a sandbox to be as it should.
func (h *harness) await(id holdfast.SandboxID, what string, ok func(holdfast.Sandbox) bool) holdfast.Sandbox {
	h.t.Helper()
	var sb holdfast.Sandbox
	if !testenv.Eventually(10*time.Second, func() bool { sb = h.get(id); return ok(sb) }) {
		h.t.Fatalf("%s is not %s: %s %+v", id, what, sb.State, sb.Operation)
	}
	return sb
}

func (h *harness) awaitState(id holdfast.SandboxID, state holdfast.SandboxState) holdfast.Sandbox {
	h.t.Helper()
	return h.await(id, string(state), func(sb holdfast.Sandbox) bool { return sb.State == state && sb.Operation == nil })
}

func around(t *testing.T, what string, got time.Time, want time.Duration) {
	t.Helper()
	if left := time.Until(got); left < want-time.Minute || left > want+time.Minute {
		t.Errorf("%s is in %s, want %s", what, left, want)
	}
}

// contract: A11
func TestA11_ExtendingNeverShortensAndARepeatIsHarmless(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	around(t, "the default end", sb.ExpiresAt, time.Hour)
	shorter, err := h.extend(sb.ID, time.Minute)
	if err != nil || !shorter.ExpiresAt.Equal(sb.ExpiresAt) {
		t.Fatalf("extended by less: %s, want %s; %v", shorter.ExpiresAt, sb.ExpiresAt, err)
	}
	for range 2 {
		longer, err := h.extend(sb.ID, 3*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		around(t, "the extended end", longer.ExpiresAt, 3*time.Hour)
		if longer.TTL != time.Hour || longer.Generation != sb.Generation || longer.State != holdfast.SandboxReady {
			t.Fatalf("extending changed more than the end: %+v", longer)
		}
	}
	_, err = h.extend(sb.ID, 25*time.Hour)
	wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
	_, err = h.ExtendSandbox(t.Context(), holdfast.Caller{Project: "pj-other"}, holdfast.ExtendSandbox{ID: sb.ID, TTL: time.Hour})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	_, err = h.ExtendSandbox(t.Context(), alice, holdfast.ExtendSandbox{ID: sb.ID, TTL: time.Hour, IfGeneration: 7})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonGeneration)
	if _, err = h.ExtendSandbox(t.Context(), alice, holdfast.ExtendSandbox{ID: sb.ID, TTL: time.Hour, IfGeneration: sb.Generation}); err != nil {
		t.Fatal(err)
	}
}

// contract: A11: the column "extend" of lifecycle.md's table.
func TestA11_WhatCanBeExtendedInWhichState(t *testing.T) {
	h := newHarness(t)
	creating := h.pendingCreate("r1")
	before, err := h.extend(creating.ID, 5*time.Hour)
	if err != nil || before.TTL != 5*time.Hour || !before.ExpiresAt.IsZero() || before.Operation == nil {
		t.Fatalf("CREATING: %+v, %v", before, err)
	}
	ready := h.mustCreate("r1")
	around(t, "the lifetime that was set before it began", ready.ExpiresAt, 5*time.Hour)

	suspended := h.mutateOK(h.SuspendSandbox, ready.ID)
	around(t, "the retention", suspended.ExpiresAt, holdfast.Retention)
	suspended, err = h.extend(ready.ID, 20*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	around(t, "the extended retention", suspended.ExpiresAt, 20*24*time.Hour)
	_, err = h.extend(ready.ID, holdfast.MaxRetention+time.Second)
	wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
	around(t, "the lifetime after a resume", h.mutateOK(h.ResumeSandbox, ready.ID).ExpiresAt, 5*time.Hour)

	failed := h.mustCreate("r2")
	h.fleet.set(failed.Instance, holdfast.InstanceExited)
	h.sweep(SweepInstances)
	if got := h.get(failed.ID); got.State != holdfast.SandboxFailed {
		t.Fatal(got.State)
	}
	around(t, "the end of a failed one's record", h.get(failed.ID).ExpiresAt, holdfast.FailedKept)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	})
	deleting := ready.ID
	if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: deleting}); err == nil {
		t.Fatal("deleted by a silent fleet")
	}
	h.fleet.script(nil)
	deleted := h.mutateOK(h.DeleteSandbox, h.mustCreate("r3").ID)
	for _, id := range []holdfast.SandboxID{failed.ID, deleting, deleted.ID} {
		_, err := h.extend(id, time.Hour)
		wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
		_, err = h.SetSandboxLifetime(t.Context(), alice, holdfast.SetSandboxLifetime{ID: id, TTL: time.Hour})
		wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	}
	if sb := h.get(deleted.ID); !sb.ExpiresAt.IsZero() {
		t.Errorf("a tombstone expires at %s", sb.ExpiresAt)
	}
}

// contract: A11
func TestA11_ALiveAttemptDoesNotBlockAnExtensionButAWantedDeleteDoes(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	entered, leave := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if l.Desired == holdfast.DesiredSuspended {
			close(entered)
			<-leave
		}
		return h.fleet.reach(l)
	})
	done := make(chan error, 1)
	go func() {
		_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
		done <- err
	}()
	<-entered
	got, err := h.extend(sb.ID, 3*time.Hour)
	if err != nil || got.Operation == nil || got.Operation.Claim == nil {
		t.Fatalf("with a live attempt: %+v, %v", got, err)
	}
	around(t, "the end", got.ExpiresAt, 3*time.Hour)
	_, err = h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
	wantError(t, err, holdfast.Aborted, holdfast.ReasonClaimed)
	_, err = h.extend(sb.ID, 4*time.Hour)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	close(leave)
	wantError(t, <-done, holdfast.Aborted, holdfast.ReasonSuperseded)
	h.awaitState(sb.ID, holdfast.SandboxDeleted)
}

// contract: A11: what was set while an attempt is live holds when it ends.
func TestA11_AnExtensionDuringALiveAttemptIsNotOverwrittenByItsEnd(t *testing.T) {
	at := time.Now() // one instant throughout: nothing is told apart by its time
	h := newHarness(t, func(c *Config) { c.Clock = func() time.Time { return at } })
	meanwhile := func(change func(id holdfast.SandboxID)) {
		h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
			change(holdfast.SandboxID(l.Spec.Owner))
			return h.fleet.reach(l)
		})
	}
	meanwhile(func(id holdfast.SandboxID) {
		if _, err := h.extend(id, 5*time.Hour); err != nil {
			t.Error(err)
		}
	})
	sb := h.mustCreate("r1")
	around(t, "the lifetime that was extended during the create", sb.ExpiresAt, 5*time.Hour)
	meanwhile(func(id holdfast.SandboxID) {
		h.setLifetime(holdfast.SetSandboxLifetime{ID: id, TTL: 2 * time.Hour, OnExpiry: holdfast.ExpirySuspend})
	})
	h.mutateOK(h.SuspendSandbox, sb.ID)
	h.fleet.script(nil)
	got := h.mutateOK(h.ResumeSandbox, sb.ID)
	around(t, "the lifetime that was set during the suspend", got.ExpiresAt, 2*time.Hour)
	if got.OnExpiry != holdfast.ExpirySuspend {
		t.Errorf("its end brings %s", got.OnExpiry)
	}
}

// contract: A11
func TestA11_SettingALifetimeMayShortenItAndHoldsForEachResume(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	got := h.setLifetime(holdfast.SetSandboxLifetime{ID: sb.ID, TTL: 10 * time.Minute, OnExpiry: holdfast.ExpirySuspend})
	around(t, "the shortened end", got.ExpiresAt, 10*time.Minute)
	if got.TTL != 10*time.Minute || got.OnExpiry != holdfast.ExpirySuspend || got.Generation != sb.Generation {
		t.Fatalf("%+v", got)
	}
	h.mutateOK(h.SuspendSandbox, sb.ID)
	got = h.setLifetime(holdfast.SetSandboxLifetime{ID: sb.ID, TTL: 20 * time.Minute})
	around(t, "a suspended one's retention, which stays", got.ExpiresAt, holdfast.Retention)
	got = h.mutateOK(h.ResumeSandbox, sb.ID)
	around(t, "the end after the resume", got.ExpiresAt, 20*time.Minute)
	got = h.setLifetime(holdfast.SetSandboxLifetime{ID: sb.ID, OnExpiry: holdfast.ExpiryDelete})
	if got.OnExpiry != holdfast.ExpiryDelete || got.TTL != 20*time.Minute {
		t.Fatalf("%+v", got)
	}
	around(t, "the end, which stays", got.ExpiresAt, 20*time.Minute)
	_, err := h.SetSandboxLifetime(t.Context(), alice, holdfast.SetSandboxLifetime{ID: sb.ID, TTL: time.Hour, IfGeneration: sb.Generation})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonGeneration)
}

// contract: A3, A11
func TestA3_ALoweredLimitRefusesNewCreatesAndNoOldRetry(t *testing.T) {
	h := newHarness(t)
	in := holdfast.CreateSandbox{RequestID: "r1", Environment: "base", TTL: 20 * time.Hour}
	old, err := h.CreateSandbox(t.Context(), alice, in)
	if err != nil {
		t.Fatal(err)
	}
	strict := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.MaxTTL = 30 * time.Minute })
	again, err := strict.CreateSandbox(t.Context(), alice, in)
	if err != nil || again.ID != old.ID {
		t.Fatalf("%s, %v; want %s", again.ID, err, old.ID)
	}
	in.RequestID = "r2"
	_, err = strict.CreateSandbox(t.Context(), alice, in)
	wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
	in.TTL = 0 // and nothing was reserved (trap T7)
	sb, err := strict.CreateSandbox(t.Context(), alice, in)
	if err != nil || sb.TTL != 30*time.Minute {
		t.Fatalf("%s, %v", sb.TTL, err)
	}
}

// trap T9
func TestA3_T9_ARequestFromBeforeRestartPoliciesIsStillKnown(t *testing.T) {
	in := holdfast.CreateSandbox{RequestID: "r1", Environment: "base", TTL: time.Hour}
	f, err := fingerprintOf(in)
	if err != nil || len(f.Fields) != 2 {
		t.Fatalf("%v, %v", f.Fields, err)
	}
	in.Restart = holdfast.RestartNone // what is sent counts, though it is the default
	g, err := fingerprintOf(in)
	if err != nil || len(f.differs(g)) != 1 || f.differs(g)[0] != "restart" {
		t.Fatalf("%v, %v", f.differs(g), err)
	}
}

// raceUntil is how a race's two sides start at once.
func raceUntil(sides ...func() error) []error {
	start := make(chan struct{})
	errs := make([]error, len(sides))
	done := make(chan int)
	for i, side := range sides {
		go func() {
			<-start
			errs[i] = side()
			done <- i
		}()
	}
	close(start)
	for range sides {
		<-done
	}
	return errs
}

var errWrong = errors.New("wrong")
