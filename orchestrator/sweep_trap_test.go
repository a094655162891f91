package orchestrator

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// contract: A6. Trap T14: an attempt that was stopped past its claim comes back
// while its successor is at work. The row is as it read it, and it ends nothing.
func TestT14_AnAttemptThatSleptThroughItsClaimEndsNothing(t *testing.T) {
	h := newHarness(t)
	asleep, awake, atWork, goOn := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if calls.Add(1) == 1 {
			close(asleep)
			<-awake
		} else {
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
	if err := <-slept; err == nil {
		t.Error("who slept through its claim was told success")
	}
	if n := h.count(`SELECT COUNT(*) FROM operation WHERE state = 'PENDING' AND holder <> ''`); n != 1 {
		t.Errorf("%d operations are pending and claimed, want the successor's", n)
	}
	close(goOn)
	if err := <-worked; err != nil {
		t.Errorf("its successor: %v", err)
	}
}

// contract: B3. Trap T20: what the fleet's outbox sends until it gives a row up is
// known for longer than that, whatever sweeps run.
func TestT20_DeliveriesAreKnownForLongerThanTheyAreSent(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	sources := []string{fleetSource, delivery.InstanceSource(string(sb.Instance), 1)}
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		now, err := tx.Now(t.Context())
		ended := now.Add(-outbox.DefaultMaxAge - time.Hour)
		if err == nil {
			_, err = tx.ExecContext(t.Context(), `UPDATE sandbox SET deleted_at = $1, updated_at = $1`, store.Micros(ended))
		}
		for _, source := range sources {
			if err == nil {
				_, err = inbox.Record(t.Context(), tx, inbox.Delivery{Source: source, ID: "ev-1", Kind: "k", ReceivedAt: ended})
			}
			if err == nil { // so that there is something to purge
				_, err = inbox.Record(t.Context(), tx, inbox.Delivery{Source: source, ID: "ev-0", Kind: "k", ReceivedAt: now.Add(-8 * 24 * time.Hour)})
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range h.Sweeps() {
		h.sweep(s.Name)
	}
	err = h.db.View(t.Context(), func(tx store.Tx) error {
		for _, source := range sources {
			known, err := inbox.Seen(t.Context(), tx, source, "ev-1")
			if err != nil {
				return err
			}
			if !known {
				t.Errorf("what %s sent is not known any more: it would take effect again", source)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// contract: D2. Trap T27: what the fleet last knew, and its host does not confirm,
// ends no sandbox.
func TestT27_AStaleWordOfAnEndEndsNothing(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	for _, state := range []holdfast.InstanceState{holdfast.InstanceExited, holdfast.InstanceAbsent} {
		was := holdfast.Observation{Instance: sb.Instance, Incarnation: 1, Generation: 1, State: state, Stale: true}
		h.fleet.mu.Lock()
		h.fleet.get = func(holdfast.InstanceID) (holdfast.Observation, error) { return was, nil }
		h.fleet.mu.Unlock()
		if err := h.confirmEnded(t.Context(), was); !errors.Is(err, reconcile.ErrSkipped) {
			t.Errorf("%s: %v, want it left alone", state, err)
		}
		if got := h.get(sb.ID); got.State != holdfast.SandboxReady {
			t.Fatalf("%s: the sandbox is %s", state, got.State)
		}
	}
}
