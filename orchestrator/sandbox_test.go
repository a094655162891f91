package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// contract: A3
func TestA3_T1_RepeatedCreateIsTheSameSandboxAndOneBoot(t *testing.T) {
	h := newHarness(t)
	first := h.mustCreate("r1")
	if first.State != holdfast.SandboxReady || first.Operation != nil {
		t.Fatalf("created: %+v", first)
	}
	second := h.mustCreate("r1")
	if second.ID != first.ID || !second.ExpiresAt.Equal(first.ExpiresAt) {
		t.Fatalf("the repeat is %s expiring %s, the first %s expiring %s", second.ID, second.ExpiresAt, first.ID, first.ExpiresAt)
	}
	if n := len(h.fleet.levels()); n != 1 {
		t.Fatalf("%d levels were issued, want 1", n)
	}
	if other := h.mustCreate("r2"); other.ID == first.ID {
		t.Fatal("another request id gave the same sandbox")
	}
}

// contract: A3
func TestA3_T2_OtherInputIsRefusedNamingTheFields(t *testing.T) {
	h := newHarness(t)
	first := h.mustCreate("r1")
	_, err := h.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "r1", Environment: "base", Name: "x", TTL: time.Minute})
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	e := holdfast.AsError(err)
	if e.Details["fields"] != "name, ttl" || e.Resource != string(first.ID) {
		t.Fatalf("details %v on %s", e.Details, e.Resource)
	}
}

// contract: A3
func TestA3_T3_RepeatAfterDeleteIsTheTombstone(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	again := h.mustCreate("r1")
	if again.ID != sb.ID || again.State != holdfast.SandboxDeleted || again.DeletedAt.IsZero() {
		t.Fatalf("repeat after delete: %+v", again)
	}
	if h.fleet.boots[holdfast.InstanceRef{Instance: sb.Instance, Incarnation: 1}] != 1 {
		t.Fatal("booted again")
	}
	// After its purge the key still answers (trap T5).
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `DELETE FROM sandbox WHERE id = $1`, string(sb.ID))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if purged := h.mustCreate("r1"); purged.ID != sb.ID || purged.State != holdfast.SandboxDeleted {
		t.Fatalf("repeat after purge: %+v", purged)
	}
}

// contract: A3
func TestA3_T4_RequestIDsAreScopedByProject(t *testing.T) {
	h := newHarness(t)
	mine := h.mustCreate("r1")
	bob := holdfast.Caller{Project: h.project("other", holdfast.QuotaChange{}).ID, Name: "bob"}
	theirs, err := h.CreateSandbox(t.Context(), bob, holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
	if err != nil || theirs.ID == mine.ID {
		t.Fatalf("%+v, %v", theirs, err)
	}
	_, err = h.GetSandbox(t.Context(), bob, mine.ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	_, err = h.DeleteSandbox(t.Context(), bob, holdfast.MutateSandbox{ID: mine.ID})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

// contract: A3
func TestA3_T7_NothingIsReservedForWrongInput(t *testing.T) {
	h := newHarness(t)
	for name, in := range map[string]holdfast.CreateSandbox{
		"no request id":       {Environment: "base"},
		"unknown environment": {RequestID: "r1", Environment: "nothere"},
		"ttl too long":        {RequestID: "r1", Environment: "base", TTL: 25 * time.Hour},
	} {
		_, err := h.CreateSandbox(t.Context(), alice, in)
		if holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := h.count(`SELECT COUNT(*) FROM request`); n != 0 {
		t.Fatalf("%d keys reserved", n)
	}
	h.mustCreate("r1")
}

// contract: A3
func TestA3_T9_AFieldThatWasNotSentIsNotInTheFingerprint(t *testing.T) {
	sent, err := fingerprintOf(holdfast.CreateSandbox{RequestID: "r", Environment: "base"})
	if err != nil {
		t.Fatal(err)
	}
	if len(sent.Fields) != 1 || sent.Fields["environment"] == "" {
		t.Fatalf("fields %v: a default is part of the fingerprint", sent.Fields)
	}
	// A release that knows more fields reads the old fingerprint as it is.
	old := fingerprint{Version: 1, Fields: map[string]string{"environment": sent.Fields["environment"]}}
	if d := old.differs(sent); len(d) != 0 {
		t.Fatalf("differs in %v", d)
	}
}

// contract: A1, A6
func TestT6_ATransientFailureStaysPendingAndTheRepeatCarriesItOn(t *testing.T) {
	h := newHarness(t)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "full").Retry(time.Second)
	})
	_, err := h.create("r1")
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonNoCapacity)
	sb := h.get(holdfast.SandboxID(holdfast.AsError(err).Resource))
	op := sb.Operation
	if sb.State != holdfast.SandboxCreating || op == nil || op.WaitsFor != "capacity" || op.Claim != nil || op.LastError.Reason != holdfast.ReasonNoCapacity || op.Next == "" {
		t.Fatalf("pending: %+v %+v", sb, op)
	}
	h.fleet.script(nil)
	if again := h.mustCreate("r1"); again.ID != sb.ID || again.State != holdfast.SandboxReady {
		t.Fatalf("carried on: %+v", again)
	}
}

// contract: A8
func TestCreateRefusedForGoodIsFailedAndTheRepeatShowsWhy(t *testing.T) {
	h := newHarness(t)
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{Instance: l.Instance, Incarnation: 1, Generation: l.Generation, State: holdfast.InstanceExited,
			Failure: &holdfast.Failure{Reason: holdfast.ReasonBootFailed, Message: "the guest died", LogTail: "panic: x"}}, nil
	})
	_, err := h.create("r1")
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonCreateFailed)
	again := h.mustCreate("r1")
	if again.State != holdfast.SandboxFailed || again.Failure.Reason != holdfast.ReasonBootFailed || again.Failure.LogTail != "panic: x" {
		t.Fatalf("%+v", again)
	}
}

// contract: A4
func TestA4_SuspendResumeDeleteAreRepeatable(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	in := holdfast.MutateSandbox{ID: sb.ID}
	steps := []struct {
		name string
		call func(context.Context, holdfast.Caller, holdfast.MutateSandbox) (holdfast.Sandbox, error)
		want holdfast.SandboxState
	}{
		{"suspend", h.SuspendSandbox, holdfast.SandboxSuspended}, {"resume", h.ResumeSandbox, holdfast.SandboxReady},
		{"delete", h.DeleteSandbox, holdfast.SandboxDeleted},
	}
	for _, step := range steps {
		for range 2 {
			got, err := step.call(t.Context(), alice, in)
			if err != nil || got.State != step.want {
				t.Fatalf("%s: %v %v", step.name, got.State, err)
			}
		}
	}
	if n := len(h.fleet.levels()); n != 4 {
		t.Fatalf("%d levels for four changes", n)
	}
	_, err := h.ResumeSandbox(t.Context(), alice, in)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	_, err = h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: holdfast.SandboxID(holdfast.IDs{}.New("sb"))})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

// contract: A2
func TestA2_TheAttemptOutlivesItsCaller(t *testing.T) {
	h := newHarness(t)
	entered, proceed := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		close(entered)
		<-proceed
		return h.fleet.reach(l)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var err error
	wg.Go(func() {
		_, err = h.CreateSandbox(ctx, alice, holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
	})
	<-entered
	cancel()
	wg.Wait()
	if holdfast.CodeOf(err) != holdfast.Cancelled {
		t.Fatalf("the caller got %v", err)
	}
	id := holdfast.SandboxID(holdfast.AsError(err).Resource)
	rung := h.done.on(string(id))
	if sb := h.get(id); sb.Operation == nil || sb.Operation.Claim == nil {
		t.Fatalf("no live claim: %+v", sb)
	}
	close(proceed)
	<-rung
	if sb := h.get(id); sb.State != holdfast.SandboxReady {
		t.Fatalf("after the attempt: %s", sb.State)
	}
}

// contract: A6
func TestA6_ALiveAttemptAnswersAbortedWithTheClaimsExpiry(t *testing.T) {
	h := newHarness(t)
	entered, proceed := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		close(entered)
		<-proceed
		return h.fleet.reach(l)
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.create("r1"); err != nil {
			t.Errorf("the holder: %v", err)
		}
	})
	<-entered
	_, err := h.create("r1")
	wantError(t, err, holdfast.Aborted, holdfast.ReasonClaimed)
	e := holdfast.AsError(err)
	if e.Details["claim_expires_at"] == "" || e.RetryAfter <= 0 || e.Details["kind"] != "CREATE" {
		t.Fatalf("details: %+v", e)
	}
	_, err = h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: holdfast.SandboxID(e.Resource)})
	wantError(t, err, holdfast.Aborted, holdfast.ReasonClaimed)
	close(proceed)
	wg.Wait()
}

// contract: A6
func TestA6_DeleteMetByALiveAttemptIsWantedAndBegunByIt(t *testing.T) {
	h := newHarness(t)
	entered := make(chan holdfast.Level, 1)
	h.fleet.script(func(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if l.Desired == holdfast.DesiredAbsent {
			return h.fleet.reach(l)
		}
		select {
		case entered <- l:
		default:
		}
		<-ctx.Done() // a host that hangs, until the attempt is asked to stop
		return holdfast.Observation{}, ctx.Err()
	})
	var wg sync.WaitGroup
	var createErr error
	wg.Go(func() { _, createErr = h.create("r1") })
	id := holdfast.SandboxID((<-entered).Spec.Owner)
	h.config.HeldWait = 10 * time.Second
	got, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: id})
	if err != nil || got.State != holdfast.SandboxDeleted {
		wg.Wait()
		t.Fatalf("delete: %+v %v; create: %v", got, err, createErr)
	}
	wg.Wait()
	wantError(t, createErr, holdfast.Aborted, holdfast.ReasonSuperseded)
}

// contract: A6
func TestA6_T11_AnExpiredHoldersLateFinishChangesNothing(t *testing.T) {
	clock := newClock()
	h := newHarness(t, func(c *Config) { c.Clock = clock.now })
	entered, proceed := make(chan struct{}), make(chan struct{})
	first := true
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if first {
			first = false
			close(entered)
			<-proceed // stopped past its claim (T14)
			return h.fleet.reach(l)
		}
		return holdfast.Observation{Instance: l.Instance, Incarnation: 1, Generation: l.Generation, State: holdfast.InstanceExited}, nil
	})
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { _, err = h.create("r1") })
	<-entered
	other := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.Exclusive = true }) // its start ends the claim, as an expiry would
	_, otherErr := other.create("r1")
	wantError(t, otherErr, holdfast.FailedPrecondition, holdfast.ReasonCreateFailed)
	close(proceed)
	wg.Wait()
	if err == nil {
		t.Fatal("the fenced holder was told success")
	}
	if sb := h.get(holdfast.SandboxID(holdfast.AsError(otherErr).Resource)); sb.State != holdfast.SandboxFailed {
		t.Fatalf("the late finish overwrote FAILED: %s", sb.State)
	}
}

// contract: C6
func TestC6_ARestartedOrchestratorCarriesItsOperationsOn(t *testing.T) {
	open := database(t)
	db, err := open()
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet()
	old := newHarnessOn(t, db, f)
	b, err := old.beginCreate(t.Context(), alice, holdfast.CreateSandbox{RequestID: "r1", Environment: "base"},
		fingerprint{Version: 1, Fields: map[string]string{"environment": "x"}}, old.newRow(alice, holdfast.CreateSandbox{Environment: "base"}, "base"))
	if err != nil || b.claim == nil {
		t.Fatalf("%+v %v", b, err) // and here the process dies, claim held
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db, err = open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	h := newHarnessOn(t, db, f, func(c *Config) { c.Exclusive = true })
	h.sweep(SweepOperations)
	if sb := h.get(b.row.ID); sb.State != holdfast.SandboxReady {
		t.Fatalf("after the restart's sweep: %s %+v", sb.State, sb.Operation)
	}
}

func TestT24_ManyRepeatsAtOnceAreOneSandbox(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.HeldWait = 10 * time.Second })
	ids := make([]holdfast.SandboxID, 32)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			sb, err := h.create("r1")
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
			ids[i] = sb.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("two sandboxes: %s and %s", id, ids[0])
		}
	}
	if n := h.count(`SELECT COUNT(*) FROM sandbox`); n != 1 {
		t.Fatalf("%d sandboxes", n)
	}
}

// lifecycle.md: a lower generation is refused downstream, and the intent is issued above it.
func TestLevelsAreIssuedAboveAGenerationThatWasSeen(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	h.fleet.mu.Lock()
	o := h.fleet.seen[sb.Instance]
	o.Generation = 41
	h.fleet.seen[sb.Instance] = o
	h.fleet.mu.Unlock()
	got, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
	if err != nil || got.State != holdfast.SandboxSuspended || got.Generation != 42 {
		t.Fatalf("%s generation %d: %v", got.State, got.Generation, err)
	}
}

func TestIfGenerationMakesAMutationConditionalAndRepeatable(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID, IfGeneration: 7})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonGeneration)
	for range 2 {
		if _, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID, IfGeneration: sb.Generation}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListPagesByStateAndLabel(t *testing.T) {
	h := newHarness(t)
	for i := range 5 {
		_, err := h.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: fmt.Sprint("r", i), Environment: "base",
			Labels: map[string]string{"parity": fmt.Sprint(i % 2)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	var ids []holdfast.SandboxID
	in := holdfast.ListSandboxes{PageSize: 2, Labels: map[string]string{"parity": "0"}, States: []holdfast.SandboxState{holdfast.SandboxReady}}
	for {
		page, err := h.ListSandboxes(t.Context(), alice, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page.Sandboxes {
			ids = append(ids, sb.ID)
		}
		if in.PageToken = page.NextPageToken; in.PageToken == "" {
			break
		}
	}
	if len(ids) != 3 {
		t.Fatalf("listed %v", ids)
	}
	for _, in := range []holdfast.ListSandboxes{{}, {PageSize: 10}, {Labels: map[string]string{"parity": "1"}}} {
		page, err := h.ListSandboxes(t.Context(), alice, in)
		if want := map[bool]int{true: 5, false: 2}[in.Labels == nil]; err != nil || len(page.Sandboxes) != want || page.NextPageToken != "" {
			t.Fatalf("%+v: %d sandboxes, want %d, %v", in, len(page.Sandboxes), want, err)
		}
	}
}

func TestTheJournalKeepsWhatWasTried(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	if _, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	page, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(sb.ID)})
	if err != nil || len(page.Operations) != 2 || page.Operations[0].Kind != holdfast.OperationSuspend || page.Operations[1].State != holdfast.OperationDone {
		t.Fatalf("%+v %v", page, err)
	}
	op, err := h.GetOperation(t.Context(), alice, page.Operations[0].ID)
	if err != nil || op.Kind != holdfast.OperationSuspend {
		t.Fatalf("%+v %v", op, err)
	}
	_, err = h.GetOperation(t.Context(), alice, holdfast.OperationID(holdfast.IDs{}.New("op")))
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

func TestAPanickingAttemptGivesItsClaimBack(t *testing.T) {
	h := newHarness(t)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) { panic(errors.New("boom")) })
	_, err := h.create("r1")
	wantError(t, err, holdfast.Internal, holdfast.ReasonBug)
	h.fleet.script(nil)
	h.mustCreate("r1")
}

// contract: A5
func TestA5_ReadingNeverMovesWorkAlong(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	before := h.get(sb.ID)
	calls := len(h.fleet.levels())
	for range 3 {
		if _, err := h.ListSandboxes(t.Context(), alice, holdfast.ListSandboxes{}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(sb.ID)}); err != nil {
			t.Fatal(err)
		}
		after := h.get(sb.ID)
		if after.State != before.State || after.Operation.Attempts != before.Operation.Attempts || !after.UpdatedAt.Equal(before.UpdatedAt) {
			t.Fatalf("reading changed %+v into %+v", before, after)
		}
	}
	if n := len(h.fleet.levels()); n != calls {
		t.Fatalf("reading issued %d levels", n-calls)
	}
	if op := before.Operation; op.Claim != nil || op.LastError == nil || op.Since.IsZero() || op.Next == "" || op.Attempts != 1 {
		t.Fatalf("the operation does not explain itself: %+v", op)
	}
}
