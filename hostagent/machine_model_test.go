package hostagent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

// This model is one instance at its host: two incarnations' records, as written
// and as they would be found after the machine lost its power, the runtime's truth,
// the one attempt that converges them with each runtime call and each write apart,
// and levels that come late, twice and in any order.
//
// The decisions are the product's: judge, plan, blind, lost, outlives, wants,
// planSwept, record.final. What is glue: the runtime, the order of a step's calls
// and writes (boot, start, suspend, resume, end and remove of steps.go, as a list
// of small steps), what aims an attempt (machine.aim, advance) and when it is
// redirected (machine.accept, finish).

var (
	hDesires = []holdfast.Desired{holdfast.DesiredRunning, holdfast.DesiredSuspended, holdfast.DesiredExited, holdfast.DesiredAbsent}
	hStates  = []holdfast.InstanceState{"", holdfast.InstancePreparing, holdfast.InstanceBooting, holdfast.InstanceRunning,
		holdfast.InstanceSuspended, holdfast.InstanceExited, holdfast.InstanceAbsent}
	hPhases = []runtime.Phase{runtime.PhaseAbsent, runtime.PhasePrepared, runtime.PhaseRunning, runtime.PhaseSuspended, runtime.PhaseExited}
)

func hWord[W comparable](of []W, w W) uint8 {
	i := slices.Index(of, w)
	if i < 0 {
		panic(fmt.Sprintf("the model has no word for %v", w))
	}
	return uint8(i)
}

// hRecord is one incarnation's record; state 0 is none.
type hRecord struct {
	generation, desired, state                    uint8
	started, otherBoot, readied, removing, ending bool
}

// What an attempt does next: a runtime call, a write, or a look.
type hStep uint8

const (
	hIdle hStep = iota
	hAim
	hInspect
	hPrepare
	hMark // write that it starts
	hStart
	hAwait
	hSuspend
	hSuspended // write it
	hResume
	hEnding // write why
	hStop
	hExited // write it
	hRemove
	hAbsent // write it
	hRelease
)

// hAttempt is the convergence in progress.
type hAttempt struct {
	step        hStep
	incarnation uint8 // whose record the step is about
	asked       bool  // by a level
	aimedAsked  bool  // so it was when it aimed
	again       bool  // something new is wanted since it aimed
	view        hRecord
	lost        bool // hEnding: since the runtime has it no more
}

// hState is the whole of it.
type hState struct {
	sent    uint8      // of the fleet's levels, so many were sent; any of them may come at any time
	records [2]hRecord // as the process reads them
	synced  [2]hRecord // as they are after the power was lost
	phases  [2]uint8   // the runtime's truth
	starts  [2]uint8   // how often guest code was begun, up to 2
	attempt hAttempt
	ends    uint8 // how often an instance may still end by itself
}

type hLevel struct {
	incarnation, generation uint8
	desired                 holdfast.Desired
}

// hFlaw is one wrong decision, put in to see that the model notices.
type hFlaw string

// The flaws.
const (
	hBootsAgain       hFlaw = "boots what was started (T49)"
	hNoSync           hFlaw = "writes the start without a sync (T49)"
	hTwoAtOnce        hFlaw = "begins an incarnation beside an older one (T37)"
	hBlindIsGone      hFlaw = "takes a failed look for gone (T27)"
	hForgetsTombstone hFlaw = "forgets what is ABSENT (T39, T40)"
	hAnyGeneration    hFlaw = "takes an older generation (T36)"
	hStartsFirst      hFlaw = "starts before it has written so (T49)"
)

type hConfig struct {
	name     string
	levels   []hLevel // of the fleet, in their order
	survives bool     // what is suspended survives its host
	ends     uint8
	flaw     hFlaw
}

var hNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// record is a record as the decisions see it.
func (r hRecord) record(incarnation uint8) record {
	out := record{
		Ref:        holdfast.InstanceRef{Instance: "in", Incarnation: int64(incarnation)},
		Generation: int64(r.generation), Desired: hDesires[r.desired], Spec: &holdfast.InstanceSpec{Image: "base"}, State: hStates[r.state],
		PlacedAt: hNow, CreatedAt: hNow, Started: r.started, Removing: r.removing,
	}
	if r.started {
		out.StartedAt, out.BootID = hNow, "this"
		if r.otherBoot {
			out.BootID = "another"
		}
	}
	if r.readied {
		out.ReadyAt = hNow
	}
	if r.ending {
		out.Ending = &holdfast.Failure{Reason: holdfast.ReasonExited}
	}
	return out
}

func hRecordOf(r record) hRecord {
	return hRecord{generation: uint8(r.Generation), desired: hWord(hDesires, r.Desired), state: hWord(hStates, r.State),
		started: r.Started, otherBoot: r.Started && r.BootID != "this", readied: !r.ReadyAt.IsZero(), removing: r.Removing, ending: r.Ending != nil}
}

// newest is the current incarnation, 0 for none.
func (s *hState) newest() uint8 {
	switch {
	case s.records[1].state != 0:
		return 2
	case s.records[0].state != 0:
		return 1
	}
	return 0
}

// write is machine.write.
func (c *hConfig) write(s *hState, incarnation uint8, to hRecord) {
	i := incarnation - 1
	var before record
	if s.records[i].state != 0 {
		before = s.records[i].record(incarnation)
	}
	if outlives(before, to.record(incarnation), c.survives) && c.flaw != hNoSync {
		s.synced[i] = to
	}
	s.records[i] = to
}

// commit is machine.commit: on the record as it is now.
func (c *hConfig) commit(s *hState, incarnation uint8, change func(*hRecord)) {
	r := s.records[incarnation-1]
	change(&r)
	c.write(s, incarnation, r)
}

// What holds in every state.
func (c *hConfig) holds(s hState) error {
	live := func(i int) bool {
		return hPhases[s.phases[i]] == runtime.PhaseRunning || hPhases[s.phases[i]] == runtime.PhaseSuspended
	}
	if live(0) && live(1) {
		return errors.New("two incarnations live at once")
	}
	for i, r := range s.records {
		switch {
		case s.starts[i] > 1:
			return fmt.Errorf("incarnation %d was booted twice", i+1)
		case live(i) && !r.started:
			return fmt.Errorf("incarnation %d runs, and that it started is not written", i+1)
		case live(i) && (hStates[r.state] == holdfast.InstanceExited || hStates[r.state] == holdfast.InstanceAbsent):
			return fmt.Errorf("incarnation %d is %s, and it lives", i+1, hStates[r.state])
		case s.starts[i] > 0 && !s.synced[i].started && s.synced[i].state != hWord(hStates, holdfast.InstanceAbsent) && r.state != 0:
			return fmt.Errorf("incarnation %d was booted, and a loss of power would make it forgotten", i+1)
		}
	}
	return nil
}

// holdsOf is what holds of every step.
func (c *hConfig) holdsOf(from, to hState) error {
	for i := range from.records {
		was, is := from.records[i], to.records[i]
		powerLost := is == to.synced[i] && was != from.synced[i]
		switch {
		case powerLost:
		case is.generation < was.generation:
			return errors.New("the generation went down")
		case was.removing && !is.removing, was.ending && !is.ending && !is.removing:
			return errors.New("an end that was decided was taken back")
		case was.state != 0 && is.state != was.state && !slices.Contains(holdfast.InstanceTransitions()[hStates[was.state]], hStates[is.state]):
			return fmt.Errorf("%s is followed by %s", hStates[was.state], hStates[is.state])
		}
	}
	return nil
}

// rests says that the newest level is answered for good, and that it is so.
func (c *hConfig) rests(s hState) bool {
	n := s.newest()
	if s.attempt.step != hIdle || n == 0 || s.sent == 0 {
		return false
	}
	last := c.levels[s.sent-1]
	r, phase := s.records[n-1], hPhases[s.phases[n-1]]
	if n != last.incarnation || r.generation != last.generation {
		return false
	}
	if n == 2 && (s.phases[0] != 0 || s.records[0].state != 0 && hStates[s.records[0].state] != holdfast.InstanceAbsent) {
		return false
	}
	switch hStates[r.state] {
	case holdfast.InstanceAbsent:
		return phase == runtime.PhaseAbsent
	case holdfast.InstanceExited:
		return phase == runtime.PhaseAbsent && last.desired != holdfast.DesiredAbsent
	case holdfast.InstanceRunning:
		return phase == runtime.PhaseRunning && last.desired == holdfast.DesiredRunning
	case holdfast.InstanceSuspended:
		return phase == runtime.PhaseSuspended && last.desired == holdfast.DesiredSuspended
	}
	return false
}

// String is a state for a person who reads how something came about.
func (s hState) String() string {
	out := fmt.Sprintf("sent%d", s.sent)
	for i, r := range s.records {
		if r.state != 0 || s.phases[i] != 0 {
			out += fmt.Sprintf(" i%d g%d %s %s started=%v ready=%v removing=%v ending=%v other=%v synced=%v runtime %s", i+1, r.generation, hDesires[r.desired],
				hStates[r.state], r.started, r.readied, r.removing, r.ending, r.otherBoot, s.synced[i] == r, hPhases[s.phases[i]])
		}
	}
	if a := s.attempt; a.step != hIdle {
		out += fmt.Sprintf(" step%d of i%d asked=%v again=%v", a.step, a.incarnation, a.asked, a.again)
	}
	return out
}

func (c *hConfig) explore() (explorer.Result, error) {
	return explorer.Explore(explorer.Model[hState]{Name: "host: " + c.name, Init: []hState{{ends: c.ends}}, Next: c.next,
		State: c.holds, Step: c.holdsOf, Rest: c.rests, Most: 8_000_000})
}
