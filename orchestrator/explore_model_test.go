package orchestrator

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

// mFlaw is one wrong decision, put in to see that the model notices.
type mFlaw string

// The flaws.
const (
	flawIgnoresClaim      mFlaw = "writes under any claim (T11)"
	flawJoinsLive         mFlaw = "takes a live attempt's claim (T24)"
	flawAnyIncarnation    mFlaw = "takes an older boot's word (T37)"
	flawUnreachableIsGone mFlaw = "takes silence for an end (T27, T32)"
	flawForgetsWanted     mFlaw = "forgets a wanted delete"
	flawReadyForgets      mFlaw = "forgets it when the guest's word ends the create"
	flawExpiresLive       mFlaw = "ends a lifetime under a live attempt (T26)"
	flawExitedIsAbsent    mFlaw = "takes what ended for what is gone (T38)"
)

// beingCreated is a sandbox whose create has just been recorded and claimed.
func beingCreated() mState {
	s := mState{state: word(mStates, holdfast.SandboxCreating), generation: 1, incarnation: 1,
		op: word(mVerbs, holdfast.OperationCreate), opGeneration: 1, claim: mLive, ends: 1}
	s.take(0)
	return s
}

// longReady is one that has been READY for a while.
func longReady() mState {
	return mState{state: word(mStates, holdfast.SandboxReady), generation: 1, incarnation: 1, life: mLive, ends: 1,
		mail: [mIncarnations]uint8{1 << mailReady}, inbox: [mIncarnations]uint8{1 << mailReady},
		below: mAuthority{incarnation: 1, generation: 1, desired: word(mDesires, holdfast.DesiredRunning), state: word(mSeen, holdfast.InstanceRunning)}}
}

// verbs abbreviate the configurations.
const (
	again   = holdfast.OperationCreate // the same request once more
	suspend = holdfast.OperationSuspend
	resume  = holdfast.OperationResume
	remove  = holdfast.OperationDelete
)

func asks(verbs ...holdfast.OperationKind) []holdfast.OperationKind { return verbs }

// small are the configurations that `make test` explores.
func small() []*mConfig {
	return []*mConfig{
		{name: "suspend, delete", begin: longReady(), intents: asks(suspend, remove)},
		{name: "restart, a lost host, delete", begin: longReady(), intents: asks(remove), restart: holdfast.RestartFresh, losses: true},
		{name: "create, again, delete", begin: beingCreated(), intents: asks(again, remove)},
		{name: "suspend, resume, delete", begin: longReady(), intents: asks(suspend, resume, remove)},
		{name: "lifetime, extend, suspend", begin: longReady(), intents: asks(extendIntent, suspend), expiry: true},
		{name: "restart, suspend, delete", begin: longReady(), intents: asks(suspend, remove), restart: holdfast.RestartFresh},
		{name: "create, a lost host, delete", begin: beingCreated(), intents: asks(remove), losses: true},
	}
}

// large are the others.
func large() []*mConfig {
	return []*mConfig{
		{name: "lifetime that suspends, extend, resume", begin: longReady(), intents: asks(extendIntent, resume), expiry: true, onExpiry: holdfast.ExpirySuspend},
		{name: "restart, lifetime, suspend, resume", begin: longReady(), intents: asks(suspend, resume), expiry: true, restart: holdfast.RestartFresh},
		{name: "create, refused, delete", begin: beingCreated(), intents: asks(remove),
			refusals: []holdfast.Reason{holdfast.ReasonNoCapacity, holdfast.ReasonNoSuchImage}},
	}
}

// explore visits every state of a configuration.
func (c mConfig) explore() (explorer.Result, error) {
	if c.restart == "" {
		c.restart = holdfast.RestartNone
	}
	if c.onExpiry == "" {
		c.onExpiry = holdfast.ExpiryDelete
	}
	c.most = 8_000_000
	m := c.model()
	return explorer.Explore(m)
}

// contract: A2, A6, A7, A11, A15, B3, B7, C1, C4, C5; traps T11, T13, T14, T15, T26, T27, T28, T32, T36, T37, T38, T43.
// Every state that a sandbox, its operation, two attempts, the deliveries, the
// sweeps and the authority below can reach keeps the rules, and rest is never out
// of reach once faults end.
func TestProveModel_ASandboxKeepsTheRulesInEveryState(t *testing.T) {
	if _, _, again := testenv.PostgresSchema(t); again {
		return // it has no database
	}
	configs := small()[:prove.Slice(len(small()), 2)]
	budget, whole := prove.Budget(t)
	goal := int64(0)
	if whole {
		configs, goal = append(small(), large()...), 1_000_000
	}
	began := time.Now()
	var states, broken int64
	for _, c := range configs {
		if whole && time.Since(began) > budget {
			t.Logf("no time is left for %q", c.name)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			got, err := c.explore()
			t.Logf("%d states, %d steps, %d deep, %d at rest, %d beyond the bounds", got.States, got.Steps, got.Depth, got.Resting, got.Cut)
			states += int64(got.States)
			if err != nil {
				broken++
				t.Error(err)
			}
		})
	}
	prove.Report(t, prove.Figure{Rung: 1, Name: "distinct model states: sandbox", Value: states, Goal: goal, Violations: broken,
		Note: "each configuration to its end"})
}

// Each wrong decision is noticed, or the model would show nothing.
func TestModel_NoticesWrongDecisionsOnASandbox(t *testing.T) {
	for _, c := range []mConfig{
		{flaw: flawIgnoresClaim, begin: longReady(), intents: asks(suspend, resume)},
		{flaw: flawJoinsLive, begin: beingCreated(), intents: asks(again)},
		{flaw: flawAnyIncarnation, begin: longReady(), intents: asks(remove), restart: holdfast.RestartFresh},
		{flaw: flawUnreachableIsGone, begin: longReady(), intents: asks(suspend), restart: holdfast.RestartFresh},
		{flaw: flawForgetsWanted, begin: beingCreated(), intents: asks(remove)},
		{flaw: flawReadyForgets, begin: beingCreated(), intents: asks(remove)},
		{flaw: flawExpiresLive, begin: longReady(), intents: asks(suspend), expiry: true},
		{flaw: flawExitedIsAbsent, begin: longReady(), intents: asks(remove)},
	} {
		t.Run(string(c.flaw), func(t *testing.T) {
			_, err := c.explore()
			var v *explorer.Violation
			if !errors.As(err, &v) {
				t.Fatalf("%v: one that %s keeps every rule", err, c.flaw)
			}
			t.Logf("%v, in %d steps", v.Rule, len(v.Trace)-1)
		})
	}
}
