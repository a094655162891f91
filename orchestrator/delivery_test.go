package orchestrator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/store"
)

// post delivers body as the source that secret and headers make it, over real HTTP.
func (h *harness) post(path, id string, kind holdfast.DeliveryKind, body any, secret []byte, header http.Header) int {
	h.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	payload := fmt.Appendf(nil, `{"type":%q,"data":%s}`, kind, data)
	server := httptest.NewServer(h.DeliveryHandler())
	defer server.Close()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, server.URL+path, bytes.NewReader(payload))
	if err != nil {
		h.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	for k, v := range delivery.Sign(secret, id, time.Now(), payload) {
		req.Header[k] = v
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		h.t.Fatal(err)
	}
	return res.StatusCode
}

func (h *harness) guestSays(id string, kind holdfast.DeliveryKind, instance holdfast.InstanceID, incarnation int64) int {
	h.t.Helper()
	header := http.Header{holdfast.HeaderInstance: {string(instance)}, holdfast.HeaderIncarnation: {strconv.FormatInt(incarnation, 10)}}
	return h.post("/deliveries/instances", id, kind, holdfast.GuestReport{Instance: instance, Incarnation: incarnation},
		delivery.InstanceSecret([]byte("key"), string(instance), incarnation), header)
}

func (h *harness) fleetSays(id string, seen holdfast.Observation) int {
	h.t.Helper()
	return h.post("/deliveries/fleet", id, holdfast.DeliveryExited, seen, []byte("fleet"), nil)
}

// pendingCreate leaves a create pending and unclaimed.
func (h *harness) pendingCreate(requestID string) holdfast.Sandbox {
	h.t.Helper()
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	})
	_, err := h.create(requestID)
	wantError(h.t, err, holdfast.Unavailable, holdfast.ReasonUnreachable)
	h.fleet.script(nil)
	return h.get(holdfast.SandboxID(holdfast.AsError(err).Resource))
}

// contract: B3, B4
func TestB3_ARepeatedDeliveryDoesNothing(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	var wg sync.WaitGroup
	for range 8 { // at once, and again after
		wg.Go(func() {
			if status := h.guestSays("ev-1", holdfast.DeliveryReady, sb.Instance, 1); status != http.StatusNoContent {
				t.Errorf("status %d", status)
			}
		})
	}
	wg.Wait()
	ready := h.get(sb.ID)
	if ready.State != holdfast.SandboxReady || ready.Operation != nil {
		t.Fatalf("after ready: %s %+v", ready.State, ready.Operation)
	}
	if status := h.guestSays("ev-1", holdfast.DeliveryReady, sb.Instance, 1); status != http.StatusNoContent {
		t.Fatalf("repeat: %d", status)
	}
	if again := h.get(sb.ID); !again.UpdatedAt.Equal(ready.UpdatedAt) {
		t.Fatal("the repeat wrote state")
	}
	if n := h.count(`SELECT COUNT(*) FROM delivery`); n != 1 {
		t.Fatalf("%d deliveries recorded", n)
	}
}

// contract: B3; the dedupe row and the effect are one transaction.
func TestB3_T16_AFailedEffectLeavesNoDeliveryBehind(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	// The effect fails: the operation's row cannot be read.
	exec := func(q string) {
		t.Helper()
		err := h.db.Update(t.Context(), func(tx store.Tx) error { _, err := tx.ExecContext(t.Context(), q); return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	exec(`ALTER TABLE operation RENAME TO operation_away`)
	if status := h.guestSays("ev-1", holdfast.DeliveryFailed, sb.Instance, 1); status < 500 {
		t.Fatalf("status %d", status)
	}
	exec(`ALTER TABLE operation_away RENAME TO operation`)
	if n := h.count(`SELECT COUNT(*) FROM delivery`); n != 0 {
		t.Fatalf("%d deliveries recorded without their effect", n)
	}
	if status := h.guestSays("ev-1", holdfast.DeliveryFailed, sb.Instance, 1); status != http.StatusNoContent {
		t.Fatalf("retry: %d", status)
	}
	if sb := h.get(sb.ID); sb.State != holdfast.SandboxFailed {
		t.Fatalf("after the retry: %s", sb.State)
	}
}

// contract: B7
func TestB7_T37_ADeliveryOfAnEarlierBootIsRecordedAndIgnored(t *testing.T) {
	h := newHarness(t)
	sb := h.pendingCreate("r1")
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE sandbox SET incarnation = 2 WHERE id = $1`, string(sb.ID))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if status := h.guestSays("ev-1", holdfast.DeliveryReady, sb.Instance, 1); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	if sb := h.get(sb.ID); sb.State != holdfast.SandboxCreating {
		t.Fatalf("an earlier boot made it %s", sb.State)
	}
	if n := h.count(`SELECT COUNT(*) FROM delivery WHERE outcome LIKE 'ignored%'`); n != 1 {
		t.Fatalf("%d recorded as ignored", n)
	}
	if status := h.fleetSays("ev-2", holdfast.Observation{Instance: sb.Instance, Incarnation: 1, State: holdfast.InstanceExited}); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	if sb := h.get(sb.ID); sb.State != holdfast.SandboxCreating {
		t.Fatalf("an earlier boot's exit made it %s", sb.State)
	}
}

// contract: B7
func TestB7_T17_ADeliveryBeforeItsRowIsVisibleComesAgain(t *testing.T) {
	h := newHarness(t)
	unknown := holdfast.InstanceID(holdfast.IDs{}.New(holdfast.PrefixInstance))
	if status := h.guestSays("ev-1", holdfast.DeliveryReady, unknown, 1); status != http.StatusServiceUnavailable {
		t.Fatalf("guest: %d", status)
	}
	if status := h.fleetSays("ev-2", holdfast.Observation{Instance: unknown, Incarnation: 1}); status != http.StatusServiceUnavailable {
		t.Fatalf("fleet: %d", status)
	}
	if n := h.count(`SELECT COUNT(*) FROM delivery`); n != 0 {
		t.Fatalf("%d recorded: the retry would be taken for a repeat", n)
	}
	sb := h.pendingCreate("r1")
	if status := h.guestSays("ev-3", holdfast.DeliveryReady, sb.Instance, 2); status != http.StatusServiceUnavailable {
		t.Fatalf("a boot not known yet: %d", status)
	}
}

// contract: B8
func TestB8_OnlyTheBootItselfReports(t *testing.T) {
	h := newHarness(t)
	mine, other := h.pendingCreate("r1"), h.pendingCreate("r2")
	header := http.Header{holdfast.HeaderInstance: {string(mine.Instance)}, holdfast.HeaderIncarnation: {"1"}}
	report := holdfast.GuestReport{Instance: mine.Instance, Incarnation: 1}
	otherSecret := delivery.InstanceSecret([]byte("key"), string(other.Instance), 1)
	if status := h.post("/deliveries/instances", "ev-1", holdfast.DeliveryReady, report, otherSecret, header); status != http.StatusUnauthorized {
		t.Fatalf("signed by another: %d", status)
	}
	header.Set(holdfast.HeaderInstance, string(other.Instance))
	if status := h.post("/deliveries/instances", "ev-1", holdfast.DeliveryReady, report, otherSecret, header); status != http.StatusBadRequest {
		t.Fatalf("about another: %d", status)
	}
	if sb := h.get(mine.ID); sb.State != holdfast.SandboxCreating {
		t.Fatalf("another made it %s", sb.State)
	}
	if status := h.post("/deliveries/fleet", "ev-1", holdfast.DeliveryExited, holdfast.Observation{}, []byte("wrong"), nil); status != http.StatusUnauthorized {
		t.Fatalf("not the fleet: %d", status)
	}
}

// lifecycle.md: the instance died by itself; FAILED is never overwritten by an older success.
func TestExitByDeliveryAndBySweepIsOneFailure(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	exited := holdfast.Observation{Instance: sb.Instance, Incarnation: 1, State: holdfast.InstanceExited,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "killed", LogTail: "last words"}}
	if status := h.fleetSays("ev-1", exited); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	failed := h.get(sb.ID)
	if failed.State != holdfast.SandboxFailed || failed.Failure.LogTail != "last words" {
		t.Fatalf("%s %+v", failed.State, failed.Failure)
	}
	h.fleet.set(sb.Instance, holdfast.InstanceExited)
	h.sweep(SweepInstances)
	if status := h.guestSays("ev-2", holdfast.DeliveryReady, sb.Instance, 1); status != http.StatusNoContent {
		t.Fatalf("late ready: %d", status)
	}
	if again := h.get(sb.ID); !again.UpdatedAt.Equal(failed.UpdatedAt) || again.State != holdfast.SandboxFailed {
		t.Fatalf("the loser wrote: %+v", again)
	}
}

// architecture.md, "One delivery": a final fact ends the operation whatever the
// claim, and the live holder is fenced.
func TestAnExitDuringALiveAttemptFencesIt(t *testing.T) {
	h := newHarness(t)
	entered, proceed := make(chan holdfast.Level, 1), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		entered <- l
		<-proceed
		return h.fleet.reach(l)
	})
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { _, err = h.create("r1") })
	level := <-entered
	if status := h.fleetSays("ev-1", holdfast.Observation{Instance: level.Instance, Incarnation: 1, State: holdfast.InstanceExited}); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	close(proceed)
	wg.Wait()
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonCreateFailed)
	if sb := h.get(holdfast.SandboxID(level.Spec.Owner)); sb.State != holdfast.SandboxFailed {
		t.Fatalf("the late success made it %s", sb.State)
	}
}

// architecture.md, "One delivery": with a live claim the fact is recorded beside
// the state, and the attempt finishes its own operation.
func TestAReadyDuringALiveAttemptIsNotedBesideTheState(t *testing.T) {
	h := newHarness(t)
	entered, proceed := make(chan holdfast.Level, 1), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		entered <- l
		<-proceed
		return h.fleet.reach(l)
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.create("r1"); err != nil {
			t.Errorf("the attempt: %v", err)
		}
	})
	level := <-entered
	if status := h.guestSays("ev-1", holdfast.DeliveryReady, level.Instance, 1); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	id := holdfast.SandboxID(level.Spec.Owner)
	if n := h.count(`SELECT COUNT(*) FROM delivery WHERE outcome = 'applied: noted'`); n != 1 {
		t.Error("the journal does not say that it was noted")
	}
	if sb := h.get(id); sb.State != holdfast.SandboxCreating || sb.Operation == nil || sb.Operation.Claim == nil {
		t.Fatalf("the delivery settled what an attempt is at: %+v", sb)
	}
	close(proceed)
	wg.Wait()
	if sb := h.get(id); sb.State != holdfast.SandboxReady {
		t.Fatalf("%s", sb.State)
	}
}

// contract: A6. The end of the attempt sees what was recorded meanwhile, though
// nobody waits for it.
func TestA6_ADeleteWantedMeanwhileIsBegunByTheAttemptsEnd(t *testing.T) {
	h := newHarness(t)
	var id holdfast.SandboxID
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		h.fleet.script(nil)
		id = holdfast.SandboxID(l.Spec.Owner)
		err := h.db.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.ExecContext(t.Context(), `UPDATE sandbox SET delete_wanted = TRUE WHERE id = $1`, l.Spec.Owner)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return h.fleet.reach(l)
	})
	_, err := h.create("r1")
	wantError(t, err, holdfast.Aborted, holdfast.ReasonSuperseded)
	if err := h.Close(); err != nil { // waits for what goes on without a caller
		t.Fatal(err)
	}
	if n := h.count(`SELECT COUNT(*) FROM operation WHERE resource_id = $1 AND kind = 'DELETE'`, string(id)); n != 1 {
		t.Errorf("%d deletes begun", n)
	}
}

// contract: B7, T37
func TestB7_AnEarlierBootsReadyIsIgnoredAlsoDuringALiveAttempt(t *testing.T) {
	h := newHarness(t)
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		err := h.db.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.ExecContext(t.Context(), `UPDATE sandbox SET incarnation = 2 WHERE instance = $1`, string(l.Instance))
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if status := h.guestSays("ev-1", holdfast.DeliveryReady, l.Instance, 1); status != http.StatusNoContent {
			t.Errorf("status %d", status)
		}
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "silent")
	})
	_, err := h.create("r1")
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
	if n := h.count(`SELECT COUNT(*) FROM delivery WHERE outcome LIKE 'ignored%'`); n != 1 {
		t.Errorf("%d recorded as ignored", n)
	}
	if n := h.count(`SELECT COUNT(*) FROM sandbox WHERE guest_said <> ''`); n != 0 {
		t.Error("an earlier boot's word was taken for the current one's")
	}
}

// lifecycle.md: in DELETING an exit changes nothing; only confirmed ABSENT ends it.
func TestAnExitInDeletingOrDeletedChangesNothing(t *testing.T) {
	h := newHarness(t)
	sb := h.mustCreate("r1")
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "silent")
	})
	_, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonHostUnreachable)
	exited := holdfast.Observation{Instance: sb.Instance, Incarnation: 1, State: holdfast.InstanceExited}
	for i, want := range []holdfast.SandboxState{holdfast.SandboxDeleting, holdfast.SandboxDeleted} {
		if status := h.fleetSays(fmt.Sprint("ev-", i), exited); status != http.StatusNoContent {
			t.Fatalf("status %d", status)
		}
		if got := h.get(sb.ID); got.State != want || got.Failure != nil {
			t.Fatalf("an exit made %s of %s", got.State, want)
		}
		h.fleet.script(nil)
		if _, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Fatal(err)
		}
	}
}

// contract: A6. The delete was recorded as wanted while a live attempt was at the
// create; that attempt sleeps past its claim, and the guest's word ends the create.
// Whoever ends it begins the delete (found by the model of sandbox_model_test.go).
func TestA6_ADeleteThatWasWantedIsBegunByTheReadyThatEndsTheCreate(t *testing.T) {
	h := newHarness(t)
	asked, asleep := make(chan holdfast.Level, 1), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		asked <- l
		<-asleep
		return h.fleet.reach(l)
	})
	created := make(chan error, 1)
	go func() { _, err := h.create("r1"); created <- err }()
	level := <-asked
	h.fleet.script(nil)
	id := holdfast.SandboxID(level.Spec.Owner)
	_, err := h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: id})
	wantError(t, err, holdfast.Aborted, holdfast.ReasonClaimed)
	err = h.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE operation SET claim_expires = 1 WHERE claim_expires > 0`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if status := h.guestSays("ev-1", holdfast.DeliveryReady, level.Instance, 1); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	sb := h.get(id)
	if sb.State != holdfast.SandboxDeleting || sb.Operation == nil || sb.Operation.Kind != holdfast.OperationDelete {
		t.Errorf("it is %s with %+v pending: the delete that was wanted is forgotten", sb.State, sb.Operation)
	}
	close(asleep)
	<-created
	h.backdate()
	h.sweep(SweepOperations)
	if sb := h.get(id); sb.State != holdfast.SandboxDeleted {
		t.Errorf("it is %s in the end", sb.State)
	}
}
