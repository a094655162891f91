package simulation

import (
	"context"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// check is what a run's end is held against: the world's rest, and what its clients
// were told.
func (r *runner) check(ctx context.Context) []string {
	d, err := r.world.read(ctx)
	if err != nil {
		return []string{"the databases cannot be read: " + err.Error()}
	}
	r.forksNow(d)
	c := &checking{world: r.world, recorded: d}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.outcomes {
		if o.Err == nil {
			c.told(o)
			c.toldOfWork(o)
		}
	}
	c.inputs(r.outcomes)
	c.processes(r.outcomes)
	c.ordered(r.outcomes)
	c.watched(r)
	c.taken(r.outcomes)
	for i, o := range r.outcomes {
		if o.Err == nil && o.Op.Verb == Extend {
			c.extended(o, r.outcomes[:i], r.outcomes[i+1:])
		}
	}
	return append(c.broken, r.world.Check(ctx)...)
}

// forksNow holds what forks have against what was there to be copied.
func (r *runner) forksNow(d *recorded) {
	c := &checking{world: r.world, recorded: d}
	r.mu.Lock()
	c.forks(r)
	r.mu.Unlock()
	for _, b := range c.broken {
		r.violated("%s", b)
	}
}

// told: what a client saw as committed is still so.
func (c *checking) told(o Outcome) {
	switch o.Op.Verb {
	case Create, CreateOther, Suspend, Resume, Delete, Extend, SetLifetime, Get, Fork:
	default:
		return
	}
	s, known := c.sandboxes[string(o.Sandbox.ID)]
	if !known {
		c.breaks("%s was answered by a %s and is not there", o.Sandbox.ID, o.Op.Verb)
		return
	}
	if s.generation < o.Sandbox.Generation || s.incarnation < o.Sandbox.Incarnation {
		c.breaks("%s was told at generation %d and incarnation %d, and is at %d and %d", s.id, o.Sandbox.Generation, o.Sandbox.Incarnation, s.generation, s.incarnation)
	}
	if o.Sandbox.State == holdfast.SandboxDeleted && s.state != holdfast.SandboxDeleted {
		c.breaks("%s was told DELETED and is %s", s.id, s.state)
	}
	if o.Sandbox.State == holdfast.SandboxFailed && s.state != holdfast.SandboxFailed && s.state != holdfast.SandboxDeleted && s.state != holdfast.SandboxDeleting {
		c.breaks("%s was told FAILED and is %s", s.id, s.state)
	}
	if o.Op.Verb == Create {
		key := s.project + " CreateSandbox " + createOf(o.Op.Slot).RequestID
		if c.requests[key] != s.id {
			c.breaks("request %s was answered with %s and has %s", key, s.id, c.requests[key])
		}
	}
}

// inputs: a request id that was used is refused with another input (contract: A3).
func (c *checking) inputs(outcomes []Outcome) {
	accepted := map[string]Verb{}
	for _, o := range outcomes {
		if o.Err != nil || o.Op.Verb != Create && o.Op.Verb != CreateOther {
			continue
		}
		key := slotKey(o.Project, o.Op.Slot)
		if known, twice := accepted[key]; twice && known != o.Op.Verb {
			c.breaks("request %s was accepted with two inputs", key)
		}
		accepted[key] = o.Op.Verb
	}
}

// processes: one start for a request id on an incarnation (contract: A14).
func (c *checking) processes(outcomes []Outcome) {
	for what, all := range c.world.boots.starts {
		if len(all) > 1 {
			c.breaks("one start was asked for of %s, and there were %d", what, len(all))
		}
	}
	type start struct {
		sandbox     holdfast.SandboxID
		incarnation int64
	}
	seen := map[start]holdfast.ProcessID{}
	first := map[holdfast.SandboxID]int64{}
	for _, o := range outcomes {
		if o.Op.Verb != Exec || o.Err != nil {
			continue
		}
		at := start{o.ID, o.Process.Incarnation}
		if known, twice := seen[at]; twice && known != o.Process.ID {
			c.breaks("one start of %s at incarnation %d gave two processes, %s and %s", o.ID, at.incarnation, known, o.Process.ID)
		}
		seen[at] = o.Process.ID
		if known, ok := first[o.ID]; ok && known != at.incarnation {
			c.breaks("one start of %s happened at incarnations %d and %d", o.ID, known, at.incarnation)
		}
		first[o.ID] = at.incarnation
	}
}

// extended: what was renewed is not evicted before its time, unless somebody then
// changed its lifetime, or began another with a resume.
func (c *checking) extended(o Outcome, before, after []Outcome) {
	for _, other := range append(append([]Outcome(nil), before...), after...) {
		if other.ID != o.ID || other.Err == nil && other.Ended.Before(o.Began) {
			continue
		}
		switch other.Op.Verb {
		case SetLifetime, Suspend, Resume:
			return
		}
	}
	until := o.Sandbox.ExpiresAt
	for _, op := range c.operations {
		if op.sandbox == string(o.Sandbox.ID) && strings.Contains(op.input, string(holdfast.ReasonExpired)) && !until.IsZero() &&
			op.entered.Before(until) && op.entered.After(o.Began) {
			c.breaks("%s was renewed until %s, and its %s for being over began at %s", o.Sandbox.ID, until.Format(time.TimeOnly), op.kind, op.entered.Format(time.TimeOnly))
		}
	}
}

// ordered: what was answered later is no older (contract: A5).
func (c *checking) ordered(outcomes []Outcome) {
	for i, a := range outcomes {
		for _, b := range outcomes[i+1:] {
			if a.Err != nil || b.Err != nil || a.Sandbox.ID == "" || a.Sandbox.ID != b.Sandbox.ID {
				continue
			}
			if b.Ended.Before(a.Began) {
				a, b = b, a
			}
			if !a.Ended.Before(b.Began) {
				continue
			}
			if b.Sandbox.Generation < a.Sandbox.Generation || b.Sandbox.Incarnation < a.Sandbox.Incarnation {
				c.breaks("%s was answered at generation %d, incarnation %d, and after that at %d, %d", a.Sandbox.ID, a.Sandbox.Generation,
					a.Sandbox.Incarnation, b.Sandbox.Generation, b.Sandbox.Incarnation)
			}
			if a.Sandbox.State == holdfast.SandboxDeleted && b.Sandbox.State != holdfast.SandboxDeleted {
				c.breaks("%s was answered as DELETED, and after that as %s", a.Sandbox.ID, b.Sandbox.State)
			}
		}
	}
}

// watched: whoever watched from the beginning has seen how everything ended.
func (c *checking) watched(r *runner) {
	for _, id := range c.ids() {
		s := c.sandboxes[id]
		if !r.watching || s.project != string(holdfast.ProjectDefault) {
			continue
		}
		if seen := r.watched[holdfast.SandboxID(id)]; seen.State != s.state || seen.Generation != s.generation {
			c.breaks("%s is %s at generation %d, and its watcher saw %s at %d", id, s.state, s.generation, seen.State, seen.Generation)
		}
	}
}
