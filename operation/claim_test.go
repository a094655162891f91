package operation_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/operation"
)

// contract: A1
func TestA1_AnIntentIsRecordedWholeAndUnclaimed(t *testing.T) {
	w := newWorld(t)
	got := w.record("op1", sandbox, "CREATE")
	want := operation.Operation{ID: "op1", Resource: sandbox, Kind: "CREATE", Generation: 1, State: operation.StatePending,
		EnteredAt: epoch, Deadline: epoch.Add(time.Minute), DueAt: epoch, UpdatedAt: epoch, Input: []byte(`{"image":"base"}`)}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, w.get("op1")); d != "" {
		t.Error(d)
	}
}

// contract: A1, A6. Recorded and taken in one statement is what Record and Take leave.
func TestA6_RecordedAndTakenIsAsRecordThenTake(t *testing.T) {
	w := newWorld(t)
	w.record("op1", sandbox, "CREATE")
	want := w.take("op1", epoch, time.Minute)
	wanted := w.get("op1")
	other := newWorld(t)
	in := operation.Intent{ID: "op1", Resource: sandbox, Kind: "CREATE", Generation: 1, Deadline: epoch.Add(time.Minute), Input: []byte(`{"image":"base"}`)}
	other.must(func(tx operation.Tx) error {
		o, c, err := operation.RecordTaken(context.Background(), tx, epoch.Add(time.Nanosecond), in, operation.Attempt{Holder: want.Holder, TTL: time.Minute})
		if err != nil {
			return err
		}
		if d := cmp.Diff(want, c); d != "" {
			t.Errorf("the claim: %s", d)
		}
		if d := cmp.Diff(wanted, o); d != "" {
			t.Errorf("the operation as answered: %s", d)
		}
		return nil
	})
	if d := cmp.Diff(wanted, other.get("op1")); d != "" {
		t.Errorf("the operation as recorded: %s", d)
	}
	err := update(other.db, func(tx operation.Tx) error {
		_, _, err := operation.RecordTaken(context.Background(), tx, epoch, in, operation.Attempt{Holder: "another"})
		return err
	})
	wantErr(t, err, operation.ErrPending)
	_, err = other.tryTake("op1", epoch.Add(time.Second), 0)
	wantErr(t, err, operation.ErrHeld)
	if err := other.finish(want, epoch, done); err != nil {
		t.Errorf("its holder could not finish it: %v", err)
	}
}

// contract: A6
func TestA6_AtMostOneOperationIsPendingPerResource(t *testing.T) {
	w := newWorld(t)
	w.record("op1", sandbox, "CREATE")
	for _, id := range []string{"op2", "op1"} { // another intent, and the same one once more
		err := update(w.db, func(tx operation.Tx) error {
			_, err := operation.Record(context.Background(), tx, epoch, operation.Intent{ID: id, Resource: sandbox,
				Kind: "SUSPEND", Generation: 2, Deadline: epoch.Add(time.Minute)})
			var p *operation.PendingError
			if !errors.As(err, &p) || p.Operation.ID != "op1" {
				t.Errorf("record %s: got %v, want a PendingError that carries op1", id, err)
			}
			if _, ok, e := operation.Pending(context.Background(), tx, sandbox); e != nil || !ok {
				t.Errorf("the transaction is of no use after a refused Record: %v, %v", ok, e)
			}
			return err
		})
		wantErr(t, err, operation.ErrPending)
	}
	w.record("op3", operation.Resource{Kind: "sandbox", ID: "sbx_2"}, "CREATE")
	if err := w.finish(w.take("op1", epoch, 0), epoch, done); err != nil {
		t.Fatal(err)
	}
	w.record("op2", sandbox, "SUSPEND")
	err := update(w.db, func(tx operation.Tx) error {
		_, err := operation.Record(context.Background(), tx, epoch, operation.Intent{ID: "op1",
			Resource: operation.Resource{Kind: "sandbox", ID: "sbx_9"}, Kind: "CREATE", Generation: 1, Deadline: epoch})
		return err
	})
	wantErr(t, err, operation.ErrEnded)
}

func TestRecord_RefusesWhatIsIncomplete(t *testing.T) {
	good := operation.Intent{ID: "op", Resource: sandbox, Kind: "CREATE", Generation: 1, Deadline: epoch}
	cases := map[string]func(*operation.Intent){
		"no id":             func(i *operation.Intent) { i.ID = "" },
		"no resource kind":  func(i *operation.Intent) { i.Resource.Kind = "" },
		"no resource id":    func(i *operation.Intent) { i.Resource.ID = "" },
		"no kind":           func(i *operation.Intent) { i.Kind = "" },
		"no generation":     func(i *operation.Intent) { i.Generation = 0 },
		"no deadline":       func(i *operation.Intent) { i.Deadline = time.Time{} },
		"input is not JSON": func(i *operation.Intent) { i.Input = []byte("{") },
	}
	w := newWorld(t)
	for name, spoil := range cases {
		in := good
		spoil(&in)
		if err := update(w.db, func(tx operation.Tx) error {
			_, err := operation.Record(context.Background(), tx, epoch, in)
			return err
		}); err == nil {
			t.Errorf("%s: recorded", name)
		}
	}
}

// contract: A6
func TestA6_AClaimEndsAtMostTwoMinutesAfterItWasTaken(t *testing.T) {
	for _, c := range []struct{ ask, want time.Duration }{
		{0, 2 * time.Minute}, {time.Hour, 2 * time.Minute}, {30 * time.Second, 30 * time.Second},
	} {
		w := newWorld(t)
		w.record("op", sandbox, "CREATE")
		claim := w.take("op", epoch, c.ask)
		if got := claim.Expires.Sub(epoch); got != c.want {
			t.Errorf("asked for %s: got %s, want %s", c.ask, got, c.want)
		}
	}
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	if _, err := w.tryTake("op", epoch, -time.Second); err == nil {
		t.Error("a claim with no time was taken")
	}
}

// contract: A6
func TestA6_ALiveClaimKeepsOthersOutAndSaysUntilWhen(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	first := w.take("op", epoch, time.Minute)
	_, err := w.tryTake("op", epoch.Add(time.Minute-time.Microsecond), 0)
	var held *operation.HeldError
	if !errors.As(err, &held) || held.Holder != first.Holder || !held.Expires.Equal(epoch.Add(time.Minute)) {
		t.Fatalf("got %v, want a HeldError with holder and expiry", err)
	}
	second := w.take("op", epoch.Add(time.Minute), 0)
	if second.Number != first.Number+1 {
		t.Errorf("claim numbers %d, %d", first.Number, second.Number)
	}
	if o := w.get("op"); o.Attempts != 2 || !o.Claimed(epoch.Add(2*time.Minute)) || o.Claimed(epoch.Add(3*time.Minute)) {
		t.Errorf("unexpected: %+v", o)
	}
	_, err = w.tryTake("nobody", epoch, 0)
	wantErr(t, err, operation.ErrNotFound)
}

// trap T13
func TestT13_AHolderMeetsItsOwnLiveClaimAsAnothers(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	c := w.take("op", epoch, time.Minute)
	err := update(w.db, func(tx operation.Tx) error {
		_, _, err := operation.Take(context.Background(), tx, epoch.Add(time.Second),
			operation.Attempt{Operation: "op", Holder: c.Holder})
		return err
	})
	wantErr(t, err, operation.ErrHeld)
	if a, b := operation.NewHolder("p"), operation.NewHolder("p"); a == b {
		t.Errorf("two attempts are both %s", a)
	}
}

// traps T11, T14: the first holder was paused past its claim's end, and comes back when a second one has taken over.
func TestT11_T14_AnExpiredHolderThatComesBackLateChangesNothing(t *testing.T) {
	late := epoch.Add(3 * time.Minute)
	writes := map[string]func(ctx context.Context, tx operation.Tx, c operation.Claim) error{
		"check": func(ctx context.Context, tx operation.Tx, c operation.Claim) error {
			_, err := operation.Check(ctx, tx, late, c)
			return err
		},
		"issue": func(ctx context.Context, tx operation.Tx, c operation.Claim) error {
			return operation.Issue(ctx, tx, late, c)
		},
		"finish": func(ctx context.Context, tx operation.Tx, c operation.Claim) error {
			return operation.Finish(ctx, tx, late, c, done)
		},
		"raise": func(ctx context.Context, tx operation.Tx, c operation.Claim) error {
			_, err := operation.Raise(ctx, tx, late, c, 9)
			return err
		},
		"release": func(ctx context.Context, tx operation.Tx, c operation.Claim) error { // trap T15
			return operation.Release(ctx, tx, late, c, operation.Report{Failure: &operation.Failure{Code: "UNAVAILABLE"}})
		},
	}
	successors := map[string]func(w world){
		"taken over":    func(w world) { w.take("op", late, 0) },
		"ended by fact": func(w world) { w.end("op", late) },
		"superseded": func(w world) {
			w.must(func(tx operation.Tx) error { return operation.Supersede(context.Background(), tx, late, "op", "op2") })
		},
		"released at start": func(w world) {
			w.must(func(tx operation.Tx) error {
				_, err := operation.ReleaseHolders(context.Background(), tx, late)
				return err
			})
		},
	}
	for what, happen := range successors {
		for name, write := range writes {
			t.Run(what+"/"+name, func(t *testing.T) {
				w := newWorld(t)
				w.record("op", sandbox, "CREATE")
				first := w.take("op", epoch, 0)
				happen(w)
				before := w.get("op")
				var fenced *operation.FencedError
				// The write is committed on purpose: the fence, not the rollback, has to keep it out.
				w.must(func(tx operation.Tx) error {
					if err := write(context.Background(), tx, first); !errors.As(err, &fenced) {
						t.Errorf("got %v, want a FencedError", err)
					}
					return nil
				})
				if d := cmp.Diff(before, w.get("op")); d != "" {
					t.Errorf("a stale claim changed the row: %s", d)
				}
				if fenced != nil && fenced.FinishedHere() {
					t.Error("another's end is taken for this claim's own")
				}
			})
		}
	}
}

func (w world) end(id string, now time.Time) operation.Operation {
	w.t.Helper()
	var o operation.Operation
	w.must(func(tx operation.Tx) (err error) {
		o, err = operation.End(context.Background(), tx, now, id, operation.Outcome{State: operation.StateFailed,
			Failure: &operation.Failure{Code: "FAILED_PRECONDITION", Reason: "INSTANCE_EXITED", Message: "exit 1"}})
		return err
	})
	return o
}

// trap T15
func TestT15_AClaimIsReleasedOnce(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	c := w.take("op", epoch, 0)
	if err := w.release(c, epoch, operation.Report{}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, w.release(c, epoch, operation.Report{}), operation.ErrFenced)
	wantErr(t, w.finish(c, epoch, done), operation.ErrFenced)
	nobody := operation.Claim{Operation: "op", Number: c.Number} // as the row is now: held by nobody
	wantErr(t, w.finish(nobody, epoch, done), operation.ErrFenced)
	if o := w.get("op"); o.State != operation.StatePending || o.Holder != "" || !o.ClaimExpires.IsZero() {
		t.Errorf("after a release: %+v", o)
	}
	w.take("op", epoch, 0) // at once: nobody waits for a claim that was given back
}

// A claim that ran out is still its holder's to finish while nobody took over: effect and record meet (contract: A2).
// Beginning something new is another matter.
func TestA2_AnExpiredClaimMayRecordButNotBegin(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	c := w.take("op", epoch, time.Minute)
	late := epoch.Add(time.Minute)
	err := update(w.db, func(tx operation.Tx) error { return operation.Issue(context.Background(), tx, late, c) })
	wantErr(t, err, operation.ErrFenced)
	err = update(w.db, func(tx operation.Tx) error {
		_, err := operation.Check(context.Background(), tx, late, c)
		return err
	})
	wantErr(t, err, operation.ErrFenced)
	if err := w.finish(c, late, done); err != nil {
		t.Errorf("a holder that nobody replaced could not record what it did: %v", err)
	}
}

// trap T46
func TestT46_ASecondFinishAfterAnUnknownCommitMeetsItsOwnEnd(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	c := w.take("op", epoch, 0)
	if err := w.finish(c, epoch, done); err != nil {
		t.Fatal(err)
	}
	err := w.finish(c, epoch, done)
	var fenced *operation.FencedError
	if !errors.As(err, &fenced) || !fenced.FinishedHere() || fenced.Operation.State != operation.StateDone {
		t.Errorf("got %v, want a FencedError that knows its own end", err)
	}
}

// contract: A6. Many at once, on one file: one wins, and each of the others learns who.
func TestA6_OneOfManyConcurrentTakersWins(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	var wins, held atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, err := w.tryTake("op", epoch, 0)
			switch {
			case err == nil:
				wins.Add(1)
			case errors.Is(err, operation.ErrHeld):
				held.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 || held.Load() != 15 {
		t.Errorf("%d won, %d were told that it is held", wins.Load(), held.Load())
	}
}
