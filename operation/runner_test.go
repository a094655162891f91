package operation_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/operation"
)

func claimFor(id string, number int64, ttl time.Duration) operation.Claim {
	now := time.Now()
	return operation.Claim{Operation: id, Number: number, Holder: operation.NewHolder("test"), Taken: now, Expires: now.Add(ttl)}
}

// contract: A2
func TestA2_AnAttemptRunsOnWhenItsCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := operation.NewRunner(operation.RunnerConfig{})
		type key struct{}
		ctx, leave := context.WithCancel(context.WithValue(context.Background(), key{}, "trace"))
		goOn, ended := make(chan struct{}), make(chan error, 1)
		answer := make(chan error, 1)
		go func() {
			answer <- r.Do(ctx, claimFor("op", 1, time.Minute), func(ctx context.Context) error {
				<-goOn
				if ctx.Value(key{}) != "trace" {
					t.Error("the attempt lost its caller's values")
				}
				ended <- ctx.Err()
				return nil
			})
		}()
		synctest.Wait()
		leave()
		err := <-answer
		wantErr(t, err, operation.ErrDetached)
		wantErr(t, err, context.Canceled)
		if _, ok := r.Running("op"); !ok {
			t.Error("the attempt is gone")
		}
		close(goOn)
		if err := <-ended; err != nil {
			t.Errorf("the caller's leaving reached the attempt: %v", err)
		}
		synctest.Wait()
		if r.Len() != 0 {
			t.Error("the attempt is still listed")
		}
	})
}

func TestRunner_DoReturnsTheAttemptsOwnError(t *testing.T) {
	r := operation.NewRunner(operation.RunnerConfig{})
	boom := errors.New("boom")
	for _, want := range []error{nil, boom} {
		if err := r.Do(t.Context(), claimFor("op", 1, time.Minute), func(context.Context) error { return want }); err != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// contract: A6
func TestA6_AnAttemptEndsAMarginBeforeItsClaim(t *testing.T) {
	cases := []struct {
		name        string
		ttl, margin time.Duration
		skew        time.Duration // of the process's clock against the database's
		want        time.Duration
	}{
		{"a tenth by default", 20 * time.Second, 0, 0, 18 * time.Second},
		{"at most ten seconds", 2 * time.Minute, 0, 0, 110 * time.Second},
		{"as configured", time.Minute, 30 * time.Second, 0, 30 * time.Second},
		{"T42: a clock that lags gives no more than the claim had", time.Minute, time.Second, -time.Hour, 59 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := operation.NewRunner(operation.RunnerConfig{Margin: c.margin,
					Clock: func() time.Time { return time.Now().Add(c.skew) }})
				began := time.Now()
				err := r.Do(t.Context(), claimFor("op", 1, c.ttl), func(ctx context.Context) error {
					<-ctx.Done()
					closing, cancel := operation.Closing(ctx, time.Second)
					defer cancel()
					if closing.Err() != nil {
						t.Error("nothing can be recorded any more")
					}
					return context.Cause(ctx)
				})
				wantErr(t, err, operation.ErrClaimOver)
				if got := time.Since(began); got != c.want {
					t.Errorf("ended after %s, want %s", got, c.want)
				}
			})
		})
	}
}

func TestRunner_AnAttemptWithNoTimeLeftIsNotStarted(t *testing.T) {
	r := operation.NewRunner(operation.RunnerConfig{})
	err := r.Do(t.Context(), claimFor("op", 1, 0), func(context.Context) error { t.Error("started"); return nil })
	wantErr(t, err, operation.ErrNotStarted)
	wantErr(t, err, operation.ErrClaimOver)
}

// trap T13: the old goroutine outlives its claim; a new claim of the same process does not run beside it.
func TestT13_NoAttemptRunsBesideAnEarlierOneOfTheSameProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := operation.NewRunner(operation.RunnerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		letGo, asked := make(chan struct{}), make(chan error, 1)
		go func() {
			if err := r.Do(context.Background(), claimFor("op", 1, time.Minute), func(ctx context.Context) error {
				<-ctx.Done()
				asked <- context.Cause(ctx)
				<-letGo // deaf
				return nil
			}); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(2 * time.Minute) // virtual
		wantErr(t, <-asked, operation.ErrClaimOver)
		err := r.Do(context.Background(), claimFor("op", 2, time.Minute), func(context.Context) error { t.Error("started"); return nil })
		wantErr(t, err, operation.ErrNotStarted)
		wantErr(t, err, operation.ErrStillRunning)
		close(letGo)
		if err := r.Wait(t.Context(), "op"); err != nil {
			t.Fatal(err)
		}
		if err := r.Do(context.Background(), claimFor("op", 3, time.Minute), func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "outlived its claim") {
			t.Errorf("nobody was told: %q", log.String())
		}
	})
}

// contract: A7 (a delete asks the live attempt to stop)
func TestA7_StopAsksTheLiveAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := operation.NewRunner(operation.RunnerConfig{})
		if r.Stop("op") {
			t.Error("stopped what does not run")
		}
		answer := make(chan error, 1)
		go func() {
			answer <- r.Do(context.Background(), claimFor("op", 1, time.Minute), func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		if !r.Stop("op") {
			t.Error("did not find the attempt")
		}
		wantErr(t, <-answer, operation.ErrStopRequested)
	})
}

func TestRunner_APanicIsAnErrorAndKillsNothing(t *testing.T) {
	var log bytes.Buffer
	r := operation.NewRunner(operation.RunnerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	err := r.Do(t.Context(), claimFor("op", 1, time.Minute), func(context.Context) error { panic("boom") })
	var p *operation.PanicError
	if !errors.As(err, &p) || p.Value != "boom" || !strings.Contains(string(p.Stack), "runner_test.go") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(log.String(), "boom") {
		t.Errorf("not logged: %q", log.String())
	}
	err = r.Do(t.Context(), claimFor("op", 2, time.Minute), func(context.Context) error { runtime.Goexit(); return nil })
	if err == nil {
		t.Error("an attempt that left its goroutine counts as done")
	}
	if r.Len() != 0 {
		t.Error("still listed")
	}
}

// contract: C6
func TestC6_DrainRefusesNewAttemptsAndWaitsForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := operation.NewRunner(operation.RunnerConfig{})
		letGo := make(chan struct{})
		for _, id := range []string{"op2", "op1"} {
			go func() {
				if err := r.Do(context.Background(), claimFor(id, 1, time.Minute), func(context.Context) error {
					<-letGo
					return nil
				}); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := r.Drain(short)
		wantErr(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), "op1, op2") {
			t.Errorf("does not name what still runs: %v", err)
		}
		err = r.Do(t.Context(), claimFor("op3", 1, time.Minute), func(context.Context) error { return nil })
		wantErr(t, err, operation.ErrDraining)
		close(letGo)
		if err := r.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := operation.NewRunner(operation.RunnerConfig{}).Drain(t.Context()); err != nil {
		t.Errorf("nothing runs, yet: %v", err)
	}
}
