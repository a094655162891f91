package orchestrator

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// A call that waits for its image goes on with its own operation and with no other:
// where that was finished meanwhile and something came after it, nothing is begun
// again. contract: A4, A6; traps T14, T51.
func TestA6_ACallThatWaitedForItsImageDoesNotActASecondTime(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("one")
	h.mutateOK(h.SuspendSandbox, sb.ID)
	asked := make(chan struct{}, 1)
	preparing := holdfast.Observation{Instance: sb.Instance, Incarnation: sb.Incarnation, Host: "ho-1", State: holdfast.InstancePreparing}
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		asked <- struct{}{}
		seen := preparing
		seen.Generation = l.Generation
		return seen, nil
	})
	seen := preparing
	h.fleet.mu.Lock()
	h.fleet.get = func(holdfast.InstanceID) (holdfast.Observation, error) { return seen, nil } // under the fleet's lock
	h.fleet.mu.Unlock()
	type answer struct {
		sb  holdfast.Sandbox
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		got, err := h.ResumeSandbox(ctx, alice, holdfast.MutateSandbox{ID: sb.ID})
		answered <- answer{got, err}
	}()
	<-asked
	h.await(sb.ID, "the resume waits and holds no claim", func(s holdfast.Sandbox) bool {
		return s.Operation != nil && s.Operation.Kind == holdfast.OperationResume && s.Operation.Claim == nil && s.Operation.WaitsFor == "image"
	})
	h.fleet.script(nil)
	// Another caller finishes the resume, and suspends.
	h.mutateOK(h.ResumeSandbox, sb.ID)
	suspended := h.mutateOK(h.SuspendSandbox, sb.ID)
	h.fleet.mu.Lock()
	seen.State = holdfast.InstanceSuspended
	h.fleet.mu.Unlock()
	got := <-answered
	if got.err != nil {
		t.Errorf("who waited hears %v", got.err)
	}
	if now := h.get(sb.ID); now.State != holdfast.SandboxSuspended || now.Generation != suspended.Generation {
		t.Errorf("it is %s at generation %d: the suspend that was answered as done, at %d, is undone", now.State, now.Generation, suspended.Generation)
	}
}
