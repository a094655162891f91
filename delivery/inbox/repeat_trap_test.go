package inbox_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/delivery/inbox"
)

// contract: B3. Trap T24: a repeat that arrives while the first one's transaction is
// open, and has not seen it, waits for its commit and is a repeat.
func TestT24_ARepeatThatHasNotSeenTheFirstIsARepeat(t *testing.T) {
	db := open(t)
	waits := func() (blocked bool, err error) {
		err = db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)`).Scan(&blocked)
		return blocked, err
	}
	if _, err := waits(); err != nil {
		t.Log("one writer at a time: the first has always committed")
		return
	}
	first, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if fresh, err := inbox.Record(t.Context(), first, inbox.Delivery{Source: "in/1", ID: "a", Kind: "k", ReceivedAt: noon}); err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	type answer struct {
		fresh bool
		err   error
	}
	second := make(chan answer, 1)
	go func() {
		fresh, err := apply(t.Context(), db, "in/1", "a", nil)
		second <- answer{fresh, err}
	}()
	for blocked := false; !blocked; {
		select {
		case a := <-second:
			t.Fatalf("answered %+v before the first one's end", a)
		default:
		}
		if blocked, err = waits(); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	if a := <-second; a.err != nil || a.fresh {
		t.Errorf("the repeat: %+v", a)
	}
}
