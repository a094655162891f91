package history

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// world is one thing that a sandbox may be at a point of the order. It is
// comparable; times are microseconds of the wall clock.
type world struct {
	id      holdfast.SandboxID // "" until an answer named it
	exists  bool
	variant int // of the input that made it
	state   holdfast.SandboxState
	gen     int64
	pending holdfast.OperationKind // "" for none
	expired bool                   // its end began what is pending
	wanted  bool                   // a delete met a live attempt
	ttl     time.Duration
	expiry  holdfast.Expiry
	since   int64 // what is pending began no earlier
	// The lifetime's end: 0 for none yet; exactly until, or some time from until on.
	until int64
	exact bool
	floor int64  // no earlier than this: a lifetime ended
	await uint32 // clients whose intent is recorded and whose answer is not read, a bit each
}

// String shows a world in a report.
func (w world) String() string {
	if !w.exists {
		return "nothing"
	}
	text := fmt.Sprintf("%s g%d", w.state, w.gen)
	if w.pending != "" {
		text += " " + string(w.pending) + "…"
	}
	if w.wanted {
		text += " delete wanted"
	}
	if w.until != 0 {
		about := ""
		if !w.exact {
			about = "≥"
		}
		text += " until " + about + time.UnixMicro(w.until).Format("04:05.000")
	}
	return text
}

// settings is what of a server's configuration the model needs.
type settings struct {
	retention time.Duration
}

// slack is how far two readings of the wall clock may be apart here: the
// database's and the client's.
const slack = 5 * time.Millisecond

func micros(t time.Time) int64 { return t.UnixMicro() }

// later is every world that w may be by the time now without anyone's call: what
// is pending is carried on, a wanted delete begins, a lifetime ends. w is among
// them.
func (w world) later(now int64, s settings) []world {
	all := []world{w}
	for i := 0; i < len(all); i++ {
		for _, next := range all[i].alone(now, s) {
			if !contains(all, next) {
				all = append(all, next)
			}
		}
	}
	return all
}

// alone is what may happen next by itself.
func (w world) alone(now int64, s settings) []world {
	var out []world
	switch {
	case !w.exists:
		return nil
	case w.wanted:
		return []world{w.intend(holdfast.OperationDelete, w.since)}
	case w.pending != "":
		out = append(out, w.finish(s))
	}
	if w.until != 0 && w.until <= now+slack.Microseconds() {
		out = append(out, w.expire()...)
	}
	return out
}

// intend is the transaction that records a new intent, above whatever is pending.
func (w world) intend(verb holdfast.OperationKind, since int64) world {
	w.gen++
	w.pending, w.since, w.expired, w.wanted = verb, since, false, false
	if verb == holdfast.OperationDelete {
		w.state, w.until, w.exact = holdfast.SandboxDeleting, 0, false
	}
	return w
}

// finish is the transaction that records the pending operation's success.
func (w world) finish(s settings) world {
	switch w.pending {
	case holdfast.OperationCreate, holdfast.OperationResume:
		w.state, w.until = holdfast.SandboxReady, w.since+w.ttl.Microseconds()
	case holdfast.OperationSuspend:
		w.state, w.until = holdfast.SandboxSuspended, w.since+s.retention.Microseconds()
	case holdfast.OperationDelete:
		w.state, w.until = holdfast.SandboxDeleted, 0
	}
	w.until = max(w.until-slack.Microseconds(), 0)
	w.pending, w.expired, w.exact = "", false, false
	return w
}

// expire is what the end of a lifetime or of a retention begins.
func (w world) expire() []world {
	switch {
	case w.state == holdfast.SandboxSuspended, w.state == holdfast.SandboxReady && w.expiry != holdfast.ExpirySuspend:
		next := w.intend(holdfast.OperationDelete, w.until)
		next.expired, next.floor = true, w.until
		return []world{next}
	case w.state == holdfast.SandboxReady && w.pending != holdfast.OperationSuspend:
		next := w.intend(holdfast.OperationSuspend, w.until)
		next.expired, next.floor = true, w.until
		return []world{next}
	}
	return nil
}

// lives reports whether the lifetime can still be changed.
func (w world) lives() bool {
	switch w.state {
	case holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended:
		return w.exists && !w.wanted && !w.expired
	}
	return false
}

// sees is the world in which an answer shows s: w, with what the answer adds; ok
// is false where it cannot show it.
func (w world) sees(s holdfast.Sandbox) (_ world, ok bool) {
	var pending holdfast.OperationKind
	if s.Operation != nil {
		pending = s.Operation.Kind
	}
	if !w.exists || w.state != s.State || w.gen != s.Generation || w.pending != pending {
		return w, false
	}
	if w, ok = w.named(s.ID); !ok {
		return w, false
	}
	if s.ExpiresAt.IsZero() || w.until == 0 {
		return w, s.ExpiresAt.IsZero() && w.until == 0
	}
	at := micros(s.ExpiresAt)
	if w.exact && at != w.until || at < w.until {
		return w, false
	}
	w.until, w.exact = at, true
	return w, true
}

// named binds the id that a request id stands for.
func (w world) named(id holdfast.SandboxID) (world, bool) {
	if w.id == "" {
		w.id = id
	}
	return w, id == "" || w.id == id
}
