package history

import (
	"math"
	"slices"

	"github.com/holdfast-dev/holdfast"
)

// point is one point of the order: a call's only one, or a lifecycle call's first
// (its intent is recorded) or second (its answer is read).
type point struct {
	Call
	answer bool
}

// step is every world that the point may leave, of those that w may be.
func (s settings) step(w world, p point) []world {
	var out []world
	now := micros(p.Ended)
	if w.floor > now+slack.Microseconds() {
		return nil // the end of its lifetime had not come
	}
	for _, at := range w.later(now, s) {
		for _, next := range s.take(at, p) {
			if !contains(out, next) {
				out = append(out, next)
			}
		}
	}
	return out
}

// take is what the point makes of a world, at once.
func (s settings) take(w world, p point) []world {
	if p.ID != "" { // only an answer names an id
		var ok bool
		if w, ok = w.named(p.ID); !ok || !w.exists && p.Outcome != Unknown {
			return nil
		}
	}
	switch {
	case p.Outcome == Wrong:
		return nil
	case p.Outcome == Refused || p.Outcome == Reused:
		return s.refused(w, p.Call)
	case p.answer:
		return s.answered(w, p.Call)
	case p.Verb.mutates():
		return named(s.intended(w, p.Call), p.Call)
	case p.Verb == Extend || p.Verb == Set:
		return s.lifetime(w, p.Call)
	}
	return s.observed(w, p.Call)
}

// observed is a read: it moves nothing along (contract: A5).
func (s settings) observed(w world, c Call) []world {
	switch {
	case c.Outcome != OK:
		return []world{w}
	case c.Verb == Absent:
		return only(w, !w.exists || w.state == holdfast.SandboxDeleted)
	}
	w, ok := w.sees(c.Sandbox)
	return only(w, ok)
}

// intended is the first point of a lifecycle call.
func (s settings) intended(w world, c Call) []world {
	var out []world
	switch c.Verb {
	case Create:
		out = s.createIntended(w, c)
	case Delete:
		out = s.deleteIntended(w, c)
	default:
		out = s.changeIntended(w, c)
	}
	switch c.Outcome {
	case OK:
		for i := range out {
			out[i].await |= 1 << c.Client
		}
	case Unknown:
		out = append(out, w)
	case Aborted:
		if w.pending != "" { // another attempt was in the way
			out = append(out, w)
		}
	}
	return out
}

// named leaves the worlds that fit the sandbox that an error named.
func named(all []world, c Call) []world {
	if c.Outcome == OK || c.Sandbox.ID == "" {
		return all
	}
	var out []world
	for _, w := range all {
		if w, ok := w.named(c.Sandbox.ID); ok && w.exists {
			out = append(out, w)
		}
	}
	return out
}

func (s settings) createIntended(w world, c Call) []world {
	if w.exists {
		return only(w, w.variant == c.Variant)
	}
	return []world{{exists: true, variant: c.Variant, state: holdfast.SandboxCreating, gen: 1, pending: holdfast.OperationCreate,
		ttl: c.TTL, expiry: c.Expiry, since: micros(c.Called), await: w.await}}
}

func (s settings) deleteIntended(w world, c Call) []world {
	switch {
	case !w.exists:
		return nil
	case w.state == holdfast.SandboxDeleted, w.pending == holdfast.OperationDelete, w.wanted:
		return []world{w}
	}
	out := []world{w.intend(holdfast.OperationDelete, micros(c.Called))}
	if w.pending != "" {
		w.wanted = true
		out = append(out, w)
	}
	return out
}

func (s settings) changeIntended(w world, c Call) []world {
	verb, at := holdfast.OperationSuspend, holdfast.SandboxSuspended
	if c.Verb == Resume {
		verb, at = holdfast.OperationResume, holdfast.SandboxReady
	}
	switch {
	case !w.exists || w.wanted || w.state != holdfast.SandboxReady && w.state != holdfast.SandboxSuspended:
		return nil
	case w.pending == verb, w.pending == "" && w.state == at:
		return []world{w}
	}
	return []world{w.intend(verb, micros(c.Called))}
}

// answered is the second point of a lifecycle call that succeeded.
func (s settings) answered(w world, c Call) []world {
	bit := uint32(1) << c.Client
	if w.await&bit == 0 {
		return nil
	}
	w.await &^= bit
	switch c.Verb {
	case Create:
		if c.Sandbox.State == holdfast.SandboxCreating {
			return nil
		}
	case Suspend:
		if c.Sandbox.State != holdfast.SandboxSuspended {
			return nil
		}
	case Resume:
		if c.Sandbox.State != holdfast.SandboxReady {
			return nil
		}
	case Delete:
		if c.Sandbox.State != holdfast.SandboxDeleted {
			return nil
		}
	}
	w, ok := w.sees(c.Sandbox)
	return only(w, ok)
}

// refused is an answer that says that nothing was done, and why.
func (s settings) refused(w world, c Call) []world {
	if c.State != "" && c.State != w.state {
		return nil
	}
	switch c.Verb {
	case Create:
		return only(w, c.Outcome == Reused && w.exists && w.variant != c.Variant)
	case Suspend, Resume:
		return only(w, w.exists && w.state != holdfast.SandboxReady && w.state != holdfast.SandboxSuspended)
	case Extend, Set:
		return only(w, w.exists && !w.lives())
	}
	return nil // nobody refuses a read or a delete
}

// lifetime is an extension, or a new setting.
func (s settings) lifetime(w world, c Call) []world {
	if c.Outcome == Unknown {
		out := []world{w}
		if w.lives() {
			out = append(out, w.changed(c, 0))
		}
		return out
	}
	if c.Outcome != OK || !w.lives() {
		return nil
	}
	w = w.changed(c, micros(c.Sandbox.ExpiresAt))
	w, ok := w.sees(c.Sandbox)
	return only(w, ok)
}

// changed is a lifetime as the call makes it; shown is the end that it answered,
// 0 where nobody heard it. An end that cannot have been answered is put where no
// answer matches.
func (w world) changed(c Call, shown int64) world {
	least := micros(c.Called.Add(c.TTL - slack))
	inTime := shown >= least && shown <= micros(c.Ended.Add(c.TTL+slack))
	if c.Verb == Extend {
		switch {
		case w.until == 0:
			w.ttl = max(w.ttl, c.TTL)
		case !w.exact, shown == 0:
			w.until, w.exact = max(w.until, least), false
		case shown == w.until && w.until >= least: // late enough already
		case inTime && shown > w.until:
			w.until = shown
		default:
			w.until = math.MaxInt64
		}
		return w
	}
	if c.Expiry != "" {
		w.expiry = c.Expiry
	}
	if c.TTL == 0 {
		return w
	}
	w.ttl = c.TTL
	switch {
	case w.until == 0 || w.state == holdfast.SandboxSuspended:
	case shown == 0:
		w.until, w.exact = least, false
	case inTime:
		w.until, w.exact = shown, true
	default:
		w.until, w.exact = math.MaxInt64, true
	}
	return w
}

func only(w world, ok bool) []world {
	if !ok {
		return nil
	}
	return []world{w}
}

func contains(all []world, w world) bool { return slices.Contains(all, w) }
