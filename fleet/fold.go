package fleet

import (
	"reflect"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// channel is how an observation came, which decides how it is ordered against
// what is recorded.
type channel int

const (
	// delivered: a host's delivery, which may be late, early or another one's repeat (contract: B7).
	delivered channel = iota
	// answered: a host's answer to a level, which a delivery may have overtaken.
	answered
	// asked: a host's answer to a question that was put after the recorded
	// revision was read, and that revision still stands: nothing is newer.
	asked
)

// change is what an observation does to a row.
type change struct {
	next    row
	changed bool
	ended   bool   // it ended, and no level had asked for that: the orchestrator is told (H8)
	freed   bool   // what it held is given back
	ignored string // why it changed nothing, for operators; "" when it was applied or said nothing new
}

// fold is the pure decision on an observation. Facts are ordered by incarnation,
// then by generation, and within one by how far they are on the way to what was
// desired; never by a clock.
func fold(cur row, o holdfast.Observation, how channel, now time.Time) change {
	if why := ignore(cur, o, how); why != "" {
		return change{next: cur, ignored: why}
	}
	next := cur
	if o.State != cur.state {
		next.state, next.known, next.enteredAt = o.State, o.State, now
	}
	next.observed = max(cur.observed, o.Generation)
	next.progress, next.observedAt = o.Progress, o.At
	if o.BootID != "" {
		next.bootID = o.BootID
	}
	if final(o.State) {
		end(&next, cur, o, now)
	} else {
		next.ports, next.address = o.Ports, o.Address
		next.settled = how != delivered || len(o.Ports) > 0 || o.Address != ""
	}
	next.dueAt = dueAt(next)
	c := change{next: next, changed: !same(cur, next)}
	c.ended = !final(cur.state) && final(next.state) && !ending(cur.desired)
	c.freed = cur.held && !next.held
	return c
}

// end is what a final state means for the rest of the row.
func end(next *row, cur row, o holdfast.Observation, now time.Time) {
	next.held, next.ports, next.address, next.settled = false, nil, "", true
	if o.Failure != nil {
		next.failure = o.Failure
	}
	if o.State == holdfast.InstanceAbsent {
		next.tombstoneAt = now
	}
	if final(cur.state) || ending(cur.desired) || next.failure != nil {
		return
	}
	if o.State == holdfast.InstanceExited {
		next.failure = &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "the instance ended"}
	} else {
		next.failure = &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the instance was removed from its host"}
	}
}

// same compares what matters: when it was seen does not.
func same(a, b row) bool {
	a.observedAt, a.dueAt, a.enteredAt, a.tombstoneAt = b.observedAt, b.dueAt, b.enteredAt, b.tombstoneAt
	if len(a.ports) == 0 && len(b.ports) == 0 {
		a.ports, b.ports = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// ignore says why an observation changes nothing, "" when it may.
func ignore(cur row, o holdfast.Observation, how channel) string {
	switch {
	case o.Incarnation < cur.incarnation:
		return "ignored: an older incarnation"
	case o.Incarnation > cur.incarnation:
		return "ignored: a newer incarnation than was placed"
	case cur.host == "":
		return "ignored: it was never placed"
	case o.Host != "" && o.Host != cur.host:
		return "ignored: another host than it was placed on"
	case cur.state == holdfast.InstanceAbsent, cur.state == holdfast.InstanceExited && o.State != holdfast.InstanceAbsent:
		return "ignored: it has ended"
	case final(o.State):
		return "" // for ever, whatever level it answers
	case !reported(o.State):
		return "ignored: not a state that a host reports"
	case how == delivered && o.Generation < cur.generation, o.Generation < cur.observed:
		return "ignored: answers an older generation"
	case how == asked && o.State != cur.known && !follows(cur.known, o.State):
		return "ignored: cannot follow " + string(cur.known)
	case how != asked && o.Generation == cur.observed && rank(cur.desired, o.State) < rank(cur.desired, cur.known):
		return "ignored: older than what is known"
	}
	return ""
}

func reported(s holdfast.InstanceState) bool {
	switch s {
	case holdfast.InstancePreparing, holdfast.InstanceBooting, holdfast.InstanceRunning, holdfast.InstanceSuspended, holdfast.InstanceStopping:
		return true
	}
	return final(s)
}

func follows(from, to holdfast.InstanceState) bool {
	for _, s := range holdfast.InstanceTransitions()[from] {
		if s == to {
			return true
		}
	}
	return false
}

// rank orders the states on the way to what is desired: one that boots is on its
// way to RUNNING, one that runs is on its way to SUSPENDED.
func rank(desired holdfast.Desired, s holdfast.InstanceState) int {
	suspended := 2
	if desired != holdfast.DesiredRunning {
		suspended = 5
	}
	switch s {
	case holdfast.InstancePreparing:
		return 1
	case holdfast.InstanceSuspended:
		return suspended
	case holdfast.InstanceBooting:
		return 3
	case holdfast.InstanceRunning:
		return 4
	case holdfast.InstanceStopping:
		return 6
	case holdfast.InstanceExited:
		return 7
	case holdfast.InstanceAbsent:
		return 8
	}
	return 0
}

// lose is what becomes of a placed incarnation that its own host does not know.
func lose(cur row, now time.Time) change {
	o := holdfast.Observation{
		Instance: cur.id, Incarnation: cur.incarnation, Generation: cur.generation, State: holdfast.InstanceExited, At: now,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "its host knows nothing of it"},
	}
	if cur.known == holdfast.InstancePlaced {
		o.Failure.Message = "its host was never told to begin, or lost the order"
	}
	return fold(cur, o, asked, now)
}

// dueAt is when a sweep looks at a row for its own sake: its state is one to be
// left, or an end is wanted. What rests, or is UNKNOWN, is looked at with its host.
func dueAt(r row) time.Time {
	if final(r.state) && !(r.state == holdfast.InstanceExited && r.desired == holdfast.DesiredAbsent) {
		return time.Time{}
	}
	var due time.Time
	switch r.state {
	case holdfast.InstancePlaced, holdfast.InstancePreparing:
		due = r.enteredAt.Add(holdfast.InstancePrepareAfter)
	case holdfast.InstanceBooting:
		due = r.enteredAt.Add(holdfast.InstanceBootAfter)
	case holdfast.InstanceStopping:
		due = r.enteredAt.Add(holdfast.InstanceStoppingAfter)
	}
	if ending(r.desired) {
		wanted := r.leveledAt.Add(holdfast.InstanceStoppingAfter)
		if due.IsZero() || wanted.Before(due) {
			due = wanted
		}
	}
	return due
}
