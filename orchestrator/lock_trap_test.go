package orchestrator

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// meanwhile runs first in a transaction, and then in beside it, which waits for the
// first one's locks where rows have them. It returns what that came to.
func (h *harness) meanwhile(first func(store.Tx) error, then func() error) error {
	h.t.Helper()
	done := make(chan error, 1)
	err := h.db.Update(h.t.Context(), func(tx store.Tx) error {
		if err := first(tx); err != nil {
			return err
		}
		go func() { done <- then() }()
		return awaitWaiter(h.t, tx)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return <-done
}

// contract: A3. Trap T8: a repeat whose insert waited for the first one's commit sees
// what that has committed, although it began before.
func TestT8_ARepeatThatWaitedForTheFirstsCommitSeesIt(t *testing.T) {
	// By the transaction alone, and by the joint statement that leaves it to the transaction.
	t.Run("transaction", func(t *testing.T) { repeatThatWaits(newHarness(t, func(c *Config) { c.Joiner = nil })) })
	t.Run("joint", func(t *testing.T) { repeatThatWaits(newHarness(t)) })
}

func repeatThatWaits(h *harness) {
	t := h.t
	sb := h.mustCreate("r0")
	f, err := fingerprintOf(request("r1"))
	if err != nil {
		t.Fatal(err)
	}
	var again holdfast.Sandbox
	err = h.meanwhile(func(tx store.Tx) error {
		_, err := reserve(t.Context(), tx, time.Now(), requestKey{project: alice.Project, method: methodCreateSandbox, id: "r1"}, f, string(sb.ID))
		return err
	}, func() (err error) {
		again, err = h.create("r1")
		return err
	})
	if err != nil || again.ID != sb.ID {
		t.Errorf("the repeat is %s, %v; want %s", again.ID, err, sb.ID)
	}
}

// contract: A8. Trap T53: who waited for the last room of a shard finds it taken.
func TestT53_TheLastRoomOfAShardIsTakenOnce(t *testing.T) {
	h := newHarness(t)
	r := h.newRow(h.limited(quotaShards), request("r1"), "base") // one for each shard
	take := func(tx store.Tx) error { return r.take(t.Context(), tx) }
	err := h.meanwhile(take, func() error { return h.db.Update(t.Context(), take) })
	if !errors.Is(err, errShardFull) {
		t.Errorf("the second is told %v, want that the shard is full", err)
	}
}

// contract: A8. Trap T53: who shares the room of all shards out anew does it when
// whoever did so before has committed.
func TestT53_TheLastRoomOfAProjectIsTakenOnce(t *testing.T) {
	h := newHarness(t)
	r := h.newRow(h.limited(1), request("r1"), "base")
	take := func(tx store.Tx) error { return r.takeFromAll(t.Context(), tx) }
	err := h.meanwhile(take, func() error { return h.db.Update(t.Context(), take) })
	if holdfast.ReasonOf(err) != holdfast.ReasonQuota {
		t.Errorf("the second is told %v, want that the quota is exhausted", err)
	}
}
