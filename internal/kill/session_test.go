package kill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// work is what its only client was told about a session and its tasks; the life is
// its sandbox's. Everything in it was acknowledged.
type work struct {
	*life
	create holdfast.CreateSession
	id     holdfast.SessionID
	state  holdfast.SessionState // as the last mutation was answered
	jobs   []*job
	before []string // tasks whose lines came with its disk
	maybe  []string // tasks whose lines may have
}

// job is a task.
type job struct {
	in        holdfast.SubmitTask
	id        holdfast.TaskID // "" while no submit was answered
	code      int             // that its script exits with
	out       string          // all that its script writes
	cancelled bool            // its client said so
	end       holdfast.TaskState
}

// taskLines is where each task of a session adds a line as it begins.
const taskLines = "/srv/tasks"

// newJob is a task that adds a line to a file, writes some output, and ends with a code.
func (c *caller) newJob(w *work) *job {
	name := fmt.Sprintf("%s-task-%d", w.create.RequestID, len(w.jobs)+1)
	j := &job{code: c.random.IntN(3)}
	var want strings.Builder
	for n := range 300 {
		fmt.Fprintln(&want, n+1)
	}
	j.out = want.String() + name + "\n"
	j.in = holdfast.SubmitTask{RequestID: name, Session: w.id, Command: "sh",
		Args: []string{"-c", fmt.Sprintf("echo %s >>%s; seq 300; sleep 0.2; echo %s; exit %d", name, taskLines, name, j.code)}}
	return j
}

// labour is the life of a session: a create, tasks and other things to do, and
// usually a delete.
func (c *caller) labour(ctx context.Context, w *work) error {
	if err := c.engage(ctx, w); err != nil {
		return err
	}
	steps := []func(context.Context, *work) error{c.tasks, c.tasks, c.cancel, c.rest, c.forkWork}
	for range 1 + c.random.IntN(3) {
		if err := steps[c.random.IntN(len(steps))](ctx, w); err != nil && (!errors.Is(err, errEnded) || w.create.Restart == holdfast.RestartNone) {
			return err
		}
		if c.round.over.Load() {
			break
		}
	}
	if c.random.IntN(4) == 0 {
		return nil // kept to the end
	}
	return c.moveWork(ctx, w, (*client.Client).DeleteSession, holdfast.SessionDeleted)
}

// ask is call for what changes nothing, or nothing that could come late.
func (c *caller) ask(ctx context.Context, l *life, what string, do func(context.Context, *client.Client) error) error {
	was := l.late
	err := c.call(ctx, l, what, do)
	l.late = was
	return err
}

// engage creates the session.
func (c *caller) engage(ctx context.Context, w *work) error {
	deaths := c.round.hostDeaths.Load()
	var se holdfast.Session
	err := c.ask(ctx, w.life, "create session", func(ctx context.Context, api *client.Client) (err error) {
		se, err = api.CreateSession(ctx, w.create)
		return err
	})
	switch {
	case holdfast.ReasonOf(err) == holdfast.ReasonCreateFailed:
		se.ID = holdfast.SessionID(holdfast.AsError(err).Resource)
	case holdfast.ReasonOf(err) == holdfast.ReasonBuildFailed && w.create.Environment == environment:
		c.round.dismiss(w) // its newest build failed, which is looked at for itself
		return errEnded
	case err != nil:
		return err
	}
	w.id = se.ID
	if se, err = c.look(ctx, w); err != nil {
		return err
	}
	switch se.State {
	case holdfast.SessionReady:
		w.state = holdfast.SessionReady
		return nil
	case holdfast.SessionFailed:
		if err := c.excused(ctx, w, se, deaths); err != nil {
			return err
		}
		w.ended = true
		c.round.stillborn.Add(1)
		return errEnded
	}
	if c.round.wasStruck(w.life) {
		w.ended = true
		return errEnded
	}
	return fmt.Errorf("create was answered, and it is %s", se.State)
}

// look reads a session, and remembers which instance is its.
func (c *caller) look(ctx context.Context, w *work) (se holdfast.Session, err error) {
	err = c.ask(ctx, w.life, "get session", func(ctx context.Context, api *client.Client) (err error) {
		if se, err = api.GetSession(ctx, w.id); err != nil || se.Sandbox == "" {
			return err
		}
		sb, err := api.GetSandbox(ctx, se.Sandbox)
		w.life.id, w.instance = sb.ID, sb.Instance
		return err
	})
	return se, err
}

// excused says whether a session may be FAILED: because of a blow at its instance, or
// at a host while it began, or because its build failed for such a reason.
func (c *caller) excused(ctx context.Context, w *work, se holdfast.Session, deaths int64) error {
	switch {
	case se.Failure == nil || se.Failure.Reason == "":
		return errors.New("it failed without a reason")
	case c.round.wasStruck(w.life), c.round.hostDeaths.Load() != deaths:
		return nil
	case se.Build == "":
		return fmt.Errorf("it failed though neither its guest nor a host was struck: %+v", se.Failure)
	}
	var b holdfast.Build
	err := c.ask(ctx, w.life, "get build", func(ctx context.Context, api *client.Client) (err error) {
		b, err = api.GetBuild(ctx, se.Build)
		return err
	})
	if err == nil && b.State != holdfast.BuildFailed {
		err = fmt.Errorf("it failed though its build is %s: %+v", b.State, se.Failure)
	}
	return err
}

// tasks submits a few, and sees that they end as they should.
func (c *caller) tasks(ctx context.Context, w *work) error {
	first := len(w.jobs)
	for range 1 + c.random.IntN(3) {
		j := c.newJob(w)
		w.jobs = append(w.jobs, j)
		if err := c.submit(ctx, w, j); err != nil {
			return err
		}
	}
	w.state = holdfast.SessionReady // a submit wakes what sleeps
	for _, j := range w.jobs[first:] {
		if err := c.followJob(ctx, w, j); err != nil {
			return err
		}
	}
	return nil
}

// submit is repeated until it is answered, and now and then once more.
func (c *caller) submit(ctx context.Context, w *work, j *job) error {
	for range 1 + c.random.IntN(2) {
		var t holdfast.Task
		err := c.call(ctx, w.life, "submit", func(ctx context.Context, api *client.Client) (err error) {
			t, err = api.SubmitTask(ctx, j.in)
			return err
		})
		switch {
		case err != nil:
			return err
		case j.id != "" && j.id != t.ID:
			return fmt.Errorf("%s is two tasks: %s and %s", j.in.RequestID, j.id, t.ID)
		}
		j.id = t.ID
	}
	return nil
}

// followJob waits for a task's end and holds it against what it should be.
func (c *caller) followJob(ctx context.Context, w *work, j *job) error {
	t, out, err := c.taskOutput(ctx, w, j)
	if err != nil {
		return err
	}
	j.end = t.State
	if err := c.judgeJob(w, j, t); err != nil {
		return err
	}
	if ranToItsEnd(t) && out != j.out {
		return fmt.Errorf("%s is %s, and wrote %d bytes of %d", j.in.RequestID, t.State, len(out), len(j.out))
	}
	if t.State == holdfast.TaskFailed && !ranToItsEnd(t) {
		w.ended = true
		return errEnded
	}
	return nil
}

// taskOutput follows a task to its end.
func (c *caller) taskOutput(ctx context.Context, w *work, j *job) (t holdfast.Task, out string, err error) {
	var all bytes.Buffer
	err = c.ask(ctx, w.life, "task output", func(ctx context.Context, api *client.Client) (err error) {
		all.Reset()
		t, err = api.StreamTaskOutput(ctx, holdfast.TaskOutput{ID: j.id, Follow: true}, func(chunk holdfast.OutputChunk) error {
			all.Write(chunk.Data)
			return nil
		})
		return err
	})
	return t, all.String(), err
}

// ranToItsEnd reports whether a task's end is its script's own.
func ranToItsEnd(t holdfast.Task) bool {
	return t.State == holdfast.TaskSucceeded ||
		t.State == holdfast.TaskFailed && t.Failure != nil && t.Failure.Reason == holdfast.ReasonExitCode
}

// judgeJob says what is wrong with a task's end.
func (c *caller) judgeJob(w *work, j *job, t holdfast.Task) error {
	struck := c.round.wasStruck(w.life)
	wrong := func(why string) error {
		return fmt.Errorf("%s %s is %s with code %d: %s; %+v", j.in.RequestID, t.ID, t.State, t.ExitCode, why, t.Failure)
	}
	switch {
	case t.State == holdfast.TaskQueued || t.State == holdfast.TaskRunning:
		return wrong("it does not end")
	case j.end != "" && j.end != t.State:
		return wrong("it was told to have ended as " + string(j.end))
	case ranToItsEnd(t):
		if t.ExitCode != j.code || !t.ProcessEnded || (t.State == holdfast.TaskSucceeded) != (j.code == 0) {
			return wrong(fmt.Sprintf("its script ends with %d", j.code))
		}
	case t.State == holdfast.TaskCancelled && !j.cancelled && w.state != holdfast.SessionDeleted && !struck:
		return wrong("nobody cancelled it")
	case t.State == holdfast.TaskTimedOut:
		return wrong("it has an hour")
	case t.State == holdfast.TaskFailed && (t.Failure == nil || t.Failure.Reason == ""):
		return wrong("it failed without a reason")
	case t.State == holdfast.TaskFailed && !struck:
		return wrong("its instance was not struck")
	}
	return nil
}

// cancel submits a task that would run for long, and cancels it.
func (c *caller) cancel(ctx context.Context, w *work) error {
	j := c.newJob(w)
	j.in.Args[1] = strings.Replace(j.in.Args[1], "sleep 0.2", "sleep 300", 1)
	j.cancelled = true
	w.jobs = append(w.jobs, j)
	if err := c.submit(ctx, w, j); err != nil {
		return err
	}
	w.state = holdfast.SessionReady
	err := c.ask(ctx, w.life, "cancel", func(ctx context.Context, api *client.Client) error {
		_, err := api.CancelTask(ctx, j.id)
		return err
	})
	if err != nil {
		return err
	}
	t, _, err := c.taskOutput(ctx, w, j)
	if err != nil {
		return err
	}
	j.end = t.State
	if t.State != holdfast.TaskCancelled && !c.round.wasStruck(w.life) {
		return fmt.Errorf("%s was cancelled, and is %s with code %d: %+v", j.in.RequestID, t.State, t.ExitCode, t.Failure)
	}
	return nil
}

// rest suspends a session, and usually wakes it.
func (c *caller) rest(ctx context.Context, w *work) error {
	if err := c.moveWork(ctx, w, (*client.Client).SuspendSession, holdfast.SessionSuspended); err != nil {
		return err
	}
	if c.random.IntN(2) == 0 {
		return nil // a task wakes it, or the end
	}
	return c.wake(ctx, w)
}

func (c *caller) wake(ctx context.Context, w *work) error {
	if w.state == holdfast.SessionReady {
		return nil
	}
	return c.moveWork(ctx, w, (*client.Client).ResumeSession, holdfast.SessionReady)
}

type sessionMutation func(*client.Client, context.Context, holdfast.MutateSession) (holdfast.Session, error)

func (c *caller) moveWork(ctx context.Context, w *work, mutate sessionMutation, to holdfast.SessionState) error {
	var se holdfast.Session
	err := c.call(ctx, w.life, "make "+string(to), func(ctx context.Context, api *client.Client) (err error) {
		se, err = mutate(api, ctx, holdfast.MutateSession{ID: w.id})
		return err
	})
	if err != nil {
		return err
	}
	if se.State != to && !w.late && !c.round.wasStruck(w.life) {
		return fmt.Errorf("asked to be %s it is %s", to, se.State)
	}
	w.state = to
	return nil
}

// verifyWork holds a session against what its client was told of it.
func (c *caller) verifyWork(ctx context.Context, w *work) error {
	var se holdfast.Session
	for range c.round.d.apis { // each orchestrator says the same
		err := c.ask(ctx, w.life, "create session at the end", func(ctx context.Context, api *client.Client) (err error) {
			se, err = api.CreateSession(ctx, w.create)
			return err
		})
		switch {
		case err != nil && holdfast.ReasonOf(err) != holdfast.ReasonCreateFailed:
			return err
		case err != nil:
			se.ID = holdfast.SessionID(holdfast.AsError(err).Resource)
		}
		if w.id == "" {
			w.id = se.ID
		}
		if se.ID != w.id {
			return fmt.Errorf("its request id is %s's", se.ID)
		}
	}
	se, err := c.look(ctx, w)
	if err != nil {
		return err
	}
	for _, j := range w.jobs {
		if err := c.verifyJob(ctx, w, j); err != nil {
			return err
		}
	}
	if w.state == holdfast.SessionDeleted && se.State != holdfast.SessionDeleted {
		return fmt.Errorf("it was deleted, and is %s", se.State)
	}
	if se.State == holdfast.SessionDeleted && w.state != holdfast.SessionDeleted {
		return errors.New("it is deleted, and nobody wanted that")
	}
	if w.ended || c.round.wasStruck(w.life) {
		if se.State == holdfast.SessionFailed && (se.Failure == nil || se.Failure.Reason == "") {
			return errors.New("it failed without a reason")
		}
		return nil
	}
	if w.late || w.state == "" {
		return nil
	}
	if se.State != w.state || se.Failure != nil {
		return fmt.Errorf("it was told to be %s, and is %s, %+v", w.state, se.State, se.Failure)
	}
	if se.State == holdfast.SessionDeleted {
		return nil
	}
	return c.verifyLines(ctx, w)
}

// verifyJob holds a task that was acknowledged against what is known of it.
func (c *caller) verifyJob(ctx context.Context, w *work, j *job) error {
	if j.id == "" {
		return nil
	}
	var t holdfast.Task
	for range c.round.d.apis {
		err := c.ask(ctx, w.life, "submit at the end", func(ctx context.Context, api *client.Client) (err error) {
			t, err = api.SubmitTask(ctx, j.in)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", j.in.RequestID, err)
		}
		if t.ID != j.id {
			return fmt.Errorf("%s is two tasks: %s and %s", j.in.RequestID, j.id, t.ID)
		}
	}
	if err := c.judgeJob(w, j, t); err != nil {
		return err
	}
	if !ranToItsEnd(t) || c.round.blowAt(w.life) == unplugged {
		return nil
	}
	_, out, err := c.taskOutput(ctx, w, j)
	if w.create.Restart == holdfast.RestartFresh && c.round.wasStruck(w.life) && holdfast.ReasonOf(err) == holdfast.ReasonInstanceLost {
		return nil // its host made room for the next boot before it was copied, and that is said
	}
	if err != nil || out != j.out {
		return fmt.Errorf("%s is %s, and %d bytes of its output are known of %d: %w", j.in.RequestID, t.State, len(out), len(j.out), err)
	}
	return nil
}

// verifyLines reads in the guest how often each task began.
func (c *caller) verifyLines(ctx context.Context, w *work) error {
	if len(w.jobs) == 0 && len(w.before) == 0 {
		return nil
	}
	if err := c.wake(ctx, w); err != nil {
		return err
	}
	lines, err := c.lines(ctx, w)
	if err != nil {
		return err
	}
	times := map[string]int{}
	for _, line := range lines {
		times[line]++
	}
	for _, name := range w.before {
		if times[name] != 1 {
			return fmt.Errorf("its checkpoint had one line of %s, and it has %d", name, times[name])
		}
		delete(times, name)
	}
	for _, name := range w.maybe {
		if times[name] > 1 {
			return fmt.Errorf("%s began %d times", name, times[name])
		}
		delete(times, name)
	}
	for _, j := range w.jobs {
		ran := times[j.in.RequestID]
		if ran > 1 || ran == 0 && (j.end == holdfast.TaskSucceeded || j.end == holdfast.TaskFailed) {
			return fmt.Errorf("%s is %s, and ran %d times", j.in.RequestID, j.end, ran)
		}
		delete(times, j.in.RequestID)
	}
	if len(times) != 0 {
		return fmt.Errorf("it has lines of tasks that nobody submitted: %v", times)
	}
	return nil
}

// lines are the tasks that began, as the guest has them, in order.
func (c *caller) lines(ctx context.Context, w *work) ([]string, error) {
	if !slices.ContainsFunc(w.jobs, func(j *job) bool { return j.end == holdfast.TaskSucceeded || j.end == holdfast.TaskFailed }) && len(w.before) == 0 {
		return nil, nil // the file may not be there
	}
	text, err := c.read(ctx, w.life, taskLines)
	return strings.Fields(text), err
}
