package orchestrator

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// verb is a call of the race, and what it means on its own.
type verb string

const (
	doCreate  verb = "create"
	doSuspend verb = "suspend"
	doResume  verb = "resume"
	doDelete  verb = "delete"
	doExtend  verb = "extend"
	doSet     verb = "set"
)

// standing is a sandbox of the model: a state, and what is pending beside it.
type standing string

const (
	creating   standing = "CREATING, create abandoned"
	ready      standing = "READY"
	suspended  standing = "SUSPENDED"
	suspending standing = "READY, suspend abandoned"
	resuming   standing = "SUSPENDED, resume abandoned"
	deleted    standing = "DELETED"
)

// step is the sequential specification: what one verb does, and whether it is
// taken or FAILED_PRECONDITION.
func step(at standing, v verb) (standing, bool) {
	switch {
	case v == doDelete:
		return deleted, true
	case v == doCreate && at == creating:
		return ready, true
	case v == doCreate:
		return at, true
	case at == deleted:
		return at, false
	case v == doExtend, v == doSet:
		return at, true
	case at == creating:
		return at, false
	case v == doSuspend:
		return suspended, true
	}
	return ready, true
}

// settledState is the state of a sandbox when whatever is pending was carried on.
func settledState(at standing) holdfast.SandboxState {
	switch at {
	case suspended, suspending:
		return holdfast.SandboxSuspended
	case deleted:
		return holdfast.SandboxDeleted
	}
	return holdfast.SandboxReady
}

// result is what one side of a race was told.
type result struct {
	verb    verb
	sandbox holdfast.Sandbox
	err     error
}

// explained reports whether some order of the calls leads to what was answered
// and to the final state. An ABORTED call may have had its effect or not.
func explained(from standing, a, b result, final holdfast.SandboxState) bool {
	return inOrder(from, final, a, b) || inOrder(from, final, b, a)
}

func inOrder(at standing, final holdfast.SandboxState, calls ...result) bool {
	if len(calls) == 0 {
		return settledState(at) == final
	}
	next, taken := step(at, calls[0].verb)
	switch holdfast.CodeOf(calls[0].err) {
	case "":
		return taken && inOrder(next, final, calls[1:]...)
	case holdfast.FailedPrecondition:
		return !taken && inOrder(at, final, calls[1:]...)
	case holdfast.Aborted:
		return inOrder(at, final, calls[1:]...) || inOrder(next, final, calls[1:]...)
	}
	return false
}

// call makes one call of the race.
func (h *harness) call(v verb, id holdfast.SandboxID, requestID string) result {
	ctx, to := h.t.Context(), holdfast.MutateSandbox{ID: id}
	r := result{verb: v}
	switch v {
	case doCreate:
		r.sandbox, r.err = h.create(requestID)
	case doSuspend:
		r.sandbox, r.err = h.SuspendSandbox(ctx, alice, to)
	case doResume:
		r.sandbox, r.err = h.ResumeSandbox(ctx, alice, to)
	case doDelete:
		r.sandbox, r.err = h.DeleteSandbox(ctx, alice, to)
	case doExtend:
		r.sandbox, r.err = h.extend(id, 2*time.Hour)
	case doSet:
		r.sandbox, r.err = h.SetSandboxLifetime(ctx, alice, holdfast.SetSandboxLifetime{ID: id, TTL: 30 * time.Minute})
	}
	return r
}

// put makes a sandbox that stands as the race begins.
func (h *harness) put(at standing, requestID string) holdfast.Sandbox {
	h.t.Helper()
	sb := h.pendingCreate(requestID)
	if at == creating {
		return sb
	}
	h.mustCreate(requestID)
	silent := func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	}
	abandon := func(call func(context.Context, holdfast.Caller, holdfast.MutateSandbox) (holdfast.Sandbox, error)) {
		h.fleet.script(silent)
		_, err := call(h.t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
		wantError(h.t, err, holdfast.Unavailable, holdfast.ReasonUnreachable)
		h.fleet.script(nil)
	}
	switch at {
	case suspended, resuming:
		h.mutateOK(h.SuspendSandbox, sb.ID)
		if at == resuming {
			abandon(h.ResumeSandbox)
		}
	case suspending:
		abandon(h.SuspendSandbox)
	case deleted:
		h.mutateOK(h.DeleteSandbox, sb.ID)
	}
	return sb
}

// contract: A4, A6, A7, A8. Two orchestrators over one database race every pair of
// verbs from every standing: some order of the two explains what each was told and
// what came of it, and there was one boot at most.
func TestA7_EveryPairOfVerbsBySeparateOrchestratorsIsLinearizable(t *testing.T) {
	patient := func(c *Config) { c.HeldWait = 5 * time.Second }
	one := newHarness(t, patient)
	two := newHarnessOn(t, one.db, one.fleet, patient)
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	verbs := []verb{doCreate, doSuspend, doResume, doDelete, doExtend, doSet}
	answers := map[holdfast.Code]int{}
	for _, from := range []standing{creating, ready, suspended, suspending, resuming, deleted} {
		for i, a := range verbs {
			for _, b := range verbs[i:] {
				for round := range rounds {
					name := fmt.Sprintf("%s: %s and %s, %d", from, a, b, round)
					race(t, [2]*harness{one, two}, name, from, [2]verb{a, b}, answers)
				}
			}
		}
	}
	t.Logf("answers: %v", answers)
	if answers[holdfast.FailedPrecondition] == 0 || answers[""] == 0 {
		t.Error("the races met nothing")
	}
}

func race(t *testing.T, services [2]*harness, name string, from standing, verbs [2]verb, answers map[holdfast.Code]int) {
	requestID := fmt.Sprintf("race-%p-%d", &name, time.Now().UnixNano())
	sb := services[0].put(from, requestID)
	services[0].fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		runtime.Gosched() // the other side shall meet it
		return services[0].fleet.reach(l)
	})
	var told [2]result
	raceUntil(
		func() error { told[0] = services[0].call(verbs[0], sb.ID, requestID); return told[0].err },
		func() error { told[1] = services[1].call(verbs[1], sb.ID, requestID); return told[1].err },
	)
	services[0].fleet.script(nil)
	for _, r := range told {
		answers[holdfast.CodeOf(r.err)]++
		if r.err == nil && r.sandbox.ID != sb.ID {
			t.Errorf("%s: %s answered with %s", name, r.verb, r.sandbox.ID)
		}
	}
	final := services[1].get(sb.ID)
	for i := 0; final.Operation != nil && i < 100; i++ {
		services[1].backdate()
		services[1].sweep(SweepOperations)
		final = services[1].get(sb.ID)
	}
	if final.Operation != nil || !explained(from, told[0], told[1], final.State) {
		t.Errorf("%s: %v and %v led to %s %+v", name, told[0].err, told[1].err, final.State, final.Operation)
	}
	if boots := services[0].fleet.bootsOf(sb.Instance); boots[1] > 1 || len(boots) > 1 {
		t.Errorf("%s: boots %v", name, boots)
	}
	if n := services[0].count(`SELECT COUNT(*) FROM operation WHERE resource_id = $1 AND state = 'PENDING'`, string(sb.ID)); n != 0 {
		t.Errorf("%s: %d pending", name, n)
	}
	// Each intent has a generation of its own.
	if n := services[0].count(`SELECT COUNT(*) - COUNT(DISTINCT generation) FROM operation WHERE resource_id = $1`, string(sb.ID)); n != 0 {
		t.Errorf("%s: %d operations share a generation", name, n)
	}
}
