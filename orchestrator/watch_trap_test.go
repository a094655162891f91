package orchestrator

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// contract: A5. Trap T18: whoever numbers has taken its number and not noted that yet.
// Who comes then waits, and does not give the same number to a change that becomes
// visible later: a watch that is past it would skip that one.
func TestT18_ANumberThatIsBeingGivenIsNotGivenAgain(t *testing.T) {
	h := newHarness(t)
	if !h.locksRows() {
		t.Log("one writer at a time: nobody overtakes")
		return
	}
	first, second := h.mustCreate("r1"), h.mustCreate("r2")
	if _, err := h.number(t.Context(), holdfast.ProjectDefault); err != nil {
		t.Fatal(err)
	}
	for _, id := range []holdfast.SandboxID{first.ID, second.ID} {
		if _, err := h.extend(id, 2*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		n, err := lockNumbers(t.Context(), tx, holdfast.ProjectDefault)
		if err != nil {
			return err
		}
		n.last++
		if _, err := tx.ExecContext(t.Context(), `UPDATE sandbox SET version = $2 WHERE id = $1`, string(first.ID), n.last); err != nil {
			return err
		}
		go func() {
			_, err := h.number(t.Context(), holdfast.ProjectDefault)
			done <- err
		}()
		return errors.Join(awaitWaiter(t, tx), n.save(t.Context(), tx, holdfast.ProjectDefault))
	})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if n := h.count(`SELECT b.version - a.version FROM sandbox a, sandbox b WHERE a.id = $1 AND b.id = $2`, string(first.ID), string(second.ID)); n != 1 {
		t.Errorf("the second was numbered %d after the first", n)
	}
}
