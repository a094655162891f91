package orchestrator

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/store"
)

// contract: A3. Trap T2: the input differs as much by what is sent for the first
// time as by what is left out.
func TestT2_ARepeatThatSendsMoreIsOtherInput(t *testing.T) {
	h := newHarness(t)
	less := holdfast.CreateSandbox{RequestID: "less", Environment: "base"}
	more := less
	more.RequestID, more.Labels = "more", map[string]string{"team": "a"}
	for _, in := range []holdfast.CreateSandbox{less, more} {
		if _, err := h.CreateSandbox(t.Context(), alice, in); err != nil {
			t.Fatal(err)
		}
	}
	less.RequestID, more.RequestID = more.RequestID, less.RequestID
	for _, in := range []holdfast.CreateSandbox{less, more} {
		_, err := h.CreateSandbox(t.Context(), alice, in)
		wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
		if fields := holdfast.AsError(err).Details["fields"]; fields != "labels" {
			t.Errorf("%s: fields %q", in.RequestID, fields)
		}
	}
}

// contract: A3. Trap T5: no sweep takes a request key along, however old it is and
// whatever became of its sandbox.
func TestT5_NoSweepTakesARequestKeyHoweverOld(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	age := func() {
		t.Helper()
		err := h.db.Update(t.Context(), func(tx store.Tx) error {
			for _, q := range []string{`UPDATE request SET created_at = 1`, `UPDATE sandbox SET deleted_at = 1, updated_at = 1 WHERE state = 'DELETED'`} {
				if _, err := tx.ExecContext(t.Context(), q); err != nil {
					return err
				}
			}
			// So that the inbox has something to purge.
			_, err := inbox.Record(t.Context(), tx, inbox.Delivery{Source: fleetSource, ID: "ev-1", Kind: "k", ReceivedAt: time.UnixMicro(1)})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range h.Sweeps() {
			h.sweep(s.Name)
		}
	}
	age()
	if again := h.mustCreate("r1"); again.ID != sb.ID || again.State != holdfast.SandboxReady {
		t.Fatalf("after a year: %s %s, want %s", again.ID, again.State, sb.ID)
	}
	if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	age()
	if again := h.mustCreate("r1"); again.ID != sb.ID || again.State != holdfast.SandboxDeleted {
		t.Fatalf("a year after the delete: %s %s, want the tombstone of %s", again.ID, again.State, sb.ID)
	}
}

// contract: A3. Trap T10: a map has no order, and its fingerprint is the same.
func TestT10_AFingerprintIsTheSameHoweverAMapIsOrdered(t *testing.T) {
	in := holdfast.CreateSandbox{RequestID: "r1", Environment: "base", Env: map[string]string{}, Labels: map[string]string{}}
	for i := range 12 {
		in.Env[fmt.Sprint("NAME", i)], in.Labels[fmt.Sprint("label", i)] = fmt.Sprint(i), fmt.Sprint(i)
	}
	first, err := fingerprintOf(in)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		in.Env, in.Labels = maps.Clone(in.Env), maps.Clone(in.Labels)
		again, err := fingerprintOf(in)
		if err != nil {
			t.Fatal(err)
		}
		if d := first.differs(again); len(d) > 0 {
			t.Fatalf("the same input differs in %v", d)
		}
	}
}
