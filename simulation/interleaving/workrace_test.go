package interleaving

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/orchestrator"
)

// works are the races of sessions, tasks, builds, checkpoints and forks.
func workRaces() []scenario {
	all := slices.Concat(sessionRaces(), taskRaces(), buildRaces(), checkpointRaces())
	for i := range all {
		all[i].work = true
	}
	for _, sc := range checkpointRaces() {
		sc.name, sc.work, sc.patient = "patient: "+sc.name, true, true
		all = append(all, sc)
	}
	return all
}

func sessionRaces() []scenario {
	return []scenario{
		{name: "session: create twice", long: true, traps: "T1 T8 T53", setup: nothing, actors: race(createsSession(0, base("session")), createsSession(1, base("session"))),
			check: all(oneSession, stateOf(holdfast.SessionReady))},
		{name: "session: suspend against submit", traps: "T53", setup: isSession(), actors: race(changes(suspend, 0, false), submits(1, "task")),
			check: all(submittedRan, ifTold[holdfast.Session]("suspend session 0", sleepsUnless("submit 1")))},
		{name: "session: resume against submit", long: true, setup: sleeps, actors: race(changes(resume, 0, false), submits(1, "task")),
			check: all(submittedRan, ranOnce, stateOf(holdfast.SessionReady))},
		{name: "session: delete against submit", long: true, setup: isSession(), actors: race(changes(remove, 0, false), submits(1, "task")),
			check: ifTold[holdfast.Session]("delete session 0", stateOf(holdfast.SessionDeleted))},
		{name: "session: idle suspension against submit", traps: "T53", setup: isIdle, actors: race(sweeps(orchestrator.SweepIdle, 0), submits(1, "task")),
			check: all(submittedRan, notIdleIf("submit 1"))},
		{name: "session: idle suspension against an exec", traps: "T53", setup: isIdle, actors: race(sweeps(orchestrator.SweepIdle, 0), execs(1)),
			check: leaseFirst},
		{name: "session: idle suspension twice", traps: "T28", setup: isIdle,
			actors: race(sweeps(orchestrator.SweepIdle, 0), named("again", sweeps(orchestrator.SweepIdle, 1))), check: stateOf(holdfast.SessionSuspended)},
		{name: "session: suspend against delete", long: true, traps: "T11", setup: isSession(), actors: race(changes(suspend, 0, false), changes(remove, 1, false)),
			check: ifTold[holdfast.Session]("delete session 1", stateOf(holdfast.SessionDeleted))},
		{name: "session: suspend against resume", traps: "T11", setup: isSession(), actors: race(changes(suspend, 0, false), changes(resume, 1, false))},
		{name: "session: a paused suspend against resume", long: true, traps: "T11 T14 T53", setup: isSession(),
			actors: race(changes(suspend, 0, false), passes(), changes(resume, 1, false)), check: ifTold[holdfast.Session]("resume session 1", awakeUnless("suspend session 0"))},
		{name: "session: suspend against its sandbox's end", setup: hasEnded(isSession()), actors: race(changes(suspend, 0, false), saysExited(1)),
			check: stateOf(holdfast.SessionFailed)},
		{name: "session: delete against its sandbox's end", setup: hasEnded(isSession()), actors: race(changes(remove, 0, false), saysExited(1)),
			check: ifTold[holdfast.Session]("delete session 0", stateOf(holdfast.SessionDeleted))},
		{name: "session: delete against its preparation", traps: "T53", setup: isPreparing, actors: race(changes(remove, 0, false), finishes(1, 0)),
			check: ifTold[holdfast.Session]("delete session 0", stateOf(holdfast.SessionDeleted))},
		{name: "session: submit against its preparation's failure", setup: isPreparing, actors: race(submits(0, "task"), finishes(1, 3)),
			check: all(stateOf(holdfast.SessionFailed), taskNever("submit 0"))},
		{name: "session: suspend against its preparation", setup: isPreparing, actors: race(changes(suspend, 0, false), finishes(1, 0))},
	}
}

func taskRaces() []scenario {
	return []scenario{
		{name: "task: submit twice", traps: "T1 T8", setup: isSession(), actors: race(submits(0, "task"), submits(1, "task")), check: all(oneTask, submittedRan, ranOnce)},
		{name: "task: two submits", setup: isSession(), actors: race(submits(0, "one"), submits(1, "another")), check: submittedRan},
		{name: "task: turn complete against its sweep", long: true, traps: "T16 T28", setup: silent(works(0)), actors: race(finishes(0, 0), sweeps(orchestrator.SweepTasks, 1)),
			check: all(taskIs(running, holdfast.TaskSucceeded), ranOnce)},
		{name: "task: turn complete twice", traps: "T16", setup: works(1), actors: race(finishes(0, 0), named("again", finishes(1, 0))),
			check: all(taskIs(running, holdfast.TaskSucceeded), taskIs(queued, holdfast.TaskSucceeded), ranOnce)},
		{name: "task: cancel against turn complete", long: true, setup: works(0), actors: race(cancels(0, running), finishes(1, 0)),
			check: all(taskIs(running, holdfast.TaskSucceeded, holdfast.TaskCancelled), ranOnce)},
		{name: "task: cancel of a queued one against its start", setup: works(1), actors: race(cancels(0, queued), finishes(1, 0)),
			check: all(taskIs(queued, holdfast.TaskCancelled), taskIs(running, holdfast.TaskSucceeded))},
		{name: "task: delete of its session against turn complete", long: true, traps: "T53", setup: works(1), actors: race(changes(remove, 0, false), finishes(1, 0)),
			check: all(taskIs(running, holdfast.TaskSucceeded, holdfast.TaskCancelled), stateIfTold("delete session 0", holdfast.SessionDeleted))},
		{name: "task: forced suspend against turn complete", long: true, setup: works(0), actors: race(changes(suspend, 0, true), finishes(1, 0)),
			check: taskIs(running, holdfast.TaskSucceeded, holdfast.TaskCancelled)},
		{name: "task: turn complete against its boot's end", traps: "T37 T53", setup: works(0), actors: race(finishes(0, 0), diesAndSays(1)),
			check: keptBeside},
		{name: "task: a replaced boot's task against its turn complete", long: true, traps: "T37 T53", setup: works(1, restartsAnew), actors: race(finishes(0, 0), diesAndSays(1)),
			check: all(keptBeside, ranOnce, taskIs(queued, holdfast.TaskSucceeded))},
		{name: "task: its sweep twice", long: true, traps: "T28", setup: silent(works(1)), actors: race(sweeps(orchestrator.SweepTasks, 0), named("again", sweeps(orchestrator.SweepTasks, 1))),
			check: ranOnce},
	}
}

func buildRaces() []scenario {
	waits := holdfast.CreateSession{RequestID: "session", Environment: "tools"}
	return []scenario{
		{name: "build: environment ready twice, against a session's create", long: true, traps: "T16 T53", setup: building,
			actors: race(saysBuilt(0, 0), named("again", saysBuilt(1, 0)), createsSession(1, waits)), check: all(builtFor(holdfast.SessionReady, 2), preparedOnce(2))},
		{name: "build: environment ready against a session's create", long: true, traps: "T53", setup: building, actors: race(saysBuilt(0, 0), createsSession(1, waits)),
			check: all(builtFor(holdfast.SessionReady, 2), preparedOnce(2))},
		{name: "build: environment ready twice", traps: "T16", setup: building, actors: race(saysBuilt(0, 0), named("again", saysBuilt(1, 0))),
			check: all(builtFor(holdfast.SessionReady, 1), preparedOnce(1))},
		{name: "build: environment failed against a session's create", traps: "T53", setup: building, actors: race(saysBuilt(0, 2), createsSession(1, waits)),
			check: allWaitingFailed},
		{name: "build: environment ready against a rebuild", long: true, traps: "T38 T53", setup: building, actors: race(saysBuilt(0, 0), rebuilds(1)),
			check: all(builtFor(holdfast.SessionReady, 1), preparedOnce(1))},
		{name: "build: a superseded one's ready against a session's create", traps: "T37", setup: isRebuilt, actors: race(saysLate(0), createsSession(1, waits)),
			check: all(builtFor(holdfast.SessionReady, 2), preparedOnce(2))},
		{name: "build: its time's end against a late ready", long: true, traps: "T26 T28", setup: isLate, actors: race(sweeps(orchestrator.SweepBuilds, 0), saysBuilt(1, 0)),
			check: asItsBuild},
		{name: "build: its sweep twice", long: true, traps: "T28", setup: isLate, actors: race(sweeps(orchestrator.SweepBuilds, 0), named("again", sweeps(orchestrator.SweepBuilds, 1))),
			check: asItsBuild},
		{name: "build: its builder's end against environment ready", long: true, traps: "T26", setup: building, actors: race(builderDies(0), saysBuilt(1, 0)), check: asItsBuild},
		{name: "build: delete of a waiting session against environment ready", long: true, setup: building, actors: race(saysBuilt(0, 0), deletesWaiting(1)),
			check: stateIfTold("delete waiting 1", holdfast.SessionDeleted)},
		{name: "build: waiting sessions' sweep against environment ready", traps: "T28", setup: building, actors: race(sweeps(orchestrator.SweepSessionWaiting, 0), saysBuilt(1, 0)),
			check: all(builtFor(holdfast.SessionReady, 1), preparedOnce(1))},
	}
}

func checkpointRaces() []scenario {
	return []scenario{
		{name: "checkpoint: taken twice", traps: "T1 T8", setup: isReady, actors: race(takes(0, ofSandbox), takes(1, ofSandbox)), check: oneCheckpoint},
		{name: "checkpoint: taken against suspend", setup: isReady, actors: race(takes(0, ofSandbox), suspends(1)), check: takenIfTold},
		{name: "checkpoint: taken against delete of its sandbox", traps: "T38 T53", setup: isReady, actors: race(takes(0, ofSandbox), deletes(1)),
			check: all(takenIfTold, deletedIf("delete 1"))},
		{name: "checkpoint: taken, its claim runs out, against its sandbox's sweep", traps: "T11 T14", setup: isReady, actors: race(takes(0, ofSandbox), passes(), carriesOn(1)), check: takenIfTold},
		{name: "checkpoint: of a session against its delete", traps: "T53", setup: isSession(), actors: race(takes(0, ofSession), changes(remove, 1, false)),
			check: all(takenIfTold, stateIfTold("delete session 1", holdfast.SessionDeleted))},
		{name: "checkpoint: of a session against its suspend", traps: "T53", setup: isSession(), actors: race(takes(0, ofSession), changes(suspend, 1, false)), check: takenIfTold},
		{name: "checkpoint: delete twice", setup: isCopied, actors: race(deletesCheckpoint(0), deletesCheckpoint(1))},
		{name: "checkpoint: fork against delete", traps: "T53", setup: isCopied, actors: race(forks(0, "one"), deletesCheckpoint(1)), check: forkLives("one")},
		{name: "checkpoint: two forks against delete", long: true, traps: "T53", setup: isCopied, actors: race(forks(0, "one"), forks(1, "another"), deletesCheckpoint(1)),
			check: all(forkLives("one"), forkLives("another"), apart)},
		{name: "checkpoint: fork, delete and the sweep of blobs", long: true, traps: "T53", setup: isCopied, actors: race(forks(0, "one"), deletesCheckpoint(1), sweeps(orchestrator.SweepBlobs, 0)),
			check: forkLives("one")},
		{name: "checkpoint: of the last fork, against its delete and the sweep of blobs", traps: "T53", setup: isForked, actors: race(takes(0, ofSandbox), deletes(1), sweeps(orchestrator.SweepBlobs, 1)),
			check: takenIfTold},
		{name: "checkpoint: fork of a session against its delete", long: true, traps: "T50 T53", setup: isSessionCopied,
			actors: race(createsSession(0, holdfast.CreateSession{RequestID: "fork"}), changes(remove, 1, true)), check: forkHasNothing},
	}
}

// More actors.

// execs starts a process of a caller's in the session's sandbox, which is activity.
func execs(replica int) actor {
	return tells("exec "+fmt.Sprint(replica), func(ctx context.Context, w *world) (holdfast.Process, error) {
		return w.orch[replica].StartProcess(ctx, alice, w.sandbox, holdfast.StartProcess{Command: "true"})
	})
}

// silent is the same once nothing was heard of the running task for a while.
func silent(setup func(context.Context, *world) error) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		err := setup(ctx, w)
		pass(holdfast.TaskSilence)
		return err
	}
}

// diesAndSays is the session's boot ending by itself, and the fleet saying so.
func diesAndSays(replica int) actor {
	return plain("exited "+fmt.Sprint(replica), func(ctx context.Context, w *world) error {
		w.sched.step(ctx, "the instance ends")
		w.host().end(w.instance)
		return w.fleetSays(ctx, replica, 1)
	})
}

// builderDies is a build's builder ending by itself, and the fleet saying so.
func builderDies(replica int) actor {
	return plain("exited "+fmt.Sprint(replica), func(ctx context.Context, w *world) error {
		w.sched.step(ctx, "the builder ends")
		b, err := w.orch[replica].GetBuild(ctx, alice, w.work.build)
		if err != nil {
			return err
		}
		instances, err := w.strings(ctx, `SELECT instance FROM sandbox WHERE id = '`+string(b.Sandbox)+`'`)
		if err != nil {
			return err
		}
		w.instance = holdfast.InstanceID(instances[0])
		if h := w.host(); h != nil {
			h.end(w.instance)
		}
		return w.fleetSays(ctx, replica, 1)
	})
}

func deletesWaiting(replica int) actor {
	return tells("delete waiting "+fmt.Sprint(replica), func(ctx context.Context, w *world) (holdfast.Session, error) {
		return w.orch[replica].DeleteSession(ctx, alice, holdfast.MutateSession{ID: w.work.waiting})
	})
}

// What holds at the end of some.

func all(checks ...func(*world) error) func(*world) error {
	return func(w *world) error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check(w))
		}
		return errors.Join(errs...)
	}
}

// ifTold checks where an actor was answered with success.
func ifTold[T any](who string, check func(*world) error) func(*world) error {
	return func(w *world) error {
		if _, ok := told[T](w, who); !ok {
			return nil
		}
		return check(w)
	}
}

// sessions are all there are, by the request ids that made them.
func (w *world) sessions() (map[holdfast.SessionID]holdfast.Session, error) {
	page, err := w.orch[0].ListSessions(context.Background(), alice, holdfast.ListSessions{States: []holdfast.SessionState{holdfast.SessionWaiting, holdfast.SessionCreating,
		holdfast.SessionReady, holdfast.SessionSuspended, holdfast.SessionFailed, holdfast.SessionDeleting, holdfast.SessionDeleted}})
	out := map[holdfast.SessionID]holdfast.Session{}
	for _, se := range page.Sessions {
		out[se.ID] = se
	}
	return out, err
}

// stateOf: every session there is ends in a state.
func stateOf(state holdfast.SessionState) func(*world) error {
	return func(w *world) error {
		list, err := w.sessions()
		if err == nil && len(list) == 0 {
			err = errors.New("there is no session")
		}
		for _, se := range list {
			if se.State != state {
				err = errors.Join(err, fmt.Errorf("a session is %s in the end, not %s (%+v)", se.State, state, se.Failure))
			}
		}
		return err
	}
}

func stateIfTold(who string, state holdfast.SessionState) func(*world) error {
	return ifTold[holdfast.Session](who, func(w *world) error {
		se, _ := told[holdfast.Session](w, who)
		now, err := w.orch[0].GetSession(context.Background(), alice, se.ID)
		if err == nil && now.State != state {
			err = fmt.Errorf("%s was told success, and the session is %s", who, now.State)
		}
		return err
	})
}

func oneSession(w *world) error {
	list, err := w.sessions()
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("one request id made %d sessions", len(list))
	}
	return err
}

// sleepsUnless: a suspend that succeeded holds, unless a task woke the session.
func sleepsUnless(submit string) func(*world) error {
	return func(w *world) error {
		if _, ok := told[holdfast.Task](w, submit); ok {
			return nil
		}
		return stateOf(holdfast.SessionSuspended)(w)
	}
}

// awakeUnless: a resume that succeeded holds, unless the suspend succeeded after it.
func awakeUnless(suspend string) func(*world) error {
	return func(w *world) error {
		if _, ok := told[holdfast.Session](w, suspend); ok {
			return nil
		}
		if a := w.answers[suspend]; holdfast.CodeOf(a.err) != "" && w.lastStep("resume session") > w.lastStep("suspend session") {
			return stateOf(holdfast.SessionReady)(w)
		}
		return nil
	}
}

// lastStep is when an actor whose name begins so took its last step, -1 for never.
func (w *world) lastStep(actor string) int { return w.lastOf(actor, "") }

func (w *world) lastOf(actor, what string) int {
	for i, label := range slices.Backward(w.sched.trace) {
		if strings.HasPrefix(label, actor) && strings.Contains(label, what) {
			return i
		}
	}
	return -1
}

// submittedRan: whoever was told that a task is queued finds that it ran.
func submittedRan(w *world) error {
	var errs []error
	for who := range w.answers {
		t, ok := told[holdfast.Task](w, who)
		if !ok {
			continue
		}
		now, err := w.orch[0].GetTask(context.Background(), alice, t.ID)
		if err == nil && now.State != holdfast.TaskSucceeded {
			err = fmt.Errorf("%s was told of a task that is %s in the end (%+v)", who, now.State, now.Failure)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// taskNever: a task that was taken before its session failed has ended with that, and never ran.
func taskNever(who string) func(*world) error {
	return func(w *world) error {
		t, ok := told[holdfast.Task](w, who)
		if !ok {
			return nil
		}
		now, err := w.orch[0].GetTask(context.Background(), alice, t.ID)
		if err == nil && (now.State == holdfast.TaskSucceeded || now.Failure == nil) {
			err = fmt.Errorf("a task of a session that could not be prepared is %s, %+v", now.State, now.Failure)
		}
		return err
	}
}

func oneTask(w *world) error {
	n, err := w.count(w.work.db, `SELECT COUNT(*) FROM task`)
	if err == nil && n != 1 {
		err = fmt.Errorf("one request id made %d tasks", n)
	}
	return err
}

// ranOnce: every task ran once.
func ranOnce(w *world) error {
	ids, err := w.strings(context.Background(), `SELECT id FROM task WHERE state <> 'CANCELLED'`)
	w.work.guests.mu.Lock()
	defer w.work.guests.mu.Unlock()
	for _, id := range ids {
		if n := w.work.guests.starts[id]; n != 1 {
			err = errors.Join(err, fmt.Errorf("a task ran %d times", n))
		}
	}
	return err
}

func taskIs(which func(*work) holdfast.TaskID, states ...holdfast.TaskState) func(*world) error {
	return func(w *world) error {
		t, err := w.orch[1].GetTask(context.Background(), alice, which(w.work))
		if err == nil && !slices.Contains(states, t.State) {
			err = fmt.Errorf("the task is %s in the end, not one of %v (%+v)", t.State, states, t.Failure)
		}
		return err
	}
}

// keptBeside: a task whose boot was declared lost before its success was heard shows
// both, and a word that its host took is never lost.
func keptBeside(w *world) error {
	t, err := w.orch[1].GetTask(context.Background(), alice, w.work.task)
	if err != nil {
		return err
	}
	posted := w.lastOf("turn complete", "task.complete") >= 0
	switch {
	case t.State == holdfast.TaskSucceeded && t.Contrary == nil:
	case t.State != holdfast.TaskFailed || t.Failure == nil || t.Failure.Reason != holdfast.ReasonInstanceLost:
		return fmt.Errorf("the task is %s, %+v", t.State, t.Failure)
	case posted && (t.Contrary == nil || t.Contrary.ExitCode != 0):
		return fmt.Errorf("its late success is not kept: %+v", t.Contrary)
	}
	return nil
}

// notIdleIf: a task that was taken is never behind an idle suspension.
func notIdleIf(who string) func(*world) error {
	return func(w *world) error {
		if _, ok := told[holdfast.Task](w, who); ok {
			return stateOf(holdfast.SessionReady)(w)
		}
		list, err := w.sessions()
		for _, se := range list {
			if se.State != holdfast.SessionSuspended || se.SuspendedBy != holdfast.ReasonIdle {
				err = errors.Join(err, fmt.Errorf("it is %s, by %q", se.State, se.SuspendedBy))
			}
		}
		return err
	}
}

// leaseFirst: activity that was committed before the sweep decided keeps the session awake (A12).
func leaseFirst(w *world) error {
	leased, decided := w.lastOf("exec", "orchestrator.active"), w.lastOf(orchestrator.SweepIdle, "orchestrator.suspendIdle")
	if leased < 0 || leased > decided {
		return stateOf(holdfast.SessionSuspended)(w)
	}
	return stateOf(holdfast.SessionReady)(w)
}

// builtFor: so many sessions wait no more and are in a state, each of a READY build.
func builtFor(state holdfast.SessionState, n int) func(*world) error {
	return func(w *world) error {
		list, err := w.sessions()
		if err == nil && len(list) != n {
			err = fmt.Errorf("there are %d sessions, not %d", len(list), n)
		}
		return errors.Join(err, stateOf(state)(w))
	}
}

// preparedOnce: each of so many sessions was prepared, once (E2).
func preparedOnce(n int) func(*world) error {
	return func(w *world) error {
		tasks, err := w.count(w.work.db, `SELECT COUNT(*) FROM task WHERE system AND state = 'SUCCEEDED'`)
		if err == nil && tasks != n {
			err = fmt.Errorf("%d preparations succeeded, of %d sessions", tasks, n)
		}
		return errors.Join(err, ranOnce(w))
	}
}

// allWaitingFailed: whoever waited for a build that failed is FAILED with its reason;
// whoever came later was refused.
func allWaitingFailed(w *world) error {
	list, err := w.sessions()
	for _, se := range list {
		if se.State != holdfast.SessionFailed || se.Failure == nil || se.Failure.Reason != holdfast.ReasonSetupFailed {
			err = errors.Join(err, fmt.Errorf("a session of a failed build is %s, %+v", se.State, se.Failure))
		}
	}
	return err
}

// asItsBuild: whoever waited is READY where the build is, and FAILED with a reason otherwise.
func asItsBuild(w *world) error {
	b, err := w.orch[0].GetBuild(context.Background(), alice, w.work.build)
	if err != nil {
		return err
	}
	switch {
	case b.State == holdfast.BuildReady:
		return stateOf(holdfast.SessionReady)(w)
	case b.State != holdfast.BuildFailed || b.Failure == nil:
		return fmt.Errorf("the build is %s, %+v", b.State, b.Failure)
	}
	list, err := w.sessions()
	for _, se := range list {
		if se.State != holdfast.SessionFailed || se.Failure == nil || se.Failure.Reason != b.Failure.Reason {
			err = errors.Join(err, fmt.Errorf("the build failed with %s, and a session is %s, %+v", b.Failure.Reason, se.State, se.Failure))
		}
	}
	return err
}

func oneCheckpoint(w *world) error {
	n, err := w.count(w.work.db, `SELECT COUNT(*) FROM checkpoint WHERE state = 'READY'`)
	if err == nil && n != 1 {
		err = fmt.Errorf("one request id made %d checkpoints", n)
	}
	return err
}

// takenIfTold: a checkpoint that was answered as READY is, whatever became of its source.
func takenIfTold(w *world) error {
	for who := range w.answers {
		c, ok := told[holdfast.Checkpoint](w, who)
		if !ok || !strings.HasPrefix(who, "checkpoint") {
			continue
		}
		now, err := w.orch[0].GetCheckpoint(context.Background(), alice, c.ID)
		if err != nil || c.State == holdfast.CheckpointReady && now.State != holdfast.CheckpointReady {
			return errors.Join(err, fmt.Errorf("it was told that the checkpoint is %s, and it is %s", c.State, now.State))
		}
	}
	return nil
}

// forkLives: a fork that was answered as READY is.
func forkLives(requestID string) func(*world) error {
	return func(w *world) error {
		fork, ok := told[holdfast.Sandbox](w, "fork "+requestID)
		if !ok {
			return nil
		}
		now, err := w.orch[0].GetSandbox(context.Background(), alice, fork.ID)
		if err == nil && now.State != holdfast.SandboxReady {
			err = fmt.Errorf("a fork is %s, %+v", now.State, now.Failure)
		}
		return err
	}
}

// apart: two forks are two sandboxes on two instances (E4).
func apart(w *world) error {
	one, a := told[holdfast.Sandbox](w, "fork one")
	other, b := told[holdfast.Sandbox](w, "fork another")
	if a && b && (one.ID == other.ID || one.Instance == other.Instance) {
		return errors.New("two forks are one")
	}
	return nil
}

// forkHasNothing: a fork of a session is READY whatever becomes of its source, and has none of its tasks.
func forkHasNothing(w *world) error {
	fork, ok := told[holdfast.Session](w, "create session 0")
	if !ok {
		return fmt.Errorf("a fork of a READY checkpoint was refused: %w", w.answers["create session 0"].err)
	}
	now, err := w.orch[0].GetSession(context.Background(), alice, fork.ID)
	if err == nil && (now.State != holdfast.SessionReady || now.Sandbox == w.sandbox) {
		err = fmt.Errorf("the fork is %s, on %s", now.State, now.Sandbox)
	}
	page, failed := w.orch[0].ListTasks(context.Background(), alice, holdfast.ListTasks{Session: fork.ID})
	if len(page.Tasks) != 0 {
		err = errors.Join(err, errors.New("a fork has its source's task"))
	}
	return errors.Join(err, failed, stateIfTold("delete session 1", holdfast.SessionDeleted)(w))
}
