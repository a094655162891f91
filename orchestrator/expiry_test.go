package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

func TestA11_WhatTheEndBringsInEachState(t *testing.T) {
	now := time.Now()
	pending := func(kind holdfast.OperationKind, claimed bool) *operation.Operation {
		op := &operation.Operation{Kind: string(kind), State: operation.StatePending}
		if claimed {
			op.ClaimExpires = now.Add(time.Minute)
		}
		return op
	}
	refused := func(ago time.Duration, cause string) *operation.Operation {
		return &operation.Operation{Kind: "SUSPEND", State: operation.StateFailed, FinishedAt: now.Add(-ago), Input: []byte(cause)}
	}
	const byExpiry = `{"cause":"EXPIRED"}`
	const suspend, remove, nothing = holdfast.OperationSuspend, holdfast.OperationDelete, holdfast.OperationKind("")
	for _, c := range []struct {
		name     string
		state    holdfast.SandboxState
		retained bool
		end      holdfast.Expiry
		last     *operation.Operation
		want     holdfast.OperationKind
	}{
		{"ready, delete", holdfast.SandboxReady, false, holdfast.ExpiryDelete, nil, remove},
		{"ready, suspend", holdfast.SandboxReady, false, holdfast.ExpirySuspend, nil, suspend},
		{"ready, a live attempt", holdfast.SandboxReady, false, holdfast.ExpiryDelete, pending(suspend, true), nothing},
		{"ready, an abandoned one", holdfast.SandboxReady, false, holdfast.ExpiryDelete, pending(suspend, false), remove},
		{"ready, an abandoned resume", holdfast.SandboxReady, false, holdfast.ExpirySuspend, pending(holdfast.OperationResume, false), suspend},
		{"ready, suspending already", holdfast.SandboxReady, false, holdfast.ExpirySuspend, pending(suspend, false), nothing},
		{"ready, a suspension just refused", holdfast.SandboxReady, false, holdfast.ExpirySuspend, refused(time.Minute, byExpiry), nothing},
		{"ready, one refused a while ago", holdfast.SandboxReady, false, holdfast.ExpirySuspend, refused(time.Hour, byExpiry), suspend},
		{"ready, a caller's just refused", holdfast.SandboxReady, false, holdfast.ExpirySuspend, refused(time.Minute, ""), suspend},
		{"retention", holdfast.SandboxSuspended, true, holdfast.ExpirySuspend, nil, remove},
		{"retention, an abandoned resume", holdfast.SandboxSuspended, true, holdfast.ExpirySuspend, pending(holdfast.OperationResume, false), remove},
		{"failed", holdfast.SandboxFailed, true, holdfast.ExpirySuspend, nil, remove},
		{"replaced, suspend", holdfast.SandboxCreating, false, holdfast.ExpirySuspend, pending(holdfast.OperationReplace, false), nothing},
		{"replaced, delete", holdfast.SandboxCreating, false, holdfast.ExpiryDelete, pending(holdfast.OperationReplace, false), remove},
		{"replaced while suspended", holdfast.SandboxCreating, true, holdfast.ExpirySuspend, pending(holdfast.OperationReplace, false), remove},
		{"deleting", holdfast.SandboxDeleting, false, holdfast.ExpiryDelete, pending(remove, false), nothing},
		{"deleted", holdfast.SandboxDeleted, false, holdfast.ExpiryDelete, nil, nothing},
	} {
		r := row{Sandbox: holdfast.Sandbox{State: c.state, OnExpiry: c.end, ExpiresAt: now}, Retained: c.retained}
		if got := decideExpiry(r, c.last, now); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if got := decideExpiry(r, c.last, now.Add(-time.Microsecond)); got != "" {
			t.Errorf("%s: %q before its end", c.name, got)
		}
	}
}

// contract: A11
func TestA11_ALifetimeEndsByDeletionAndTheOperationSaysThatExpiryBeganIt(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	h.sweep(SweepExpiry)
	if got := h.get(sb.ID); got.State != holdfast.SandboxReady || got.Operation != nil {
		t.Fatalf("ended early: %s %+v", got.State, got.Operation)
	}
	h.overdue(sb.ID)
	h.sweep(SweepExpiry)
	h.awaitState(sb.ID, holdfast.SandboxDeleted)
	page, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(sb.ID)})
	if err != nil || page.Operations[0].Kind != holdfast.OperationDelete || page.Operations[0].Cause != holdfast.ReasonExpired {
		t.Fatalf("%+v, %v", page.Operations, err)
	}
	_, err = h.extend(sb.ID, time.Hour)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonExpired)
	if again := h.mustCreate("r1"); again.State != holdfast.SandboxDeleted {
		t.Fatalf("a repeated create made it %s", again.State)
	}
}

// contract: A11
func TestA11_ALifetimeEndsBySuspensionThenItsRetentionByDeletion(t *testing.T) {
	h := newHarness(t)
	sb, err := h.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "r1", Environment: "base", OnExpiry: holdfast.ExpirySuspend})
	if err != nil {
		t.Fatal(err)
	}
	h.overdue(sb.ID)
	h.sweep(SweepExpiry)
	around(t, "the retention", h.awaitState(sb.ID, holdfast.SandboxSuspended).ExpiresAt, holdfast.Retention)
	if got := h.mutateOK(h.ResumeSandbox, sb.ID); got.State != holdfast.SandboxReady {
		t.Fatal(got.State)
	}
	h.mutateOK(h.SuspendSandbox, sb.ID)
	h.overdue(sb.ID)
	h.sweep(SweepExpiry)
	h.awaitState(sb.ID, holdfast.SandboxDeleted)
}

// contract: A11
func TestA11_AFailedOneGoesAfterItsHour(t *testing.T) {
	h := newHarness(t)
	in := holdfast.CreateSandbox{RequestID: "r1", Environment: "base", TTL: 5 * time.Hour, OnExpiry: holdfast.ExpirySuspend}
	died, err := h.CreateSandbox(t.Context(), alice, in)
	if err != nil {
		t.Fatal(err)
	}
	h.fleet.set(died.Instance, holdfast.InstanceExited)
	h.sweep(SweepInstances)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage, "no image")
	})
	_, err = h.create("r2")
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonCreateFailed)
	h.fleet.script(nil)
	for _, id := range []holdfast.SandboxID{died.ID, holdfast.SandboxID(holdfast.AsError(err).Resource)} {
		h.sweep(SweepExpiry)
		got := h.get(id)
		if got.State != holdfast.SandboxFailed {
			t.Fatal(got.State)
		}
		around(t, "the end of its record", got.ExpiresAt, holdfast.FailedKept)
		h.overdue(id)
		h.sweep(SweepExpiry)
		h.awaitState(id, holdfast.SandboxDeleted)
	}
}

// contract: A11: whatever else is pending, unless an attempt is live.
func TestA11_ExpirySupersedesWhatNobodyAttemptsAndWaitsForWhatIs(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	silent := func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
		close(entered)
		<-leave
		return silent(ctx, l)
	})
	done := make(chan error, 1)
	go func() {
		_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
		done <- err
	}()
	<-entered
	h.overdue(sb.ID)
	h.sweep(SweepExpiry)
	if got := h.get(sb.ID); got.State != holdfast.SandboxReady || got.Operation.Kind != holdfast.OperationSuspend {
		t.Fatalf("it did not wait for the live attempt: %s %+v", got.State, got.Operation)
	}
	h.fleet.script(silent)
	close(leave)
	wantError(t, <-done, holdfast.Unavailable, holdfast.ReasonUnreachable)
	h.sweep(SweepExpiry)
	got := h.await(sb.ID, "being deleted", func(sb holdfast.Sandbox) bool { return sb.State == holdfast.SandboxDeleting })
	if got.Operation.Cause != holdfast.ReasonExpired {
		t.Fatalf("%+v", got.Operation)
	}
	_, err := h.extend(sb.ID, time.Hour)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonExpired)
	h.fleet.script(nil)
	h.backdate()
	h.await(sb.ID, "deleted", func(sb holdfast.Sandbox) bool {
		h.sweep(SweepOperations)
		return sb.State == holdfast.SandboxDeleted
	})
}

// contract: A11
func TestA11_ASuspensionThatExpiryBeganCannotBeExtendedAndAResumeSupersedesIt(t *testing.T) {
	h := newHarness(t)
	sb, err := h.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "r1", Environment: "base", OnExpiry: holdfast.ExpirySuspend})
	if err != nil {
		t.Fatal(err)
	}
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	})
	h.overdue(sb.ID)
	h.sweep(SweepExpiry)
	h.await(sb.ID, "attempted", func(sb holdfast.Sandbox) bool {
		return sb.Operation != nil && sb.Operation.Attempts > 0 && sb.Operation.Claim == nil
	})
	_, err = h.extend(sb.ID, time.Hour)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonExpired)
	_, err = h.SetSandboxLifetime(t.Context(), alice, holdfast.SetSandboxLifetime{ID: sb.ID, TTL: time.Hour})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonExpired)
	h.fleet.script(nil)
	around(t, "the lifetime after a resume", h.mutateOK(h.ResumeSandbox, sb.ID).ExpiresAt, time.Hour)
	if _, err := h.extend(sb.ID, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
}

// contract: A11, trap T43: whoever commits first wins; a renewed sandbox is never
// evicted, and one whose renewal was refused does not live on. 10,000 with
// HOLDFAST_RACES=10000.
func TestA11_T43_AnExtensionRacesTheEviction(t *testing.T) {
	races := 2000
	if n, err := strconv.Atoi(os.Getenv("HOLDFAST_RACES")); err == nil {
		races = n
	}
	if testing.Short() {
		races = 200
	}
	h := newHarness(t)
	other := newHarnessOn(t, h.db, h.fleet)
	const at = 40
	work := make(chan int)
	results := make(chan error)
	for worker := range at {
		go func() {
			for race := range work {
				results <- h.raceExpiry(other, worker, race)
			}
		}()
	}
	go func() {
		for race := range races {
			work <- race
		}
		close(work)
	}()
	renewed, evicted := 0, 0
	for range races {
		switch err := <-results; {
		case err == nil:
			renewed++
		case errors.Is(err, errEvicted):
			evicted++
		default:
			t.Error(err)
		}
	}
	t.Logf("%d renewed, %d evicted", renewed, evicted)
	if renewed == 0 || evicted == 0 {
		t.Error("it was no race")
	}
}

var errEvicted = errors.New("evicted")

// raceExpiry extends an overdue sandbox and evicts it at once, by two services,
// and returns nil when it was renewed, errEvicted when it was evicted.
func (h *harness) raceExpiry(other *harness, worker, race int) error {
	sb, err := h.create(fmt.Sprintf("race-%d-%d", worker, race))
	if err != nil {
		return err
	}
	err = h.db.Update(h.t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(h.t.Context(), `UPDATE sandbox SET expires_at = 1 WHERE id = $1`, string(sb.ID))
		return err
	})
	if err != nil {
		return err
	}
	extend := func() error { _, err := h.extend(sb.ID, time.Hour); return err }
	evict := func() error { return other.expire(h.t.Context(), sb.ID) }
	errs := make([]error, 2)
	if race%2 == 0 { // who starts last is often first
		copy(errs, raceUntil(extend, evict))
	} else {
		turned := raceUntil(evict, extend)
		errs[0], errs[1] = turned[1], turned[0]
	}
	extended, evicted := errs[0] == nil, errs[1] == nil
	switch {
	case extended == evicted:
		return fmt.Errorf("%s: %w: extension %v, eviction %v", sb.ID, errWrong, errs[0], errs[1])
	case !extended && holdfast.ReasonOf(errs[0]) != holdfast.ReasonExpired:
		return fmt.Errorf("%s: %w: a lost race answers %v", sb.ID, errWrong, errs[0])
	case extended && !errors.Is(errs[1], reconcile.ErrSkipped):
		return fmt.Errorf("%s: %w: %w", sb.ID, errWrong, errs[1])
	}
	got, err := h.GetSandbox(h.t.Context(), alice, sb.ID)
	switch {
	case err != nil:
		return err
	case extended && (got.State != holdfast.SandboxReady || got.Operation != nil || time.Until(got.ExpiresAt) < 59*time.Minute):
		return fmt.Errorf("%s: %w: renewed, and %s until %s", sb.ID, errWrong, got.State, got.ExpiresAt)
	case evicted && got.State != holdfast.SandboxDeleting && got.State != holdfast.SandboxDeleted:
		return fmt.Errorf("%s: %w: evicted, and %s", sb.ID, errWrong, got.State)
	case evicted:
		return errEvicted
	}
	return nil
}

// contract: C1, traps T19, T29: a backlog is paged by key; what does not qualify
// and what fails hide nothing.
func TestC1_T29_ExpiryPagesThroughABacklog(t *testing.T) {
	h := newHarness(t)
	held := h.pendingCreate("held") // overdue in the index, and not to be ended now
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE sandbox SET expires_at = 1, on_expiry = 'SUSPEND' WHERE id = $1`, string(held.ID))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const n = 25
	for i := range n {
		h.overdue(h.mustCreate(fmt.Sprint("r", i)).ID)
	}
	seen := map[string]int{}
	for after, pages := "", 0; ; pages++ {
		items, next, err := h.expired(t.Context(), after, 4)
		if err != nil || len(items) > 4 || pages > n {
			t.Fatalf("page %d: %d items, %v", pages, len(items), err)
		}
		for _, item := range items {
			seen[item.Key]++
			if err := item.Act(t.Context()); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
				t.Fatal(err)
			}
		}
		if next == "" {
			break
		}
		after = next
	}
	if len(seen) != n+1 {
		t.Fatalf("%d of %d were looked at", len(seen), n+1)
	}
	for key, times := range seen {
		if times != 1 {
			t.Errorf("%s came %d times", key, times)
		}
	}
	if got := h.get(held.ID); got.State != holdfast.SandboxCreating {
		t.Errorf("what cannot be suspended yet became %s", got.State)
	}
	if _, _, err := h.expired(t.Context(), "nonsense", 4); err == nil {
		t.Error("a nonsense key was taken")
	}
	if rest := h.count(`SELECT COUNT(*) FROM sandbox WHERE expires_at > 0`); rest != 1 {
		t.Errorf("%d are still in the index", rest)
	}
}
