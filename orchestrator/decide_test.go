package orchestrator

import (
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
)

// clock is a clock that a test moves.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Now().UTC()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// The table of lifecycle.md, row by row, for the verbs that exist.
func TestLifecycleTableOfASandbox(t *testing.T) {
	now := time.Now()
	pending := func(kind holdfast.OperationKind, claimed bool) *operation.Operation {
		op := &operation.Operation{ID: "op", Kind: string(kind), State: operation.StatePending}
		if claimed {
			op.ClaimExpires = now.Add(time.Minute)
		}
		return op
	}
	const (
		create, suspend, resume, del = holdfast.OperationCreate, holdfast.OperationSuspend, holdfast.OperationResume, holdfast.OperationDelete
		take                         = holdfast.OperationCheckpoint
	)
	rows := []struct {
		name  string
		state holdfast.SandboxState
		op    *operation.Operation
		want  [5]verdict // create, suspend, resume, delete, checkpoint
	}{
		{"creating, unclaimed", holdfast.SandboxCreating, pending(create, false), [5]verdict{verdictJoin, verdictRefuse, verdictRefuse, verdictReplace, verdictRefuse}},
		{"creating, claimed", holdfast.SandboxCreating, pending(create, true), [5]verdict{verdictHeld, verdictHeld, verdictHeld, verdictStop, verdictHeld}},
		{"ready", holdfast.SandboxReady, nil, [5]verdict{verdictDone, verdictBegin, verdictDone, verdictBegin, verdictBegin}},
		{"ready, suspend pending", holdfast.SandboxReady, pending(suspend, false), [5]verdict{verdictDone, verdictJoin, verdictReplace, verdictReplace, verdictRefuse}},
		{"ready, resume pending", holdfast.SandboxReady, pending(resume, false), [5]verdict{verdictDone, verdictReplace, verdictJoin, verdictReplace, verdictRefuse}},
		{"ready, suspend claimed", holdfast.SandboxReady, pending(suspend, true), [5]verdict{verdictDone, verdictHeld, verdictHeld, verdictStop, verdictHeld}},
		{"suspended", holdfast.SandboxSuspended, nil, [5]verdict{verdictDone, verdictDone, verdictBegin, verdictBegin, verdictBegin}},
		{"suspended, resume pending", holdfast.SandboxSuspended, pending(resume, false), [5]verdict{verdictDone, verdictReplace, verdictJoin, verdictReplace, verdictRefuse}},
		{"suspended, suspend pending", holdfast.SandboxSuspended, pending(suspend, false), [5]verdict{verdictDone, verdictJoin, verdictReplace, verdictReplace, verdictRefuse}},
		{"suspended, resume claimed", holdfast.SandboxSuspended, pending(resume, true), [5]verdict{verdictDone, verdictHeld, verdictHeld, verdictStop, verdictHeld}},
		{"ready, checkpoint pending", holdfast.SandboxReady, pending(take, false), [5]verdict{verdictDone, verdictReplace, verdictReplace, verdictReplace, verdictJoin}},
		{"suspended, checkpoint pending", holdfast.SandboxSuspended, pending(take, false), [5]verdict{verdictDone, verdictReplace, verdictReplace, verdictReplace, verdictJoin}},
		{"ready, checkpoint claimed", holdfast.SandboxReady, pending(take, true), [5]verdict{verdictDone, verdictHeld, verdictHeld, verdictStop, verdictHeld}},
		{"failed", holdfast.SandboxFailed, nil, [5]verdict{verdictDone, verdictRefuse, verdictRefuse, verdictBegin, verdictRefuse}},
		{"deleting, unclaimed", holdfast.SandboxDeleting, pending(del, false), [5]verdict{verdictDone, verdictRefuse, verdictRefuse, verdictJoin, verdictRefuse}},
		{"deleting, claimed", holdfast.SandboxDeleting, pending(del, true), [5]verdict{verdictDone, verdictRefuse, verdictRefuse, verdictHeld, verdictRefuse}},
		{"deleted", holdfast.SandboxDeleted, nil, [5]verdict{verdictDone, verdictRefuse, verdictRefuse, verdictDone, verdictRefuse}},
	}
	for _, r := range rows {
		for i, verb := range []holdfast.OperationKind{create, suspend, resume, del, take} {
			if got := decide(r.state, r.op, now, verb); got != r.want[i] {
				t.Errorf("%s, %s: %s, want %s", r.name, verb, got, r.want[i])
			}
		}
	}
}

func TestJudgeTellsGoneFromUnreachable(t *testing.T) {
	level := holdfast.Level{Instance: "in-1", Incarnation: 1, Generation: 3, Desired: holdfast.DesiredRunning}
	at := func(s holdfast.InstanceState) holdfast.Observation {
		return holdfast.Observation{Instance: "in-1", Incarnation: 1, Generation: 3, State: s}
	}
	cases := []struct {
		name     string
		seen     holdfast.Observation
		err      error
		want     outcome
		answered bool
	}{
		{"running", at(holdfast.InstanceRunning), nil, outcomeReached, true},
		{"booting", at(holdfast.InstanceBooting), nil, outcomeAgain, true},
		{"preparing", at(holdfast.InstancePreparing), nil, outcomeWait, true},
		{"exited", at(holdfast.InstanceExited), nil, outcomeEnded, true},
		{"absent", at(holdfast.InstanceAbsent), nil, outcomeEnded, true},
		{"unknown", at(holdfast.InstanceUnknown), nil, outcomeWait, false},
		{"older generation", holdfast.Observation{Incarnation: 1, Generation: 2, State: holdfast.InstanceRunning}, nil, outcomeAgain, true},
		{"host unreachable", holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "x"), outcomeWait, false},
		{"fleet unreachable", holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "x"), outcomeRetry, false},
		{"no capacity", holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity, "x"), outcomeWait, true},
		{"stale", holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "x").With("seen", "9"), outcomeRaise, true},
		{"too old", holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonTooOld, "x"), outcomeReplace, true},
		{"refused", holdfast.Observation{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage, "x"), outcomeRefused, true},
	}
	for _, c := range cases {
		if j := judge(level, c.seen, c.err); j.outcome != c.want || j.answered != c.answered {
			t.Errorf("%s: %s answered %v, want %s %v", c.name, j.outcome, j.answered, c.want, c.answered)
		}
	}
}
