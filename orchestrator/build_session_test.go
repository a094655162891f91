package orchestrator

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// waitFor creates sessions of the environment that is being built, some at once.
func (w *workshop) waitFor(n int) []holdfast.SessionID {
	w.t.Helper()
	ids := make([]holdfast.SessionID, n)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			in := holdfast.CreateSession{RequestID: fmt.Sprint("s", i), Environment: "tools"}
			se, err := w.CreateSession(w.t.Context(), alice, in)
			if se.ID == "" { // the call may give up waiting: the session is recorded
				se.ID = holdfast.SessionID(holdfast.AsError(err).Resource)
			}
			ids[i] = se.ID
		})
	}
	wg.Wait()
	return ids
}

func (w *workshop) sessionsIn(state holdfast.SessionState) int {
	return w.count(`SELECT COUNT(*) FROM session WHERE state = $1`, string(state))
}

// contract: E2, B3; trap T53. Sessions wait for a build that runs its setup; the build
// is superseded meanwhile; the newer one's ready comes three times, twice at once, and
// the older one's after that: each session advances once.
func TestE2_SessionsThatWaitForABuildAdvanceOnceWithItsNewest(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	first := w.awaitSetup(w.build("b1").ID)
	const n = 50
	w.waitFor(n)
	if got := w.sessionsIn(holdfast.SessionWaiting); got != n {
		t.Fatalf("%d sessions wait, want %d", got, n)
	}
	second := w.build("b2")
	w.awaitBuildState(first.ID, holdfast.BuildSuperseded)
	second = w.awaitSetup(second.ID)
	w.guests.end(second.ID, 0)
	var wg sync.WaitGroup
	for _, id := range []string{"d1", "d1", "d2"} {
		wg.Go(func() { w.reports(second, id, 0) })
	}
	wg.Wait()
	w.reports(first, "late", 0)
	second = w.awaitBuildState(second.ID, holdfast.BuildReady)
	if !testenv.Eventually(20*time.Second, func() bool { return w.sessionsIn(holdfast.SessionReady) == n }) {
		t.Fatalf("%d are READY, %d WAITING", w.sessionsIn(holdfast.SessionReady), w.sessionsIn(holdfast.SessionWaiting))
	}
	if boxes := w.count(`SELECT COUNT(*) FROM sandbox WHERE owner LIKE 'se-%'`); boxes != n {
		t.Errorf("%d sandboxes for %d sessions", boxes, n)
	}
	if uses := w.count(`SELECT COUNT(*) FROM layer_use WHERE key = $1`, second.Layers[0].Key); uses != n+1 {
		t.Errorf("%d need the build's layer, want %d", uses, n+1)
	}
}

// contract: C2, E2. The builder dies: every session that waits is released with the reason.
func TestC2_ABuilderThatDiesReleasesAllThatWaitWithItsReason(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	ids := w.waitFor(5)
	sb := w.get(b.Sandbox)
	w.fleetSays("x1", holdfast.Observation{Instance: sb.Instance, Incarnation: 1, State: holdfast.InstanceExited,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonHostRebooted, Message: "the host booted anew"}})
	w.awaitBuildState(b.ID, holdfast.BuildFailed)
	for _, id := range ids {
		se, err := w.GetSession(t.Context(), alice, id)
		if err != nil || se.State != holdfast.SessionFailed || se.Failure == nil || !strings.Contains(se.Failure.Message, "the host booted anew") {
			t.Errorf("%+v %+v %v", se, se.Failure, err)
		}
	}
}

// contract: E2. A session of a READY build begins at once, with its disk, and what
// finds no build that will do is refused, its key free for another try.
func TestE2_ASessionOfAReadyBuildBeginsAtOnce(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	in := holdfast.CreateSession{RequestID: "s1", Environment: "tools"}
	_, err := w.CreateSession(t.Context(), alice, in)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	b := w.awaitSetup(w.build("b1").ID)
	w.guests.end(b.ID, 0)
	w.reports(b, "d1", 0)
	b = w.awaitBuildState(b.ID, holdfast.BuildReady)
	se, err := w.CreateSession(t.Context(), alice, in)
	if err != nil || se.State != holdfast.SessionReady {
		t.Fatalf("%+v, %v", se, err)
	}
	if of := w.fleet.madeOf[w.get(se.Sandbox).Instance]; len(of) != 1 || of[0] != b.Layers[0] {
		t.Errorf("it is made of %v", of)
	}
}
