package inbox_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/delivery/inbox"
)

// contract: B3. Whatever is beside it in the transaction, a delivery that needs
// nothing else is recorded once, and only while its condition holds.
func TestB3_ADeliveryIsRecordedIfItsConditionHoldsAndOnce(t *testing.T) {
	db := open(t)
	d := inbox.Delivery{Source: "s", ID: "e", Kind: "k", ReceivedAt: noon, Body: []byte("{}"), Outcome: "noted"}
	for i, step := range []struct {
		effect string
		want   bool
	}{{"other", false}, {"mine", true}, {"mine", false}} {
		if i < 2 {
			if _, err := db.Exec(`INSERT INTO effect (id) VALUES ($1)`, step.effect); err != nil {
				t.Fatal(err)
			}
		}
		var recorded bool
		err := update(t.Context(), db, func(tx inbox.Tx) (err error) {
			recorded, err = inbox.RecordIf(t.Context(), tx, d, `EXISTS (SELECT 1 FROM effect WHERE id = $7)`, "mine")
			return err
		})
		if err != nil || recorded != step.want {
			t.Errorf("step %d: recorded %v, %v", i, recorded, err)
		}
	}
	err := update(t.Context(), db, func(tx inbox.Tx) error {
		entries, err := inbox.List(t.Context(), tx, inbox.Filter{})
		if err != nil || len(entries) != 1 || entries[0].Outcome != "noted" || !entries[0].ReceivedAt.Equal(noon) || entries[0].BodySHA256 == "" {
			t.Errorf("%+v, %v", entries, err)
		}
		if fresh, err := inbox.Record(t.Context(), tx, d); err != nil || fresh {
			t.Errorf("recorded again: %v, %v", fresh, err)
		}
		_, err = inbox.RecordIf(t.Context(), tx, inbox.Delivery{Source: "s"}, `TRUE`)
		if err == nil {
			t.Error("a delivery without an id was taken")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What is remembered is bounded, and the newest thousands are.
func TestARecentRemembersTheNewestAndNothingElse(t *testing.T) {
	r := inbox.NewRecent()
	const many = 50_000
	for i := range many {
		r.Add("s", fmt.Sprint(i))
	}
	if r.Has("s", "0") || r.Has("other", fmt.Sprint(many-1)) || r.Has("s", fmt.Sprint(many)) {
		t.Error("it remembers what it should not")
	}
	for i := range 8000 {
		if !r.Has("s", fmt.Sprint(many-1-i)) {
			t.Fatalf("the newest but %d is forgotten", i)
		}
	}
}
