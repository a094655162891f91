package hostagent

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

// hSteps collects the steps out of one state of one configuration.
type hSteps struct {
	*hConfig
	to *explorer.Steps[hState]
}

func (c *hConfig) next(s hState, to *explorer.Steps[hState]) {
	x := hSteps{c, to}
	x.levels(s)
	x.machineAndPower(s)
	x.sweeps(s)
	if s.attempt.step == hIdle {
		return
	}
	if s.attempt.again { // redirected: what waits for its context ends, the next step aims anew
		next := s
		next.attempt = hAttempt{step: hAim, asked: s.attempt.asked}
		x.fair("redirected", next)
	}
	x.attempt(s)
}

func (x hSteps) fair(name string, s hState)  { x.to.Fair(name, s) }
func (x hSteps) fault(name string, s hState) { x.to.Fault(name, s) }

// levels: the next one is sent, and each that was sent comes, be it again. The
// newest is repeated until it is answered, so it comes sooner or later.
func (x hSteps) levels(s hState) {
	if int(s.sent) < len(x.hConfig.levels) {
		next := s
		next.sent++
		if s.sent == 0 {
			x.fair("a level is sent", next)
		} else {
			x.fault("a level is sent", next)
		}
	}
	for i, l := range x.hConfig.levels[:s.sent] {
		next := s
		x.accept(&next, l)
		if next == s {
			continue
		}
		name := fmt.Sprintf("level i%d g%d %s", l.incarnation, l.generation, l.desired)
		if i == int(s.sent)-1 {
			x.fair(name, next)
		} else {
			x.fault(name, next)
		}
	}
}

// accept is machine.accept.
func (x hSteps) accept(s *hState, l hLevel) {
	known, newest := (*record)(nil), int64(s.newest())
	before := s.records[l.incarnation-1]
	if before.state != 0 && !(x.flaw == hForgetsTombstone && hStates[before.state] == holdfast.InstanceAbsent) {
		r := before.record(l.incarnation)
		known = &r
	}
	level := holdfast.Level{Instance: "in", Incarnation: int64(l.incarnation), Generation: int64(l.generation), Desired: l.desired,
		Spec: &holdfast.InstanceSpec{Image: "base"}, MintedAt: hNow, PlacedAt: hNow}
	if x.flaw == hAnyGeneration && known != nil {
		known.Generation = min(known.Generation, level.Generation-1)
	}
	j, err := judge(level, known, newest, hNow, time.Hour)
	if err != nil {
		return
	}
	if j.changed {
		x.write(s, l.incarnation, hRecordOf(j.record))
	}
	r := s.records[l.incarnation-1]
	if known == nil || wants(before.record(l.incarnation)) != wants(r.record(l.incarnation)) {
		s.attempt.again = s.attempt.step != hIdle
	}
	if s.attempt.step == hIdle {
		if settledFor(r, l) && !(l.incarnation == 2 && s.records[0].state != 0 && hStates[s.records[0].state] != holdfast.InstanceAbsent) {
			return
		}
		s.attempt = hAttempt{step: hAim, asked: true}
		return
	}
	if !s.attempt.asked {
		s.attempt.asked, s.attempt.again = true, true
	}
}

func settledFor(r hRecord, l hLevel) bool {
	full := r.record(l.incarnation)
	o := holdfast.Observation{Incarnation: int64(l.incarnation), Generation: int64(r.generation), State: full.state()}
	return settled(o, holdfast.Level{Incarnation: int64(l.incarnation), Generation: int64(l.generation), Desired: l.desired})
}

// machineAndPower is what befalls the host, and the instances by themselves.
func (x hSteps) machineAndPower(s hState) {
	if s.newest() != 0 {
		crashed := s
		crashed.attempt = hAttempt{step: hAim}
		x.fault("the agent dies and is started", crashed)
		off := crashed
		off.records = s.synced
		for i := range off.records {
			off.records[i].otherBoot = off.records[i].started
			if !x.survives || hPhases[off.phases[i]] != runtime.PhaseSuspended {
				off.phases[i] = 0
			}
		}
		off.synced = off.records
		if off.newest() == 0 {
			off.attempt = hAttempt{}
		}
		x.fault("the host loses its power", off)
	}
	if s.ends == 0 {
		return
	}
	for i, p := range s.phases {
		next := s
		next.ends--
		switch hPhases[p] {
		case runtime.PhaseRunning:
			next.phases[i] = hWord(hPhases, runtime.PhaseExited)
			x.fault("the instance ends by itself", next)
		case runtime.PhaseSuspended:
			next.phases[i] = 0
			x.fault("what was suspended is gone", next)
		}
	}
}

// sweeps look at what the runtime contradicts, and release what is left of what ended.
func (x hSteps) sweeps(s hState) {
	if s.attempt.step != hIdle {
		return
	}
	for i, r := range s.records {
		if r.state == 0 {
			continue
		}
		timing := Timing{Prepare: time.Hour, TombstoneKept: time.Hour}
		full := r.record(uint8(i + 1))
		full.TombstoneAt = hNow
		next := s
		switch planSwept(swept{record: full, verified: true, seen: hPhases[s.phases[i]]}, hNow, timing) {
		case actLook:
			next.attempt = hAttempt{step: hAim}
			x.fair("sweep: look", next)
		case actRelease:
			next.attempt = hAttempt{step: hRelease, incarnation: uint8(i + 1)}
			x.fair("sweep: release", next)
		}
	}
}

// done ends an attempt, unless something new is wanted.
func (x hSteps) done(name string, s hState) {
	again, asked := s.attempt.again, s.attempt.asked
	s.attempt = hAttempt{}
	if again {
		s.attempt = hAttempt{step: hAim, asked: asked}
	}
	x.fair(name, s)
}

// failed is a call that failed and may succeed another time.
func (x hSteps) failed(name string, s hState) {
	again, asked := s.attempt.again, s.attempt.asked
	s.attempt = hAttempt{}
	if again {
		s.attempt = hAttempt{step: hAim, asked: asked}
	}
	x.fault(name, s)
}

// then goes on to another step of the same attempt.
func (x hSteps) then(name string, s hState, step hStep) {
	s.attempt.step = step
	if step == hAim {
		s.attempt = hAttempt{step: hAim, asked: s.attempt.asked}
	}
	x.fair(name, s)
}

func (x hSteps) attempt(s hState) {
	a := s.attempt
	i := int(a.incarnation) - 1
	switch a.step {
	case hAim:
		x.aim(s)
	case hInspect:
		x.inspect(s)
	case hPrepare, hStart, hSuspend, hResume, hStop, hRemove, hRelease:
		x.failed("the runtime does not do it", s)
		x.call(s, i)
	case hAwait:
		x.await(s, i)
	default:
		x.writeDown(s, i)
	}
}

// aim is machine.aim and the beginning of advance.
func (x hSteps) aim(s hState) {
	n := s.newest()
	s.attempt.again, s.attempt.aimedAsked = false, s.attempt.asked
	other := s.records[0]
	if n == 2 && other.state != 0 && hStates[other.state] != holdfast.InstanceAbsent && s.attempt.asked && x.flaw != hTwoAtOnce {
		s.attempt.incarnation = 1
		x.then("the older one first", s, hRemove)
		return
	}
	if n == 0 {
		x.done("nothing is here", s)
		return
	}
	s.attempt.incarnation, s.attempt.view = n, s.records[n-1]
	x.then("aim", s, hInspect)
}

// inspect is machine.next and take.
func (x hSteps) inspect(s hState) {
	a := s.attempt
	seen := hPhases[s.phases[a.incarnation-1]]
	r := a.view.record(a.incarnation)
	if x.flaw == hBootsAgain && seen == runtime.PhaseAbsent {
		r.Started = false
	}
	p, noLook := blind(r)
	if !noLook {
		if x.flaw == hBlindIsGone {
			x.planned(s, plan(r, runtime.PhaseAbsent, x.around(a.aimedAsked)))
		} else {
			x.failed("the runtime is not to be looked at", s)
		}
		p = plan(r, seen, x.around(a.aimedAsked))
	}
	x.planned(s, p)
}

func (x hSteps) around(asked bool) surroundings {
	return surroundings{bootID: "this", survivesHost: x.survives, now: hNow, boot: time.Hour, prepare: time.Hour, asked: asked}
}

func (x hSteps) planned(s hState, p planned) {
	if !s.attempt.aimedAsked && !p.step.settling() {
		x.done("it only looks: "+string(p.step), s)
		return
	}
	step := map[step]hStep{stepBoot: hPrepare, stepStart: hStart, stepAwait: hAwait, stepSuspend: hSuspend, stepResume: hResume,
		stepEnd: hEnding, stepRemove: hRemove}[p.step]
	if p.step == stepNone {
		x.note(s)
		return
	}
	s.attempt.lost = p.step == stepEnd && s.attempt.view.ending != (p.failure != nil)
	x.then("plan: "+string(p.step), s, step)
}

// note is machine.note.
func (x hSteps) note(s hState) {
	a := s.attempt
	if hPhases[s.phases[a.incarnation-1]] == runtime.PhaseSuspended && hStates[s.records[a.incarnation-1].state] != holdfast.InstanceSuspended {
		x.commit(&s, a.incarnation, func(r *hRecord) { r.state = hWord(hStates, holdfast.InstanceSuspended) })
	}
	x.done("as it shall be", s)
}

// call is a runtime call taking effect.
func (x hSteps) call(s hState, i int) {
	is := hPhases[s.phases[i]]
	set := func(p runtime.Phase) { s.phases[i] = hWord(hPhases, p) }
	switch s.attempt.step {
	case hPrepare:
		if is == runtime.PhaseAbsent {
			set(runtime.PhasePrepared)
		}
		if x.flaw == hStartsFirst {
			x.then("prepare", s, hStart)
			return
		}
		x.then("prepare", s, hMark)
		x.then("prepare: refused", s, hEnding)
	case hStart:
		switch is {
		case runtime.PhasePrepared:
			set(runtime.PhaseRunning)
			s.starts[i] = min(s.starts[i]+1, 2)
			x.then("start", s, hAwait)
		case runtime.PhaseRunning:
			x.then("start again", s, hAwait)
		default:
			x.then("start: it cannot", s, hEnding)
		}
	case hSuspend:
		if is == runtime.PhaseRunning {
			set(runtime.PhaseSuspended)
		}
		if is == runtime.PhaseRunning || is == runtime.PhaseSuspended {
			x.then("suspend", s, hSuspended)
		} else {
			x.then("suspend: gone", s, hAim)
		}
	case hResume:
		if is == runtime.PhaseSuspended {
			set(runtime.PhaseRunning)
			if s.records[i].otherBoot {
				x.commit(&s, s.attempt.incarnation, func(r *hRecord) { r.otherBoot = false })
			}
			x.then("resume", s, hAwait)
		} else {
			x.then("resume: gone", s, hAim)
		}
	case hStop:
		set(runtime.PhaseAbsent)
		x.then("stop", s, hExited)
	case hRemove:
		set(runtime.PhaseAbsent)
		x.then("stop and remove", s, hAbsent)
	case hRelease:
		set(runtime.PhaseAbsent)
		x.then("release", s, hAim)
	}
}

// await is machine.await and ready.
func (x hSteps) await(s hState, i int) {
	if hPhases[s.phases[i]] != runtime.PhaseRunning {
		x.then("it ended meanwhile", s, hAim)
		return
	}
	if s.ends > 0 {
		late := s
		late.ends--
		if late.attempt.view.readied {
			x.failed("it does not answer", late)
		} else {
			late.attempt.step = hEnding
			x.fault("it is not ready in time", late)
		}
	}
	x.commit(&s, s.attempt.incarnation, func(r *hRecord) {
		r.state, r.started, r.readied = hWord(hStates, holdfast.InstanceRunning), true, true
	})
	if hDesires[s.records[i].desired] == holdfast.DesiredSuspended {
		x.then("ready, and shall be suspended", s, hAim)
		return
	}
	x.done("ready", s)
}

// writeDown is a step that only writes.
func (x hSteps) writeDown(s hState, i int) {
	n := s.attempt.incarnation
	switch s.attempt.step {
	case hMark:
		if r := s.records[i]; r.removing || r.ending {
			x.then("redirected before the start", s, hAim)
			return
		}
		x.commit(&s, n, func(r *hRecord) {
			r.started, r.otherBoot, r.state = true, false, hWord(hStates, holdfast.InstanceBooting)
		})
		x.then("write: started", s, hStart)
	case hSuspended:
		x.commit(&s, n, func(r *hRecord) { r.state = hWord(hStates, holdfast.InstanceSuspended) })
		x.done("write: suspended", s)
	case hEnding:
		if p := hPhases[s.phases[i]]; s.attempt.lost && (p == runtime.PhaseRunning || p == runtime.PhaseSuspended) && !s.records[i].otherBoot {
			x.to.Broken("write: ending", errors.New("what the runtime runs was taken for gone"))
			return
		}
		x.commit(&s, n, func(r *hRecord) {
			full := r.record(n)
			r.ending = r.ending || !full.final()
		})
		x.then("write: ending", s, hStop)
	case hExited:
		x.commit(&s, n, func(r *hRecord) { r.state = hWord(hStates, holdfast.InstanceExited) })
		x.done("write: exited", s)
	case hAbsent:
		x.commit(&s, n, func(r *hRecord) {
			r.state, r.removing, r.ending = hWord(hStates, holdfast.InstanceAbsent), true, false
		})
		if n != s.newest() {
			x.then("write: absent", s, hAim)
			return
		}
		x.done("write: absent", s)
	}
}
