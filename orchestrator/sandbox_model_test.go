package orchestrator

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

// This model is one sandbox: what is recorded of it, its pending operation, two
// replicas' attempts, everything on its way, and the fleet and hosts below, taken
// as one authority that keeps levels as lifecycle.md says they are kept (that the
// real ones do is for the models of packages fleet and hostagent).
//
// The decisions are the product's: decide, judge, decideExpiry, planInstances,
// leaving, replaceable, arrive, fail, raiseFor, replaceRow, recordedLevel, lives,
// operation.Decide and operation.Patience. What is glue, and so could be wrong
// here while the product is right, or the other way round: the authority, what
// each transaction does around a decision (mBegin … mEndWhatIsPending restate the
// branches of begin.go, attempt.go, delivery.go, sweep.go and expiry.go, and the
// fence of package operation as the flag "current"), and the network. Rung 2 drives
// those transactions themselves.

// Words that a state keeps as a byte.
var (
	mStates = []holdfast.SandboxState{holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended,
		holdfast.SandboxFailed, holdfast.SandboxDeleting, holdfast.SandboxDeleted}
	mVerbs = []holdfast.OperationKind{"", holdfast.OperationCreate, holdfast.OperationSuspend, holdfast.OperationResume,
		holdfast.OperationDelete, holdfast.OperationReplace}
	mSeen = []holdfast.InstanceState{"", holdfast.InstancePreparing, holdfast.InstanceBooting, holdfast.InstanceRunning,
		holdfast.InstanceSuspended, holdfast.InstanceExited, holdfast.InstanceAbsent, holdfast.InstanceUnknown}
	mDesires = []holdfast.Desired{holdfast.DesiredRunning, holdfast.DesiredSuspended, holdfast.DesiredExited, holdfast.DesiredAbsent}
	mErrors  = []holdfast.Reason{"", holdfast.ReasonUnreachable, holdfast.ReasonStaleGeneration, holdfast.ReasonStaleIncarnation,
		holdfast.ReasonLevelConflict, holdfast.ReasonState, holdfast.ReasonHostUnreachable, holdfast.ReasonNoCapacity, holdfast.ReasonNoSuchImage}
)

func word[W comparable](of []W, w W) uint8 {
	i := slices.Index(of, w)
	if i < 0 {
		panic(fmt.Sprintf("the model has no word for %v", w))
	}
	return uint8(i)
}

// Bounds: beyond them a step is left out, and said to be.
const (
	mGenerations  = 8 // 1 to 7
	mIncarnations = 2
	mAttempts     = 2
)

// Claims and lifetimes, as they stand to now.
const (
	mNone uint8 = iota
	mLive
	mOver
)

// Messages upward: each may come at any time once it was sent, again and again, or never.
const (
	mailReady uint8 = iota
	mailFailed
	mailExited
	mails
)

// mAnswer is what the authority said, and as of when.
type mAnswer struct{ state, incarnation, generation, err uint8 }

// mAttempt is one attempt of some replica: what it remembers.
type mAttempt struct {
	verb, generation, incarnation uint8
	current                       bool // its claim's number is the operation's
	giving                        bool // it gives the operation up
	heard                         bool // answer is to be judged
	answer                        mAnswer
}

// mAuthority is what the fleet and the hosts know and run.
type mAuthority struct {
	incarnation, generation, desired, state uint8
	lost                                    bool // its host is LOST: nothing is known of it
}

// mState is the whole of it, at one instant.
type mState struct {
	// The sandbox.
	state, generation, incarnation uint8
	wanted                         bool // a delete is
	life                           uint8
	retained                       bool
	// Its pending operation; verb 0 for none.
	op, opGeneration, claim uint8
	expired, spent          bool
	attempts                [mAttempts]mAttempt
	// Below, and on the way.
	below   mAuthority
	sent    [mGenerations]uint8  // levels, by generation: a bit for each incarnation and what is desired
	mail    [mIncarnations]uint8 // a bit for each kind of message
	inbox   [mIncarnations]uint8
	sweep   uint8 // the instances' sweep: 0 idle, else what it holds in page
	page    mAnswer
	intents uint8 // what callers will still ask for, a bit each
	ends    uint8 // how often the instance may still end by itself
}

// The sweep's steps.
const (
	sweepIdle uint8 = iota
	sweepPaged
	sweepConfirmed
	sweepMoving
)

// mConfig is one configuration of the model.
type mConfig struct {
	name     string
	begin    mState
	intents  []holdfast.OperationKind // in the order of the bits of mState.intents; "EXTEND" is one
	restart  holdfast.Restart
	onExpiry holdfast.Expiry
	refusals []holdfast.Reason // what the authority may answer although it could
	expiry   bool              // lifetimes end
	losses   bool              // its host may be lost
	most     int
	flaw     mFlaw
}

const extendIntent holdfast.OperationKind = "EXTEND"

var (
	mService = &Service{config: Config{}.withDefaults()}
	mNow     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// mRow is the sandbox as the decisions see it.
func (c *mConfig) row(s mState) row {
	r := row{Sandbox: holdfast.Sandbox{ID: "sb", Instance: "in", State: mStates[s.state], Generation: int64(s.generation),
		Incarnation: int64(s.incarnation), Restart: c.restart, OnExpiry: c.onExpiry, TTL: time.Hour, UpdatedAt: mNow.Add(-time.Hour)},
		DeleteWanted: s.wanted, Retained: s.retained}
	switch s.life {
	case mLive:
		r.ExpiresAt = mNow.Add(time.Minute)
	case mOver:
		r.ExpiresAt = mNow
	}
	if s.life != mNone {
		r.ReadyAt = mNow
	}
	return r
}

// record takes what a decision changed of the sandbox into the state.
func (s *mState) record(r row) {
	s.state, s.generation, s.incarnation = word(mStates, r.State), uint8(r.Generation), uint8(r.Incarnation)
	s.wanted, s.retained, s.life = r.DeleteWanted, r.Retained, mNone
	switch {
	case r.ExpiresAt.After(mNow):
		s.life = mLive
	case !r.ExpiresAt.IsZero():
		s.life = mOver
	}
}

// pending is the operation as the decisions see it, nil for none.
func (s mState) pending() *operation.Operation {
	if s.op == 0 {
		return nil
	}
	o := &operation.Operation{ID: "op", Kind: string(mVerbs[s.op]), Generation: int64(s.opGeneration), State: operation.StatePending}
	switch s.claim {
	case mLive:
		o.ClaimExpires = mNow.Add(time.Minute)
	case mOver:
		o.ClaimExpires = mNow.Add(-time.Second)
	}
	if s.expired {
		o.Input = origin{Cause: holdfast.ReasonExpired}.json()
	}
	if s.spent {
		o.Answered = patience.Attempts
	}
	return o
}

// mTx takes every write for done: what is written is in the row.
type mTx struct{ written }

type written struct{}

func (written) LastInsertId() (int64, error) { return 0, nil }
func (written) RowsAffected() (int64, error) { return 1, nil }

func (t mTx) ExecContext(context.Context, string, ...any) (sql.Result, error) { return t.written, nil }
func (mTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	panic("the model reads no table")
}
func (mTx) QueryRowContext(context.Context, string, ...any) *sql.Row {
	panic("the model reads no table")
}
func (mTx) Now(context.Context) (time.Time, error) { return mNow, nil }
func (mTx) ForUpdate() string                      { return "" }
func (mTx) ForShare() string                       { return "" }

// levelBit is a level's place in mState.sent.
func levelBit(incarnation uint8, desired holdfast.Desired) uint8 {
	return 1 << ((incarnation-1)*4 + word(mDesires, desired))
}

// receive is the authority taking a level (lifecycle.md, "Downward: levels").
func (a *mAuthority) receive(incarnation, generation uint8, desired holdfast.Desired) (refusal holdfast.Reason) {
	d := word(mDesires, desired)
	switch {
	case incarnation < a.incarnation:
		return holdfast.ReasonStaleIncarnation
	case generation < a.generation:
		return holdfast.ReasonStaleGeneration
	case generation == a.generation && (d != a.desired || incarnation != a.incarnation):
		return holdfast.ReasonLevelConflict
	case incarnation > a.incarnation:
		return a.place(incarnation, generation, desired)
	case a.lost && !a.ended():
		a.generation, a.desired = generation, d
		return holdfast.ReasonHostUnreachable
	}
	a.generation, a.desired = generation, d
	return ""
}

// place is the same for a boot that was not seen yet. What an earlier one ran is ended first.
func (a *mAuthority) place(incarnation, generation uint8, desired holdfast.Desired) holdfast.Reason {
	next := mAuthority{incarnation: incarnation, generation: generation, desired: word(mDesires, desired)}
	switch desired {
	case holdfast.DesiredRunning:
		next.state = word(mSeen, holdfast.InstancePreparing)
	case holdfast.DesiredSuspended:
		return holdfast.ReasonState
	case holdfast.DesiredExited:
		next.state = word(mSeen, holdfast.InstanceExited)
	case holdfast.DesiredAbsent:
		next.state = word(mSeen, holdfast.InstanceAbsent)
	}
	*a = next
	return ""
}

func (a mAuthority) ended() bool {
	return mSeen[a.state] == holdfast.InstanceExited || mSeen[a.state] == holdfast.InstanceAbsent
}

func (a mAuthority) lives() bool {
	return a.state != 0 && !a.ended()
}

// answer is what the authority says of itself.
func (a mAuthority) answer() mAnswer {
	s := a.state
	if a.lost && !a.ended() {
		s = word(mSeen, holdfast.InstanceUnknown)
	}
	return mAnswer{state: s, incarnation: a.incarnation, generation: a.generation}
}

// observation is an answer as the decisions see it.
func (n mAnswer) observation() holdfast.Observation {
	o := holdfast.Observation{Instance: "in", Incarnation: int64(n.incarnation), Generation: int64(n.generation), State: mSeen[n.state], Host: "h"}
	switch o.State {
	case holdfast.InstanceUnknown:
		o.HostHealth, o.Stale = holdfast.HostLost, true
	case holdfast.InstanceExited:
		o.Failure = &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "it ended"}
	}
	return o
}

// error is an answer's refusal as the decisions see it, nil for none.
func (n mAnswer) error() error {
	switch reason := mErrors[n.err]; reason {
	case "":
		return nil
	case holdfast.ReasonStaleGeneration:
		return holdfast.E(holdfast.Aborted, reason, "stale").With("seen", fmt.Sprint(n.generation))
	case holdfast.ReasonStaleIncarnation:
		return holdfast.E(holdfast.FailedPrecondition, reason, "stale").With("seen", fmt.Sprint(n.incarnation))
	case holdfast.ReasonLevelConflict:
		return holdfast.E(holdfast.FailedPrecondition, reason, "conflict").With("seen", fmt.Sprint(n.generation))
	case holdfast.ReasonState, holdfast.ReasonNoSuchImage:
		return holdfast.E(holdfast.FailedPrecondition, reason, "refused")
	default:
		return holdfast.E(holdfast.Unavailable, reason, "not now")
	}
}

// String is a state for a person who reads how something came about.
func (s mState) String() string {
	claims := []string{"unclaimed", "claimed", "claim over"}
	out := fmt.Sprintf("%s g%d/i%d life%d", mStates[s.state], s.generation, s.incarnation, s.life)
	if s.wanted {
		out += " delete-wanted"
	}
	if s.op != 0 {
		out += fmt.Sprintf(" op %s g%d %s", mVerbs[s.op], s.opGeneration, claims[s.claim])
	}
	for _, a := range s.attempts {
		if a.verb != 0 {
			out += fmt.Sprintf(" [%s g%d/i%d current=%v giving=%v heard=%v %s %s]", mVerbs[a.verb], a.generation, a.incarnation,
				a.current, a.giving, a.heard, mSeen[a.answer.state], mErrors[a.answer.err])
		}
	}
	return out + fmt.Sprintf(" below %s g%d/i%d %s lost=%v sweep%d", mSeen[s.below.state], s.below.generation, s.below.incarnation,
		mDesires[s.below.desired], s.below.lost, s.sweep)
}

// What holds in every state.
func (c *mConfig) holds(s mState) error {
	state, verb := mStates[s.state], mVerbs[s.op]
	current := 0
	for _, a := range s.attempts {
		if a.current {
			current++
		}
		if a.current && (s.op == 0 || s.claim == mNone) {
			return errors.New("a claim is current, and nothing that is claimed is pending")
		}
	}
	switch {
	case current > 1:
		return errors.New("two attempts hold the claim")
	case state == holdfast.SandboxDeleted && s.below.state != 0 && mSeen[s.below.state] != holdfast.InstanceAbsent:
		return fmt.Errorf("it is DELETED, and its instance is %s", mSeen[s.below.state])
	case s.wanted && s.op == 0:
		return errors.New("a delete is wanted, and there is nothing whose end would begin it")
	case s.wanted && verb == holdfast.OperationDelete:
		return errors.New("a delete is wanted, and it has begun")
	case (state == holdfast.SandboxCreating) != (verb == holdfast.OperationCreate || verb == holdfast.OperationReplace):
		return fmt.Errorf("it is %s with %q pending", state, verb)
	case (state == holdfast.SandboxDeleting) != (verb == holdfast.OperationDelete):
		return fmt.Errorf("it is %s with %q pending", state, verb)
	case (state == holdfast.SandboxFailed || state == holdfast.SandboxDeleted) && s.op != 0:
		return fmt.Errorf("it is %s with %q pending", state, verb)
	case resting(c.row(s)) && (s.below.incarnation > s.incarnation || s.below.incarnation == s.incarnation && s.below.generation > s.generation):
		return errors.New("the authority has seen more than is recorded, though nobody restored anything")
	}
	return nil
}

// holdsOf is what holds of every step.
func (c *mConfig) holdsOf(from, to mState) error {
	was, is := mStates[from.state], mStates[to.state]
	deleting := is == holdfast.SandboxDeleting || is == holdfast.SandboxDeleted
	switch {
	case was != is && !slices.Contains(holdfast.SandboxTransitions()[was], is):
		return fmt.Errorf("%s is followed by %s", was, is)
	case to.generation < from.generation || to.incarnation < from.incarnation:
		return errors.New("a generation or an incarnation went down")
	case to.below.incarnation < from.below.incarnation || to.below.generation < from.below.generation:
		return errors.New("the authority forgot what it had seen")
	case from.below.ended() && to.below.lives() && to.below.incarnation == from.below.incarnation:
		return errors.New("an incarnation lives again")
	case from.wanted && !to.wanted && !deleting:
		return errors.New("a wanted delete was forgotten")
	case to.incarnation > from.incarnation && from.below.incarnation == from.incarnation && from.below.lives() && !from.below.lost &&
		mSeen[from.page.state] != holdfast.InstanceUnknown: // one whose host was lost a moment ago may be
		return errors.New("an instance that lives, on a host that answers, was replaced")
	case to.expired && !from.expired && from.life != mOver:
		return errors.New("its lifetime is not over, and it was ended for that")
	case to.expired && !from.expired && from.claim == mLive:
		return errors.New("its lifetime was ended under a live attempt")
	case from.claim == mLive && to.attempting(true)+to.attempting(false) > from.attempting(true)+from.attempting(false):
		return errors.New("a claim was taken while another was live")
	case to.attempting(false) < from.attempting(false) && from.recorded() != to.recorded():
		return errors.New("an attempt whose claim is an old one changed what is recorded")
	}
	return nil
}

// attempting counts the attempts whose claim is the current one, or is not.
func (s mState) attempting(current bool) (n int) {
	for _, a := range s.attempts {
		if a.verb != 0 && a.current == current {
			n++
		}
	}
	return n
}

// recorded is the state without what is in flight.
func (s mState) recorded() mState {
	return mState{state: s.state, generation: s.generation, incarnation: s.incarnation, wanted: s.wanted, life: s.life,
		retained: s.retained, op: s.op, opGeneration: s.opGeneration, claim: s.claim, expired: s.expired, spent: s.spent}
}

// rests says that nothing is under way, and that what is recorded is so.
func (c *mConfig) rests(s mState) bool {
	for _, a := range s.attempts {
		if a.verb != 0 {
			return false
		}
	}
	if s.op != 0 || s.wanted || s.sweep != sweepIdle || s.life == mOver {
		return false
	}
	is := mSeen[s.below.state]
	same := s.below.incarnation == s.incarnation
	switch mStates[s.state] {
	case holdfast.SandboxReady:
		return is == holdfast.InstanceRunning && same
	case holdfast.SandboxSuspended:
		return is == holdfast.InstanceSuspended && same
	case holdfast.SandboxFailed:
		return !s.below.lives()
	}
	return mStates[s.state] == holdfast.SandboxDeleted
}

// model is the configuration as the explorer takes it.
func (c *mConfig) model() explorer.Model[mState] {
	s := c.begin
	for i := range c.intents {
		s.intents |= 1 << i
	}
	return explorer.Model[mState]{Name: strings.TrimSpace("sandbox: " + c.name), Init: []mState{s}, Next: c.next,
		State: c.holds, Step: c.holdsOf, Rest: c.rests, Most: c.most}
}
