package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
)

// contract: B4. No event without its change, no change without its event.
func TestB4_EnqueueIsPartOfTheCallersTransaction(t *testing.T) {
	b, failure := newBox(t), errors.New("rolled back")
	err := b.transact(t.Context(), func(tx outbox.Tx) error {
		row := outbox.Row{ID: "a", Destination: "d", Kind: "k", Body: []byte("1")}
		return errors.Join(outbox.Enqueue(t.Context(), tx, row, noon), failure)
	})
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	b.must(func(tx outbox.Tx) error {
		_, err := outbox.Get(t.Context(), tx, outbox.Ref{Destination: "d", ID: "a"})
		if !errors.Is(err, outbox.ErrUnknown) {
			t.Errorf("a rolled back row: %v", err)
		}
		return nil
	})
}

func TestB2_EnqueuingAnEventAgainLeavesItAsItIs(t *testing.T) {
	b, s := newBox(t), &sends{}
	b.enqueue("d", "", "a")
	b.enqueue("e", "", "a") // another destination's row of the same event
	d := b.dispatcher(s.send, nil)
	b.round(d, outbox.Report{Claimed: 2, Sent: 2})
	b.enqueue("d", "", "a")
	b.round(d, outbox.Report{})
	row := b.get("d", "a")
	want := outbox.Row{ID: "a", Destination: "d", Kind: "k", Body: []byte("{}"), State: outbox.Sent, EnqueuedAt: noon, Since: noon,
		EndedAt: noon, Attempts: 1, Claim: 1}
	if !reflect.DeepEqual(row, want) {
		t.Errorf("row %+v, want %+v", row, want)
	}
}

func TestEnqueueRefusesWhatCouldNeverBeSent(t *testing.T) {
	b := newBox(t)
	for _, row := range []outbox.Row{
		{Destination: "d", Kind: "k", Body: []byte("1")}, {ID: "a", Kind: "k", Body: []byte("1")},
		{ID: "a", Destination: "d", Body: []byte("1")}, {ID: "a", Destination: "d", Kind: "k"},
		{ID: "a", Destination: "d", Kind: "k", Body: []byte("{")}, {ID: "a", Destination: "d", Kind: "k", Body: []byte("\"\xff\"")},
	} {
		if err := b.transact(t.Context(), func(tx outbox.Tx) error { return outbox.Enqueue(t.Context(), tx, row, noon) }); err == nil {
			t.Errorf("%+v was enqueued", row)
		}
	}
}

func TestB5_DeadLettersAreListedAndSentAgainOnRequest(t *testing.T) {
	b, ctx := newBox(t), t.Context()
	s := &sends{answer: func(r outbox.Row) error {
		if r.Attempts == 1 && r.Claim == 1 && r.ID != "c" {
			return &delivery.RefusedError{ID: r.ID, Status: 410, Reason: "gone"}
		}
		return nil
	}}
	b.enqueue("d", "", "a", "b", "c")
	d := b.dispatcher(s.send, nil)
	b.round(d, outbox.Report{Claimed: 3, Sent: 1, Dead: 2})
	b.advance(time.Hour)
	b.round(d, outbox.Report{})
	b.must(func(tx outbox.Tx) error {
		dead, err := outbox.List(ctx, tx, outbox.Filter{State: outbox.Dead})
		if err != nil {
			return err
		}
		if len(dead) != 2 || dead[0].ID != "a" || dead[0].LastError != `delivery a: refused with status 410: "gone"` || !dead[0].EndedAt.Equal(noon) {
			t.Errorf("dead letters %+v", dead)
		}
		rest, err := outbox.List(ctx, tx, outbox.Filter{State: outbox.Dead, After: dead[0].Ref(), Limit: 1})
		if err != nil || len(rest) != 1 || rest[0].ID != "b" {
			t.Errorf("second page %+v, %v", rest, err)
		}
		if err := outbox.Replay(ctx, tx, outbox.Ref{Destination: "d", ID: "nothing"}, b.clock()); !errors.Is(err, outbox.ErrUnknown) {
			t.Errorf("replay of nothing: %v", err)
		}
		if err := outbox.Replay(ctx, tx, dead[0].Ref(), b.clock()); err != nil {
			return err
		}
		if err := outbox.Replay(ctx, tx, dead[0].Ref(), b.clock()); !errors.Is(err, outbox.ErrNotEnded) {
			t.Errorf("replay of a pending row: %v", err)
		}
		return nil
	})
	b.round(d, outbox.Report{Claimed: 1, Sent: 1})
	if row := b.get("d", "a"); row.State != outbox.Sent || !row.Since.Equal(noon.Add(time.Hour)) || !row.EnqueuedAt.Equal(noon) {
		t.Errorf("after the replay %+v", row)
	}
}

func TestPurgeTakesOnlyWhatEndedLongAgo(t *testing.T) {
	b, ctx := newBox(t), t.Context()
	s := &sends{answer: func(r outbox.Row) error {
		switch r.ID {
		case "dead":
			return &delivery.RefusedError{Status: 400}
		case "pending":
			return errors.New("down")
		}
		return nil
	}}
	b.enqueue("d", "", "dead", "pending", "s1", "s2", "s3")
	b.round(b.dispatcher(s.send, nil), outbox.Report{Claimed: 5, Sent: 3, Retried: 1, Dead: 1})
	b.must(func(tx outbox.Tx) error {
		for _, tc := range []struct {
			state  outbox.State
			before time.Time
			n      int
			want   int
		}{
			{outbox.Sent, noon, 10, 0}, {outbox.Sent, noon.Add(1), 10, 0}, {outbox.Sent, noon.Add(time.Second), 2, 2},
			{outbox.Sent, noon.Add(time.Second), 2, 1}, {outbox.Pending, noon.Add(time.Hour), 10, 0},
			{outbox.Dead, noon.Add(time.Second), 10, 1},
		} {
			if n, err := outbox.Purge(ctx, tx, tc.state, tc.before, tc.n); err != nil || n != tc.want {
				t.Errorf("purge %v: %d, %v", tc, n, err)
			}
		}
		left, err := outbox.List(ctx, tx, outbox.Filter{})
		if len(left) != 1 || left[0].ID != "pending" {
			t.Errorf("left %+v", left)
		}
		return err
	})
}

func TestErrorsOfTheDatabaseAreReported(t *testing.T) {
	b, ctx := newBox(t), t.Context()
	if _, err := b.db.Exec(`DROP TABLE outbox`); err != nil {
		t.Fatal(err)
	}
	row := outbox.Row{ID: "a", Destination: "d", Kind: "k", Body: []byte("1")}
	for name, call := range map[string]func(outbox.Tx) error{
		"enqueue": func(tx outbox.Tx) error { return outbox.Enqueue(ctx, tx, row, noon) },
		"get":     func(tx outbox.Tx) error { _, err := outbox.Get(ctx, tx, row.Ref()); return err },
		"list":    func(tx outbox.Tx) error { _, err := outbox.List(ctx, tx, outbox.Filter{}); return err },
		"replay":  func(tx outbox.Tx) error { return outbox.Replay(ctx, tx, row.Ref(), noon) },
		"purge":   func(tx outbox.Tx) error { _, err := outbox.Purge(ctx, tx, outbox.Sent, noon, 1); return err },
	} {
		if err := b.transact(ctx, call); err == nil || errors.Is(err, outbox.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.dispatcher((&sends{}).send, nil).RunOnce(context.Background()); err == nil {
		t.Error("a dispatcher hid an error")
	}
}

func TestOrderIsKeptPerKeyAndDestination(t *testing.T) {
	b, s := newBox(t), &sends{}
	failing := true
	s.answer = func(r outbox.Row) error {
		if r.ID == "z1" && failing {
			return errors.New("down")
		}
		return nil
	}
	b.enqueue("d", "sandbox-1", "z1", "a2")
	b.enqueue("d", "sandbox-1", "m3")
	b.enqueue("d", "sandbox-2", "other")
	b.enqueue("e", "sandbox-1", "elsewhere")
	d := b.dispatcher(s.send, func(c *outbox.Config) { c.Concurrency, c.PerDestination = 1, 1 })
	for range 8 {
		if _, err := d.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s.String() != "[z1 other elsewhere]" {
		t.Fatalf("sent %s while the first of a key fails", s)
	}
	failing = false
	b.advance(time.Minute)
	for range 8 {
		if _, err := d.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s.String() != "[z1 other elsewhere z1 a2 m3]" {
		t.Errorf("sent %s", s)
	}
	if got := fmt.Sprint(b.get("d", "m3").State); got != "SENT" {
		t.Error(got)
	}
}

// A row that says its place goes there, whenever it is enqueued; one that has ended is
// sent again from the place it has.
func TestRequeueSendsAgainInThePlaceThatARowHas(t *testing.T) {
	b, s := newBox(t), &sends{}
	row := func(id string, position int64) outbox.Row {
		return outbox.Row{ID: id, Destination: "d", Kind: "k", Key: "r", Position: position, Body: []byte("{}")}
	}
	d := b.dispatcher(s.send, nil)
	b.must(func(tx outbox.Tx) error {
		return errors.Join(outbox.Enqueue(t.Context(), tx, row("third", 30), noon), outbox.Enqueue(t.Context(), tx, row("second", 20), noon))
	})
	s.drain(b, d, 2)
	b.must(func(tx outbox.Tx) error {
		if err := outbox.Enqueue(t.Context(), tx, row("fourth", 40), noon); err != nil {
			return err
		}
		for _, r := range []outbox.Row{row("third", 30), row("second", 20), row("first", 10), row("fourth", 40)} {
			queued, err := outbox.Requeue(t.Context(), tx, r, noon.Add(time.Hour))
			if err != nil || queued == (r.ID == "fourth") { // which is pending as it is
				return fmt.Errorf("%s: queued %t, %w", r.ID, queued, err)
			}
		}
		return nil
	})
	b.advance(time.Hour)
	s.drain(b, d, 6)
	if got := s.String(); got != "[second third first second third fourth]" {
		t.Errorf("sent %s", got)
	}
	if r := b.get("d", "second"); r.Attempts != 1 || !r.Since.Equal(noon.Add(time.Hour)) || r.Claim != 3 {
		t.Errorf("%+v", r)
	}
}

func TestADestinationThatIsGoneIsForgotten(t *testing.T) {
	b := newBox(t)
	b.enqueue("a", "", "1", "2", "3")
	b.enqueue("b", "", "1")
	b.must(func(tx outbox.Tx) error {
		list, err := outbox.Destinations(t.Context(), tx, "", 10)
		if err != nil || fmt.Sprint(list) != "[a b]" {
			t.Errorf("destinations %v, %v", list, err)
		}
		if list, err = outbox.Destinations(t.Context(), tx, "a", 1); err != nil || fmt.Sprint(list) != "[b]" {
			t.Errorf("destinations behind a: %v, %v", list, err)
		}
		for _, want := range []int{2, 1, 0} {
			if n, err := outbox.Forget(t.Context(), tx, "a", 2); err != nil || n != want {
				t.Errorf("forgot %d, %v, want %d", n, err, want)
			}
		}
		rows, err := outbox.List(t.Context(), tx, outbox.Filter{})
		if err != nil || len(rows) != 1 || rows[0].Destination != "b" {
			t.Errorf("left %+v, %v", rows, err)
		}
		return nil
	})
}

func TestOneDestinationIsListedAlone(t *testing.T) {
	b := newBox(t)
	b.enqueue("a", "", "1", "2", "3")
	b.enqueue("b", "", "1")
	b.must(func(tx outbox.Tx) error {
		rows, err := outbox.List(t.Context(), tx, outbox.Filter{Destination: "a", State: outbox.Pending, After: outbox.Ref{ID: "1"}})
		if err != nil || len(rows) != 2 || rows[0].ID != "2" || rows[1].Destination != "a" {
			t.Errorf("%+v, %v", rows, err)
		}
		return nil
	})
}
