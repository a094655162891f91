package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/client/clienttest"
)

const sandboxID = holdfast.SandboxID("sb-00000000000000000000000000")

// script answers the first calls with errors, then lets them through.
func script(errs ...error) func(context.Context, clienttest.Call) error {
	return func(context.Context, clienttest.Call) error {
		if len(errs) == 0 {
			return nil
		}
		err := errs[0]
		errs = errs[1:]
		return err
	}
}

func repeat(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func unavailable() *holdfast.Error {
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
}

func half() float64 { return 0.5 }

// lifecycle calls each lifecycle method on a client.
func lifecycle() map[holdfast.OperationKind]func(context.Context, *client.Client) error {
	in := holdfast.MutateSandbox{ID: sandboxID}
	return map[holdfast.OperationKind]func(context.Context, *client.Client) error{
		holdfast.OperationCreate: func(ctx context.Context, c *client.Client) error {
			_, err := c.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "r-1", Environment: "base"})
			return err
		},
		holdfast.OperationSuspend: func(ctx context.Context, c *client.Client) error {
			_, err := c.SuspendSandbox(ctx, in)
			return err
		},
		holdfast.OperationResume: func(ctx context.Context, c *client.Client) error { _, err := c.ResumeSandbox(ctx, in); return err },
		holdfast.OperationDelete: func(ctx context.Context, c *client.Client) error { _, err := c.DeleteSandbox(ctx, in); return err },
	}
}

// contract: A9
func TestA9_TheWaitDoublesFrom250msTo5sUnderFullJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := clienttest.New()
		fake.Before = script(repeat(8, unavailable())...)
		var waits []time.Duration
		c := client.Over(fake.Services(), client.WithRandom(half), client.WithRetryNotice(func(r client.Retry) { waits = append(waits, r.Wait) }))
		start := time.Now()
		if err := lifecycle()[holdfast.OperationCreate](t.Context(), c); err != nil {
			t.Fatal(err)
		}
		const ms = time.Millisecond
		want := []time.Duration{125 * ms, 250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 2500 * ms, 2500 * ms, 2500 * ms}
		if !slices.Equal(waits, want) {
			t.Errorf("waited %v, want %v", waits, want)
		}
		if got := time.Since(start); got != 11375*ms {
			t.Errorf("took %v", got)
		}
	})
}

// contract: A9 (trap T25)
func TestT25_NoNumberOfAttemptsAndNoAnswerMakesTheWaitLeaveItsBounds(t *testing.T) {
	for _, asked := range []time.Duration{-time.Hour, 0, time.Second, time.Hour, 1<<63 - 1} {
		synctest.Test(t, func(t *testing.T) {
			for _, random := range []float64{0, 0.999} {
				fake := clienttest.New()
				fake.Before = script(repeat(80, unavailable().Retry(asked))...)
				c := client.Over(fake.Services(), client.WithRandom(func() float64 { return random }), client.WithOverallTimeout(time.Hour),
					client.WithRetryNotice(func(r client.Retry) {
						if r.Wait < 0 || r.Wait > 5*time.Second || asked > 0 && r.Wait < min(asked, 5*time.Second) {
							t.Errorf("asked for %v, attempt %d: waits %v", asked, r.Attempt, r.Wait)
						}
					}))
				if err := lifecycle()[holdfast.OperationResume](t.Context(), c); holdfast.CodeOf(err) != holdfast.NotFound {
					t.Errorf("asked for %v: %v", asked, err)
				}
			}
		})
	}
}

// contract: A9
func TestA9_EachAttemptHasAFreshDeadlineAndAllHaveOne(t *testing.T) {
	for kind, call := range lifecycle() {
		synctest.Test(t, func(t *testing.T) {
			fake := clienttest.New()
			attempts := 0
			fake.Before = func(ctx context.Context, _ clienttest.Call) error {
				attempts++
				deadline, ok := ctx.Deadline()
				if left := time.Until(deadline); !ok || left > 30*time.Second || attempts == 1 && left != 30*time.Second {
					t.Errorf("attempt %d has %v", attempts, left)
				}
				<-ctx.Done()
				return ctx.Err()
			}
			start := time.Now()
			err := call(t.Context(), client.Over(fake.Services()))
			var incomplete *client.IncompleteError
			if !errors.As(err, &incomplete) || holdfast.CodeOf(err) != holdfast.DeadlineExceeded {
				t.Fatalf("%s: given up with %v", kind, err)
			}
			if took := time.Since(start); took > 5*time.Minute || took < 5*time.Minute-5*time.Second || attempts < 8 {
				t.Errorf("%s: given up after %v and %d attempts", kind, took, attempts)
			}
			if kind == holdfast.OperationCreate {
				in, ok := incomplete.Request.(holdfast.CreateSandbox)
				if incomplete.RequestID != "r-1" || !ok || in.RequestID != "r-1" {
					t.Errorf("the request was not kept: %+v", incomplete)
				}
			} else if in, ok := incomplete.Request.(holdfast.MutateSandbox); !ok || in.ID != sandboxID {
				t.Errorf("the request was not kept: %+v", incomplete)
			}
		})
	}
}

// contract: A8, A9
func TestA9_WhatIsGoneOnThroughAndWhatIsReturned(t *testing.T) {
	const create, suspend, resume, remove = holdfast.OperationCreate, holdfast.OperationSuspend, holdfast.OperationResume, holdfast.OperationDelete
	all := []holdfast.OperationKind{create, suspend, resume, remove}
	claimed := func(kind holdfast.OperationKind) *holdfast.Error {
		return holdfast.E(holdfast.Aborted, holdfast.ReasonClaimed, "busy").With("kind", string(kind))
	}
	tests := map[string]struct {
		err  error
		goOn []holdfast.OperationKind
	}{
		"UNAVAILABLE":               {unavailable(), all},
		"UNAVAILABLE NO_CAPACITY":   {holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "full"), all},
		"DEADLINE_EXCEEDED":         {holdfast.E(holdfast.DeadlineExceeded, holdfast.ReasonUnreachable, "late"), all},
		"claimed by a create":       {claimed(create), []holdfast.OperationKind{create, remove}},
		"claimed by a suspend":      {claimed(suspend), []holdfast.OperationKind{create, suspend, remove}},
		"claimed by a resume":       {claimed(resume), []holdfast.OperationKind{create, resume, remove}},
		"claimed by a delete":       {claimed(remove), []holdfast.OperationKind{create, remove}},
		"claimed, not said by whom": {holdfast.E(holdfast.Aborted, holdfast.ReasonClaimed, "busy"), []holdfast.OperationKind{create, remove}},
		"CONFLICT":                  {holdfast.E(holdfast.Aborted, holdfast.ReasonConflict, "other").With("kind", "SUSPEND"), nil},
		"SUPERSEDED":                {holdfast.E(holdfast.Aborted, holdfast.ReasonSuperseded, "gave way"), nil},
		"ABORTED GENERATION":        {holdfast.E(holdfast.Aborted, holdfast.ReasonGeneration, "moved"), nil},
		"CANCELLED":                 {holdfast.E(holdfast.Cancelled, holdfast.ReasonUnreachable, "stopped"), nil},
		"RESOURCE_EXHAUSTED":        {holdfast.E(holdfast.ResourceExhausted, holdfast.ReasonTooLarge, "quota"), nil},
		"FAILED_PRECONDITION":       {holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "state"), nil},
		"ALREADY_EXISTS":            {holdfast.E(holdfast.AlreadyExists, holdfast.ReasonRequestReused, "reused"), nil},
		"INVALID_ARGUMENT":          {holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "bad"), nil},
		"UNAUTHENTICATED":           {holdfast.E(holdfast.Unauthenticated, holdfast.ReasonUnknown, "who"), nil},
		"PERMISSION_DENIED":         {holdfast.E(holdfast.PermissionDenied, holdfast.ReasonUnknown, "no"), nil},
		"INTERNAL":                  {holdfast.E(holdfast.Internal, holdfast.ReasonBug, "bug"), nil},
		"UNIMPLEMENTED":             {holdfast.E(holdfast.Unimplemented, holdfast.ReasonNotCapable, "cannot"), nil},
		"OUT_OF_RANGE":              {holdfast.E(holdfast.OutOfRange, holdfast.ReasonBadField, "beyond"), nil},
	}
	for name, test := range tests {
		for kind, call := range lifecycle() {
			synctest.Test(t, func(t *testing.T) {
				fake := clienttest.New()
				passed := holdfast.E(holdfast.Internal, "PASSED", "the attempt after it")
				fake.Before = script(test.err, passed)
				err := call(t.Context(), client.Over(fake.Services()))
				wentOn := errors.Is(err, passed)
				if want := slices.Contains(test.goOn, kind); wentOn != want || !wentOn && !errors.Is(err, test.err) {
					t.Errorf("%s on %s: went on %v, want %v (%v)", name, kind, wentOn, want, err)
				}
				var incomplete *client.IncompleteError
				if got, want := errors.As(err, &incomplete), name == "CANCELLED"; got != want {
					t.Errorf("%s on %s: incomplete %v, want %v", name, kind, got, want)
				}
			})
		}
	}
}

// contract: A3, A9 (trap T1)
func TestT1_ALostAnswerMakesNoSecondSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := clienttest.New()
		fake.After = script(repeat(3, unavailable())...)
		got, err := client.Over(fake.Services()).CreateSandbox(t.Context(), holdfast.CreateSandbox{Environment: "base"})
		if err != nil {
			t.Fatal(err)
		}
		page, err := client.Over(fake.Services()).ListSandboxes(t.Context(), holdfast.ListSandboxes{})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != got.ID {
			t.Errorf("there are %d sandboxes (%v)", len(page.Sandboxes), err)
		}
	})
}

// contract: A3, A10
func TestA10_AMintedRequestIDIsToldBeforeItIsUsedAndKeptThroughout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := clienttest.New()
		fake.Before = script(repeat(3, unavailable())...)
		var told []string
		c := client.Over(fake.Services(), client.WithMintedRequestID(func(method, id string) {
			if len(fake.Calls("")) != 0 || method != "CreateSandbox" {
				t.Errorf("told of %s after the first call", method)
			}
			told = append(told, id)
		}))
		if _, err := c.CreateSandbox(t.Context(), holdfast.CreateSandbox{Environment: "base"}); err != nil {
			t.Fatal(err)
		}
		calls := fake.Calls("CreateSandbox")
		if len(told) != 1 || len(calls) != 4 {
			t.Fatalf("told %v, called %d times", told, len(calls))
		}
		for _, call := range calls {
			if id := call.In.(holdfast.CreateSandbox).RequestID; id != told[0] {
				t.Errorf("called with %q, told %q", id, told[0])
			}
		}
		if _, err := c.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "mine", Environment: "base"}); err != nil || len(told) != 1 {
			t.Errorf("a given id was told: %v %v", told, err)
		}
	})
}

// contract: A4, A8
func TestA4_DeletingWhatIsNotThereIsDone(t *testing.T) {
	got, err := client.Over(clienttest.New().Services()).DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sandboxID})
	if err != nil || got.ID != sandboxID || got.State != holdfast.SandboxDeleted {
		t.Errorf("%+v %v", got, err)
	}
}

// contract: A2, A9
func TestA9_ACancelledCallKeepsItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		fake := clienttest.New()
		fake.Before = func(ctx context.Context, _ clienttest.Call) error { cancel(); <-ctx.Done(); return ctx.Err() }
		_, err := client.Over(fake.Services()).CreateSandbox(ctx, holdfast.CreateSandbox{Environment: "base"})
		var incomplete *client.IncompleteError
		if !errors.As(err, &incomplete) || incomplete.RequestID == "" || holdfast.CodeOf(err) != holdfast.Cancelled {
			t.Errorf("got %v", err)
		}
	})
}

func TestT7_BadInputNeverLeavesTheClient(t *testing.T) {
	fake := clienttest.New()
	told := 0
	c := client.Over(fake.Services(), client.WithMintedRequestID(func(string, string) { told++ }))
	_, create := c.CreateSandbox(t.Context(), holdfast.CreateSandbox{})
	_, suspend := c.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: "x"})
	_, start := c.StartProcess(t.Context(), sandboxID, holdfast.StartProcess{})
	_, stat := c.StatFile(t.Context(), sandboxID, "relative")
	signal := c.SignalProcess(t.Context(), sandboxID, "pr-1", "nine")
	for _, err := range []error{create, suspend, start, stat, signal} {
		if holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("got %v", err)
		}
	}
	if len(fake.Calls("")) != 0 || told != 0 {
		t.Errorf("%v was sent, %d ids told", fake.Calls(""), told)
	}
	if _, err := client.New("localhost:7420"); err == nil {
		t.Error("a server without a scheme passed")
	}
}
