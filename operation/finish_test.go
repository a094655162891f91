package operation_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/operation"
)

func TestFinish_EndsTheOperationAndGivesTheClaimBack(t *testing.T) {
	why := &operation.Failure{Code: "FAILED_PRECONDITION", Reason: "NO_SUCH_IMAGE", Message: "no image base"}
	for _, out := range []operation.Outcome{done, {State: operation.StateFailed, Failure: why},
		{State: operation.StateSuperseded, By: "op2"}} {
		w := newWorld(t)
		w.record("op", sandbox, "CREATE")
		at := epoch.Add(time.Second)
		if err := w.finish(w.take("op", epoch, 0), at, out); err != nil {
			t.Fatal(err)
		}
		o := w.get("op")
		if o.State != out.State || !o.FinishedAt.Equal(at) || o.Holder != "" || !o.ClaimExpires.IsZero() || o.SupersededBy != out.By {
			t.Errorf("%s: %+v", out.State, o)
		}
		if d := cmp.Diff(out.Failure, o.LastError); d != "" {
			t.Error(d)
		}
		_, err := w.tryTake("op", at, 0)
		wantErr(t, err, operation.ErrEnded)
	}
}

func TestFinish_RefusesAnEndThatMakesNoSense(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	c := w.take("op", epoch, 0)
	for _, out := range []operation.Outcome{{}, {State: operation.StatePending}, {State: operation.StateFailed},
		{State: operation.StateDone, Failure: &operation.Failure{}}, {State: operation.StateDone, By: "op2"}} {
		if err := w.finish(c, epoch, out); err == nil || errors.Is(err, operation.ErrFenced) {
			t.Errorf("%+v: %v", out, err)
		}
	}
	if o := w.get("op"); o.State != operation.StatePending {
		t.Errorf("it ended: %+v", o)
	}
}

func TestEnd_AFinalFactEndsItOnceWhateverTheClaim(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	c := w.take("op", epoch, 0)
	o := w.end("op", epoch)
	if o.State != operation.StateFailed || o.Claim != c.Number+1 || o.LastError.Reason != "INSTANCE_EXITED" {
		t.Errorf("%+v", o)
	}
	err := update(w.db, func(tx operation.Tx) error {
		_, err := operation.End(context.Background(), tx, epoch, "op", done)
		return err
	})
	var ended *operation.EndedError
	if !errors.As(err, &ended) || ended.Operation.State != operation.StateFailed {
		t.Errorf("got %v, want the end that was first", err)
	}
	err = update(w.db, func(tx operation.Tx) error {
		_, err := operation.End(context.Background(), tx, epoch, "nobody", done)
		return err
	})
	wantErr(t, err, operation.ErrNotFound)
}

// contract: A7
func TestA7_OnlyWhatNobodyWorksOnIsSuperseded(t *testing.T) {
	w := newWorld(t)
	w.record("op1", sandbox, "SUSPEND")
	c := w.take("op1", epoch, 0)
	supersede := func(tx operation.Tx) error {
		return operation.Supersede(context.Background(), tx, epoch, "op1", "op2")
	}
	wantErr(t, update(w.db, supersede), operation.ErrHeld)
	if err := w.release(c, epoch, operation.Report{Failure: &operation.Failure{Code: "UNAVAILABLE"}}); err != nil {
		t.Fatal(err)
	}
	w.must(supersede)
	o := w.get("op1")
	if o.State != operation.StateSuperseded || o.SupersededBy != "op2" || o.LastError == nil || o.FinishedAt.IsZero() {
		t.Errorf("%+v", o)
	}
	w.record("op2", sandbox, "DELETE")
	wantErr(t, update(w.db, supersede), operation.ErrEnded)
}

// contract: A7
func TestA7_IssuedIsRecordedBeforeTheCallAndClearedWhenNothingWasBegun(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "SUSPEND")
	for _, clear := range []bool{false, true} {
		c := w.take("op", epoch, 0)
		w.must(func(tx operation.Tx) error { return operation.Issue(context.Background(), tx, epoch, c) })
		if !w.get("op").Issued {
			t.Fatal("not issued")
		}
		if err := w.release(c, epoch, operation.Report{ClearIssued: clear}); err != nil {
			t.Fatal(err)
		}
		if got := w.get("op").Issued; got == clear {
			t.Errorf("clear %v: issued %v", clear, got)
		}
	}
}

// contract: A15. Only answered attempts count, and time counts only between answers that follow each other.
func TestA15_OnlyAnsweredAttemptsCountTowardsGivingUp(t *testing.T) {
	w := newWorld(t)
	w.record("op", sandbox, "CREATE")
	attempt := func(from, length time.Duration, r operation.Report) operation.Operation {
		t.Helper()
		c := w.take("op", epoch.Add(from), 0)
		if err := w.release(c, epoch.Add(from+length), r); err != nil {
			t.Fatal(err)
		}
		return w.get("op")
	}
	answered := operation.Report{Answered: true, Failure: &operation.Failure{Code: "INTERNAL"}}
	steps := []struct {
		name     string
		report   operation.Report
		from     time.Duration
		answered int
		for_     time.Duration
	}{
		{"answered", answered, 0, 1, 10 * time.Second},
		{"answered again, the pause between included", answered, 60 * time.Second, 2, 70 * time.Second},
		{"unreachable", operation.Report{Failure: &operation.Failure{Code: "UNAVAILABLE"}}, 2 * time.Minute, 2, 70 * time.Second},
		{"answered after that, without the gap", answered, time.Hour, 3, 80 * time.Second},
		{"waits for something named", operation.Report{Answered: true, WaitsFor: "image"}, 2 * time.Hour, 3, 80 * time.Second},
	}
	for _, s := range steps {
		o := attempt(s.from, 10*time.Second, s.report)
		if o.Answered != s.answered || o.AnsweredFor != s.for_ {
			t.Errorf("%s: answered %d for %s, want %d for %s", s.name, o.Answered, o.AnsweredFor, s.answered, s.for_)
		}
	}
	// A holder that never came back tells nothing, so the gap does not count either.
	attempt(3*time.Hour, 10*time.Second, answered)
	w.take("op", epoch.Add(4*time.Hour), 0)
	if o := attempt(5*time.Hour, 10*time.Second, answered); o.Answered != 5 || o.AnsweredFor != 100*time.Second || o.Attempts != 8 {
		t.Errorf("after a lost holder: %+v", o)
	}
}

// trap T31
func TestT31_AttemptsNeverPushTheDeadlineOut(t *testing.T) {
	w := newWorld(t)
	first := w.record("op", sandbox, "CREATE")
	for i := range 5 {
		at := epoch.Add(time.Duration(i) * time.Hour)
		if err := w.release(w.take("op", at, 0), at, operation.Report{Backoff: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	if o := w.get("op"); !o.Deadline.Equal(first.Deadline) || !o.EnteredAt.Equal(first.EnteredAt) {
		t.Errorf("moved: %+v", o)
	}
}

// contract: C6
func TestC6_ClaimsOfDeadHoldersAreReleasedAtStart(t *testing.T) {
	w := newWorld(t)
	other := operation.Resource{Kind: "sandbox", ID: "sbx_2"}
	w.record("op1", sandbox, "CREATE")
	w.record("op2", other, "CREATE")
	w.record("op3", operation.Resource{Kind: "sandbox", ID: "sbx_3"}, "CREATE")
	w.take("op1", epoch, 0)
	if err := w.release(w.take("op2", epoch, 0), epoch, operation.Report{Backoff: time.Minute}); err != nil {
		t.Fatal(err)
	}
	var n int
	at := epoch.Add(time.Second)
	w.must(func(tx operation.Tx) (err error) {
		n, err = operation.ReleaseHolders(context.Background(), tx, at)
		return err
	})
	if n != 1 {
		t.Errorf("released %d claims, want 1", n)
	}
	w.take("op1", at, 0)
	if o := w.get("op2"); !o.UpdatedAt.Equal(epoch) {
		t.Errorf("touched what nobody held: %+v", o)
	}
}
