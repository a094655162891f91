package history

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-dev/holdfast"
)

// The verbs of sessions and tasks.
const (
	Open       Verb = "create session"
	Look       Verb = "get session"
	Rest       Verb = "suspend session"
	Wake       Verb = "resume session"
	Close      Verb = "delete session"
	Submit     Verb = "submit" // of a task, by request id
	LookAtTask Verb = "get task"
	Cancel     Verb = "cancel"
)

// ofSession reports whether a verb is held against the model of a session, and
// ofTask against that of a task; a submit is both.
func (v Verb) ofSession() bool {
	return v == Open || v == Look || v == Rest || v == Wake || v == Close || v == Submit
}

func (v Verb) ofTask() bool { return v == Submit || v == LookAtTask || v == Cancel }

// tasksOf is how many request ids of tasks there are on one session.
const tasksOf = 4

// office is one thing that a session may be at a point of the order. It is comparable.
type office struct {
	id      holdfast.SessionID // "" until an answer named it
	exists  bool
	state   holdfast.SessionState
	gen     int64
	pending holdfast.OperationKind // "" for none
	wanted  bool                   // a delete met what has to be finished first
	known   [tasksOf]bool          // request ids that tasks were submitted under
	await   uint32                 // clients whose intent is recorded and whose answer is not read
}

// String shows it in a report.
func (o office) String() string {
	if !o.exists {
		return "nothing"
	}
	text := fmt.Sprintf("%s g%d", o.state, o.gen)
	if o.pending != "" {
		text += " " + string(o.pending) + "…"
	}
	if o.wanted {
		text += " delete wanted"
	}
	return text
}

// open reports whether it takes tasks: who is about to sleep or to go does not.
func (o office) open() bool {
	return o.pending != holdfast.OperationSuspend && o.pending != holdfast.OperationDelete
}

// intend is the transaction that records a new intent, above whatever is pending.
func (o office) intend(verb holdfast.OperationKind) office {
	o.gen++
	o.pending = verb
	if verb == holdfast.OperationDelete {
		o.state, o.wanted = holdfast.SessionDeleting, false
	}
	return o
}

// later is every office that o may be without anyone's call, o among them: what is
// pending is carried on, and a wanted delete begins.
func (o office) later() []office {
	all := []office{o}
	for i := 0; i < len(all); i++ {
		if next, ok := all[i].alone(); ok && !slices.Contains(all, next) {
			all = append(all, next)
		}
	}
	return all
}

func (o office) alone() (office, bool) {
	switch {
	case !o.exists || o.pending == "":
		return o, false
	case o.wanted:
		return o.intend(holdfast.OperationDelete), true
	}
	switch o.pending {
	case holdfast.OperationCreate, holdfast.OperationResume:
		o.state = holdfast.SessionReady
	case holdfast.OperationSuspend:
		o.state = holdfast.SessionSuspended
	case holdfast.OperationDelete:
		o.state = holdfast.SessionDeleted
	}
	o.pending = ""
	return o, true
}

// step is every office that the point may leave.
func (o office) step(p point) (out []office) {
	for _, at := range o.later() {
		for _, next := range at.take(p) {
			if !slices.Contains(out, next) {
				out = append(out, next)
			}
		}
	}
	return out
}

// take is what the point makes of it, at once.
func (o office) take(p point) []office {
	if named := p.Session.ID; named != "" {
		if o.id == "" && (o.exists || p.Verb == Open) {
			o.id = named
		}
		if o.id != named {
			return nil
		}
	}
	switch {
	case p.Outcome == Wrong, p.Verb != Open && !o.exists && p.Outcome != Unknown:
		return nil
	case p.Outcome == Refused:
		return o.refused(p.Call)
	case p.answer:
		return o.answered(p.Call)
	case p.Verb == Look && p.Outcome != OK:
		return []office{o}
	case p.Verb == Look:
		return o.sees(p.Session)
	}
	out := o.intended(p.Call)
	switch p.Outcome {
	case OK:
		if p.Verb != Submit {
			for i := range out {
				out[i].await |= 1 << p.Client
			}
		}
	case Reused: // its task is another matter
		return []office{o}
	case Unknown:
		out = append(out, o)
	case Aborted:
		if o.pending != "" { // another attempt was in the way
			out = append(out, o)
		}
	}
	return out
}

// intended is the first point of a lifecycle call, or a submit.
func (o office) intended(c Call) []office {
	switch c.Verb {
	case Open:
		if !o.exists {
			return []office{{id: o.id, exists: true, state: holdfast.SessionCreating, gen: 1, pending: holdfast.OperationCreate, await: o.await}}
		}
		return []office{o}
	case Close:
		if o.state == holdfast.SessionDeleted || o.pending == holdfast.OperationDelete || o.wanted {
			return []office{o}
		}
		out := []office{o.intend(holdfast.OperationDelete)}
		if o.pending != "" {
			o.wanted = true
			out = append(out, o)
		}
		return out
	case Submit:
		return o.submitted(c)
	}
	verb, at := holdfast.OperationSuspend, holdfast.SessionSuspended
	if c.Verb == Wake {
		verb, at = holdfast.OperationResume, holdfast.SessionReady
	}
	switch {
	case o.state != holdfast.SessionReady && o.state != holdfast.SessionSuspended:
		return nil
	case o.pending == verb, o.pending == "" && o.state == at:
		return []office{o}
	case o.wanted:
		return nil
	}
	return []office{o.intend(verb)}
}

// submitted is a submit that was taken: the first under its request id wakes what sleeps.
func (o office) submitted(c Call) []office {
	switch {
	case o.known[c.Variant]:
		return []office{o}
	case !o.open(), o.state == holdfast.SessionDeleting, o.state == holdfast.SessionDeleted:
		return nil
	}
	o.known[c.Variant] = true
	if o.state == holdfast.SessionSuspended && o.pending == "" {
		o = o.intend(holdfast.OperationResume)
	}
	return []office{o}
}

// answered is the second point of a lifecycle call that succeeded: what was asked for
// has ended, and something else may have followed.
func (o office) answered(c Call) []office {
	bit := uint32(1) << c.Client
	if o.await&bit == 0 || c.Verb == Open && c.Session.State == holdfast.SessionCreating {
		return nil
	}
	if c.Verb == Close && c.Session.State != holdfast.SessionDeleted {
		return nil
	}
	o.await &^= bit
	return o.sees(c.Session)
}

// refused is an answer that says that nothing was done, and why.
func (o office) refused(c Call) []office {
	ends := o.state == holdfast.SessionDeleting || o.state == holdfast.SessionDeleted
	right := c.State == "" || string(c.State) == string(o.state)
	switch c.Verb {
	case Rest, Wake:
		right = right && (ends || o.state == holdfast.SessionCreating)
	case Submit:
		right = right && ends && !o.known[c.Variant]
	default: // nobody refuses a create, a read or a delete
		right = false
	}
	if !right {
		return nil
	}
	return []office{o}
}

// sees is the office in which an answer shows s; none where it cannot.
func (o office) sees(s holdfast.Session) []office {
	var pending holdfast.OperationKind
	if s.Operation != nil {
		pending = s.Operation.Kind
	}
	if !o.exists || o.state != s.State || o.gen != s.Generation || o.pending != pending {
		return nil
	}
	return []office{o}
}

// sessions is the model of one session's life.
func sessions() porcupine.Model { return modelOf(office{}, office.step) }

// errand is one thing that a task may be.
type errand struct {
	id    holdfast.TaskID // "" until an answer named it
	input int             // that it was submitted with
	state holdfast.TaskState
	asked bool // to end
}

// ended reports whether it is over: then it stays what it is.
func (e errand) ended() bool { return len(holdfast.TaskTransitions()[e.state]) == 0 }

// String shows it in a report.
func (e errand) String() string {
	if e.state == "" {
		return "nothing"
	}
	if e.asked {
		return string(e.state) + " asked to end"
	}
	return string(e.state)
}

// later is every errand that e may be without a call that is about it, e among them.
// A session that is deleted asks its tasks to end: closing says that somebody may have
// asked for that by then.
func (e errand) later(closing bool) []errand {
	all := []errand{e}
	add := func(next errand) {
		if !slices.Contains(all, next) {
			all = append(all, next)
		}
	}
	for i := 0; i < len(all); i++ {
		at := all[i]
		switch {
		case at.state == "" || at.ended():
			continue
		case at.state == holdfast.TaskQueued && !at.asked:
			add(errand{at.id, at.input, holdfast.TaskRunning, false})
		case at.state == holdfast.TaskRunning && at.asked:
			add(errand{at.id, at.input, holdfast.TaskCancelled, true})
		case at.state == holdfast.TaskRunning:
			add(errand{at.id, at.input, holdfast.TaskSucceeded, false})
		}
		if closing {
			add(at.cancelled())
		}
	}
	return all
}

// cancelled is what a cancel makes of it: one that has not started ends at once, a
// running one is asked to, and what is over stays.
func (e errand) cancelled() errand {
	switch e.state {
	case holdfast.TaskQueued:
		e.state, e.asked = holdfast.TaskCancelled, true
	case holdfast.TaskRunning:
		e.asked = true
	}
	return e
}

// step is every errand that the point may leave. closed is when a delete of the
// session was first asked for; micros, 0 for never.
func (e errand) step(p point, closed int64) (out []errand) {
	for _, at := range e.later(closed != 0 && closed <= micros(p.Ended)) {
		for _, next := range at.take(p.Call) {
			if !slices.Contains(out, next) {
				out = append(out, next)
			}
		}
	}
	return out
}

func (e errand) take(c Call) []errand {
	fresh := errand{input: c.Input, state: holdfast.TaskQueued}
	if c.Outcome != OK {
		switch {
		case c.Outcome == Wrong, c.Outcome == Reused && (e.state == "" || e.input == c.Input):
			return nil
		case c.Verb == Submit && c.Outcome == Unknown && e.state == "":
			return []errand{e, fresh}
		case c.Verb == Cancel && c.Outcome == Unknown:
			return []errand{e, e.cancelled()}
		case c.Verb == Submit && c.Outcome == Refused && e.state != "":
			return nil
		}
		return []errand{e}
	}
	if e.state == "" {
		if c.Verb != Submit {
			return nil
		}
		e = fresh
	}
	if c.Verb == Submit && e.input != c.Input || e.id != "" && e.id != c.Task.ID {
		return nil
	}
	if c.Verb == Cancel {
		e = e.cancelled()
	}
	e.id = c.Task.ID
	var out []errand
	for _, at := range e.started(c) {
		if at.state == c.Task.State {
			out = append(out, at)
		}
	}
	return out
}

// started is what a submit may answer: a task that nothing is before starts in the
// transaction that records it.
func (e errand) started(c Call) []errand {
	if c.Verb != Submit || e.state != holdfast.TaskQueued {
		return []errand{e}
	}
	runs := e
	runs.state = holdfast.TaskRunning
	return []errand{e, runs}
}

// errands is the model of one task.
func errands(closed int64) porcupine.Model {
	return modelOf(errand{}, func(e errand, p point) []errand { return e.step(p, closed) })
}

// modelOf is a model over sets of what may be, from none on.
func modelOf[W interface {
	comparable
	fmt.Stringer
}](none W, step func(W, point) []W) porcupine.Model {
	seed := maphash.MakeSeed()
	return porcupine.Model{
		Init: func() any { return []W{none} },
		Step: func(state, input, _ any) (bool, any) {
			var next []W
			for _, w := range state.([]W) {
				for _, n := range step(w, input.(point)) {
					if !slices.Contains(next, n) {
						next = append(next, n)
					}
				}
			}
			return len(next) > 0, next
		},
		Equal: func(a, b any) bool {
			one, other := a.([]W), b.([]W)
			return len(one) == len(other) && !slices.ContainsFunc(one, func(w W) bool { return !slices.Contains(other, w) })
		},
		Hash: func(state any) (h uint64) {
			for _, w := range state.([]W) {
				h ^= maphash.Comparable(seed, w)
			}
			return h
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
}
