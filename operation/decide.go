package operation

import (
	"slices"
	"time"
)

// Verdict is what becomes of a new intent that looks at its resource's pending operation.
type Verdict string

// The verdicts of Decide.
const (
	Begin     Verdict = "BEGIN"     // nothing is pending: record the intent
	Join      Verdict = "JOIN"      // the same is pending and nobody is at it: take its claim and carry it on
	Replace   Verdict = "REPLACE"   // supersede what is pending, then record the intent
	Held      Verdict = "HELD"      // a live attempt: wait for it a little, then answer that it is held
	Stop      Verdict = "STOP"      // a live attempt that the intent outranks: note the intent as wanted, ask it to stop
	Uncertain Verdict = "UNCERTAIN" // issued and unfinished: it has to be finished first; note the intent if it outranks it
	Conflict  Verdict = "CONFLICT"  // the pending operation does not yield to this intent
)

// Wanted is a new intent, and how it stands to others. The caller's state table gives the values.
type Wanted struct {
	Kind string
	// Same lists further kinds that this intent carries on as if they were its own.
	Same []string
	// Supersedes lists the kinds that yield to this one.
	Supersedes []string
	// Outranks says that it does not wait for a live attempt of another kind to end in its own time.
	Outranks bool
	// IssuedFirst says that what was issued has to be finished before anything else (contract: A7, sessions).
	IssuedFirst bool
}

// Decide says what a new intent does about the operation that is pending on its resource; nil stands for none
// (contract: A6, A7). It is a pure function. Whether the resource is at the wanted state already is for the caller to
// see, and counts only with nothing pending.
func Decide(pending *Operation, now time.Time, w Wanted) Verdict {
	if pending == nil || pending.State.Ended() {
		return Begin
	}
	same := pending.Kind == w.Kind || slices.Contains(w.Same, pending.Kind)
	yields := slices.Contains(w.Supersedes, pending.Kind)
	switch {
	case pending.Claimed(now) && w.Outranks && yields && !same:
		return Stop
	case pending.Claimed(now):
		return Held
	case same:
		return Join
	case !yields:
		return Conflict
	case w.IssuedFirst && pending.Issued:
		return Uncertain
	}
	return Replace
}

// Patience is how much answered trying an operation is worth (contract: A15). The zero value never gives up.
type Patience struct {
	Attempts int           // answered attempts; 0 for no limit
	For      time.Duration // of answered attempts going on; 0 for no limit
}

// Spent reports whether it is time to give the operation up. Attempts that reached nobody do not count, and neither do
// those that wait for something named: only what the authority answered tells that trying on is useless.
func (p Patience) Spent(o Operation) bool {
	if o.WaitsFor != "" {
		return false
	}
	return p.Attempts > 0 && o.Answered >= p.Attempts || p.For > 0 && o.AnsweredFor >= p.For
}
