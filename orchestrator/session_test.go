package orchestrator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

func (h *harness) createSession(requestID string, change ...func(*holdfast.CreateSession)) (holdfast.Session, error) {
	in := holdfast.CreateSession{RequestID: requestID, Environment: "base"}
	for _, c := range change {
		c(&in)
	}
	return h.CreateSession(h.t.Context(), alice, in)
}

func (h *harness) mustCreateSession(requestID string, change ...func(*holdfast.CreateSession)) holdfast.Session {
	h.t.Helper()
	se, err := h.createSession(requestID, change...)
	if err != nil {
		h.t.Fatalf("create session %s: %v", requestID, err)
	}
	return se
}

func (h *harness) getSession(id holdfast.SessionID) holdfast.Session {
	h.t.Helper()
	se, err := h.GetSession(h.t.Context(), alice, id)
	if err != nil {
		h.t.Fatalf("get %s: %v", id, err)
	}
	return se
}

func (h *harness) suspendSession(id holdfast.SessionID) (holdfast.Session, error) {
	return h.SuspendSession(h.t.Context(), alice, holdfast.MutateSession{ID: id})
}

func (h *harness) resumeSession(id holdfast.SessionID) (holdfast.Session, error) {
	return h.ResumeSession(h.t.Context(), alice, holdfast.MutateSession{ID: id})
}

func (h *harness) deleteSession(id holdfast.SessionID) (holdfast.Session, error) {
	return h.DeleteSession(h.t.Context(), alice, holdfast.MutateSession{ID: id})
}

// wantSession fails unless a session is in a state, with nothing pending.
func wantSession(t *testing.T, se holdfast.Session, err error, state holdfast.SessionState) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if se.State != state || se.Operation != nil || se.DoorClosed {
		t.Fatalf("%s is %s, pending %+v, door closed %v; want %s and nothing", se.ID, se.State, se.Operation, se.DoorClosed, state)
	}
}

// silent makes the fleet answer nobody until it is called.
func (h *harness) silent() (speak func()) {
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	})
	return func() { h.fleet.script(nil) }
}

// hooks is a guest that runs hooks: each request id starts one process.
type hooks struct {
	holdfast.GuestProcesses
	mu     sync.Mutex
	starts map[string]int // how often each was asked for
	all    map[string]*holdfast.Process
	kills  int
	err    error // of every start
	runs   bool  // they do not end by themselves
	code   int
}

func newHooks(h *harness) *hooks {
	k := &hooks{starts: map[string]int{}, all: map[string]*holdfast.Process{}}
	h.config.Guest = func(string, holdfast.InstanceRef) holdfast.Guest { return holdfast.Guest{Processes: k} }
	return k
}

func (k *hooks) StartProcess(_ context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return holdfast.Process{}, k.err
	}
	k.starts[in.RequestID]++
	p := k.all[in.RequestID]
	if p == nil {
		p = &holdfast.Process{ID: holdfast.ProcessID(holdfast.IDs{}.New(holdfast.PrefixProcess)), RequestID: in.RequestID, State: holdfast.ProcessRunning}
		k.all[in.RequestID] = p
	}
	if !k.runs {
		p.State, p.ExitCode = holdfast.ProcessExited, k.code
	}
	return *p, nil
}

func (k *hooks) GetProcess(_ context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.all {
		if p.ID == id {
			return *p, nil
		}
	}
	return holdfast.Process{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no process %s", id).On(string(id))
}

func (k *hooks) SignalProcess(context.Context, holdfast.ProcessID, string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kills++
	return nil
}

func (k *hooks) StreamProcessOutput(_ context.Context, _ holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	return holdfast.Process{}, yield(holdfast.OutputChunk{Stream: holdfast.Stderr, Data: []byte("the tail")})
}

// end lets every hook end with a code.
func (k *hooks) end(code int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.runs, k.code = false, code
}

// ran is how many processes there were, whose request ids end in a word.
func (k *hooks) ran() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.all)
}

// withHooks gives a session hooks, as its environment would.
func (h *harness) withHooks(id holdfast.SessionID, hooks holdfast.Hooks) {
	h.t.Helper()
	h.changeSession(id, func(r *sessionRow) { r.Shape.Hooks = hooks })
}

func (h *harness) changeSession(id holdfast.SessionID, change func(*sessionRow)) {
	h.t.Helper()
	err := h.update(h.t.Context(), "change", func(tx store.Tx, now time.Time) error {
		r, _, err := oneSession(h.t.Context(), tx, `WHERE id = $1`, string(id))
		if err != nil {
			return err
		}
		change(&r)
		return r.save(h.t.Context(), tx, now)
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// issued is the number of levels of a kind that the fleet was sent.
func (h *harness) issued(desired holdfast.Desired) int {
	n := 0
	for _, l := range h.fleet.levels() {
		if l.Desired == desired {
			n++
		}
	}
	return n
}

// contract: A1, A3, A4, E3
func TestA3_ASessionIsCreatedOnceAndItsVerbsDoNothingTwice(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1", func(in *holdfast.CreateSession) {
		in.Labels, in.Name = map[string]string{"team": "a"}, "first"
	})
	wantSession(t, se, nil, holdfast.SessionReady)
	box := h.get(se.Sandbox)
	if box.State != holdfast.SandboxReady || box.Owner != string(se.ID) || !box.ExpiresAt.IsZero() {
		t.Errorf("its sandbox: %+v; want it READY, the session's, with no end of its own", box)
	}
	again := h.mustCreateSession("r1", func(in *holdfast.CreateSession) {
		in.Labels, in.Name = map[string]string{"team": "a"}, "first"
	})
	if again.ID != se.ID || h.count(`SELECT COUNT(*) FROM sandbox`) != 1 {
		t.Errorf("a repeat made %s beside %s", again.ID, se.ID)
	}
	_, err := h.createSession("r1")
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	if got := holdfast.AsError(err).Details["fields"]; got != "labels, name" {
		t.Errorf("differs in %q", got)
	}
	for range 2 {
		se, err = h.suspendSession(se.ID)
		wantSession(t, se, err, holdfast.SessionSuspended)
	}
	if n := h.issued(holdfast.DesiredSuspended); n != 1 {
		t.Errorf("%d levels SUSPENDED were sent", n)
	}
	for range 2 {
		se, err = h.resumeSession(se.ID)
		wantSession(t, se, err, holdfast.SessionReady)
	}
	for range 2 {
		se, err = h.deleteSession(se.ID)
		wantSession(t, se, err, holdfast.SessionDeleted)
	}
	if box := h.get(se.Sandbox); box.State != holdfast.SandboxDeleted {
		t.Errorf("its sandbox is %s", box.State)
	}
	if again := h.mustCreateSession("r1", func(in *holdfast.CreateSession) {
		in.Labels, in.Name = map[string]string{"team": "a"}, "first"
	}); again.ID != se.ID || again.State != holdfast.SessionDeleted {
		t.Errorf("a repeat after the delete: %s %s", again.ID, again.State)
	}
	_, err = h.deleteSession(holdfast.SessionID(holdfast.IDs{}.New(holdfast.PrefixSession)))
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

// contract: E3; lifecycle.md, "A session owns its sandbox"
func TestASessionsSandboxIsDrivenByTheSessionAlone(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1")
	_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: se.Sandbox})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonOwned)
	_, err = h.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: se.Sandbox})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonOwned)
	_, err = h.extend(se.Sandbox, time.Hour)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonOwned)
}

// A sandbox's end is its session's in the same transaction: no sweep comes between.
// contract: C1; lifecycle.md
func TestASandboxsEndIsItsSessions(t *testing.T) {
	for name, suspended := range map[string]bool{"READY": false, "SUSPENDED": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			se := h.mustCreateSession("r1")
			if suspended {
				if _, err := h.suspendSession(se.ID); err != nil {
					t.Fatal(err)
				}
			}
			seen := lost(h.get(se.Sandbox))
			for _, id := range []string{"ev-1", "ev-1", "ev-2"} {
				h.fleetSays(id, seen)
			}
			got := h.getSession(se.ID)
			wantSession(t, got, nil, holdfast.SessionFailed)
			if got.Failure == nil || got.Failure.Reason != holdfast.ReasonInstanceLost {
				t.Errorf("the failure: %+v", got.Failure)
			}
			_, err := h.resumeSession(se.ID)
			wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
			got, err = h.deleteSession(se.ID)
			wantSession(t, got, err, holdfast.SessionDeleted)
		})
	}
}

// A session whose instance is lost is replaced as its policy says, and shows so.
func TestRestart_ASessionFollowsItsSandboxsReplacement(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1", func(in *holdfast.CreateSession) { in.Restart = holdfast.RestartFresh })
	speak := h.silent()
	h.fleetSays("ev-1", lost(h.get(se.Sandbox)))
	got := h.getSession(se.ID)
	if got.State != holdfast.SessionCreating || got.Incarnation != 2 || got.Operation == nil || got.Operation.Kind != holdfast.OperationReplace {
		t.Fatalf("%s, incarnation %d, pending %+v; want CREATING, 2, REPLACE", got.State, got.Incarnation, got.Operation)
	}
	speak()
	h.eventually("it is READY again", func() bool {
		h.sweep(SweepOperations)
		return h.getSession(se.ID).State == holdfast.SessionReady
	})
	wantSession(t, h.getSession(se.ID), nil, holdfast.SessionReady)
}

// eventually polls, bounded.
func (h *harness) eventually(what string, is func() bool) {
	h.t.Helper()
	end, tick := time.After(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-end:
			h.t.Fatalf("it did not come to pass: %s", what)
		case <-tick.C:
		}
	}
}

// contract: A7. What was issued and is uncertain is finished before anything else; a
// delete is recorded as wanted, and begins by itself.
func TestA7_AnIssuedOperationOfASessionIsFinishedFirst(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1")
	speak := h.silent()
	_, err := h.suspendSession(se.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonUnreachable)
	got := h.getSession(se.ID)
	if got.State != holdfast.SessionReady || got.Operation == nil || !got.DoorClosed || got.Operation.LastError == nil {
		t.Fatalf("%+v; want READY, its suspend pending with what it met, the door closed", got)
	}
	_, err = h.resumeSession(se.ID)
	wantError(t, err, holdfast.Aborted, holdfast.ReasonConflict)
	_, err = h.deleteSession(se.ID)
	if holdfast.CodeOf(err) != holdfast.Aborted || holdfast.AsError(err).Details["delete_wanted"] != "true" {
		t.Fatalf("got %v, want ABORTED, and the delete wanted", err)
	}
	if n := h.issued(holdfast.DesiredAbsent); n != 0 {
		t.Fatal("the delete was issued beside what is uncertain")
	}
	speak()
	h.eventually("it is deleted", func() bool {
		h.sweep(SweepOperations)
		h.sweep(SweepSessionOperations)
		return h.getSession(se.ID).State == holdfast.SessionDeleted
	})
	journal, err := h.ListOperations(t.Context(), alice, holdfast.ListOperations{Resource: string(se.ID)})
	if err != nil || len(journal.Operations) != 3 {
		t.Fatalf("the journal: %+v, %v", journal, err)
	}
	for i, want := range []holdfast.OperationKind{holdfast.OperationDelete, holdfast.OperationSuspend, holdfast.OperationCreate} {
		if op := journal.Operations[i]; op.Kind != want || op.State != holdfast.OperationDone {
			t.Errorf("entry %d: %s %s, want %s DONE", i, op.Kind, op.State, want)
		}
	}
}

// contract: A7. An answer that nothing was begun clears that it was issued.
func TestA7_AResumeForWhichThereIsNoRoomYields(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1")
	if _, err := h.suspendSession(se.ID); err != nil {
		t.Fatal(err)
	}
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		if l.Desired == holdfast.DesiredRunning {
			return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "no host has room")
		}
		return h.fleet.reach(l)
	})
	_, err := h.resumeSession(se.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonNoCapacity)
	got := h.getSession(se.ID)
	if got.Operation == nil || got.Operation.WaitsFor != "capacity" {
		t.Errorf("pending %+v, want a RESUME that waits for capacity", got.Operation)
	}
	got, err = h.suspendSession(se.ID)
	wantSession(t, got, err, holdfast.SessionSuspended)
	_, err = h.resumeSession(se.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonNoCapacity)
	got, err = h.deleteSession(se.ID)
	wantSession(t, got, err, holdfast.SessionDeleted)
}

// contract: A13. Hooks run once each, in their place, and resuming is over when its
// hook is.
func TestA13_HooksRunOnceInTheirPlace(t *testing.T) {
	h := newHarness(t)
	k := newHooks(h)
	se := h.mustCreateSession("r1")
	h.withHooks(se.ID, holdfast.Hooks{OnSuspend: "sync", OnResume: "true", OnDelete: "bye"})
	k.runs = true
	_, err := h.suspendSession(se.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonClaimed)
	got := h.getSession(se.ID)
	if h.issued(holdfast.DesiredSuspended) != 0 || got.Operation == nil || got.Operation.WaitsFor != "hook" || !got.DoorClosed {
		t.Fatalf("pending %+v, door closed %v; want a SUSPEND that waits for the hook, and nothing issued", got.Operation, got.DoorClosed)
	}
	k.end(0)
	got, err = h.suspendSession(se.ID)
	wantSession(t, got, err, holdfast.SessionSuspended)
	k.runs = true
	_, err = h.resumeSession(se.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonClaimed)
	if got := h.getSession(se.ID); got.State != holdfast.SessionSuspended || h.get(se.Sandbox).State != holdfast.SandboxReady {
		t.Fatalf("%s while the hook of its resume runs", got.State)
	}
	k.end(0)
	got, err = h.resumeSession(se.ID)
	wantSession(t, got, err, holdfast.SessionReady)
	got, err = h.deleteSession(se.ID)
	wantSession(t, got, err, holdfast.SessionDeleted)
	if k.ran() != 3 || got.HookFailure != nil {
		t.Errorf("%d hooks ran, failure %+v; want 3 and none", k.ran(), got.HookFailure)
	}
}

// contract: A13. A hook that fails, hangs or cannot be started is reported and holds
// up a delete for no longer than its time.
func TestA13_AHookThatFailsIsReportedAndBlocksNothing(t *testing.T) {
	for name, c := range map[string]struct {
		hook   func(k *hooks)
		since  time.Duration
		reason holdfast.Reason
	}{
		"fails": {func(k *hooks) { k.code = 3 }, 0, holdfast.ReasonExitCode},
		"hangs": {func(k *hooks) { k.runs = true }, 2 * holdfast.HookTimeout, holdfast.ReasonTimeLimit},
		"does not exist": {func(k *hooks) {
			k.err = holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchCommand, "no shell")
		}, 0, holdfast.ReasonNoSuchCommand},
		"nobody is there":  {func(k *hooks) { k.err = holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer") }, 2 * holdfast.HookTimeout, holdfast.ReasonUnreachable},
		"another boot's":   {func(k *hooks) { k.err = holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonIncarnation, "another") }, 2 * holdfast.HookTimeout, holdfast.ReasonIncarnation},
		"ended with it":    {func(k *hooks) { k.code = 1 }, 0, holdfast.ReasonExitCode},
		"late, and failed": {func(k *hooks) { k.code = 9 }, 2 * holdfast.HookTimeout, holdfast.ReasonExitCode},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			k := newHooks(h)
			se := h.mustCreateSession("r1")
			h.withHooks(se.ID, holdfast.Hooks{OnDelete: "bye"})
			c.hook(k)
			got, err := h.deleteSession(se.ID)
			if c.since > 0 && err != nil {
				wantError(t, err, holdfast.Unavailable, holdfast.AsError(err).Reason)
				if got := h.getSession(se.ID); got.State != holdfast.SessionDeleting {
					t.Fatalf("it is %s before the hook's time is over", got.State)
				}
				h.changeSession(se.ID, func(r *sessionRow) { r.HookAt = r.HookAt.Add(-c.since) })
				h.eventually("it is deleted", func() bool { // the call before carries it on, too
					got, err = h.deleteSession(se.ID)
					return holdfast.CodeOf(err) != holdfast.Unavailable
				})
			}
			wantSession(t, got, err, holdfast.SessionDeleted)
			if got.HookFailure == nil || got.HookFailure.Reason != c.reason && !(c.reason == holdfast.ReasonUnreachable && got.HookFailure.Reason == holdfast.ReasonHostUnreachable) {
				t.Errorf("the hook's failure: %+v, want %s", got.HookFailure, c.reason)
			}
		})
	}
}

// A suspend that waited for its hook gives way to a resume. Whoever held it and wakes
// then freezes nothing: what drives the sandbox asks in the same transaction whether
// its operation is still the pending one.
func TestT14_ThePausedHolderOfASupersededSuspendFreezesNothing(t *testing.T) {
	h := newHarness(t)
	k := newHooks(h)
	se := h.mustCreateSession("r1")
	h.withHooks(se.ID, holdfast.Hooks{OnSuspend: "sync"})
	k.runs = true
	_, err := h.suspendSession(se.ID)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonClaimed)
	old := string(h.getSession(se.ID).Operation.ID)
	got, err := h.resumeSession(se.ID)
	wantSession(t, got, err, holdfast.SessionReady)
	k.end(0)
	if _, at, err := h.advance(t.Context(), se.ID, old, &hookEnd{}); err != nil || at != stageFinish {
		t.Errorf("the late holder: %s, %v; want nothing to do", at, err)
	}
	if h.issued(holdfast.DesiredSuspended) != 0 || h.get(se.Sandbox).State != holdfast.SandboxReady || h.getSession(se.ID).State != holdfast.SessionReady {
		t.Error("the running session was frozen")
	}
	op, err := h.GetOperation(t.Context(), alice, holdfast.OperationID(old))
	if err != nil || op.State != holdfast.OperationSuperseded {
		t.Errorf("the suspend is %s, %v; want it SUPERSEDED", op.State, err)
	}
}

// The second half of the same: an attempt on the sandbox that slept through its claim,
// of a suspend that another attempt finished, after which the session was resumed.
// contract: A6
func TestT14_ASleepingAttemptOfASuspendThatIsOverFreezesNothing(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1")
	var once sync.Once
	asleep, wake := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
		sleeps := false
		if l.Desired == holdfast.DesiredSuspended {
			once.Do(func() { sleeps = true })
		}
		if sleeps {
			close(asleep)
			<-wake
		}
		return h.fleet.reach(l)
	})
	done := make(chan error, 1)
	go func() {
		_, err := h.suspendSession(se.ID)
		done <- err
	}()
	<-asleep
	other := newHarnessOn(t, h.db, h.fleet)
	h.expireClaims()
	got, err := other.suspendSession(se.ID)
	wantSession(t, got, err, holdfast.SessionSuspended)
	got, err = other.resumeSession(se.ID)
	wantSession(t, got, err, holdfast.SessionReady)
	close(wake)
	<-done
	box := h.get(se.Sandbox)
	h.fleet.mu.Lock()
	state := h.fleet.seen[box.Instance].State
	h.fleet.mu.Unlock()
	if state != holdfast.InstanceRunning || h.getSession(se.ID).State != holdfast.SessionReady {
		t.Errorf("the instance is %s, the session %s", state, h.getSession(se.ID).State)
	}
}

// expireClaims lets every live claim be over.
func (h *harness) expireClaims() {
	h.t.Helper()
	err := h.update(h.t.Context(), "expire", func(tx store.Tx, now time.Time) error {
		_, err := tx.ExecContext(h.t.Context(), `UPDATE operation SET claim_expires = $1 WHERE claim_expires > $1`, store.Micros(now)-1)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// build is a build's id that nothing knows.
const build = holdfast.BuildID("bd-00000000000000000000000001")

// waiting makes sessions that wait for a build.
func (h *harness) waiting(n int) []holdfast.SessionID {
	h.t.Helper()
	ids := make([]holdfast.SessionID, n)
	err := h.update(h.t.Context(), "waiting", func(tx store.Tx, now time.Time) error {
		for i := range ids {
			ids[i] = holdfast.SessionID(holdfast.IDs{}.New(holdfast.PrefixSession))
			in := holdfast.CreateSession{Environment: "made", Name: fmt.Sprint(i)}
			w := held{sessionRow: h.newSession(alice, in, ids[i], resolved{Build: build, Building: true}, now)}
			if err := w.sessionRow.insert(h.t.Context(), tx); err != nil {
				return err
			}
			if err := h.recordCreate(h.t.Context(), tx, now, &w, h.intent(holdfast.OperationCreate)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return ids
}

// ready is what the build's end does in its transaction.
func (h *harness) ready(made resolved) int {
	n := 0
	err := h.update(h.t.Context(), "ready", func(tx store.Tx, now time.Time) (err error) {
		n, err = h.advanceBuilt(h.t.Context(), tx.(*unit), now, made)
		return err
	})
	if err != nil {
		h.t.Error(err)
	}
	return n
}

// contract: E2. 50 sessions wait for one build; it is ready three times, twice at once
// and once afterwards: each goes on once.
func TestE2_EverySessionThatWaitsForABuildAdvancesOnce(t *testing.T) {
	h := newHarness(t)
	ids := h.waiting(50)
	made := resolved{Build: build, Image: "base", Recipe: holdfast.Recipe{Env: map[string]string{"A": "1"}, Restart: holdfast.RestartFresh}}
	var wg sync.WaitGroup
	advanced := make(chan int, 3)
	for range 2 {
		wg.Go(func() { advanced <- h.ready(made) })
	}
	wg.Wait()
	advanced <- h.ready(made)
	close(advanced)
	sum := 0
	for n := range advanced {
		sum += n
	}
	if sum != 50 {
		t.Errorf("%d sessions were advanced, want 50", sum)
	}
	for _, id := range ids {
		h.eventually("it is READY", func() bool {
			if se := h.getSession(id); se.State == holdfast.SessionReady {
				return true
			}
			h.sweep(SweepOperations)
			return false
		})
		se := h.getSession(id)
		wantSession(t, se, nil, holdfast.SessionReady)
		if se.Env["A"] != "1" || se.Restart != holdfast.RestartFresh {
			t.Errorf("env %v, restart %s: the recipe's are missing", se.Env, se.Restart)
		}
	}
	if n := h.count(`SELECT COUNT(*) FROM sandbox WHERE state = 'READY' AND quota_shard > 0`); n != 50 {
		t.Errorf("%d sandboxes", n)
	}
	if n := h.count(`SELECT SUM(sandboxes) FROM quota_shard WHERE project = 'default'`); n != 50 {
		t.Errorf("%d are counted", n)
	}
	for ref, n := range h.fleet.boots {
		if n != 1 {
			t.Errorf("%v booted %d times", ref, n)
		}
	}
}

// contract: E2. A build that fails releases who waits, with its reason.
func TestE2_ABuildThatFailsReleasesWhoWaitsWithItsReason(t *testing.T) {
	h := newHarness(t)
	ids := h.waiting(3)
	got, err := h.deleteSession(ids[0]) // what waits can be deleted at once
	wantSession(t, got, err, holdfast.SessionDeleted)
	_, err = h.suspendSession(ids[1])
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	for want := range 2 {
		n := 0
		err := h.update(t.Context(), "failed", func(tx store.Tx, now time.Time) (err error) {
			n, err = h.releaseWaiting(t.Context(), tx.(*unit), now, build, &holdfast.Failure{Reason: holdfast.ReasonBuildFailed, Message: "setup", LogTail: "tail"})
			return err
		})
		if err != nil || n != 2*(1-want) {
			t.Fatalf("released %d, %v", n, err)
		}
	}
	got = h.getSession(ids[1])
	wantSession(t, got, nil, holdfast.SessionFailed)
	if got.Failure == nil || got.Failure.Reason != holdfast.ReasonBuildFailed || got.Failure.LogTail != "tail" {
		t.Errorf("the failure: %+v", got.Failure)
	}
	got, err = h.deleteSession(ids[1])
	wantSession(t, got, err, holdfast.SessionDeleted)
}

// contract: A8. A quota that has no room for all who waited lets as many go on as it
// has room for, and says to the others why not.
func TestE2_TheQuotaHoldsForWhoWaited(t *testing.T) {
	h := newHarness(t)
	limit := int64(2)
	root := holdfast.Caller{Project: alice.Project, Name: "root", Role: holdfast.RoleAdmin}
	in := holdfast.SetQuotas{Project: string(alice.Project), Quotas: holdfast.QuotaChange{Sandboxes: &limit}}
	if _, err := h.SetQuotas(t.Context(), root, in); err != nil {
		t.Fatal(err)
	}
	h.waiting(5)
	h.ready(resolved{Build: build, Image: "base"})
	if n := h.count(`SELECT COUNT(*) FROM sandbox`); n != 2 {
		t.Errorf("%d sandboxes", n)
	}
	if n := h.count(`SELECT COUNT(*) FROM session WHERE state = 'FAILED' AND failure LIKE '%QUOTA%'`); n != 3 {
		t.Errorf("%d sessions were told that there is no room", n)
	}
}

// Speed: 1,000 sessions wait, and are advanced in one transaction in under 2 s.
func TestE2_AThousandWaitingSessionsAdvanceInUnderTwoSeconds(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Logger = nil })
	h.waiting(1000)
	began := time.Now()
	if n := h.ready(resolved{Build: build, Image: "base"}); n != 1000 {
		t.Errorf("%d were advanced", n)
	}
	took := time.Since(began)
	t.Logf("1,000 waiting sessions advanced in %s", took.Round(time.Millisecond))
	if took > 10*time.Second { // generous: the machine may be busy; the figure is in the log
		t.Errorf("it took %s", took)
	}
}

// contract: A4, C1. A tombstone is kept for 7 days, then purged; its request id stays.
func TestA3_APurgedSessionIsStillKnownByItsRequestID(t *testing.T) {
	h := newHarness(t)
	se := h.mustCreateSession("r1")
	if _, err := h.deleteSession(se.ID); err != nil {
		t.Fatal(err)
	}
	h.sweep(SweepSessionPurge)
	h.getSession(se.ID)
	h.changeSession(se.ID, func(r *sessionRow) { r.DeletedAt = r.DeletedAt.Add(-holdfast.TombstoneKept - time.Hour) })
	h.sweep(SweepSessionPurge)
	_, err := h.GetSession(t.Context(), alice, se.ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	if n := h.count(`SELECT COUNT(*) FROM operation WHERE resource_kind = 'session'`); n != 0 {
		t.Errorf("%d operations are left of it", n)
	}
	again := h.mustCreateSession("r1")
	if again.ID != se.ID || again.State != holdfast.SessionDeleted {
		t.Errorf("a repeat: %s %s", again.ID, again.State)
	}
}

// contract: A5
func TestSessionsAreListedByStateAndLabelAndRenamed(t *testing.T) {
	h := newHarness(t)
	var ids []holdfast.SessionID
	for i := range 3 {
		ids = append(ids, h.mustCreateSession(fmt.Sprint("r", i), func(in *holdfast.CreateSession) {
			in.Labels = map[string]string{"n": fmt.Sprint(i % 2)}
		}).ID)
	}
	if _, err := h.suspendSession(ids[2]); err != nil {
		t.Fatal(err)
	}
	page, err := h.ListSessions(t.Context(), alice, holdfast.ListSessions{Labels: map[string]string{"n": "0"}, PageSize: 1})
	if err != nil || len(page.Sessions) != 1 || page.Sessions[0].ID != ids[2] || page.NextPageToken == "" {
		t.Fatalf("%+v, %v", page, err)
	}
	page, err = h.ListSessions(t.Context(), alice, holdfast.ListSessions{Labels: map[string]string{"n": "0"}, PageToken: page.NextPageToken})
	if err != nil || len(page.Sessions) != 1 || page.Sessions[0].ID != ids[0] {
		t.Fatalf("%+v, %v", page, err)
	}
	page, err = h.ListSessions(t.Context(), alice, holdfast.ListSessions{States: []holdfast.SessionState{holdfast.SessionSuspended}})
	if err != nil || len(page.Sessions) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	if other, err := h.ListSessions(t.Context(), holdfast.Caller{Project: "pj-other"}, holdfast.ListSessions{}); err != nil || len(other.Sessions) != 0 {
		t.Errorf("another project sees %d, %v", len(other.Sessions), err)
	}
	for range 2 {
		se, err := h.RenameSession(t.Context(), alice, holdfast.RenameSession{ID: ids[0], Name: "new"})
		if err != nil || se.Name != "new" {
			t.Errorf("%+v, %v", se, err)
		}
	}
}

// contract: A6, A7. Another replica is at it: who asks for the same waits, and does not
// ask the database again and again until that one's claim has ended.
func TestA6_WhoWaitsForASessionsAttemptElsewhereKeepsItsPatience(t *testing.T) {
	h := newHarness(t)
	other := newHarnessOn(t, h.db, h.fleet)
	se := h.session("s")
	if _, err := h.SuspendSession(t.Context(), alice, holdfast.MutateSession{ID: se.ID}); err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		close(entered)
		<-leave
		return h.fleet.reach(l)
	})
	first := make(chan error, 1)
	go func() {
		_, err := h.ResumeSession(t.Context(), alice, holdfast.MutateSession{ID: se.ID})
		first <- err
	}()
	<-entered
	second := make(chan error, 1)
	go func() {
		_, err := other.ResumeSession(t.Context(), alice, holdfast.MutateSession{ID: se.ID})
		second <- err
	}()
	select {
	case err := <-second:
		wantError(t, err, holdfast.Unavailable, holdfast.ReasonClaimed)
	case <-time.After(10 * time.Second):
		t.Error("it still asks, although its patience was over long ago")
	}
	close(leave)
	if err := <-first; err != nil {
		t.Error(err)
	}
}
