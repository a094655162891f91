package orchestrator

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// overheard is a harness whose project records events, and whose database itself
// notes every state that a row is given, by whichever statement.
func (h *harness) overheard() {
	h.t.Helper()
	h.events("")
	shared := false
	if err := h.db.View(h.t.Context(), func(tx store.Tx) error { shared = tx.ForUpdate() != ""; return nil }); err != nil {
		h.t.Fatal(err)
	}
	const note = `INSERT INTO trail (resource, state) VALUES (NEW.id, NEW.state);`
	if shared {
		h.exec(`CREATE TABLE trail (n BIGINT GENERATED ALWAYS AS IDENTITY, resource TEXT, state TEXT)`)
		h.exec(`CREATE FUNCTION trail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + note + ` RETURN NEW; END $$`)
	} else {
		h.exec(`CREATE TABLE trail (n INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT, state TEXT)`)
	}
	for _, table := range []string{"session", "task", "environment_build", "sandbox"} {
		do := `BEGIN ` + note + ` END`
		if shared {
			do = `EXECUTE FUNCTION trail()`
		}
		h.exec(`CREATE TRIGGER ` + table + `_made AFTER INSERT ON ` + table + ` FOR EACH ROW ` + do)
		h.exec(`CREATE TRIGGER ` + table + `_changed AFTER UPDATE ON ` + table + ` FOR EACH ROW WHEN (OLD.state <> NEW.state) ` + do)
	}
}

// told are the kinds of each resource's events, which are one for each of its states,
// in order, and carry the resource as that left it.
func (h *harness) told() map[string]string {
	h.t.Helper()
	kinds, states := map[string][]string{}, map[string][]string{}
	for _, e := range h.events("") {
		if e.Kind == holdfast.EventOperationFailed || strings.HasPrefix(string(e.Kind), "checkpoint.") {
			continue
		}
		var object struct{ ID, State string }
		if err := json.Unmarshal([]byte(e.Object), &object); err != nil || object.ID != e.Resource {
			h.t.Errorf("%s of %s says %s: %v", e.Kind, e.Resource, e.Object, err)
		}
		if said, _, _ := strings.Cut(e.Object, `"log_tail"`); strings.Contains(said, "hush") { // these guests print their arguments
			h.t.Errorf("%s of %s carries a secret: %s", e.Kind, e.Resource, e.Object)
		}
		if !slices.Contains(holdfast.EventKinds(), e.Kind) {
			h.t.Errorf("%s is not among the kinds", e.Kind)
		}
		kinds[e.Resource] = append(kinds[e.Resource], string(e.Kind))
		states[e.Resource] = append(states[e.Resource], object.State)
	}
	var noted map[string][]string
	err := h.db.View(h.t.Context(), func(tx store.Tx) (err error) {
		noted = map[string][]string{}
		_, err = gather(h.t.Context(), tx, func(scan func(...any) error) (nothing, error) {
			var resource, state string
			err := scan(&resource, &state)
			noted[resource] = append(noted[resource], state)
			return nothing{}, err
		}, `SELECT resource, state FROM trail ORDER BY n`)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	if len(noted) == 0 {
		h.t.Error("no state was noted")
	}
	for resource := range noted {
		if !slices.Equal(noted[resource], states[resource]) {
			h.t.Errorf("%s was %v, and its events are %v", resource, noted[resource], kinds[resource])
		}
	}
	out := map[string]string{}
	for resource, list := range kinds {
		if noted[resource] == nil {
			h.t.Errorf("%s was never there, and its events are %v", resource, list)
		}
		out[resource] = strings.Join(list, " ")
	}
	return out
}

func wantKinds(t *testing.T, what, got, kind, want string) {
	t.Helper()
	words := strings.Fields(want)
	for i := range words {
		words[i] = kind + words[i]
	}
	if want = strings.Join(words, " "); got != want {
		t.Errorf("%s: its events are %s; want %s", what, got, want)
	}
}

// contract: B9
func TestB9_EveryChangeOfASessionIsOneEvent(t *testing.T) {
	h := newHarness(t, quick)
	h.overheard()
	se := h.mustCreateSession("r1", func(in *holdfast.CreateSession) {
		in.Env = map[string]string{"TOKEN": "hush"}
		in.Restart = holdfast.RestartFresh
	})
	h.changeSession(se.ID, func(r *sessionRow) {
		r.Shape.Repository = &holdfast.Repository{URL: "https://me:hush@example.com/a.git"}
	})
	for range 2 {
		if _, err := h.RenameSession(t.Context(), alice, holdfast.RenameSession{ID: se.ID, Name: "other"}); err != nil {
			t.Fatal(err)
		}
		got, err := h.suspendSession(se.ID)
		wantSession(t, got, err, holdfast.SessionSuspended)
	}
	for range 2 {
		got, err := h.resumeSession(se.ID)
		wantSession(t, got, err, holdfast.SessionReady)
	}
	seen := lost(h.get(se.Sandbox))
	for _, id := range []string{"ev-1", "ev-1", "ev-2"} {
		h.fleetSays(id, seen)
	}
	h.eventually("it is READY again", func() bool {
		h.sweep(SweepOperations)
		return h.getSession(se.ID).State == holdfast.SessionReady
	})
	for range 2 {
		got, err := h.deleteSession(se.ID)
		wantSession(t, got, err, holdfast.SessionDeleted)
	}
	mortal := h.mustCreateSession("r2")
	h.fleetSays("ev-3", lost(h.get(mortal.Sandbox)))
	told := h.told()
	wantKinds(t, "the one", told[string(se.ID)], "session.", "created ready suspended resumed replacing ready deleting deleted")
	wantKinds(t, "the one that is lost", told[string(mortal.ID)], "session.", "created ready failed")
}

// contract: B9; trap T50. What is asked of a fork is told of the fork alone.
func TestB9_T50_AForkOfASessionTellsOnlyItsOwn(t *testing.T) {
	h := newHarness(t, quick)
	h.overheard()
	newGuests(t).serve(h)
	source := h.session("s1")
	h.awaitTask(h.submit(source.ID, "t1", "exit", "0").ID, true, holdfast.TaskSucceeded)
	c, err := h.CreateCheckpoint(t.Context(), alice, holdfast.CreateCheckpoint{RequestID: "c", Source: string(source.ID)})
	if err != nil {
		t.Fatal(err)
	}
	before := h.told()
	made := h.mustCreateSession("f", func(in *holdfast.CreateSession) { in.Environment, in.Source = "", c.ID })
	task := h.submit(made.ID, "t2", "exit", "1")
	h.awaitTask(task.ID, true, holdfast.TaskFailed)
	got, err := h.deleteSession(made.ID)
	wantSession(t, got, err, holdfast.SessionDeleted)
	after := h.told()
	for resource, kinds := range before {
		if after[resource] != kinds {
			t.Errorf("%s: %s became %s by what was done to a fork", resource, kinds, after[resource])
		}
	}
	if len(after) != len(before)+3 {
		t.Errorf("%d resources had events, and %d have: want the fork, its sandbox and its task more", len(before), len(after))
	}
	wantKinds(t, "the fork", after[string(made.ID)], "session.", "created ready deleting deleted")
	wantKinds(t, "its task", after[string(task.ID)], "task.", "queued running failed")
}

// contract: B9, B3. Each end that a task can have, heard of as often as it is.
func TestB9_EveryChangeOfATaskIsOneEvent(t *testing.T) {
	h := newHarness(t, quick)
	h.overheard()
	g := newGuests(t).serve(h)
	g.reports(func(send func() int) { send(); send() })(h)
	se := h.session("s1")
	submit := func(id, command string, args ...string) holdfast.TaskID {
		task, err := h.SubmitTask(t.Context(), alice, holdfast.SubmitTask{RequestID: id, Session: se.ID, Command: command, Args: append(args, "hush"),
			Env: map[string]string{"TOKEN": "hush"}, Limit: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return task.ID
	}
	good, bad, missing := submit("good", "exit", "0"), submit("bad", "exit", "3"), submit("missing", "missing")
	h.awaitTask(missing, false, holdfast.TaskFailed)
	stopped, never := submit("stopped", "hold"), submit("never", "hold")
	h.awaitProcess(stopped)
	for range 2 {
		for _, id := range []holdfast.TaskID{never, stopped} {
			if _, err := h.CancelTask(t.Context(), alice, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.awaitTask(stopped, false, holdfast.TaskCancelled)
	slow := submit("slow", "hold")
	h.awaitProcess(slow)
	h.exec(`UPDATE task SET started_at = started_at - 100000000 WHERE id = $1`, string(slow))
	h.eventually("it is TIMED_OUT", func() bool {
		h.lookNow(slow)
		h.sweep(SweepTasks)
		return h.task(slow).State == holdfast.TaskTimedOut
	})
	last, left := submit("last", "hold"), submit("left", "hold")
	h.awaitProcess(last)
	h.fleetSays("ev-1", lost(h.get(se.Sandbox)))
	told := h.told()
	for id, want := range map[holdfast.TaskID]string{good: "queued running succeeded", bad: "queued running failed", missing: "queued running failed",
		stopped: "queued running cancelled", never: "queued cancelled", slow: "queued running timed_out",
		last: "queued running failed", left: "queued cancelled"} {
		wantKinds(t, "the task "+string(id), told[string(id)], "task.", want)
	}
	var end taskObject
	for _, e := range h.events("", "task.failed") {
		if e.Resource == string(bad) {
			if err := json.Unmarshal([]byte(e.Object), &end); err != nil {
				t.Error(err)
			}
		}
	}
	if end.ExitCode == nil || *end.ExitCode != 3 || end.Session != se.ID || end.Failure == nil || end.Failure.Reason != holdfast.ReasonExitCode {
		t.Errorf("the end of one that failed is told as %+v", end)
	}
}

// contract: B9, E2. A build's changes, and those of the sessions that wait for it, of
// which one statement changes many.
func TestB9_EveryChangeOfABuildAndOfWhoWaitsForItIsOneEvent(t *testing.T) {
	w := newWorkshop(t, quick)
	w.overheard()
	recipe := tools
	recipe.Env = map[string]string{"TOKEN": "hush"}
	w.environment(recipe)
	first := w.awaitSetup(w.build("b1").ID)
	wait := func(requestID string) holdfast.SessionID {
		_, err := w.createSession(requestID, func(in *holdfast.CreateSession) { in.Environment = "tools" })
		wantError(t, err, holdfast.Unavailable, holdfast.ReasonPreparing)
		return holdfast.SessionID(holdfast.AsError(err).Resource)
	}
	ids := []holdfast.SessionID{wait("s1"), wait("s2"), wait("s3")}
	got, err := w.deleteSession(ids[2])
	wantSession(t, got, err, holdfast.SessionDeleted)
	second := w.build("b2")
	w.reports(first, "late", 0)
	second = w.awaitSetup(second.ID)
	w.guests.end(second.ID, 0)
	for _, id := range []string{"d1", "d1", "d2"} {
		w.reports(second, id, 0)
	}
	w.awaitBuildState(second.ID, holdfast.BuildReady)
	for _, id := range ids[:2] {
		w.eventually("it is READY", func() bool { return w.getSession(id).State == holdfast.SessionReady })
	}
	recipe.Setup = "make another"
	w.environment(recipe)
	third := w.awaitSetup(w.build("b3").ID)
	released := wait("s4")
	w.guests.end(third.ID, 7)
	w.reports(third, "d3", 7)
	w.awaitBuildState(third.ID, holdfast.BuildFailed)
	w.environment(holdfast.Recipe{Base: "base"})
	atOnce := w.build("b4")
	told := w.told()
	for id, want := range map[holdfast.BuildID]string{first.ID: "building superseded", second.ID: "building ready", third.ID: "building failed", atOnce.ID: "ready"} {
		wantKinds(t, "the build "+string(id), told[string(id)], "build.", want)
	}
	for _, id := range ids[:2] {
		wantKinds(t, "who waited", told[string(id)], "session.", "created creating ready")
		wantKinds(t, "its sandbox", told[string(w.getSession(id).Sandbox)], "sandbox.", "created ready")
	}
	wantKinds(t, "who was deleted while it waited", told[string(ids[2])], "session.", "created deleting deleted")
	wantKinds(t, "who waited in vain", told[string(released)], "session.", "created failed")
}

// Each change that a table of states allows is a kind that there is, and none that
// another change of the same type means, but for what the state before tells.
func TestB9_EveryAllowedChangeOfStateHasItsKind(t *testing.T) {
	sessions, tasks, builds := holdfast.SessionTransitions(), holdfast.TaskTransitions(), holdfast.BuildTransitions()
	eachChange(t, "session.", sessions, sessionEvent)
	eachChange(t, "task.", tasks, taskEvent)
	eachChange(t, "build.", builds, buildEvent)
	eachChange(t, "sandbox.", holdfast.SandboxTransitions(), sandboxEvent)
	eachChange(t, "checkpoint.", holdfast.CheckpointTransitions(), checkpointEvent)
}

func eachChange[S ~string](t *testing.T, prefix string, table map[S][]S, kind func(from, to S) holdfast.EventKind) {
	t.Helper()
	means := map[holdfast.EventKind]S{}
	for from, all := range table {
		for _, to := range all {
			k := kind(from, to)
			if !slices.Contains(holdfast.EventKinds(), k) || !strings.HasPrefix(string(k), prefix) {
				t.Errorf("%s%s to %s is %q, which is no kind", prefix, from, to, k)
			}
			if other, known := means[k]; known && other != to {
				t.Errorf("%s is both %s and %s", k, to, other)
			}
			means[k] = to
		}
		if k := kind(from, from); k != "" {
			t.Errorf("%s, which stays, is %q", from, k)
		}
	}
}

// Where nobody asked for the project's events, no statement of a session's and its
// task's whole life is about them.
func TestB9_ASessionThatNobodyListensToPaysNoStatement(t *testing.T) {
	h := newHarness(t)
	db := &asked{DB: h.db}
	s := newHarnessOn(t, db, h.fleet, func(c *Config) { c.ListenersKept = time.Hour })
	newGuests(t).serve(s)
	s.mustCreate("warm")
	db.mu.Lock()
	db.said = nil
	db.mu.Unlock()
	se := s.session("s1")
	s.awaitTask(s.submit(se.ID, "t1", "exit", "0").ID, true, holdfast.TaskSucceeded)
	if _, err := s.deleteSession(se.ID); err != nil {
		t.Fatal(err)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if len(db.said) == 0 {
		t.Fatal("nothing was noted")
	}
	for _, query := range db.said {
		for _, word := range []string{"event", "webhook", "outbox"} {
			if strings.Contains(query, word) {
				t.Errorf("a session asks: %s", query)
			}
		}
	}
}
