package orchestrator

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// contract: E2, B3. 50 sessions wait for one environment. Its build is superseded, and
// reports nevertheless; the ready of the one that took its place comes three times, two
// of them at once. Each session advances once, and each preparation is enqueued once.
func TestE2_FiftySessionsOfOneEnvironmentAdvanceOnceWhateverItsBuildsReport(t *testing.T) {
	w := newWorkshop(t)
	recipe := tools
	recipe.Repository = &holdfast.Repository{URL: "https://example.com/work.git", Ref: "main"}
	w.environment(recipe)
	first := w.awaitSetup(w.build("b1").ID)
	ids := make([]holdfast.SessionID, 50)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			_, err := w.createSession(fmt.Sprint("s", i), func(in *holdfast.CreateSession) { in.Environment = "tools" })
			wantError(t, err, holdfast.Unavailable, holdfast.ReasonPreparing)
			ids[i] = holdfast.SessionID(holdfast.AsError(err).Resource)
		})
	}
	wg.Wait()
	if se := w.getSession(ids[0]); se.State != holdfast.SessionWaiting || se.Build != first.ID || se.Operation == nil || se.Operation.WaitsFor != "environment" {
		t.Fatalf("%s for %s, pending %+v", se.State, se.Build, se.Operation)
	}
	second := w.build("b2")
	if se := w.getSession(ids[49]); se.State != holdfast.SessionWaiting || se.Build != second.ID {
		t.Fatalf("%s for %s, and %s took the place of %s", se.State, se.Build, second.ID, first.ID)
	}
	w.guests.end(first.ID, 0)
	w.reports(w.awaitBuildState(first.ID, holdfast.BuildSuperseded), "late", 0)
	second = w.awaitSetup(second.ID)
	w.guests.end(second.ID, 0)
	for _, id := range []string{"d1", "d1", "d2"} {
		wg.Go(func() { w.reports(second, id, 0) })
	}
	wg.Wait()
	w.awaitBuildState(second.ID, holdfast.BuildReady)
	for _, id := range ids {
		w.eventually("it is READY", func() bool { return w.getSession(id).State == holdfast.SessionReady })
	}
	if n := w.count(`SELECT COUNT(*) FROM task WHERE system = TRUE`); n != 50 {
		t.Errorf("%d preparations were enqueued", n)
	}
	if n := w.count(`SELECT COUNT(*) FROM sandbox WHERE owner LIKE 'se-%'`); n != 50 {
		t.Errorf("%d sandboxes were made", n)
	}
	w.guests.mu.Lock()
	defer w.guests.mu.Unlock()
	for id, n := range w.guests.started {
		if n != 1 {
			t.Errorf("%s was started %d times", id, n)
		}
	}
}

// contract: E2, C2. An environment that cannot be built releases who waits for it.
func TestE2_ABuildThatFailsReleasesTheSessionsThatWaitForIt(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	_, err := w.createSession("s", func(in *holdfast.CreateSession) { in.Environment = "tools" })
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonPreparing)
	id := holdfast.SessionID(holdfast.AsError(err).Resource)
	w.guests.end(b.ID, 7)
	w.reports(b, "d1", 7)
	failed := w.awaitBuildState(b.ID, holdfast.BuildFailed)
	got := w.getSession(id)
	wantSession(t, got, nil, holdfast.SessionFailed)
	if got.Failure == nil || got.Failure.Reason != failed.Failure.Reason || got.Failure.LogTail != failed.Failure.LogTail {
		t.Errorf("the session failed with %+v, the build with %+v", got.Failure, failed.Failure)
	}
}

// trap T53, step by step: the build's end waits for the session that has found it
// BUILDING and has not committed that it waits, and then advances it. No sweep comes.
func TestT53_ABuildsEndWaitsForASessionThatBeginsToWait(t *testing.T) {
	w := newWorkshop(t)
	if !w.locksRows() {
		t.Skip("SQLite has one writer at a time")
	}
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	id := holdfast.SessionID(holdfast.IDs{}.New(holdfast.PrefixSession))
	looked, goOn, begun := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	release := sync.OnceFunc(func() { close(goOn) })
	go func() {
		begun <- w.db.Update(context.Background(), func(tx store.Tx) error {
			made, err := w.environmentFor(context.Background(), tx, alice.Project, "tools")
			if err == nil && !made.Building {
				err = fmt.Errorf("it is not BUILDING: %+v", made)
			}
			close(looked)
			<-goOn
			if err != nil {
				return err
			}
			now, err := tx.Now(context.Background())
			if err != nil {
				return err
			}
			h := held{sessionRow: w.newSession(alice, holdfast.CreateSession{Environment: "tools"}, id, made, now)}
			if err := h.sessionRow.insert(context.Background(), tx); err != nil {
				return err
			}
			return w.recordCreate(context.Background(), tx, now, &h, w.intent(holdfast.OperationCreate))
		})
	}()
	<-looked
	w.guests.end(b.ID, 0)
	var reported sync.WaitGroup
	reported.Go(func() { w.reports(b, "d1", 0) })
	t.Cleanup(reported.Wait)
	t.Cleanup(release)
	for w.count(`SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%environment_build%'`) == 0 {
		if got, err := w.GetBuild(t.Context(), alice, b.ID); err != nil || got.State == holdfast.BuildReady {
			t.Fatalf("the build's end did not wait: %s, %v", got.State, err)
		}
	}
	release()
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	w.awaitBuildState(b.ID, holdfast.BuildReady)
	w.eventually("the session that began to wait is READY", func() bool { return w.getSession(id).State == holdfast.SessionReady })
}

// contract: A13. Suspend, submit and delete at once: whatever comes first, the door is
// open or closed for all of them, nothing is pending at the end, and no task is left.
func TestA13_SuspendSubmitAndDeleteRaceToOneEnd(t *testing.T) {
	for round := range 8 {
		h := newHarness(t)
		newHooks(h)
		se := h.mustCreateSession("s")
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = h.suspendSession(se.ID) }) // ABORTED or refused is as good
		wg.Go(func() {
			_, err := h.SubmitTask(h.t.Context(), alice, holdfast.SubmitTask{RequestID: "t", Session: se.ID, Command: "true"})
			switch holdfast.CodeOf(err) {
			case "", holdfast.Aborted, holdfast.FailedPrecondition, holdfast.Unavailable:
			default:
				t.Errorf("round %d: submit: %v", round, err)
			}
		})
		wg.Go(func() { _, _ = h.DeleteSession(h.t.Context(), alice, holdfast.MutateSession{ID: se.ID, Force: true}) })
		wg.Wait()
		h.eventually("it is deleted", func() bool {
			got, err := h.DeleteSession(h.t.Context(), alice, holdfast.MutateSession{ID: se.ID, Force: true})
			h.sweep(SweepSessionOperations)
			return err == nil && got.State == holdfast.SessionDeleted
		})
		if n := h.count(`SELECT COUNT(*) FROM operation WHERE state = 'PENDING'`); n != 0 {
			t.Errorf("round %d: %d operations are pending", round, n)
		}
		h.eventually("no task is left", func() bool {
			return h.count(`SELECT COUNT(*) FROM task WHERE state = 'QUEUED' OR state = 'RUNNING'`) == 0
		})
	}
}
