package simulation

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// What clients call about environments, sessions, tasks and checkpoints. A slot is a
// request id, and says what is asked for: the same each time, so that it may be repeated.

// The verbs.
const (
	Build            Verb = "build" // the slot's number is the environment's
	CreateSession    Verb = "create-session"
	SuspendSession   Verb = "suspend-session"
	ResumeSession    Verb = "resume-session"
	DeleteSession    Verb = "delete-session"
	ForkSession      Verb = "fork-session" // the fork has the slot of its source and forkSlots
	Submit           Verb = "submit"       // tasks have the slots of their sessions times taskSlots, and more
	CancelTask       Verb = "cancel"
	Follow           Verb = "follow"     // a task's output to its end
	Write            Verb = "write"      // a file in the slot's sandbox
	Checkpoint       Verb = "checkpoint" // of the slot's sandbox
	DeleteCheckpoint Verb = "delete-checkpoint"
	Fork             Verb = "fork" // of the slot's checkpoint; the fork has the slot of its source and forkSlots
)

// How many tasks a session has, and how far forks' slots are from their sources'.
const (
	taskSlots = 3
	forkSlots = 3
)

// The environments that there are: one whose setup takes its time, and whose sessions
// are prepared, and one whose setup fails.
const (
	tools  = "tools"
	broken = "broken"
)

func recipes() []holdfast.CreateEnvironment {
	return []holdfast.CreateEnvironment{
		{Name: tools, Recipe: holdfast.Recipe{Base: environment, Setup: "echo setting up; sleep 2s", Files: []holdfast.RecipeFile{{Path: recipeFile, Content: "a recipe"}},
			Repository: &holdfast.Repository{URL: "https://example.com/work.git", Ref: "main"}, Hooks: holdfast.Hooks{OnSuspend: "sleep 1s", OnDelete: "echo bye"},
			Timeout: 10 * time.Minute}},
		{Name: broken, Recipe: holdfast.Recipe{Base: environment, Setup: "echo setting up; sleep 1s; exit 3", Timeout: 10 * time.Minute}},
	}
}

// The files that tell what something is made of.
const (
	recipeFile  = "/recipe"  // of environments
	writtenFile = "/written" // by a client
)

// sessionOf is the create of a session's slot.
func sessionOf(slot int, profile Profile) holdfast.CreateSession {
	in := holdfast.CreateSession{RequestID: "session-" + strconv.Itoa(slot), Environment: tools}
	switch {
	case slot == 0 && profile == Builds:
		in.Environment = broken
	case slot == 0:
		in.Environment = environment
	case slot == 1:
		in.Idle = 25 * time.Second
	case slot == 2 && profile == Builds:
		in.Repository = &holdfast.Repository{URL: "https://example.com/work.git", Ref: NoRef}
	case slot == 2:
		in.Restart = holdfast.RestartFresh
	}
	return in
}

// taskOf is the task of a slot: short ones, long ones, and one that its limit ends.
func (o *Outcome) taskOf(session holdfast.SessionID) holdfast.SubmitTask {
	in := holdfast.SubmitTask{RequestID: "task-" + strconv.Itoa(o.Op.Slot), Session: session, Command: "/bin/sh", Limit: 5 * time.Minute}
	in.Env = map[string]string{TaskVariable: string(o.Project) + " " + in.RequestID}
	script := "sleep 2s"
	switch o.Op.Slot % taskSlots {
	case 1:
		script = "sleep 25s; exit 3"
	case 2:
		script, in.Limit = "sleep 400s", 30*time.Second
	}
	in.Args = []string{"-c", "echo " + working + "; " + script}
	return in
}

// working is what every task prints first.
const working = "working"

// answer is what a call about anything but a sandbox was answered.
type answer struct {
	Kind                    string // of the resource: session, task, build, checkpoint
	ID                      string
	State                   string
	Generation, Incarnation int64
	Output                  string // of a task, to its end
}

func ofSession(s holdfast.Session, err error) (answer, error) {
	return answer{Kind: "session", ID: string(s.ID), State: string(s.State), Generation: s.Generation, Incarnation: s.Incarnation}, err
}

func ofTask(t holdfast.Task, err error) (answer, error) {
	return answer{Kind: "task", ID: string(t.ID), State: string(t.State), Incarnation: t.Incarnation}, err
}

func ofCheckpoint(c holdfast.Checkpoint, err error) (answer, error) {
	return answer{Kind: "checkpoint", ID: string(c.ID), State: string(c.State)}, err
}

// madeBy finds what an earlier call of a kind and slot was answered.
func (r *runner) madeBy(project holdfast.ProjectID, kind string, slot int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made[kind+" "+slotKey(project, slot)]
}

// workPatience bounds a call: what is written to a guest that is frozen, and what is
// followed in a session that sleeps, waits for ever.
const workPatience = 45 * time.Second

// work makes a call about anything but a sandbox; false if there is nobody to call
// about yet.
func (r *runner) work(ctx context.Context, c *Client, o *Outcome) bool {
	ctx, cancel := context.WithTimeout(ctx, workPatience)
	defer cancel()
	switch o.Op.Verb {
	case Build:
		b, err := c.BuildEnvironment(ctx, holdfast.BuildEnvironment{RequestID: "build-" + strconv.Itoa(o.Op.Slot), Environment: []string{tools, broken}[o.Op.Slot%2]})
		o.Answer, o.Err = answer{Kind: "build", ID: string(b.ID), State: string(b.State)}, err
		return true
	case CreateSession:
		o.Answer, o.Err = ofSession(c.CreateSession(ctx, sessionOf(o.Op.Slot, r.schedule.Profile)))
		return true
	case SuspendSession, ResumeSession, DeleteSession, ForkSession:
		return r.sessionWork(ctx, c, o)
	case Submit, CancelTask, Follow:
		return r.taskWork(ctx, c, o)
	case Write:
		if o.ID != "" {
			_, o.Err = c.Upload(ctx, o.ID, holdfast.WriteFile{Path: writtenFile}, strings.NewReader("written"))
		}
		return o.ID != ""
	case Checkpoint:
		if o.ID != "" {
			o.Answer, o.Err = ofCheckpoint(c.CreateCheckpoint(ctx, holdfast.CreateCheckpoint{RequestID: "checkpoint-" + strconv.Itoa(o.Op.Slot), Source: string(o.ID)}))
		}
		return o.ID != ""
	case DeleteCheckpoint, Fork:
		return r.forkWork(ctx, c, o)
	case Deliver, Forge:
		r.deliver(ctx, c, o)
		return true
	}
	return false
}

func (r *runner) sessionWork(ctx context.Context, c *Client, o *Outcome) bool {
	to := holdfast.MutateSession{ID: holdfast.SessionID(r.madeBy(o.Project, "session", o.Op.Slot)), Force: o.Op.TTL > 0}
	if to.ID == "" {
		return false
	}
	switch o.Op.Verb {
	case SuspendSession:
		o.Answer, o.Err = ofSession(c.SuspendSession(ctx, to))
	case ResumeSession:
		to.Force = false
		o.Answer, o.Err = ofSession(c.ResumeSession(ctx, to))
	case DeleteSession:
		o.Answer, o.Err = ofSession(c.DeleteSession(ctx, to))
	case ForkSession:
		o.Answer, o.Err = ofSession(c.ForkSession(ctx, to.ID, holdfast.CreateSession{RequestID: "session-" + strconv.Itoa(o.Op.Slot+forkSlots)}))
	}
	return true
}

func (r *runner) taskWork(ctx context.Context, c *Client, o *Outcome) bool {
	if o.Op.Verb == Submit {
		session := r.madeBy(o.Project, "session", o.Op.Slot/taskSlots)
		if session != "" {
			o.Answer, o.Err = ofTask(c.SubmitTask(ctx, o.taskOf(holdfast.SessionID(session))))
		}
		return session != ""
	}
	id := holdfast.TaskID(r.madeBy(o.Project, "task", o.Op.Slot))
	if id == "" {
		return false
	}
	if o.Op.Verb == CancelTask {
		o.Answer, o.Err = ofTask(c.CancelTask(ctx, id))
		return true
	}
	var out strings.Builder
	o.Answer, o.Err = ofTask(c.StreamTaskOutput(ctx, holdfast.TaskOutput{ID: id, Follow: true}, func(chunk holdfast.OutputChunk) error {
		out.Write(chunk.Data)
		return nil
	}))
	o.Answer.Output = out.String()
	return true
}

func (r *runner) forkWork(ctx context.Context, c *Client, o *Outcome) bool {
	id := holdfast.CheckpointID(r.madeBy(o.Project, "checkpoint", o.Op.Slot))
	if id == "" {
		return false
	}
	if o.Op.Verb == DeleteCheckpoint {
		o.Answer, o.Err = ofCheckpoint(c.DeleteCheckpoint(ctx, holdfast.MutateCheckpoint{ID: id}))
		return true
	}
	o.ID = ""
	o.Sandbox, o.Err = c.CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: "slot-" + strconv.Itoa(o.Op.Slot+forkSlots), Source: id, TTL: 10 * time.Minute})
	return true
}

// judgeWork holds an answer against what was answered before.
func (r *runner) judgeWork(o *Outcome) {
	if o.Err != nil {
		return
	}
	kind, slot := o.Answer.Kind, o.Op.Slot
	switch o.Op.Verb {
	case Fork:
		key := slotKey(o.Project, slot+forkSlots)
		r.mu.Lock()
		known := r.ids[key]
		r.ids[key], o.ID = o.Sandbox.ID, o.Sandbox.ID
		r.mu.Unlock()
		if known != "" && known != o.Sandbox.ID {
			r.violated("one request id gave two forks: %s and %s", known, o.Sandbox.ID)
		}
		return
	case ForkSession:
		slot += forkSlots
	case Build, CreateSession, Submit, Checkpoint:
	case Follow:
		r.judgeOutput(o)
		return
	default:
		return
	}
	key := kind + " " + slotKey(o.Project, slot)
	r.mu.Lock()
	known := r.made[key]
	r.made[key] = o.Answer.ID
	r.mu.Unlock()
	if known != "" && known != o.Answer.ID {
		r.violated("one request id gave two of %s: %s and %s", kind, known, o.Answer.ID)
	}
}

// judgeOutput: what was followed to its end without an error has ended, and all that
// its process printed was read once.
func (r *runner) judgeOutput(o *Outcome) {
	if open := o.Answer.State == string(holdfast.TaskQueued) || o.Answer.State == string(holdfast.TaskRunning); open {
		r.violated("the output of %s came to its end while it is %s", o.Answer.ID, o.Answer.State)
	}
	if o.Answer.State == string(holdfast.TaskSucceeded) && o.Answer.Output != working+"\n" {
		r.violated("%s succeeded, and its output was read as %q", o.Answer.ID, o.Answer.Output)
	}
}

// define makes the environments of a project.
func (r *runner) define(ctx context.Context, c *Client) error {
	for _, in := range recipes() {
		if _, err := c.CreateEnvironment(ctx, in); err != nil {
			return fmt.Errorf("simulation: create an environment: %w", err)
		}
	}
	return nil
}
