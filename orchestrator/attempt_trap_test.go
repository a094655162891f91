package orchestrator

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// contract: A6. Trap T14: between two steps an attempt sees that its claim is gone,
// and issues nothing more.
func TestT14_AnAttemptWhoseClaimIsGoneAsksTheFleetForNothingMore(t *testing.T) {
	h := newHarness(t)
	asleep, awake, atWork, goOn := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		switch calls.Add(1) {
		case 1:
			close(asleep)
			<-awake
			return holdfast.Observation{Instance: l.Instance, Incarnation: 1, Generation: l.Generation, State: holdfast.InstanceBooting}, nil
		case 2:
			close(atWork)
			<-goOn
		}
		return h.fleet.reach(l)
	})
	slept, worked := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := h.create("r1")
		slept <- err
	}()
	<-asleep
	other := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.Exclusive = true }) // its start ends the claim, as an expiry would
	go func() {
		_, err := other.create("r1")
		worked <- err
	}()
	<-atWork
	close(awake)
	err := <-slept
	if n := calls.Load(); n != 2 {
		t.Errorf("the fleet got %d levels, one of them from an attempt without a claim", n)
	}
	close(goOn)
	wantError(t, err, holdfast.Aborted, holdfast.ReasonClaimed)
	if err := <-worked; err != nil {
		t.Errorf("its successor: %v", err)
	}
}

// trap T25: a delete is tried for ever, and the sweep leaves it alone for a while
// after every attempt.
func TestT25_AnOperationIsLeftAloneForAWhileHoweverOftenItWasTried(t *testing.T) {
	for attempts := range 200 {
		if pause := backoff(attempts); pause < time.Second || pause > time.Minute {
			t.Fatalf("after %d attempts it is left alone for %s", attempts, pause)
		}
	}
}
