package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/store"
)

// contract: E3
func TestE3_TasksRunOneAtATimeInTheOrderOfTheirSubmits(t *testing.T) {
	h := newHarness(t)
	g := newGuests(t).serve(h)
	g.reports(func(send func() int) { send() })(h)
	se := h.session("s1")
	var want []string
	var last holdfast.Task
	for i := range 6 {
		want = append(want, fmt.Sprint(i%2))
		last = h.submit(se.ID, fmt.Sprintf("t%d", i), "exit", fmt.Sprint(i%2))
	}
	h.awaitTask(last.ID, false, holdfast.TaskFailed)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.order, want) || g.most != 1 {
		t.Errorf("they ran as %v, %d at once; want %v, one at a time", g.order, g.most, want)
	}
	page, err := h.ListTasks(t.Context(), alice, holdfast.ListTasks{Session: se.ID})
	if err != nil || len(page.Tasks) != 6 {
		t.Fatalf("%d tasks, %v", len(page.Tasks), err)
	}
	for _, task := range page.Tasks {
		ok := task.ExitCode == 0 && task.State == holdfast.TaskSucceeded && task.Failure == nil ||
			task.ExitCode == 1 && task.State == holdfast.TaskFailed && task.Failure.Reason == holdfast.ReasonExitCode && task.Failure.LogTail != ""
		if !ok || !task.ProcessEnded || task.Incarnation != 1 || task.FinishedAt.IsZero() || task.StartedAt.IsZero() || task.Process == "" {
			t.Errorf("%+v, %+v", task, task.Failure)
		}
	}
}

// contract: A3
func TestA3_ARepeatedSubmitIsTheSameTask(t *testing.T) {
	h := newHarness(t)
	newGuests(t).serve(h)
	se := h.session("s1")
	first := h.submit(se.ID, "t1", "hold", "a")
	if again := h.submit(se.ID, "t1", "hold", "a"); again.ID != first.ID {
		t.Errorf("%s and %s", first.ID, again.ID)
	}
	_, err := h.SubmitTask(t.Context(), alice, holdfast.SubmitTask{RequestID: "t1", Session: se.ID, Command: "hold", Args: []string{"b"}})
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	_, err = h.SubmitTask(t.Context(), holdfast.Caller{Project: "pj-other"}, holdfast.SubmitTask{RequestID: "t2", Session: se.ID, Command: "hold"})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

// contract: B3, E3. Twice, twice at once, late and never.
func TestB3_ATasksEndIsRecordedOnceHoweverItIsHeard(t *testing.T) {
	for name, deliver := range map[string]func(func() int){
		"once": func(send func() int) { send() },
		"twice at once": func(send func() int) {
			var wg sync.WaitGroup
			wg.Go(func() { send() })
			wg.Go(func() { send() })
			wg.Wait()
		},
		"never": func(func() int) {},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			g := newGuests(t).serve(h)
			g.reports(deliver)(h)
			se := h.session("s1")
			first, second := h.submit(se.ID, "t1", "hold", "1"), h.submit(se.ID, "t2", "hold", "2")
			h.awaitTask(first.ID, false, holdfast.TaskRunning)
			h.awaitProcess(first.ID)
			g.end(first.ID, 0)
			if name == "never" {
				h.lookNow(first.ID)
			}
			h.awaitTask(first.ID, name == "never", holdfast.TaskSucceeded)
			h.awaitTask(second.ID, false, holdfast.TaskRunning)
			h.awaitProcess(second.ID)
			g.end(second.ID, 3)
			if name == "never" {
				h.lookNow(second.ID)
			}
			if got := h.awaitTask(second.ID, name == "never", holdfast.TaskFailed); got.ExitCode != 3 || got.Contrary != nil {
				t.Errorf("%+v", got)
			}
			if g.starts[string(first.ID)] != 1 || g.starts[string(second.ID)] != 1 {
				t.Errorf("starts: %v", g.starts)
			}
		})
	}
}

// awaitProcess waits until a task's process is known.
func (h *harness) awaitProcess(id holdfast.TaskID) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("the process of task %s is known", id), func() bool { return h.task(id).Process != "" })
}

// lookNow makes a sweep look at a task now.
func (h *harness) taskRow(id holdfast.TaskID) (row taskRow) {
	h.t.Helper()
	err := h.update(h.t.Context(), "read a task", func(tx store.Tx, _ time.Time) (err error) {
		row, _, err = lockTask(h.t.Context(), tx, id)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return row
}

func (h *harness) lookNow(id holdfast.TaskID) {
	h.t.Helper()
	h.exec(`UPDATE task SET look_at = 1 WHERE id = $1`, string(id))
}

// contract: A14, E3; T45: a start whose answer is lost is asked for again, and is the
// same process.
func TestE3_AStartWhoseAnswerIsLostRunsOnce(t *testing.T) {
	h := newHarness(t)
	g := newGuests(t).serve(h)
	lost := 0
	g.fail = func(call, _ string) error {
		if call == "start" && lost < 5 {
			lost++
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
		}
		return nil
	}
	se := h.session("s1")
	task := h.submit(se.ID, "t1", "hold")
	h.awaitTask(task.ID, false, holdfast.TaskRunning)
	h.eventually("its process is known", func() bool {
		h.lookNow(task.ID)
		h.sweep(SweepTasks)
		return h.task(task.ID).Process != ""
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starts[string(task.ID)] != 1 || lost != 5 {
		t.Errorf("%d starts, %d lost", g.starts[string(task.ID)], lost)
	}
}

// contract: E3. Many replicas at once choose one task and start one process.
func TestE3_ManyWhoStartTheNextTaskStartOne(t *testing.T) {
	h := newHarness(t)
	g := newGuests(t).serve(h)
	se := h.session("s1")
	task := h.submit(se.ID, "t1", "hold")
	other := h.submit(se.ID, "t2", "hold")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := h.startQueued(t.Context(), se.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	h.awaitProcess(task.ID)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starts[string(task.ID)] != 1 || g.starts[string(other.ID)] != 0 || h.task(other.ID).State != holdfast.TaskQueued {
		t.Errorf("starts %v", g.starts)
	}
}

// contract: E3. "declared failed, then its real work landed": shown, and not counted.
func TestE3_ATaskWhoseBootIsLostDoesNotRunAgainAndItsLateSuccessIsShown(t *testing.T) {
	h := newHarness(t)
	g := newGuests(t).serve(h)
	se := h.session("s1", func(in *holdfast.CreateSession) { in.Restart = holdfast.RestartFresh })
	task, next := h.submit(se.ID, "t1", "hold"), h.submit(se.ID, "t2", "hold")
	h.awaitTask(task.ID, false, holdfast.TaskRunning)
	h.awaitProcess(task.ID)
	sb := h.sandboxOf(se.ID)
	if status := h.fleetSays("ev-1", holdfast.Observation{Instance: sb.Instance, Incarnation: 1, State: holdfast.InstanceExited,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "gone"}}); status >= 300 {
		t.Fatal(status)
	}
	got := h.task(task.ID)
	if got.State != holdfast.TaskFailed || got.Failure.Reason != holdfast.ReasonInstanceLost || got.ProcessEnded {
		t.Fatalf("%+v, %+v", got, got.Failure)
	}
	// The next one runs on the incarnation that replaces it.
	if next = h.awaitTask(next.ID, false, holdfast.TaskRunning); next.Incarnation != 2 {
		t.Errorf("the next runs on incarnation %d", next.Incarnation)
	}
	ended := holdfast.Process{ID: got.Process, RequestID: string(task.ID), ExitCode: 0, StartedAt: time.Now(), FinishedAt: time.Now()}
	for range 2 {
		if status := h.taskReport(holdfast.InstanceRef{Instance: sb.Instance, Incarnation: 1}, ended); status >= 300 {
			t.Fatal(status)
		}
	}
	got = h.task(task.ID)
	if got.State != holdfast.TaskFailed || got.Contrary == nil || got.Contrary.ExitCode != 0 || got.Contrary.HeardAt.IsZero() {
		t.Errorf("%+v, %+v", got, got.Contrary)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starts[string(task.ID)] != 1 {
		t.Errorf("it started %d times", g.starts[string(task.ID)])
	}
}

func (h *harness) sandboxOf(session holdfast.SessionID) holdfast.Sandbox {
	h.t.Helper()
	se, err := h.GetSession(h.t.Context(), alice, session)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.get(se.Sandbox)
}

func TestACancelledTaskEndsAndItsProcessWithIt(t *testing.T) {
	h := newHarness(t)
	g := newGuests(t).serve(h)
	se := h.session("s1")
	running, queued := h.submit(se.ID, "t1", "hold", "stubborn"), h.submit(se.ID, "t2", "hold")
	h.awaitTask(running.ID, false, holdfast.TaskRunning)
	h.awaitProcess(running.ID)
	for range 2 {
		got, err := h.CancelTask(t.Context(), alice, queued.ID)
		if err != nil || got.State != holdfast.TaskCancelled || got.Failure.Reason != holdfast.ReasonCancelled {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if got, err := h.CancelTask(t.Context(), alice, running.ID); err != nil || !got.CancelAsked {
		t.Fatalf("%+v, %v", got, err)
	}
	h.eventually("it was asked to stop", func() bool { return len(g.signalsOf(running.ID)) > 0 })
	h.eventually("it has ended", func() bool {
		h.lookNow(running.ID)
		h.sweep(SweepTasks)
		return h.task(running.ID).State != holdfast.TaskRunning
	})
	got := h.task(running.ID)
	if got.State != holdfast.TaskCancelled || got.ExitCode != 137 || g.starts[string(queued.ID)] != 0 {
		t.Errorf("%+v; starts %v", got, g.starts)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.signals[string(running.ID)]; s[0] != "TERM" || s[len(s)-1] != "KILL" {
		t.Errorf("signals %v", s)
	}
}

// Whoever asked for a task's end may hold the task as it was before that was recorded:
// what its end is called is judged by the row as it is then.
func TestE3_AnEndIsJudgedByTheTaskAsItIsThen(t *testing.T) {
	for column, want := range map[string]holdfast.TaskState{"cancel_asked": holdfast.TaskCancelled, "timed_out": holdfast.TaskTimedOut} {
		t.Run(column, func(t *testing.T) {
			h := newHarness(t)
			newGuests(t).serve(h)
			task := h.submit(h.session("s1").ID, "t1", "hold")
			h.awaitTask(task.ID, false, holdfast.TaskRunning)
			h.awaitProcess(task.ID)
			stale := h.taskRow(task.ID)
			h.exec(`UPDATE task SET `+column+` = $2 WHERE id = $1`, string(task.ID), true)
			ended := holdfast.Process{ID: stale.Process, State: holdfast.ProcessExited, ExitCode: 143, StartedAt: stale.StartedAt, FinishedAt: time.Now()}
			if err := h.endAsked(t.Context(), stale, ended); err != nil {
				t.Fatal(err)
			}
			if got := h.task(task.ID); got.State != want || got.ExitCode != 143 {
				t.Errorf("%s, code %d; want %s", got.State, got.ExitCode, want)
			}
		})
	}
}

// One look signals a process that is to end, and the next one comes when it has had its
// time: two looks at once do not make TERM and KILL of it.
func TestATaskThatIsToEndHasItsTimeBeforeItIsKilled(t *testing.T) {
	h := newHarness(t)
	g := newGuests(t).serve(h)
	task := h.submit(h.session("s1").ID, "t1", "hold", "stubborn")
	h.awaitTask(task.ID, false, holdfast.TaskRunning)
	h.awaitProcess(task.ID)
	h.exec(`UPDATE task SET cancel_asked = $2, look_at = 1 WHERE id = $1`, string(task.ID), true)
	for range 3 {
		if err := h.lookAtTask(t.Context(), task.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.signalsOf(task.ID); !slices.Equal(got, []string{"TERM"}) {
		t.Errorf("signals %v", got)
	}
	h.lookNow(task.ID)
	if err := h.lookAtTask(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	if got := g.signalsOf(task.ID); !slices.Equal(got, []string{"TERM", "KILL"}) {
		t.Errorf("signals %v when its time is over", got)
	}
}

// contract: lifecycle.md: TIMED_OUT only if the guest says that it still ran at its limit.
func TestATaskIsTimedOutOnlyIfItsGuestSaysThatItRanAtItsLimit(t *testing.T) {
	h := newHarness(t)
	g := newGuests(t).serve(h)
	se := h.session("s1")
	submit := func(id string) holdfast.Task {
		task, err := h.SubmitTask(t.Context(), alice, holdfast.SubmitTask{RequestID: id, Session: se.ID, Command: "hold", Limit: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		h.awaitTask(task.ID, false, holdfast.TaskRunning)
		h.awaitProcess(task.ID)
		return task
	}
	// In time, and heard of late.
	task := submit("t1")
	g.end(task.ID, 0)
	h.exec(`UPDATE task SET started_at = started_at - 10000000 WHERE id = $1`, string(task.ID))
	h.lookNow(task.ID)
	if got := h.awaitTask(task.ID, true, holdfast.TaskSucceeded); got.Failure != nil {
		t.Errorf("%+v", got.Failure)
	}
	// Nobody can be asked: it runs, as far as anybody knows.
	task = submit("t2")
	h.exec(`UPDATE task SET started_at = started_at - 10000000 WHERE id = $1`, string(task.ID))
	g.mu.Lock()
	g.fail = func(string, string) error {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	}
	g.mu.Unlock()
	for range 3 {
		h.lookNow(task.ID)
		if _, err := h.sweeps.RunOnce(t.Context(), SweepTasks); err != nil {
			t.Log(err)
		}
	}
	if got := h.task(task.ID); got.State != holdfast.TaskRunning {
		t.Errorf("%+v", got)
	}
	g.end(task.ID, 0) // meanwhile it ended by itself
	g.mu.Lock()
	g.fail = nil
	g.mu.Unlock()
	h.lookNow(task.ID)
	if got := h.awaitTask(task.ID, true, holdfast.TaskSucceeded, holdfast.TaskTimedOut); got.State != holdfast.TaskSucceeded {
		t.Errorf("nobody said that it ran at its limit: %+v", got.Failure)
	}
	// Its guest says that it runs.
	task = submit("t3")
	h.exec(`UPDATE task SET started_at = started_at - 10000000 WHERE id = $1`, string(task.ID))
	h.lookNow(task.ID)
	got := h.awaitTask(task.ID, true, holdfast.TaskTimedOut)
	if got.Failure == nil || got.Failure.Reason != holdfast.ReasonTimeLimit || got.ExitCode != 143 {
		t.Errorf("%+v, %+v", got, got.Failure)
	}
}

func TestATaskThatCannotStartFailsAndTheNextRuns(t *testing.T) {
	h := newHarness(t)
	newGuests(t).serve(h)
	se := h.session("s1")
	bad, next := h.submit(se.ID, "t1", "missing"), h.submit(se.ID, "t2", "hold")
	if got := h.awaitTask(bad.ID, false, holdfast.TaskFailed); got.Failure.Reason != holdfast.ReasonNoSuchCommand {
		t.Errorf("%+v", got.Failure)
	}
	h.awaitTask(next.ID, false, holdfast.TaskRunning)
}

// contract: A14, E3. Output is read by offset while it runs and after, also when the
// instance it ran on is gone.
func TestE3_OutputOutlivesTheInstanceItWasWrittenOn(t *testing.T) {
	blobs, err := blob.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(c *Config) { c.Blobs = blobs })
	g := newGuests(t).serve(h)
	g.reports(func(send func() int) { send() })(h)
	se := h.session("s1")
	task := h.submit(se.ID, "t1", "hold", "it")
	h.awaitProcess(task.ID)
	read := func(offset int64, follow bool) (string, holdfast.Task) {
		t.Helper()
		var all []byte
		got, err := h.StreamTaskOutput(t.Context(), alice, holdfast.TaskOutput{ID: task.ID, StdoutOffset: offset, Follow: follow}, func(c holdfast.OutputChunk) error {
			if c.Offset != offset+int64(len(all)) || c.Stream != holdfast.Stdout {
				t.Errorf("%+v", c)
			}
			all = append(all, c.Data...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(all), got
	}
	if out, got := read(4, false); out != "of it\n" || got.State != holdfast.TaskRunning {
		t.Errorf("%q, %+v", out, got)
	}
	go g.end(task.ID, 0)
	if out, got := read(0, true); out != "out of it\n" || got.State != holdfast.TaskSucceeded {
		t.Errorf("%q, %+v", out, got)
	}
	h.eventually("its output is kept", func() bool { return h.count(`SELECT COUNT(*) FROM task WHERE log <> '' AND look_at = 0`) == 1 })
	g.mu.Lock()
	clear(g.processes)
	g.mu.Unlock()
	if out, _ := read(4, false); out != "of it\n" {
		t.Errorf("%q", out)
	}
}

// trap T46: a commit whose outcome is not known is made again, finds the copy that it has
// named itself, and does not remove that as one which came second. (contract: E3)
func TestE3_T46_TheCopyThatARepeatedCommitFindsIsItsOwn(t *testing.T) {
	blobs, err := blob.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(c *Config) { c.Blobs = blobs })
	g := newGuests(t).serve(h)
	g.reports(func(send func() int) { send() })(h)
	task := h.submit(h.session("s1").ID, "t1", "exit", "0")
	h.eventually("its output is kept", func() bool { return h.count(`SELECT COUNT(*) FROM task WHERE log <> '' AND look_at = 0`) == 1 })
	row := h.taskRow(task.ID)
	if err := h.logKept(t.Context(), row, row.Log); err != nil {
		t.Fatal(err)
	}
	again := row
	again.Log = nil // as whoever names it has read the row
	same := *row.Log
	if err := h.logKept(t.Context(), again, &same); err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Stat(t.Context(), row.Log.Stdout.Key); err != nil {
		t.Errorf("the copy that the row names: %v", err)
	}
	other := taskLog{Stdout: keptLog{Key: taskPrefix(task.ID) + "STDOUT-99", Size: 1}}
	if _, err := blobs.Put(t.Context(), other.Stdout.Key, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if err := h.logKept(t.Context(), again, &other); err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Stat(t.Context(), other.Stdout.Key); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("a copy that came second: %v", err)
	}
}

// A record that nobody can ever read again, since its guest or a power cut destroyed it,
// holds no delete up: its output is known to be lost.
func TestE3_ADestroyedRecordHoldsNoDeleteUp(t *testing.T) {
	blobs, err := blob.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(c *Config) { c.Blobs = blobs })
	g := newGuests(t).serve(h)
	se := h.session("s1")
	task := h.submit(se.ID, "t1", "hold")
	h.awaitProcess(task.ID)
	g.mu.Lock()
	g.fail = func(string, string) error {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStorage, "the record cannot be read")
	}
	g.mu.Unlock()
	g.end(task.ID, 0)
	h.exec(`UPDATE task SET finished_at = 1, state = 'SUCCEEDED', process_ended = $2 WHERE id = $1`, string(task.ID), true)
	h.eventually("the session is deleted", func() bool {
		got, err := h.deleteSession(se.ID)
		return err == nil && got.State == holdfast.SessionDeleted
	})
	if row := h.taskRow(task.ID); row.Log == nil || !row.Log.Lost {
		t.Errorf("what is said of its output: %+v", row.Log)
	}
}

// full is a blob store without room, until it has some.
type full struct {
	blob.Store
	room chan struct{}
}

func (f full) Put(ctx context.Context, key string, r io.Reader) (blob.Info, error) {
	select {
	case <-f.room:
		return f.Store.Put(ctx, key, r)
	default:
		return blob.Info{}, errors.New("no room")
	}
}

// contract: E3. What a task wrote is kept before the delete of its session takes it away,
// and a store that has no room holds the delete up, for a time.
func TestE3_OutputIsKeptBeforeADeleteTakesItAway(t *testing.T) {
	for name, tries := range map[string]struct {
		room bool // in the end
	}{"there is room at last": {true}, "there never is room": {false}} {
		t.Run(name, func(t *testing.T) {
			blobs, err := blob.Open(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			store := full{blobs, make(chan struct{})}
			h := newHarness(t, func(c *Config) { c.Blobs = store })
			g := newGuests(t).serve(h)
			g.reports(func(send func() int) { send() })(h)
			h.fleet.ensure = func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
				if l.Desired == holdfast.DesiredAbsent {
					g.mu.Lock()
					clear(g.processes)
					g.mu.Unlock()
				}
				return h.fleet.reach(l)
			}
			se := h.session("s1")
			task := h.submit(se.ID, "t1", "exit", "0")
			h.awaitTask(task.ID, false, holdfast.TaskSucceeded)
			if got, err := h.deleteSession(se.ID); holdfast.CodeOf(err) != holdfast.Unavailable && (err != nil || got.State != holdfast.SessionDeleting) {
				t.Fatalf("the delete did not wait for the output: %s, %v", got.State, err)
			}
			if tries.room {
				close(store.room)
			} else {
				h.exec(`UPDATE operation SET entered_at = 1 WHERE state = 'PENDING'`)
			}
			h.eventually("the session is deleted", func() bool {
				got, err := h.deleteSession(se.ID)
				return err == nil && got.State == holdfast.SessionDeleted
			})
			var out string
			_, err = h.StreamTaskOutput(t.Context(), alice, holdfast.TaskOutput{ID: task.ID}, func(c holdfast.OutputChunk) error {
				out += string(c.Data)
				return nil
			})
			if tries.room && (err != nil || out != "out of 0\n") {
				t.Errorf("%q, %v", out, err)
			}
			if !tries.room && err == nil {
				t.Errorf("%q was read, though nothing was kept", out)
			}
		})
	}
}

// contract: E3. A boot was given up in the very instant in which the task's process
// ended well: its success is another end, and is kept beside.
func TestE3_ALateSuccessOfTheInstantInWhichItsBootWasLostIsKept(t *testing.T) {
	now := time.Unix(1000, 0)
	lost := taskRow{Task: holdfast.Task{State: holdfast.TaskFailed, FinishedAt: now}}
	success := taskEnd{state: holdfast.TaskSucceeded, finishedAt: now, process: "pr"}
	if sameEnd(lost, success) {
		t.Error("it is taken for the end that is recorded")
	}
	known := lost
	known.State, known.ProcessEnded = holdfast.TaskSucceeded, true
	if !sameEnd(known, success) {
		t.Error("an end that is told again is another one")
	}
}
