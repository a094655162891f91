package history

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// epoch is when the hand-made histories begin.
func epoch() time.Time { return time.Date(2031, 5, 6, 7, 8, 0, 0, time.UTC) }

func at(ms int) time.Time { return epoch().Add(time.Duration(ms) * time.Millisecond) }

// did is a call of client 1 from one moment to another, in milliseconds.
func did(from, to int, verb Verb, outcome Outcome) Call {
	c := Call{Client: 1, Verb: verb, Outcome: outcome, Called: at(from), Ended: at(to)}
	switch verb {
	case Create:
		c.TTL, c.Expiry = time.Second, holdfast.ExpiryDelete
	case List, Absent: // they address none
	case Start, Running:
		c.Request, c.ID = "p", "sb-1"
	default:
		c.ID = "sb-1"
	}
	return c
}

// by gives the call to another client.
func (c Call) by(client int) Call { c.Client = client; return c }

// saw is what the call answered: a sandbox whose lifetime ends at until ms; 0: none.
func (c Call) saw(state holdfast.SandboxState, generation int64, until int) Call {
	c.Sandbox = holdfast.Sandbox{ID: "sb-1", State: state, Generation: generation}
	if until != 0 {
		c.Sandbox.ExpiresAt = at(until)
	}
	return c
}

// under adds the operation that the answer showed.
func (c Call) under(kind holdfast.OperationKind) Call {
	c.Sandbox.Operation = &holdfast.Operation{Kind: kind}
	return c
}

func (c Call) of(id holdfast.SandboxID) Call { c.Sandbox.ID = id; return c }

func (c Call) process(id holdfast.ProcessID) Call { c.Process = id; return c }

func (c Call) adding(ttl int) Call { c.TTL = time.Duration(ttl) * time.Millisecond; return c }

func (c Call) variantOf(n int) Call { c.Variant = n; return c }

// The states, short.
const (
	creating  = holdfast.SandboxCreating
	ready     = holdfast.SandboxReady
	suspended = holdfast.SandboxSuspended
	deleting  = holdfast.SandboxDeleting
	deleted   = holdfast.SandboxDeleted
)

// created is a create from 0 to 10 ms that succeeded, with a lifetime until 1008 ms.
func created() Call { return did(0, 10, Create, OK).saw(ready, 1, 1008) }

// Known-bad histories, each with a twin that differs in what is wrong with it alone.
// contract: A1, A3, A4, A5, A7, A8, A11, A14
func TestHistoriesThatNoServerMayHaveAreRejected(t *testing.T) {
	suspend := did(20, 30, Suspend, OK).saw(suspended, 2, 3028)
	remove := did(20, 30, Delete, OK).saw(deleted, 2, 0)
	for name, tc := range map[string]struct{ bad, good []Call }{
		"a create that was acknowledged is lost": {
			bad:  []Call{created(), did(20, 21, Absent, OK)},
			good: []Call{created(), did(9, 21, Absent, OK), did(22, 23, List, OK).saw(ready, 1, 1008)},
		},
		"one request id, two sandboxes": {
			bad:  []Call{created(), did(20, 30, Create, OK).saw(ready, 1, 1008).of("sb-2")},
			good: []Call{created(), did(20, 30, Create, OK).saw(ready, 1, 1008)},
		},
		"a create whose answer was lost makes a second one": {
			bad: []Call{did(0, 10, Create, Unknown), did(20, 21, List, OK).saw(ready, 1, 1008).of("sb-2"),
				did(20, 30, Create, OK).saw(ready, 1, 1008)},
			good: []Call{did(0, 10, Create, Unknown), did(20, 21, List, OK).saw(creating, 1, 0).under(holdfast.OperationCreate),
				did(20, 30, Create, OK).saw(ready, 1, 1022)},
		},
		"the request id is taken for another input": {
			bad:  []Call{created(), did(20, 30, Create, OK).variantOf(1).saw(ready, 1, 1008)},
			good: []Call{created(), did(20, 30, Create, Reused).variantOf(1)},
		},
		"a new input is refused as reused before there was one": {
			bad:  []Call{did(0, 10, Create, Reused).variantOf(1), did(20, 30, Create, OK).saw(ready, 1, 1028)},
			good: []Call{did(0, 25, Create, Reused).variantOf(1), did(20, 30, Create, OK).saw(ready, 1, 1028)},
		},
		"resurrected after its delete": {
			bad:  []Call{created(), remove, did(40, 41, Get, OK).saw(ready, 1, 1008)},
			good: []Call{created(), remove, did(25, 41, Get, OK).saw(ready, 1, 1008)},
		},
		"deleted, and created again by a late repeat": {
			bad:  []Call{created(), remove, did(40, 50, Create, OK).saw(ready, 1, 1048).of("sb-2")},
			good: []Call{created(), remove, did(40, 50, Create, OK).saw(deleted, 2, 0)},
		},
		"a read goes back in time": {
			bad: []Call{created(), did(20, 100, Suspend, Unknown).by(2), did(40, 41, Get, OK).saw(suspended, 2, 3030),
				did(50, 51, Get, OK).saw(ready, 1, 1008)},
			good: []Call{created(), did(20, 100, Suspend, Unknown).by(2), did(40, 41, Get, OK).saw(ready, 1, 1008),
				did(50, 51, Get, OK).saw(suspended, 2, 3030)},
		},
		"a suspend was acknowledged, and it runs without a resume": {
			bad:  []Call{created(), suspend, did(40, 41, Get, OK).saw(ready, 2, 1008)},
			good: []Call{created(), suspend, did(31, 35, Resume, OK).saw(ready, 3, 1033), did(40, 41, Get, OK).saw(ready, 3, 1033)},
		},
		"a suspend is acknowledged before it is finished": {
			bad:  []Call{created(), suspend, did(40, 41, Get, OK).saw(ready, 2, 1008).under(holdfast.OperationSuspend)},
			good: []Call{created(), suspend, did(25, 41, Get, OK).saw(ready, 2, 1008).under(holdfast.OperationSuspend)},
		},
		"a delete is acknowledged before it is finished": {
			bad:  []Call{created(), remove, did(40, 41, Get, OK).saw(deleting, 2, 0).under(holdfast.OperationDelete)},
			good: []Call{created(), did(20, 30, Delete, Recorded), did(40, 41, Get, OK).saw(deleting, 2, 0).under(holdfast.OperationDelete)},
		},
		"a delete that was recorded is forgotten": {
			bad:  []Call{created(), did(20, 30, Delete, Recorded), did(40, 41, Get, OK).saw(ready, 1, 1008)},
			good: []Call{created(), did(20, 30, Delete, Unknown), did(40, 41, Get, OK).saw(ready, 1, 1008)},
		},
		"what nobody asked for": {
			bad:  []Call{created(), did(20, 21, Get, OK).saw(ready, 2, 1008).under(holdfast.OperationSuspend)},
			good: []Call{created(), did(15, 30, Suspend, Unknown).by(2), did(20, 21, Get, OK).saw(ready, 2, 1008).under(holdfast.OperationSuspend)},
		},
		"one suspend takes effect twice": {
			bad: []Call{created(), did(20, 21, Suspend, Unknown).by(2), did(30, 31, Get, OK).saw(suspended, 2, 3030),
				did(40, 50, Resume, OK).saw(ready, 3, 1045), did(60, 61, Get, OK).saw(suspended, 4, 3055)},
			good: []Call{created(), did(20, 21, Suspend, Unknown).by(2), did(22, 23, Suspend, Unknown).by(2), did(30, 31, Get, OK).saw(suspended, 2, 3030),
				did(40, 50, Resume, OK).saw(ready, 3, 1045), did(60, 61, Get, OK).saw(suspended, 4, 3055)},
		},
		"what was answered ABORTED happens afterwards": {
			bad: []Call{created(), did(15, 30, Resume, Unknown).by(2), did(20, 30, Suspend, Aborted), did(40, 41, Get, OK).saw(ready, 1, 1008),
				did(50, 51, Get, OK).saw(suspended, 2, 3045)},
			good: []Call{created(), did(15, 30, Resume, Unknown).by(2), did(20, 30, Suspend, Unknown), did(40, 41, Get, OK).saw(ready, 1, 1008),
				did(50, 51, Get, OK).saw(suspended, 2, 3045)},
		},
		"a resume is refused although it is READY": {
			bad:  []Call{created(), did(20, 30, Resume, Refused), did(40, 41, Get, OK).saw(ready, 1, 1008)},
			good: []Call{created(), did(20, 30, Resume, OK).saw(ready, 1, 1008), did(40, 41, Get, OK).saw(ready, 1, 1008)},
		},
		"expiry is undone": {
			bad:  []Call{created(), did(1100, 1101, Get, OK).saw(deleting, 2, 0).under(holdfast.OperationDelete), did(1110, 1111, Get, OK).saw(ready, 3, 2200)},
			good: []Call{created(), did(1100, 1101, Get, OK).saw(deleting, 2, 0).under(holdfast.OperationDelete), did(1110, 1111, Get, OK).saw(deleted, 2, 0)},
		},
		"evicted before its time": {
			bad:  []Call{created(), did(900, 901, Get, OK).saw(deleted, 2, 0)},
			good: []Call{created(), did(1100, 1101, Get, OK).saw(deleted, 2, 0)},
		},
		"evicted before its time, while an outcome is unknown": {
			bad:  []Call{created(), did(20, 30, Resume, Unknown).by(2), did(900, 901, Get, OK).saw(deleted, 2, 0)},
			good: []Call{created(), did(20, 30, Delete, Unknown).by(2), did(900, 901, Get, OK).saw(deleted, 2, 0)},
		},
		"renewed, and evicted all the same": {
			bad: []Call{created(), did(500, 510, Extend, OK).adding(1000).saw(ready, 1, 1505), did(1200, 1201, Get, OK).saw(deleting, 2, 0).under(holdfast.OperationDelete)},
			good: []Call{created(), did(500, 510, Extend, OK).adding(1000).saw(ready, 1, 1505), did(1200, 1201, Get, OK).saw(ready, 1, 1505),
				did(1600, 1601, Get, OK).saw(deleting, 2, 0).under(holdfast.OperationDelete)},
		},
		"an extension that was acknowledged is lost": {
			bad:  []Call{created(), did(500, 510, Extend, OK).adding(1000).saw(ready, 1, 1505), did(600, 601, Get, OK).saw(ready, 1, 1008)},
			good: []Call{created(), did(500, 510, Extend, OK).adding(1000).saw(ready, 1, 1505), did(600, 601, Get, OK).saw(ready, 1, 1505)},
		},
		"an extension shortens": {
			bad:  []Call{created(), did(20, 30, Extend, OK).adding(500).saw(ready, 1, 525)},
			good: []Call{created(), did(20, 30, Extend, OK).adding(500).saw(ready, 1, 1008)},
		},
		"a process starts twice": {
			bad:  []Call{did(20, 30, Start, OK).process("ps-1"), did(40, 50, Start, OK).process("ps-2")},
			good: []Call{did(20, 30, Start, OK).process("ps-1"), did(40, 50, Start, OK).process("ps-1")},
		},
		"a process starts twice, and the first answer was lost": {
			bad:  []Call{did(20, 30, Start, Unknown), did(40, 41, Running, OK).process("ps-1"), did(50, 60, Start, OK).process("ps-2")},
			good: []Call{did(20, 30, Start, Unknown), did(40, 41, Running, OK).process("ps-1"), did(50, 60, Start, OK).process("ps-1")},
		},
		"a process that was acknowledged is gone": {
			bad:  []Call{did(20, 30, Start, OK).process("ps-1"), did(40, 41, Running, OK)},
			good: []Call{did(20, 30, Start, OK).process("ps-1"), did(25, 41, Running, OK)},
		},
		"an answer that no client should get": {
			bad:  []Call{created(), did(20, 30, Suspend, Wrong)},
			good: []Call{created(), did(20, 30, Suspend, Unknown)},
		},
	} {
		if v := Check(tc.good, 3*time.Second, time.Minute); !v.OK {
			t.Errorf("%s: the twin that is right is rejected: %s", name, v.Report)
		}
		if v := Check(tc.bad, 3*time.Second, time.Minute); v.OK || !v.Decided {
			t.Errorf("%s: accepted", name)
		}
	}
}
