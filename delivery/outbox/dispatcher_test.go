package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
)

func TestT19_APoisonRowBlocksNoOther(t *testing.T) {
	b := newBox(t)
	s := &sends{answer: func(r outbox.Row) error {
		switch r.ID {
		case "panics":
			panic("poison")
		case "fails":
			return errors.New("poison")
		}
		return nil
	}}
	b.enqueue("d", "", "panics", "fails", "a", "b", "c")
	d := b.dispatcher(s.send, func(c *outbox.Config) { c.Concurrency, c.PerDestination = 1, 1 })
	for range 12 {
		if _, err := d.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for id, state := range map[string]outbox.State{"panics": outbox.Pending, "fails": outbox.Pending, "a": outbox.Sent, "b": outbox.Sent, "c": outbox.Sent} {
		if row := b.get("d", id); row.State != state || row.Holder != "" || (row.LastError == "") != (state == outbox.Sent) {
			t.Errorf("%s: %+v", id, row)
		}
	}
}

// A destination that hangs with many rows leaves room for the others (T19, T29).
func TestT19_AHangingDestinationLeavesRoomForOthers(t *testing.T) {
	b := newBox(t)
	for i := range 300 {
		b.enqueue("hangs", "", fmt.Sprintf("h%03d", i))
	}
	b.advance(time.Second)
	b.enqueue("works", "", "w1", "w2", "w3")
	var hanging, most, works atomic.Int64
	release := make(chan struct{})
	d := b.dispatcher(func(ctx context.Context, r outbox.Row) error {
		if r.Destination == "works" {
			if works.Add(1) == 3 {
				close(release)
			}
			return nil
		}
		n := hanging.Add(1)
		defer hanging.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return errors.New("hung")
	}, func(c *outbox.Config) { c.Concurrency, c.PerDestination, c.Poll = 5, 3, time.Millisecond })
	run(t, d, func() { wait(t, release) })
	if most.Load() > 3 {
		t.Errorf("%d sends to one destination at once", most.Load())
	}
}

// run runs the dispatcher while fn does.
func run(t *testing.T, d *outbox.Dispatcher, fn func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { d.Run(ctx) })
	fn()
	cancel()
	loop.Wait()
}

func wait[T any](t *testing.T, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Error("it did not happen within 20 s")
	}
}

// A holder that was away past its claim writes late: the row is its successor's.
func TestT11_ALateResultOfALostClaimChangesNothing(t *testing.T) {
	for name, late := range map[string]error{"success": nil, "failure": errors.New("late")} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.enqueue("d", "", "a")
			away, back := make(chan struct{}), make(chan struct{})
			first := b.dispatcher(func(context.Context, outbox.Row) error { close(away); <-back; return late },
				func(c *outbox.Config) { c.Holder = "first"; c.Claim = time.Minute })
			reports := make(chan outbox.Report, 1)
			go func() {
				r, err := first.RunOnce(context.Background())
				if err != nil {
					t.Error(err)
				}
				reports <- r
			}()
			wait(t, away)
			second := b.dispatcher(func(context.Context, outbox.Row) error { return errors.New("down") },
				func(c *outbox.Config) { c.Holder = "second" })
			b.round(second, outbox.Report{}) // the claim is live
			if row := b.get("d", "a"); row.Holder != "first" || !row.DueAt.Equal(noon.Add(time.Minute)) {
				t.Errorf("claimed: %+v", row)
			}
			b.advance(time.Minute)
			b.round(second, outbox.Report{Claimed: 1, Retried: 1})
			before := b.get("d", "a")
			close(back)
			if r := <-reports; r != (outbox.Report{Claimed: 1, Stale: 1}) {
				t.Errorf("the late one: %+v", r)
			}
			if after := b.get("d", "a"); fmt.Sprint(after) != fmt.Sprint(before) || after.Claim != 2 || after.LastError != "down" {
				t.Errorf("changed from %+v to %+v", before, after)
			}
		})
	}
}

func TestManyReplicasSendEachRowOnce(t *testing.T) {
	b := newBox(t)
	const rows = 200
	for i := range rows {
		b.enqueue(fmt.Sprintf("d%d", i%3), "", fmt.Sprintf("r%03d", i))
	}
	var mu sync.Mutex
	times, done := map[string]int{}, make(chan struct{})
	send := func(_ context.Context, r outbox.Row) error {
		mu.Lock()
		defer mu.Unlock()
		if times[r.ID]++; len(times) == rows && times[r.ID] == 1 {
			close(done)
		}
		return nil
	}
	var replicas sync.WaitGroup
	for i := range 4 {
		d := b.dispatcher(send, func(c *outbox.Config) { c.Holder = fmt.Sprint(i); c.Poll = time.Millisecond })
		replicas.Go(func() { run(t, d, func() { wait(t, done) }) })
	}
	replicas.Wait()
	for id, n := range times {
		if n != 1 {
			t.Errorf("%s was sent %d times", id, n)
		}
	}
	b.must(func(tx outbox.Tx) error {
		left, err := outbox.List(context.Background(), tx, outbox.Filter{State: outbox.Pending})
		if len(left) > 0 {
			t.Errorf("%d rows are left", len(left))
		}
		return err
	})
}

// Rows that commit out of the order of their ids and times are all found.
func TestT18_RowsThatCommitOutOfOrderAreFound(t *testing.T) {
	b, s := newBox(t), &sends{}
	d := b.dispatcher(s.send, nil)
	b.advance(time.Minute)
	b.enqueue("d", "", "z")
	b.round(d, outbox.Report{Claimed: 1, Sent: 1})
	b.must(func(tx outbox.Tx) error { // began earlier, commits later
		row := outbox.Row{ID: "a", Destination: "d", Kind: "k", Body: []byte("1")}
		return outbox.Enqueue(context.Background(), tx, row, noon)
	})
	b.round(d, outbox.Report{Claimed: 1, Sent: 1})
	if s.String() != "[z a]" {
		t.Errorf("sent %s", s)
	}
}

// contract: B5
func TestB5_BetweenOurOwnPartiesARowIsGivenUpAfterFiveDays(t *testing.T) {
	b := newBox(t)
	s := &sends{answer: func(outbox.Row) error { return errors.New("down") }}
	b.enqueue("d", "", "a")
	d := b.dispatcher(s.send, nil)
	attempts := 0
	for b.get("d", "a").State == outbox.Pending {
		r, err := d.RunOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		attempts += r.Claimed
		b.advance(time.Hour)
	}
	row := b.get("d", "a")
	if row.State != outbox.Dead || row.EndedAt.Sub(noon) != 5*24*time.Hour || row.Attempts != attempts || attempts != 5*24+1 {
		t.Errorf("%+v after %d attempts", row, attempts)
	}
}

// The loop finds what nobody told it of; a wake-up only makes it sooner.
func TestT21_PollingAloneFindsTheRow(t *testing.T) {
	for name, woken := range map[string]bool{"poll": false, "wake": true} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			sent, ticks, looks := make(chan struct{}), make(chan time.Time), make(chan struct{}, 100)
			d := b.dispatcher(func(context.Context, outbox.Row) error { close(sent); return nil }, func(c *outbox.Config) {
				c.After = func(time.Duration) <-chan time.Time { looks <- struct{}{}; return ticks }
			})
			run(t, d, func() {
				wait(t, looks) // it has looked, found nothing and waits
				b.enqueue("d", "", "a")
				if woken {
					d.Wake()
				} else {
					select {
					case ticks <- noon:
					case <-time.After(20 * time.Second):
						t.Error("the loop does not poll")
					}
				}
				wait(t, sent)
			})
		})
	}
}

func TestTheLoopSleepsUntilTheNextRowIsDueAtMost(t *testing.T) {
	b := newBox(t)
	s := &sends{answer: func(outbox.Row) error { return errors.New("down") }}
	b.enqueue("d", "", "a")
	pauses := make(chan time.Duration, 100)
	d := b.dispatcher(s.send, func(c *outbox.Config) {
		c.Poll = time.Hour
		c.After = func(p time.Duration) <-chan time.Time { pauses <- p; return nil }
	})
	run(t, d, func() {
		for {
			select {
			case p := <-pauses:
				if p == 500*time.Millisecond { // half of 1 s, as jitter says
					return
				}
			case <-time.After(20 * time.Second):
				t.Error("it never waited for the row that failed")
				return
			}
		}
	})
}

// A replica that stops gives its claims back, so that the next one need not wait.
func TestStoppingGivesClaimsBack(t *testing.T) {
	b, sending := newBox(t), make(chan struct{})
	b.enqueue("d", "", "a")
	d := b.dispatcher(func(ctx context.Context, _ outbox.Row) error { close(sending); <-ctx.Done(); return ctx.Err() }, nil)
	run(t, d, func() { wait(t, sending) })
	if row := b.get("d", "a"); row.State != outbox.Pending || row.Holder != "" || !row.DueAt.Equal(noon) {
		t.Errorf("%+v", row)
	}
	b.round(b.dispatcher((&sends{}).send, nil), outbox.Report{Claimed: 1, Sent: 1})
}

// What was sent and could not be recorded is sent again under the same id.
func TestT46_AnOutcomeThatWasNotRecordedIsSettledByAnotherSend(t *testing.T) {
	b, s := newBox(t), &sends{}
	b.enqueue("d", "", "a")
	updates := 0
	d := b.dispatcher(s.send, func(c *outbox.Config) {
		c.Update = func(ctx context.Context, fn func(outbox.Tx) error) error {
			if updates++; updates == 2 {
				return errors.New("commit failed")
			}
			return b.transact(ctx, fn)
		}
	})
	if r, err := d.RunOnce(t.Context()); err == nil || r != (outbox.Report{Claimed: 1}) {
		t.Errorf("%+v, %v", r, err)
	}
	b.round(d, outbox.Report{})
	b.advance(time.Minute)
	b.round(d, outbox.Report{Claimed: 1, Sent: 1})
	if s.String() != "[a a]" {
		t.Errorf("sent %s", s)
	}
}

// A store may run a transaction's function again after an outcome it could not learn:
// the second run must not end a row that was replayed in between (T11).
func TestT11_ARepeatedRecordDoesNotEndAReplayedRow(t *testing.T) {
	b := newBox(t)
	s := &sends{}
	b.enqueue("d", "", "a")
	updates := 0
	d := b.dispatcher(s.send, func(c *outbox.Config) {
		c.Update = func(ctx context.Context, fn func(outbox.Tx) error) error {
			if updates++; updates != 2 {
				return b.transact(ctx, fn)
			}
			replay := func(tx outbox.Tx) error {
				return outbox.Replay(ctx, tx, outbox.Ref{Destination: "d", ID: "a"}, b.clock())
			}
			return errors.Join(b.transact(ctx, fn), b.transact(ctx, replay), b.transact(ctx, fn))
		}
	})
	// One round only: the replayed row is due again at once.
	ctx, cancel := context.WithCancel(context.Background())
	s.answer = func(outbox.Row) error { cancel(); return &delivery.RefusedError{Status: 400} }
	if r, err := d.RunOnce(ctx); r != (outbox.Report{Claimed: 1, Stale: 1}) {
		t.Errorf("%+v, %v", r, err)
	}
	if row := b.get("d", "a"); row.State != outbox.Pending {
		t.Errorf("%+v", row)
	}
}

// knowing is a transaction that knows its database's time.
type knowing struct {
	outbox.Tx
	now time.Time
}

func (k knowing) Now(context.Context) (time.Time, error) { return k.now, nil }

func TestT41_ATransactionThatKnowsTheTimeIsAsked(t *testing.T) {
	b, s := newBox(t), &sends{}
	b.enqueue("d", "", "a")
	d := b.dispatcher(s.send, func(c *outbox.Config) {
		c.Clock = func() time.Time { t.Error("the process's clock was asked"); return noon }
		with := func(ctx context.Context, fn func(outbox.Tx) error) error {
			return b.transact(ctx, func(tx outbox.Tx) error { return fn(knowing{tx, noon.Add(time.Hour)}) })
		}
		c.Update, c.View = with, with
	})
	b.round(d, outbox.Report{Claimed: 1, Sent: 1})
	if row := b.get("d", "a"); !row.EndedAt.Equal(noon.Add(time.Hour)) {
		t.Errorf("%+v", row)
	}
}

func TestADispatcherThatLacksSomethingIsNotMade(t *testing.T) {
	if _, err := outbox.New(outbox.Config{}); err == nil {
		t.Error("made")
	}
}
