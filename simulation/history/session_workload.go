package history

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// forSession reports whether a slot is a session's: two of five are.
func forSession(slot int) bool { return slot%5 >= 3 }

func taskID(n int) string { return fmt.Sprintf("task-%d", n) }

// known is what of a session was named by answers, so that it can be called.
type known struct {
	id    holdfast.SessionID
	tasks [tasksOf]holdfast.TaskID
}

func (d *driver) session(slot int) known {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[slot]
}

// learnSession remembers what an answer named, as it named it first.
func (d *driver) learnSession(c Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.sessions[c.Slot]
	if k.id == "" {
		k.id = c.Session.ID
	}
	if c.Task.ID != "" && k.tasks[c.Variant] == "" {
		k.tasks[c.Variant] = c.Task.ID
	}
	d.sessions[c.Slot] = k
}

// callSession makes one call on a session, chosen by weight.
func (c *client) callSession(ctx context.Context, slot int) {
	if c.session(slot).id == "" {
		c.open(ctx, slot)
		return
	}
	switch n := c.random.IntN(100); {
	case n < 8:
		c.open(ctx, slot)
	case n < 30:
		c.look(ctx, slot)
	case n < 43:
		c.changeSession(ctx, Rest, slot)
	case n < 55:
		c.changeSession(ctx, Wake, slot)
	case n < 57:
		c.changeSession(ctx, Close, slot)
	case n < 76:
		c.submit(ctx, slot, c.random.IntN(tasksOf), c.random.IntN(12)/11)
	case n < 92:
		c.lookAtTask(ctx, slot, c.random.IntN(tasksOf))
	default:
		c.cancel(ctx, slot, c.random.IntN(tasksOf))
	}
}

func (c *client) open(ctx context.Context, slot int) {
	k := begin(Call{Client: c.number, Slot: slot, Verb: Open})
	c.make(ctx, k, true, func(ctx context.Context) {
		s, err := c.server().Sessions.CreateSession(ctx, nobody(), holdfast.CreateSession{RequestID: fmt.Sprintf("%s-%d", c.Name, slot), Environment: "base",
			Resources: holdfast.Resources{CPUMillis: 1, MemoryBytes: holdfast.MinMemoryBytes}})
		k.ofSession(s, err)
	})
	c.recorder.end(k)
	c.learnSession(k)
}

// ofSession fills in what an answer about a session, or its error, says.
func (c *Call) ofSession(s holdfast.Session, err error) {
	c.answered(holdfast.Sandbox{}, err)
	if c.Session = s; err == nil {
		return
	}
	if id := holdfast.AsError(err).Resource; holdfast.CheckID("resource", holdfast.PrefixSession, id) == nil {
		c.Session.ID = holdfast.SessionID(id)
	}
}

func (c *client) look(ctx context.Context, slot int) {
	k := begin(Call{Client: c.number, Slot: slot, Verb: Look, Session: holdfast.Session{ID: c.session(slot).id}})
	id := k.Session.ID
	c.make(ctx, k, false, func(ctx context.Context) {
		s, err := c.server().Sessions.GetSession(ctx, nobody(), id)
		k.ofSession(s, err)
	})
	c.recorder.end(k)
	if k.Session.State == holdfast.SessionDeleted && c.random.IntN(3) == 0 {
		c.gone(slot)
	}
}

func (c *client) changeSession(ctx context.Context, verb Verb, slot int) Outcome {
	k := begin(Call{Client: c.number, Slot: slot, Verb: verb, Session: holdfast.Session{ID: c.session(slot).id}})
	id := k.Session.ID
	c.make(ctx, k, true, func(ctx context.Context) {
		api, in := c.server().Sessions, holdfast.MutateSession{ID: id, Force: verb == Close && !c.Faults}
		switch verb {
		case Rest:
			k.ofSession(api.SuspendSession(ctx, nobody(), in))
		case Wake:
			k.ofSession(api.ResumeSession(ctx, nobody(), in))
		case Close:
			k.ofSession(api.DeleteSession(ctx, nobody(), in))
		}
	})
	c.recorder.end(k)
	return k.Outcome
}

// submit submits the n-th task of a session, in one of two forms.
func (c *client) submit(ctx context.Context, slot, n, input int) {
	session := c.session(slot).id
	k := begin(Call{Client: c.number, Slot: slot, Verb: Submit, Variant: n, Request: taskID(n), Input: input})
	c.make(ctx, k, true, func(ctx context.Context) {
		t, err := c.server().Tasks.SubmitTask(ctx, nobody(), holdfast.SubmitTask{RequestID: fmt.Sprintf("%s-%d-%s", c.Name, slot, k.Request),
			Session: session, Command: "sleep", Args: []string{fmt.Sprintf("0.0%d", 1+2*input)}})
		k.ofTask(t, err)
	})
	c.recorder.end(k)
	c.learnSession(k)
}

// ofTask fills in what an answer about a task, or its error, says.
func (c *Call) ofTask(t holdfast.Task, err error) {
	c.ofSession(holdfast.Session{}, err)
	c.Task = t
}

func (c *client) lookAtTask(ctx context.Context, slot, n int) { c.aboutTask(ctx, LookAtTask, slot, n) }

func (c *client) cancel(ctx context.Context, slot, n int) { c.aboutTask(ctx, Cancel, slot, n) }

// aboutTask reads or cancels a task that some answer named.
func (c *client) aboutTask(ctx context.Context, verb Verb, slot, n int) {
	id := c.session(slot).tasks[n]
	if id == "" {
		return
	}
	k := begin(Call{Client: c.number, Slot: slot, Verb: verb, Variant: n, Request: taskID(n)})
	c.make(ctx, k, verb == Cancel, func(ctx context.Context) {
		api := c.server().Tasks
		if verb == Cancel {
			k.ofTask(api.CancelTask(ctx, nobody(), id))
		} else {
			k.ofTask(api.GetTask(ctx, nobody(), id))
		}
	})
	c.recorder.end(k)
}

// settleSession brings a session to its end, and reads all once more. Its tasks are
// listed, too: none that nobody submitted, and each request id's once.
func (c *client) settleSession(ctx context.Context, slot int) error {
	patience := time.Now().Add(2 * time.Minute)
	for done := false; !done; {
		if time.Now().After(patience) {
			return fmt.Errorf("session %d did not come to rest: %s", slot, c.recorder.last(slot))
		}
		if c.session(slot).id == "" {
			c.open(ctx, slot)
			continue
		}
		c.look(ctx, slot)
		done = c.changeSession(ctx, Close, slot) == OK
	}
	c.look(ctx, slot)
	named := map[holdfast.TaskID]bool{}
	for n := range tasksOf {
		c.lookAtTask(ctx, slot, n)
		named[c.session(slot).tasks[n]] = true
	}
	page, err := c.Servers[0].Tasks.ListTasks(ctx, nobody(), holdfast.ListTasks{Session: c.session(slot).id})
	if err != nil {
		return fmt.Errorf("list the tasks of session %d: %w", slot, err)
	}
	if len(page.Tasks) > tasksOf {
		return fmt.Errorf("session %d has %d tasks of %d request ids", slot, len(page.Tasks), tasksOf)
	}
	for _, t := range page.Tasks {
		if !t.FinishedAt.IsZero() && len(holdfast.TaskTransitions()[t.State]) != 0 || t.FinishedAt.IsZero() {
			return fmt.Errorf("%s is %s, and its session is deleted", t.ID, t.State)
		}
		delete(named, t.ID)
	}
	if delete(named, ""); len(named) > 0 {
		return fmt.Errorf("session %d has lost tasks that were acknowledged: %v", slot, named)
	}
	return nil
}
