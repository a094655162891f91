package orchestrator

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

func (h *harness) createFresh(requestID string) holdfast.Sandbox {
	h.t.Helper()
	sb, err := h.CreateSandbox(h.t.Context(), alice, holdfast.CreateSandbox{RequestID: requestID, Environment: "base", Restart: holdfast.RestartFresh})
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

func (f *fleet) bootsOf(id holdfast.InstanceID) map[int64]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[int64]int{}
	for ref, n := range f.boots {
		if ref.Instance == id {
			out[ref.Incarnation] = n
		}
	}
	return out
}

// bootedOnce fails unless incarnations 1 to n have booted once each, and no other.
func (h *harness) bootedOnce(id holdfast.InstanceID, n int64) {
	h.t.Helper()
	boots := h.fleet.bootsOf(id)
	for i := int64(1); i <= n; i++ {
		if boots[i] != 1 {
			h.t.Errorf("incarnation %d booted %d times", i, boots[i])
		}
	}
	if int64(len(boots)) != n {
		h.t.Errorf("boots: %v, want %d incarnations", boots, n)
	}
}

// lost is a fleet's word that a boot is gone.
func lost(sb holdfast.Sandbox) holdfast.Observation {
	return holdfast.Observation{Instance: sb.Instance, Incarnation: sb.Incarnation, State: holdfast.InstanceAbsent,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "gone"}}
}

// lifecycle.md, restart: by whichever message the loss is heard of, and however often.
func TestRestart_ALostInstanceIsReplacedOnceWithTheNextIncarnation(t *testing.T) {
	for name, lose := range map[string]func(h *harness, sb holdfast.Sandbox){
		"by delivery": func(h *harness, sb holdfast.Sandbox) {
			for _, id := range []string{"ev-1", "ev-1", "ev-2"} { // the same event again, and the same news as another
				if status := h.fleetSays(id, lost(sb)); status != http.StatusNoContent {
					h.t.Errorf("status %d", status)
				}
			}
		},
		"by sweep": func(h *harness, sb holdfast.Sandbox) { h.sweep(SweepInstances) },
		"by both": func(h *harness, sb holdfast.Sandbox) {
			h.sweep(SweepInstances)
			h.fleetSays("ev-1", lost(sb))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			sb := h.createFresh("r1")
			h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
			lose(h, sb)
			got := h.awaitState(sb.ID, holdfast.SandboxReady)
			if got.Incarnation != 2 || got.Generation <= sb.Generation || got.Failure != nil || got.Restart != holdfast.RestartFresh {
				t.Fatalf("%+v", got)
			}
			if !got.ExpiresAt.Equal(sb.ExpiresAt) || !got.ReadyAt.Equal(sb.ReadyAt) {
				t.Errorf("its lifetime began anew: %s, was %s", got.ExpiresAt, sb.ExpiresAt)
			}
			h.bootedOnce(sb.Instance, 2)
			page, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(sb.ID)})
			if err != nil || len(page.Operations) != 2 {
				t.Fatalf("%+v, %v", page.Operations, err)
			}
			if op := page.Operations[0]; op.Kind != holdfast.OperationReplace || op.State != holdfast.OperationDone || op.Cause == "" {
				t.Errorf("the journal does not tell: %+v", op)
			}
		})
	}
}

func TestRestart_NoneIsFailed(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	if sb.Restart != holdfast.RestartNone {
		t.Fatalf("the default is %s", sb.Restart)
	}
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.sweep(SweepInstances)
	if got := h.get(sb.ID); got.State != holdfast.SandboxFailed || got.Incarnation != 1 {
		t.Fatalf("%+v", got)
	}
	h.bootedOnce(sb.Instance, 1)
}

// contract: A5: a caller can always tell.
func TestRestart_AReplacementIsCarriedOnByARepeatedCreateAndYieldsOnlyToDelete(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.set(sb.Instance, holdfast.InstanceExited)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no room")
	})
	h.sweep(SweepInstances)
	got := h.await(sb.ID, "waiting", func(sb holdfast.Sandbox) bool {
		return sb.State == holdfast.SandboxCreating && sb.Operation != nil && sb.Operation.WaitsFor == "capacity"
	})
	if got.Operation.Kind != holdfast.OperationReplace || got.Operation.Cause != holdfast.ReasonExited || got.Incarnation != 2 {
		t.Fatalf("%+v", got.Operation)
	}
	for _, call := range []func(context.Context, holdfast.Caller, holdfast.MutateSandbox) (holdfast.Sandbox, error){h.SuspendSandbox, h.ResumeSandbox} {
		_, err := call(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
		wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	}
	if _, err := h.extend(sb.ID, 2*time.Hour); err != nil {
		t.Errorf("a sandbox that is being replaced cannot be extended: %v", err)
	}
	h.fleet.script(nil)
	if again := h.createFresh("r1"); again.State != holdfast.SandboxReady || again.Incarnation != 2 {
		t.Fatalf("the repeated create left it %s on incarnation %d", again.State, again.Incarnation)
	}
	around(t, "the end that was extended meanwhile", h.get(sb.ID).ExpiresAt, 2*time.Hour)

	h.fleet.set(sb.Instance, holdfast.InstanceExited)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no room")
	})
	h.sweep(SweepInstances)
	h.await(sb.ID, "waiting", func(sb holdfast.Sandbox) bool { return sb.Operation != nil && sb.Operation.WaitsFor == "capacity" })
	h.fleet.script(nil)
	if gone := h.mutateOK(h.DeleteSandbox, sb.ID); gone.State != holdfast.SandboxDeleted {
		t.Fatal(gone.State)
	}
	h.bootedOnce(sb.Instance, 2)
}

func TestRestart_ASuspendedOneBecomesReadyAndItsLifetimeBeginsAnew(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.mutateOK(h.SuspendSandbox, sb.ID)
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.sweep(SweepInstances)
	got := h.awaitState(sb.ID, holdfast.SandboxReady)
	if got.Incarnation != 2 {
		t.Fatal(got.Incarnation)
	}
	around(t, "the lifetime", got.ExpiresAt, time.Hour)
}

func TestRestart_AnAttemptThatMeetsTheLossBeginsTheReplacement(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.set(sb.Instance, holdfast.InstanceExited)
	_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
	wantError(t, err, holdfast.Aborted, holdfast.ReasonSuperseded)
	if got := h.awaitState(sb.ID, holdfast.SandboxReady); got.Incarnation != 2 {
		t.Fatal(got.Incarnation)
	}
	h.bootedOnce(sb.Instance, 2)
}

// contract: A6: the loss fences the live attempt.
func TestRestart_ALossDuringALiveAttemptFencesIt(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	entered, leave := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if l.Desired == holdfast.DesiredSuspended {
			close(entered)
			<-leave
			return holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, State: holdfast.InstanceSuspended}, nil
		}
		return h.fleet.reach(l)
	})
	done := make(chan error, 1)
	go func() {
		_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
		done <- err
	}()
	<-entered
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.fleetSays("ev-1", lost(sb))
	h.awaitState(sb.ID, holdfast.SandboxReady)
	close(leave)
	wantError(t, <-done, holdfast.Aborted, holdfast.ReasonSuperseded)
	if got := h.get(sb.ID); got.State != holdfast.SandboxReady || got.Incarnation != 2 {
		t.Fatalf("the late attempt made it %s on incarnation %d", got.State, got.Incarnation)
	}
}

// contract: B7, T37
func TestRestart_T37_TheOldBootsWordChangesNothing(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no room")
	})
	h.sweep(SweepInstances)
	h.await(sb.ID, "waiting", func(sb holdfast.Sandbox) bool { return sb.Operation != nil && sb.Operation.WaitsFor == "capacity" })
	for i, kind := range []holdfast.DeliveryKind{holdfast.DeliveryReady, holdfast.DeliveryFailed} {
		if status := h.guestSays([]string{"g-1", "g-2"}[i], kind, sb.Instance, 1); status != http.StatusNoContent {
			t.Errorf("status %d", status)
		}
	}
	h.fleetSays("ev-late", lost(sb))
	if got := h.get(sb.ID); got.State != holdfast.SandboxCreating || got.Incarnation != 2 {
		t.Fatalf("%s on %d", got.State, got.Incarnation)
	}
	if status := h.guestSays("g-3", holdfast.DeliveryReady, sb.Instance, 2); status != http.StatusNoContent {
		t.Errorf("status %d", status)
	}
	if got := h.get(sb.ID); got.State != holdfast.SandboxReady || !got.ExpiresAt.Equal(sb.ExpiresAt) {
		t.Fatalf("the new boot's ready left it %s", got.State)
	}
}

// A boot that fails is no loss: a bad replacement ends, and does not go round.
func TestRestart_AReplacementThatFailsToBootIsFailed(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, State: holdfast.InstanceExited,
			Failure: &holdfast.Failure{Reason: holdfast.ReasonBootFailed, Message: "it did not boot"}}, nil
	})
	h.sweep(SweepInstances)
	got := h.awaitState(sb.ID, holdfast.SandboxFailed)
	if got.Incarnation != 2 || got.Failure.Reason != holdfast.ReasonBootFailed {
		t.Fatalf("%d %+v", got.Incarnation, got.Failure)
	}
}

// One whose host is lost while it boots is a loss, and is replaced again.
func TestRestart_AReplacementThatIsLostItselfIsReplacedAgain(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if l.Incarnation == 2 {
			return holdfast.Observation{Instance: l.Instance, Incarnation: 2, Generation: l.Generation, State: holdfast.InstanceExited,
				Failure: &holdfast.Failure{Reason: holdfast.ReasonHostRebooted, Message: "the host booted anew"}}, nil
		}
		return h.fleet.reach(l)
	})
	h.sweep(SweepInstances)
	if got := h.awaitState(sb.ID, holdfast.SandboxReady); got.Incarnation != 3 {
		t.Fatal(got.Incarnation)
	}
}

// contract: A15
func TestRestart_GivingAReplacementUpMakesItFailed(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if l.Desired == holdfast.DesiredExited {
			return h.fleet.reach(l)
		}
		return holdfast.Observation{}, holdfast.E(holdfast.Internal, holdfast.ReasonBug, "the host cannot")
	})
	h.sweep(SweepInstances)
	got := h.await(sb.ID, "given up", func(sb holdfast.Sandbox) bool {
		h.backdate()
		h.sweep(SweepOperations)
		return sb.State == holdfast.SandboxFailed
	})
	if got.Failure.Reason != holdfast.ReasonGaveUp {
		t.Fatalf("%+v", got.Failure)
	}
}

// contract: A11
func TestRestart_ADeletionByExpiryDoesNotWaitForTheReplacement(t *testing.T) {
	h := newHarness(t)
	sb := h.createFresh("r1")
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no room")
	})
	h.sweep(SweepInstances)
	h.await(sb.ID, "waiting", func(sb holdfast.Sandbox) bool { return sb.Operation != nil && sb.Operation.WaitsFor == "capacity" })
	h.fleet.script(nil)
	h.overdue(sb.ID)
	h.sweep(SweepExpiry)
	h.awaitState(sb.ID, holdfast.SandboxDeleted)
}

// contract: A14: a request id is bound to the boot that it was first used on.
func TestA14_ARequestIDOfTheOldBootIsRefusedOnTheNewOne(t *testing.T) {
	h := newHarness(t)
	h.config.Guest = func(string, holdfast.InstanceRef) holdfast.Guest { return holdfast.Guest{Processes: starter{}} }
	sb := h.createFresh("r1")
	start := func(requestID string) (holdfast.Process, error) {
		return h.StartProcess(t.Context(), alice, sb.ID, holdfast.StartProcess{RequestID: requestID, Command: "true"})
	}
	if _, err := start("p1"); err != nil {
		t.Fatal(err)
	}
	h.fleet.set(sb.Instance, holdfast.InstanceAbsent)
	h.sweep(SweepInstances)
	h.awaitState(sb.ID, holdfast.SandboxReady)
	_, err := start("p1")
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonIncarnation)
	if _, err := start("p2"); err != nil {
		t.Fatal(err)
	}
	// Replaced between the two looks of one start: the id was noted for incarnation
	// 2, and nothing may be started on 3 under it.
	at := guestAddress{caller: alice, sandbox: sb.ID, access: accessLive, incarnation: 1}
	_, err = guestCall(h.Service, t.Context(), at, func(holdfast.Guest) (nothing, error) {
		t.Error("the guest of another boot was called")
		return nothing{}, nil
	})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonIncarnation)
}

// starter is a guest that starts whatever it is asked to.
type starter struct{ holdfast.GuestProcesses }

func (s starter) StartProcess(context.Context, holdfast.StartProcess) (holdfast.Process, error) {
	return holdfast.Process{State: holdfast.ProcessRunning}, nil
}
