package crashpoint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation"
)

// workPairs is of how many pairs of crashes one is made where a scenario has the many
// steps of a session, a task, a build or a checkpoint: all of them would take days.
const workPairs = 40

// work is checkpoints, forks, builds, sessions, tasks and webhooks.
func work() []Scenario {
	all := slices.Concat(copies(), builds(), sessions(), tasks(), webhooks())
	for i := range all {
		all[i].Pairs = workPairs
	}
	return all
}

// Told is what the client of such a scenario was told, and what Prepare made.
type Told struct {
	Session    holdfast.Session
	Task       holdfast.Task
	Build      holdfast.Build
	Checkpoint holdfast.Checkpoint
}

// asks is a client's call, made until its answer is known, whose answer keep keeps.
func asks[T any](call func(context.Context, *Case) (T, error), keep func(*Case, T)) func(context.Context, *Case) {
	return func(ctx context.Context, c *Case) {
		out, err := insist(ctx, func(ctx context.Context) (T, error) { return call(ctx, c) })
		if c.Err = err; err == nil {
			keep(c, out)
		}
	}
}

// judged reads as the judge does, whom no crash meets.
func judged[T any](ctx context.Context, c *Case, read func(context.Context, *simulation.Client) (T, error)) (T, error) {
	judge, err := c.ClientOf("client-judge", "")
	if err != nil {
		var none T
		return none, err
	}
	return read(ctx, judge)
}

// isOneOf is what a resource is at rest: in any of some states where the client did
// not repeat, in the first and with success where it did.
func isOneOf[S ~string](c *Case, is, was S, states ...S) error {
	switch {
	case !c.Repeats && !slices.Contains(states, is):
		return fmt.Errorf("it is %s, not one of %v", is, states)
	case c.Repeats && c.Err != nil:
		return fmt.Errorf("the client repeated until it knew, and got %w", c.Err)
	case c.Repeats && is != states[0]:
		return fmt.Errorf("the client was told %s, and it is %s, not %s", was, is, states[0])
	}
	return nil
}

func copies() []Scenario {
	take := func(ctx context.Context, c *Case) (holdfast.Checkpoint, error) {
		return c.Client.CreateCheckpoint(ctx, holdfast.CreateCheckpoint{RequestID: "checkpoint", Source: string(c.Sandbox.ID)})
	}
	taken := func(ctx context.Context, c *Case) (err error) {
		if err = created()(ctx, c); err == nil {
			c.Told.Checkpoint, err = take(ctx, c)
		}
		return err
	}
	keep := func(c *Case, out holdfast.Checkpoint) { c.Told.Checkpoint = out }
	return []Scenario{
		{Name: "checkpoint", Prepare: created(), Act: asks(take, keep), Want: wantCheckpoint(holdfast.CheckpointReady, holdfast.CheckpointFailed)},
		{Name: "checkpoint delete", Prepare: taken, Act: asks(func(ctx context.Context, c *Case) (holdfast.Checkpoint, error) {
			return c.Client.DeleteCheckpoint(ctx, holdfast.MutateCheckpoint{ID: c.Told.Checkpoint.ID})
		}, keep), Want: wantCheckpoint(holdfast.CheckpointDeleted, holdfast.CheckpointReady)},
		{Name: "fork", Prepare: taken, Act: func(ctx context.Context, c *Case) {
			c.Got, c.Err = c.Client.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "fork", Source: c.Told.Checkpoint.ID, TTL: time.Hour})
		}, Want: wantFork},
	}
}

// wantCheckpoint: there is one at the most, and it is what the client was told.
func wantCheckpoint(states ...holdfast.CheckpointState) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		page, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) (holdfast.CheckpointPage, error) {
			return judge.ListCheckpoints(ctx, holdfast.ListCheckpoints{States: []holdfast.CheckpointState{holdfast.CheckpointCreating, holdfast.CheckpointReady,
				holdfast.CheckpointFailed, holdfast.CheckpointDeleting, holdfast.CheckpointDeleted}})
		})
		switch n := len(page.Checkpoints); {
		case err != nil:
			return err
		case n == 0 && !c.Repeats:
			return nil // it was never recorded
		case n != 1:
			return fmt.Errorf("there are %d checkpoints", n)
		}
		one := page.Checkpoints[0]
		if c.Repeats && one.ID != c.Told.Checkpoint.ID {
			return fmt.Errorf("the client was told of %s, and there is %s", c.Told.Checkpoint.ID, one.ID)
		}
		if len(c.Final) != 1 || c.Final[0].State != holdfast.SandboxReady {
			return fmt.Errorf("its source is not READY any more: %+v", c.Final)
		}
		return isOneOf(c, one.State, c.Told.Checkpoint.State, states...)
	}
}

// wantFork: one fork at the most, apart from its source.
func wantFork(_ context.Context, c *Case) error {
	i := slices.IndexFunc(c.Final, func(s holdfast.Sandbox) bool { return s.ID != c.Sandbox.ID })
	switch {
	case i < 0 && !c.Repeats:
		return nil
	case len(c.Final) != 2:
		return fmt.Errorf("there are %d sandboxes, not a source and its fork", len(c.Final))
	case c.Final[1-i].State != holdfast.SandboxReady || c.Final[i].Instance == c.Final[1-i].Instance:
		return fmt.Errorf("the source is %s, on %s", c.Final[1-i].State, c.Final[1-i].Instance)
	case c.Repeats && c.Err == nil && c.Got.ID != c.Final[i].ID:
		return fmt.Errorf("the client was told of %s, and there is %s", c.Got.ID, c.Final[i].ID)
	}
	return isOneOf(c, c.Final[i].State, c.Got.State, holdfast.SandboxReady)
}

// tools is an environment whose setup takes a moment.
func tools(setup string) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		_, err := c.Client.CreateEnvironment(ctx, holdfast.CreateEnvironment{Name: "tools", Recipe: holdfast.Recipe{Base: "base", Setup: setup,
			Repository: &holdfast.Repository{URL: "https://example.com/work.git", Ref: "main"}}})
		return err
	}
}

func build(ctx context.Context, c *Case) (holdfast.Build, error) {
	return c.Client.BuildEnvironment(ctx, holdfast.BuildEnvironment{RequestID: "build", Environment: "tools"})
}

func builds() []Scenario {
	act := asks(build, func(c *Case, out holdfast.Build) { c.Told.Build = out })
	return []Scenario{
		{Name: "environment build", Prepare: tools("echo setting up; sleep 1s"), Act: act, Want: wantBuild(holdfast.BuildReady)},
		{Name: "environment build, its setup fails", Prepare: tools("echo setting up; sleep 1s; exit 3"), Act: act, Want: wantBuild(holdfast.BuildFailed)},
	}
}

// wantBuild: there is one at the most, it ends so with its reason, and nothing is left of its builder.
func wantBuild(state holdfast.BuildState) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		page, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) (holdfast.BuildPage, error) {
			return judge.ListBuilds(ctx, holdfast.ListBuilds{})
		})
		switch n := len(page.Builds); {
		case err != nil:
			return err
		case n == 0 && !c.Repeats:
			return nil
		case n != 1:
			return fmt.Errorf("there are %d builds", n)
		}
		b := page.Builds[0]
		for _, s := range c.Final {
			if s.State != holdfast.SandboxDeleted {
				err = errors.Join(err, fmt.Errorf("the build is %s, and its builder %s", b.State, s.State))
			}
		}
		if b.State == holdfast.BuildFailed && (b.Failure == nil || b.Failure.Reason != holdfast.ReasonSetupFailed) {
			err = errors.Join(err, fmt.Errorf("it failed with %+v", b.Failure))
		}
		return errors.Join(err, isOneOf(c, b.State, c.Told.Build.State, state))
	}
}

func session(ctx context.Context, c *Case) (holdfast.Session, error) {
	return c.Client.CreateSession(ctx, holdfast.CreateSession{RequestID: "session", Environment: "base"})
}

func hasSession(ctx context.Context, c *Case) (err error) {
	c.Told.Session, err = session(ctx, c)
	return err
}

func keepSession(c *Case, out holdfast.Session) { c.Told.Session = out }

func sessions() []Scenario {
	verb := func(of func(*simulation.Client) func(context.Context, holdfast.MutateSession) (holdfast.Session, error)) func(context.Context, *Case) {
		return asks(func(ctx context.Context, c *Case) (holdfast.Session, error) {
			return of(c.Client)(ctx, holdfast.MutateSession{ID: c.Told.Session.ID})
		}, keepSession)
	}
	type mutation = func(context.Context, holdfast.MutateSession) (holdfast.Session, error)
	suspend := verb(func(c *simulation.Client) mutation { return c.SuspendSession })
	asleep := func(ctx context.Context, c *Case) (err error) {
		if err = hasSession(ctx, c); err == nil {
			c.Told.Session, err = c.Client.SuspendSession(ctx, holdfast.MutateSession{ID: c.Told.Session.ID})
		}
		return err
	}
	return []Scenario{
		{Name: "session create", Act: asks(session, keepSession), Want: wantSession(holdfast.SessionReady)},
		{Name: "session create, its build is under way", Prepare: func(ctx context.Context, c *Case) (err error) {
			if err = tools("echo setting up; sleep 8s")(ctx, c); err == nil {
				c.Told.Build, err = build(ctx, c)
			}
			return err
		}, Act: asks(func(ctx context.Context, c *Case) (holdfast.Session, error) {
			return c.Client.CreateSession(ctx, holdfast.CreateSession{RequestID: "session", Environment: "tools"})
		}, keepSession), Want: wantPrepared},
		{Name: "session suspend", Prepare: hasSession, Act: suspend, Want: wantSession(holdfast.SessionSuspended, holdfast.SessionReady)},
		{Name: "session resume", Prepare: asleep, Act: verb(func(c *simulation.Client) mutation { return c.ResumeSession }),
			Want: wantSession(holdfast.SessionReady, holdfast.SessionSuspended)},
		{Name: "session delete", Prepare: hasSession, Act: verb(func(c *simulation.Client) mutation { return c.DeleteSession }),
			Want: wantSession(holdfast.SessionDeleted, holdfast.SessionReady)},
		{Name: "session fork", Prepare: func(ctx context.Context, c *Case) (err error) {
			if err = hasSession(ctx, c); err == nil {
				c.Told.Checkpoint, err = c.Client.CreateCheckpoint(ctx, holdfast.CreateCheckpoint{RequestID: "checkpoint", Source: string(c.Told.Session.ID)})
			}
			return err
		}, Act: asks(func(ctx context.Context, c *Case) (holdfast.Session, error) {
			return c.Client.CreateSession(ctx, holdfast.CreateSession{RequestID: "fork", Source: c.Told.Checkpoint.ID})
		}, keepSession), Want: wantSessionFork},
	}
}

func (c *Case) sessions(ctx context.Context) ([]holdfast.Session, error) {
	page, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) (holdfast.SessionPage, error) {
		return judge.ListSessions(ctx, holdfast.ListSessions{States: []holdfast.SessionState{holdfast.SessionWaiting, holdfast.SessionCreating, holdfast.SessionReady,
			holdfast.SessionSuspended, holdfast.SessionFailed, holdfast.SessionDeleting, holdfast.SessionDeleted}})
	})
	return page.Sessions, err
}

// wantSession: there is one at the most, and it is what the client was told.
func wantSession(states ...holdfast.SessionState) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		list, err := c.sessions(ctx)
		switch n := len(list); {
		case err != nil:
			return err
		case n == 0 && !c.Repeats:
			return nil
		case n != 1:
			return fmt.Errorf("there are %d sessions", n)
		case c.Repeats && c.Err == nil && list[0].ID != c.Told.Session.ID:
			return fmt.Errorf("the client was told of %s, and there is %s", c.Told.Session.ID, list[0].ID)
		}
		return isOneOf(c, list[0].State, c.Told.Session.State, states...)
	}
}

// wantPrepared: the session that waited goes on, and is prepared once (contract: E2).
func wantPrepared(ctx context.Context, c *Case) error {
	list, err := c.sessions(ctx)
	if err != nil || len(list) == 0 && !c.Repeats {
		return err
	}
	if err := wantSession(holdfast.SessionReady)(ctx, c); err != nil {
		return err
	}
	return c.tasksAre(ctx, list[0].ID, holdfast.TaskSucceeded)
}

// tasksAre: a session has one task, in one of some states, which ran once.
func (c *Case) tasksAre(ctx context.Context, id holdfast.SessionID, states ...holdfast.TaskState) error {
	page, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) (holdfast.TaskPage, error) {
		return judge.ListTasks(ctx, holdfast.ListTasks{Session: id})
	})
	switch n := len(page.Tasks); {
	case err != nil:
		return err
	case n != 1:
		return fmt.Errorf("it has %d tasks", n)
	case !slices.Contains(states, page.Tasks[0].State):
		return fmt.Errorf("its task is %s, %+v, not one of %v", page.Tasks[0].State, page.Tasks[0].Failure, states)
	}
	all, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) ([]holdfast.Process, error) {
		se, err := judge.GetSession(ctx, id)
		if err != nil {
			return nil, err
		}
		return judge.ListProcesses(ctx, se.Sandbox)
	})
	if err == nil && len(all) > 1 {
		err = fmt.Errorf("its task ran %d times", len(all))
	}
	return err
}

// wantSessionFork: one fork at the most, READY, without a task of its source.
func wantSessionFork(ctx context.Context, c *Case) error {
	list, err := c.sessions(ctx)
	if err != nil || len(list) == 1 && !c.Repeats {
		return err
	}
	if len(list) != 2 {
		return fmt.Errorf("there are %d sessions, not a source and its fork", len(list))
	}
	for _, se := range list {
		if se.State != holdfast.SessionReady {
			err = errors.Join(err, fmt.Errorf("%s is %s", se.ID, se.State))
		}
	}
	if list[0].Sandbox == list[1].Sandbox {
		err = errors.Join(err, errors.New("two sessions share a sandbox"))
	}
	return errors.Join(err, isOneOf(c, holdfast.SessionReady, c.Told.Session.State, holdfast.SessionReady))
}

func tasks() []Scenario {
	submit := func(ctx context.Context, c *Case) (holdfast.Task, error) {
		return c.Client.SubmitTask(ctx, holdfast.SubmitTask{RequestID: "task", Session: c.Told.Session.ID, Command: "/bin/sh",
			Args: []string{"-c", "echo working; sleep 3s"}, Env: map[string]string{simulation.TaskVariable: "one"}})
	}
	keep := func(c *Case, out holdfast.Task) { c.Told.Task = out }
	return []Scenario{
		{Name: "task", Prepare: hasSession, Act: asks(submit, keep), Want: wantTask(holdfast.TaskSucceeded)},
		{Name: "task cancel", Prepare: func(ctx context.Context, c *Case) (err error) {
			if err = hasSession(ctx, c); err == nil {
				c.Told.Task, err = c.Client.SubmitTask(ctx, holdfast.SubmitTask{RequestID: "task", Session: c.Told.Session.ID, Command: "/bin/sh",
					Args: []string{"-c", "echo working; sleep 4m"}, Env: map[string]string{simulation.TaskVariable: "one"}})
			}
			return err
		}, Act: asks(func(ctx context.Context, c *Case) (holdfast.Task, error) {
			return c.Client.CancelTask(ctx, c.Told.Task.ID)
		}, keep),
			Want: wantTask(holdfast.TaskCancelled, holdfast.TaskSucceeded)},
	}
}

// wantTask: there is one at the most, it ran once, and ends so (contract: E3).
func wantTask(states ...holdfast.TaskState) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		page, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) (holdfast.TaskPage, error) {
			return judge.ListTasks(ctx, holdfast.ListTasks{Session: c.Told.Session.ID})
		})
		if err != nil || len(page.Tasks) == 0 && !c.Repeats {
			return err
		}
		if err := c.tasksAre(ctx, c.Told.Session.ID, states...); err != nil {
			return err
		}
		return isOneOf(c, page.Tasks[0].State, c.Told.Task.State, states...)
	}
}

// webhooks: a provider's delivery, of which come a session and a task in it, and of
// those come events that go out.
func webhooks() []Scenario {
	return []Scenario{{
		Name:    "webhook",
		Prepare: func(ctx context.Context, c *Case) error { return c.Webhooks(ctx, c.Client) },
		Act: func(ctx context.Context, c *Case) {
			for until := time.Now().Add(patience); time.Now().Before(until) && ctx.Err() == nil; pass(ctx, time.Second) {
				var status int
				if status, c.Err = c.Deliver(ctx, c.Client, simulation.Opened, false); c.Err == nil || status > 0 && status < http.StatusInternalServerError {
					return // it was taken, or never will be
				}
			}
		},
		Want: func(ctx context.Context, c *Case) error {
			page, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) (holdfast.SessionPage, error) {
				return judge.ListSessions(ctx, holdfast.ListSessions{})
			})
			switch n := len(page.Sessions); {
			case err != nil:
				return err
			case c.Repeats && c.Err != nil:
				return fmt.Errorf("the provider repeated until it was taken, and got %w", c.Err)
			case n == 0 && c.Err != nil:
				return nil // it was never taken
			case n != 1 || len(c.Final) != 1:
				return fmt.Errorf("one delivery made %d sessions and %d sandboxes", n, len(c.Final))
			}
			tasks, err := judged(ctx, c, func(ctx context.Context, judge *simulation.Client) (holdfast.TaskPage, error) {
				return judge.ListTasks(ctx, holdfast.ListTasks{Session: page.Sessions[0].ID})
			})
			if err == nil && len(tasks.Tasks) != 1 {
				err = fmt.Errorf("one delivery made %d tasks", len(tasks.Tasks))
			}
			return err
		},
	}}
}
