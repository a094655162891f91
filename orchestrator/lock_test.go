package orchestrator

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// trap T41: who waited for a sandbox's lock judges claims by the clock after the wait, and not by its transaction's start.
func TestT41_AClaimIsJudgedByTheClockAfterTheWaitForTheLock(t *testing.T) {
	h := newHarness(t)
	id := h.mustCreate("r1").ID
	ended := make(chan error, 1)
	var released time.Time
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		if _, _, _, err := lockRow(t.Context(), tx, id); err != nil {
			return err
		}
		go func() {
			_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: id})
			ended <- err
		}()
		if err := awaitWaiter(t, tx); err != nil {
			return err
		}
		var err error
		released, err = tx.Now(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	const suspends = "SELECT COUNT(*) FROM operation WHERE kind = 'SUSPEND' AND entered_at >= $1"
	if all, late := h.count(suspends, 0), h.count(suspends, store.Micros(released)); all != 1 || late != 1 {
		t.Errorf("%d suspends, %d of them recorded at an instant after the lock's release; want 1 and 1", all, late)
	}
}

// awaitWaiter returns once another session waits for a lock, where rows are locked one by one.
func awaitWaiter(t *testing.T, tx store.Tx) error {
	if tx.ForUpdate() == "" {
		return nil
	}
	for range 1000 {
		var waits bool
		err := tx.QueryRowContext(t.Context(), "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted), pg_sleep(0.01)").Scan(&waits, new(any))
		if err != nil || waits {
			return err
		}
	}
	t.Error("nobody waits for the lock")
	return nil
}
