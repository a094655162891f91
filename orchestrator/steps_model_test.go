package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// mSteps collects the steps out of one state of one configuration.
type mSteps struct {
	*mConfig
	from mState
	to   *explorer.Steps[mState]
}

func (c *mConfig) next(s mState, to *explorer.Steps[mState]) {
	x := mSteps{c, s, to}
	for i, verb := range c.intents {
		if s.intents&(1<<i) != 0 {
			x.call(s, verb, 1<<i)
		}
	}
	for i, a := range s.attempts {
		if a.verb != 0 {
			x.attempt(s, i)
		}
	}
	x.claims(s)
	x.carryOn(s)
	x.deliveries(s)
	x.instances(s)
	x.lifetimes(s)
	x.authority(s)
}

func (x mSteps) fair(name string, s mState)  { x.add(name, s, x.to.Fair) }
func (x mSteps) fault(name string, s mState) { x.add(name, s, x.to.Fault) }

func (x mSteps) add(name string, s mState, how func(string, mState)) {
	if s.generation >= mGenerations || s.incarnation > mIncarnations {
		if err := x.holdsOf(x.from, s); err != nil {
			x.to.Broken(name, err)
		}
		x.to.Cut()
		return
	}
	// Which of the two slots an attempt has means nothing.
	slices.SortFunc(s.attempts[:], func(a, b mAttempt) int { return cmp.Compare(b.key(), a.key()) })
	how(name, s)
}

func (a mAttempt) key() uint64 {
	k := uint64(0)
	for _, b := range [...]uint8{a.verb, a.generation, a.incarnation, bit(a.current) | bit(a.giving)<<1 | bit(a.heard)<<2,
		a.answer.state, a.answer.incarnation, a.answer.generation, a.answer.err} {
		k = k<<8 | uint64(b)
	}
	return k
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// slot is a free place for an attempt, -1 for none.
func (s *mState) slot() int {
	return slices.IndexFunc(s.attempts[:], func(a mAttempt) bool { return a.verb == 0 })
}

// fence makes every claim so far an old one.
func (s *mState) fence() {
	for i := range s.attempts {
		s.attempts[i].current = false
	}
}

// take claims what is pending for an attempt in a free slot.
func (s *mState) take(slot int) {
	s.fence()
	s.claim = mLive
	s.attempts[slot] = mAttempt{verb: s.op, generation: s.opGeneration, incarnation: s.incarnation, current: true}
}

func (s *mState) endOperation() {
	s.fence()
	s.op, s.opGeneration, s.claim, s.expired, s.spent = 0, 0, mNone, false, false
}

// raise is raiseFor with the new operation recorded and unclaimed.
func (x mSteps) intend(s *mState, verb holdfast.OperationKind) {
	r := x.row(*s)
	if err := r.raiseFor(context.Background(), mTx{}, mNow, verb); err != nil {
		panic(err)
	}
	s.endOperation()
	s.record(r)
	s.op, s.opGeneration = word(mVerbs, verb), s.generation
}

// begin is Service.begin: in place of whatever is pending and unclaimed.
func (x mSteps) begin(s *mState, verb holdfast.OperationKind) bool {
	if s.op != 0 && s.claim == mLive {
		return false
	}
	x.intend(s, verb)
	return true
}

// beginWanted is Service.beginWanted.
func (x mSteps) beginWanted(s *mState) {
	switch state := mStates[s.state]; {
	case !s.wanted || x.flaw == flawForgetsWanted:
	case state == holdfast.SandboxDeleting || state == holdfast.SandboxDeleted:
		s.wanted = false
	default:
		x.begin(s, holdfast.OperationDelete)
	}
}

// call is a lifecycle call's first transaction, or an extension.
func (x mSteps) call(s mState, verb holdfast.OperationKind, asked uint8) {
	name := "call " + string(verb)
	slot := s.slot()
	next := s
	next.intents &^= asked
	if verb == extendIntent {
		if lives(x.row(s), s.pending()) && s.life != mNone {
			next.life = mLive
		}
		x.fault(name, next)
		return
	}
	switch v := x.decide(s, verb); v {
	case verdictDone, verdictRefuse:
		if v == verdictDone && verb != holdfast.OperationCreate && mStates[s.state] != target(verb) {
			x.to.Broken(name, fmt.Errorf("%s succeeded, and it is %s", verb, mStates[s.state]))
			return
		}
		x.fault(name+" "+string(v), next)
	case verdictStop:
		next.wanted = true
		x.fault(name+" STOP", next)
	case verdictBegin, verdictReplace:
		if slot >= 0 {
			if v == verdictReplace && s.claim == mLive && x.flaw != flawJoinsLive {
				x.to.Broken(name, errors.New("what a live attempt is at was superseded"))
				return
			}
			x.intend(&next, verb)
			next.take(slot)
			x.fault(name+" "+string(v), next)
		}
	case verdictJoin:
		if slot >= 0 {
			next.take(slot)
			x.fault(name+" JOIN", next)
		}
	}
}

func (x mSteps) decide(s mState, verb holdfast.OperationKind) verdict {
	v := decide(mStates[s.state], s.pending(), mNow, verb)
	if x.flaw == flawJoinsLive && v == verdictHeld {
		unclaimed := s
		unclaimed.claim = mOver
		return decide(mStates[s.state], unclaimed.pending(), mNow, verb)
	}
	return v
}

// attempt is what an attempt can do next: call, hear, or die.
func (x mSteps) attempt(s mState, i int) {
	a := s.attempts[i]
	verb := mVerbs[a.verb]
	dead := s
	dead.attempts[i] = mAttempt{}
	x.fault("its process dies", dead)
	if a.heard {
		x.hear(s, i)
		return
	}
	shall := desired(verb)
	if a.giving {
		shall = recordedLevel(mStates[s.state])
	}
	sent := s
	sent.sent[a.generation] |= levelBit(a.incarnation, shall)
	sent.attempts[i].heard = true

	lost := sent
	lost.attempts[i].answer = mAnswer{err: word(mErrors, holdfast.ReasonUnreachable)}
	x.fault("the level is lost", lost)
	for _, reason := range x.refusals {
		refused := s
		refused.attempts[i].heard, refused.attempts[i].answer = true, mAnswer{err: word(mErrors, reason)}
		x.fault("the level meets "+string(reason), refused)
	}
	refusal := sent.below.receive(a.incarnation, a.generation, shall)
	lost.below = sent.below
	x.fault("the answer is lost", lost)
	answer := sent.below.answer()
	answer.err = word(mErrors, refusal)
	sent.attempts[i].answer = answer
	x.fair("the level "+string(shall)+" arrives", sent)
}

// judge is the product's, or a wrong one.
func (x mSteps) judge(level holdfast.Level, n mAnswer) judgement {
	seen, err := n.observation(), n.error()
	switch {
	case x.flaw == flawUnreachableIsGone && holdfast.ReasonOf(err) == holdfast.ReasonUnreachable:
		return judgement{outcome: outcomeEnded, failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost}}
	case x.flaw == flawExitedIsAbsent && seen.State == holdfast.InstanceExited:
		seen.State = holdfast.InstanceAbsent
	}
	return judge(level, seen, err)
}

// hear is what an attempt makes of the answer, and the transaction that follows.
func (x mSteps) hear(s mState, i int) {
	a := s.attempts[i]
	verb := mVerbs[a.verb]
	level := holdfast.Level{Instance: "in", Incarnation: int64(a.incarnation), Generation: int64(a.generation), Desired: desired(verb)}
	s.attempts[i].heard, s.attempts[i].answer = false, mAnswer{}
	next := s
	next.attempts[i] = mAttempt{}
	j := x.judge(level, a.answer)
	holds := a.current || x.flaw == flawIgnoresClaim && s.op != 0
	if !holds {
		// Every transaction that follows is fenced; only asking again is not one.
		if j.outcome != outcomeAgain || a.giving {
			x.fair("an old claim is fenced", next)
			return
		}
		x.fair("an old claim is seen", next)
		return
	}
	if a.giving {
		x.giveUp(next, a, j)
		return
	}
	switch j.outcome {
	case outcomeReached:
		x.finish(next, verb, a)
	case outcomeEnded:
		x.end(next, verb, j.failure)
	case outcomeRefused:
		x.refused(next, verb, j)
	case outcomeRaise, outcomeReplace:
		x.raise(s, i, j)
	case outcomeWait, outcomeRetry:
		x.release(next, j)
	case outcomeAgain:
		if s.wanted && verb != holdfast.OperationDelete {
			x.release(next, judgement{outcome: outcomeRetry, answered: true})
			return
		}
		x.fair("on its way", s)
	}
}

// finish is Service.finish.
func (x mSteps) finish(s mState, verb holdfast.OperationKind, a mAttempt) {
	s.endOperation()
	r := x.row(s)
	mService.arrive(&r, verb, holdfast.Observation{}, mNow)
	s.record(r)
	if s.below.incarnation == a.incarnation && s.below.generation == a.generation && !s.below.ended() && !s.below.lost {
		if o := s.below.answer().observation(); !o.Reached(holdfast.Level{Incarnation: o.Incarnation, Generation: o.Generation, Desired: desired(verb)}) {
			x.to.Broken("finish", fmt.Errorf("%s succeeded, and its instance is %s", verb, o.State))
			return
		}
	}
	x.beginWanted(&s)
	x.fair("finish "+string(verb), s)
}

// end is Service.end: the instance ended by itself.
func (x mSteps) end(s mState, verb holdfast.OperationKind, failure *holdfast.Failure) {
	r := x.row(s)
	replaced := replaceable(r, verb, failure)
	s.endOperation()
	x.lost(&s, failure, replaced)
	x.beginWanted(&s)
	x.fair("end "+string(verb), s)
}

// lost makes the sandbox FAILED or replaced; nothing is pending.
func (x mSteps) lost(s *mState, failure *holdfast.Failure, replaced bool) {
	r := x.row(*s)
	if !replaced {
		r.fail(failure, mNow)
		s.record(r)
		return
	}
	if err := mService.replaceRow(context.Background(), mTx{}, mNow, &r, failure); err != nil {
		panic(err)
	}
	s.record(r)
	s.op, s.opGeneration = word(mVerbs, holdfast.OperationReplace), s.generation
}

// refused is Service.refused.
func (x mSteps) refused(s mState, verb holdfast.OperationKind, j judgement) {
	switch verb {
	case holdfast.OperationCreate, holdfast.OperationReplace:
		x.end(s, verb, &holdfast.Failure{Reason: j.err.Reason})
	case holdfast.OperationDelete:
		x.release(s, j)
	default:
		s.generation++
		s.endOperation()
		x.beginWanted(&s)
		x.fair("refused "+string(verb), s)
	}
}

// raise is Service.raise; the attempt goes on.
func (x mSteps) raise(s mState, i int, j judgement) {
	if j.incarnation > int64(s.incarnation) {
		x.to.Broken("raise", errors.New("a later boot than is recorded was seen, though nobody restored anything"))
		return
	}
	if j.outcome == outcomeReplace {
		s.incarnation++
	}
	s.generation = uint8(max(int64(s.generation), j.seen) + 1)
	s.opGeneration = s.generation
	s.attempts[i].generation, s.attempts[i].incarnation = s.generation, s.incarnation
	x.fair("raise", s)
}

// release is Service.releaseWith.
func (x mSteps) release(s mState, j judgement) {
	s.fence()
	s.claim = mNone
	spent := s
	x.beginWanted(&s)
	x.fair("release", s)
	if j.answered && j.waitsFor == "" && spent.op != 0 && !spent.spent {
		spent.spent = true
		x.beginWanted(&spent)
		x.fault("release after many answers", spent)
	}
}

// giveUp is the rest of Service.giveUp, behind its raise and its level.
func (x mSteps) giveUp(s mState, a mAttempt, j judgement) {
	if err := a.answer.error(); err != nil && holdfast.Transient(err) {
		x.release(s, j)
		return
	}
	failed := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonGaveUp, "gave up")
	x.refused(s, mVerbs[a.verb], judgement{err: failed})
}

// claims is a claim's time running out: by itself where its holder is dead, and
// before its holder is done where that sleeps (trap T14).
func (x mSteps) claims(s mState) {
	if s.op == 0 || s.claim != mLive {
		return
	}
	next := s
	next.claim = mOver
	if slices.ContainsFunc(s.attempts[:], func(a mAttempt) bool { return a.current }) {
		x.fault("the claim runs out", next)
		return
	}
	x.fair("the claim of a dead one runs out", next)
}

// carryOn is the sweep of pending operations.
func (x mSteps) carryOn(s mState) {
	slot := s.slot()
	if s.op == 0 || s.claim == mLive || slot < 0 {
		return
	}
	s.take(slot)
	if o := s.pending(); patience.Spent(*o) && mVerbs[s.op] != holdfast.OperationDelete {
		s.generation++
		s.opGeneration = s.generation
		s.attempts[slot].giving, s.attempts[slot].generation = true, s.generation
		x.fair("carry on: give up", s)
		return
	}
	x.fair("carry on", s)
}

// deliveries come at any time once they were sent, again and again.
func (x mSteps) deliveries(s mState) {
	for n := range uint8(mIncarnations) {
		fresh := s.mail[n] &^ s.inbox[n]
		for kind := range mails {
			if fresh&(1<<kind) != 0 {
				x.deliver(s, n+1, kind)
			}
		}
	}
}

func (x mSteps) deliver(s mState, incarnation, kind uint8) {
	if incarnation > s.incarnation {
		return // 503: it comes again
	}
	s.inbox[incarnation-1] |= 1 << kind
	older := incarnation < s.incarnation && x.flaw != flawAnyIncarnation
	switch {
	case older:
	case kind == mailExited:
		x.applyExit(&s)
	case mStates[s.state] != holdfast.SandboxCreating:
	case kind == mailFailed:
		s.endOperation()
		x.lost(&s, &holdfast.Failure{Reason: holdfast.ReasonSetupFailed}, false)
		x.beginWanted(&s)
	case s.op == 0 || s.claim == mLive:
	case mVerbs[s.op] == holdfast.OperationCreate || mVerbs[s.op] == holdfast.OperationReplace:
		verb := mVerbs[s.op]
		s.endOperation()
		r := x.row(s)
		mService.arrive(&r, verb, holdfast.Observation{}, mNow)
		s.record(r)
		if x.flaw != flawReadyForgets {
			x.beginWanted(&s)
		}
	}
	x.fault("a delivery", s)
}

// applyExit is Service.applyExit of the current incarnation.
func (x mSteps) applyExit(s *mState) {
	switch mStates[s.state] {
	case holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended:
		x.lostRow(s, &holdfast.Failure{Reason: holdfast.ReasonInstanceLost})
	}
}

// lostRow is Service.lostRow: whatever the claim.
func (x mSteps) lostRow(s *mState, failure *holdfast.Failure) {
	replaced := replaceable(x.row(*s), mVerbs[s.op], failure)
	s.endOperation()
	x.lost(s, failure, replaced)
	if !replaced {
		x.beginWanted(s)
	}
}

// instances is the sweep that compares: the authority first, the record second.
func (x mSteps) instances(s mState) {
	switch s.sweep {
	case sweepIdle:
		if s.below.state != 0 {
			s.sweep, s.page = sweepPaged, s.below.answer()
			x.fair("sweep: read the fleet", s)
		}
	case sweepPaged:
		x.plan(s)
	case sweepConfirmed:
		seen := s.page
		s.sweep, s.page = sweepIdle, mAnswer{}
		state := mSeen[seen.state]
		ended := state == holdfast.InstanceExited || state == holdfast.InstanceAbsent
		if ended && (seen.incarnation == s.incarnation || x.flaw == flawAnyIncarnation) {
			x.applyExit(&s)
		}
		x.fair("sweep: it ended", s)
	case sweepMoving:
		seen := s.page.observation()
		s.sweep, s.page = sweepIdle, mAnswer{}
		r := x.row(s)
		if why := leaving(r, seen); why != nil && s.claim != mLive && replaceable(r, mVerbs[s.op], why) {
			x.lostRow(&s, why)
		}
		x.fair("sweep: it moves", s)
	}
}

func (x mSteps) plan(s mState) {
	seen := s.page.observation()
	s.sweep, s.page = sweepIdle, mAnswer{}
	var recorded []row
	if mStates[s.state] != holdfast.SandboxDeleted || seen.State != holdfast.InstanceAbsent {
		recorded = append(recorded, x.row(s))
	}
	p := planInstances(recorded, []holdfast.Observation{seen}, lineage.Lineage{}, mNow)
	switch {
	case p.alarm != nil || len(p.behind)+len(p.kept) > 0:
		x.to.Broken("sweep: plan", fmt.Errorf("it would leave this to a person: %w", p.alarm))
	case len(p.ended) > 0:
		s.sweep, s.page = sweepConfirmed, s.below.answer()
		x.fair("sweep: ask again", s)
	case len(p.moves) > 0:
		s.sweep, s.page = sweepMoving, s.below.answer()
		x.fair("sweep: ask before it moves", s)
	case len(p.levels) > 0:
		l := p.levels[0]
		if l.Generation >= mGenerations {
			x.to.Cut()
			return
		}
		s.sent[l.Generation] |= levelBit(uint8(l.Incarnation), l.Desired)
		x.fault("sweep: its level is lost", s)
		s.below.receive(uint8(l.Incarnation), uint8(l.Generation), l.Desired)
		x.fair("sweep: a level "+string(l.Desired), s)
	default:
		x.fair("sweep: nothing to do", s)
	}
}

// lifetimes end, and the sweep of what is over.
func (x mSteps) lifetimes(s mState) {
	if x.expiry && s.life == mLive {
		over := s
		over.life = mOver
		x.fault("the lifetime ends", over)
	}
	pending := s.pending()
	if x.flaw == flawExpiresLive && pending != nil {
		pending.ClaimExpires = mNow
	}
	verb := decideExpiry(x.row(s), pending, mNow)
	if verb == "" {
		return
	}
	if x.flaw == flawExpiresLive {
		s.claim = mNone
	}
	if !x.begin(&s, verb) {
		x.to.Broken("expire", errors.New("the end of a lifetime met a live attempt"))
		return
	}
	s.expired = true
	x.fair("expire: "+string(verb), s)
}

// authority is what goes on below: towards the level, or by itself.
func (x mSteps) authority(s mState) {
	x.late(s)
	b := s.below
	if b.state == 0 {
		return
	}
	if b.lost && !b.ended() {
		up := s
		x.below(&up, holdfast.InstanceExited)
		if mDesires[b.desired] == holdfast.DesiredAbsent {
			up.below.state = word(mSeen, holdfast.InstanceAbsent)
		}
		up.below.lost = false
		x.fair("its host is given up", up)
		back := s
		back.below.lost = false
		x.fault("its host is back", back)
		return
	}
	if to := b.towards(); to != b.state {
		next := s
		x.below(&next, mSeen[to])
		x.fair("below: "+string(mSeen[to]), next)
	}
	if b.ended() {
		return
	}
	if s.ends > 0 {
		next := s
		next.ends--
		if mSeen[b.state] == holdfast.InstanceBooting {
			next.mail[b.incarnation-1] |= 1 << mailFailed
		}
		x.below(&next, holdfast.InstanceExited)
		x.fault("the instance ends by itself", next)
		if x.losses {
			lost := s
			lost.ends--
			lost.below.lost = true
			x.fault("its host is lost", lost)
		}
	}
}

// below moves the instance, and sends what that makes the guest or the fleet send.
func (mSteps) below(s *mState, to holdfast.InstanceState) {
	n := s.below.incarnation - 1
	ending := mDesires[s.below.desired] == holdfast.DesiredExited || mDesires[s.below.desired] == holdfast.DesiredAbsent
	switch {
	case to == holdfast.InstanceRunning && mSeen[s.below.state] == holdfast.InstanceBooting:
		s.mail[n] |= 1 << mailReady
	case to == holdfast.InstanceExited && !ending:
		s.mail[n] |= 1 << mailExited
	}
	s.below.state = word(mSeen, to)
}

// towards is the next state on the way to what is desired.
func (a mAuthority) towards() uint8 {
	is, shall := mSeen[a.state], mDesires[a.desired]
	to := is
	switch {
	case is == holdfast.InstanceAbsent, is == holdfast.InstanceExited && shall != holdfast.DesiredAbsent:
	case shall == holdfast.DesiredAbsent:
		to = holdfast.InstanceAbsent
	case shall == holdfast.DesiredExited:
		to = holdfast.InstanceExited
	case is == holdfast.InstancePreparing:
		to = holdfast.InstanceBooting
	case is == holdfast.InstanceBooting:
		to = holdfast.InstanceRunning
	case shall == holdfast.DesiredSuspended:
		to = holdfast.InstanceSuspended
	default:
		to = holdfast.InstanceRunning
	}
	return word(mSeen, to)
}

// late is any level that was ever sent, arriving now, be it again.
func (x mSteps) late(s mState) {
	for generation, bits := range s.sent {
		for n := uint8(1); n <= mIncarnations; n++ {
			for _, shall := range mDesires {
				if bits&levelBit(n, shall) == 0 {
					continue
				}
				next := s
				next.below.receive(n, uint8(generation), shall)
				if next.below != s.below {
					x.fault(fmt.Sprintf("late: %s, generation %d", shall, generation), next)
				}
			}
		}
	}
}
