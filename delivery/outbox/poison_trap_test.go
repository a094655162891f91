package outbox_test

import (
	"net/http"
	"testing"

	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
)

// trap T19: a row that its receiver refuses for good becomes a dead letter, and those
// behind it under the same key go on.
func TestT19_ADeadLetterHoldsUpNothingBehindIt(t *testing.T) {
	b := newBox(t)
	s := &sends{answer: func(r outbox.Row) error {
		if r.ID == "bad" {
			return &delivery.RefusedError{ID: r.ID, Status: http.StatusBadRequest}
		}
		return nil
	}}
	b.enqueue("d", "sandbox-1", "bad", "a", "b")
	d := b.dispatcher(s.send, nil)
	for range 4 {
		if _, err := d.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s.String() != "[bad a b]" {
		t.Errorf("sent %s", s)
	}
	for id, state := range map[string]outbox.State{"bad": outbox.Dead, "a": outbox.Sent, "b": outbox.Sent} {
		if row := b.get("d", id); row.State != state {
			t.Errorf("%s is %s, want %s", id, row.State, state)
		}
	}
}
