package fleet

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

// This model is one instance between the orchestrator and two hosts: the fleet's
// row and what it counts, calls down and questions in progress, levels and facts
// that come late, twice, in any order or never, and hosts that fall silent, are
// LOST, given up, and come back with what they had.
//
// The decisions are the product's: judge, fold, giveUp, lose, planHost,
// planInstances, planReturn, lacks, dueAt, row.observation, and hostagent's
// contract as lifecycle.md states it (the model of package hostagent explores
// that one). What is glue: the hosts, the network, what each transaction does
// around a decision (record, storeAnswer, takeDelivery, storeAsked, declareLost,
// endOnGoneHost, welcome), and a row's revision, kept as "it still stands".

var (
	fDesires = []holdfast.Desired{holdfast.DesiredRunning, holdfast.DesiredSuspended, holdfast.DesiredExited, holdfast.DesiredAbsent}
	fStates  = []holdfast.InstanceState{"", holdfast.InstancePlaced, holdfast.InstancePreparing, holdfast.InstanceBooting, holdfast.InstanceRunning,
		holdfast.InstanceSuspended, holdfast.InstanceExited, holdfast.InstanceAbsent, holdfast.InstanceUnknown}
	fHealths = []holdfast.HostHealth{holdfast.HostReady, holdfast.HostSuspect, holdfast.HostLost}
	fHosts   = []holdfast.HostID{"", "ho_1", "ho_2"}
	fNow     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func fWord[W comparable](of []W, w W) uint8 {
	i := slices.Index(of, w)
	if i < 0 {
		panic(fmt.Sprintf("the model has no word for %v", w))
	}
	return uint8(i)
}

const fGenerations = 8 // 1 to 7

// fRow is the recorded instance; incarnation 0 is none.
type fRow struct {
	incarnation, generation, desired, host uint8
	held, settled                          bool
	state, known, observed                 uint8
}

// fSeen is one incarnation at a host: the truth.
type fSeen struct{ state, generation, desired uint8 }

// fHost is a host, and what the fleet thinks of it.
type fHost struct {
	has          [2]fSeen // by incarnation
	health       uint8
	silent, gone bool
	used         int8
	levels       uint8  // the orchestrator's that were sent down to it, a bit for each generation
	absents      uint16 // the fleet's own ends: a bit for each incarnation and generation
	sighted      bool   // something unwanted was on it when it was last compared
}

// What a question to a host is for.
const (
	askNone uint8 = iota
	askOne        // inquire, and read-repair
	askAll        // compare
	askLost       // declareLost
)

// fAsk is a question in progress.
type fAsk struct {
	kind, host uint8
	stands     bool // the row is as it was read
	answered   bool
	// Of the row as it was read.
	incarnation, generation uint8
	seen                    [2]fSeen // what the host said that it has
}

// fTold is a level on its way down, and its answer on the way back.
type fTold struct {
	level    uint8 // generation of the orchestrator's level, 0: none
	host     uint8
	answered bool
	seen     fSeen // of the level's incarnation
}

// fFact is a host's word about an incarnation: sent as of a generation, and counted once.
type fFact struct {
	host, generation uint8
	counted          bool
}

type fState struct {
	issued [fGenerations]uint8 // by generation: which of the orchestrator's orders it is, from 1; 0: none
	row    fRow
	left   uint8 // host at which the first incarnation's room is still held, 0: none
	leftOf uint8 // generation of the level that superseded it
	ended  [2]uint8
	hosts  [2]fHost
	told   [2]fTold
	ask    fAsk
	facts  [2][2]fFact // by incarnation: that it runs, that it ended
	ends   uint8       // how often something may still end by itself
	hush   uint8       // how often a host may still fall silent
}

type fLevel struct {
	incarnation, generation uint8
	desired                 holdfast.Desired
}

// fFlaw is one wrong decision, put in to see that the model notices.
type fFlaw string

// The flaws.
const (
	fPlacesAgain    fFlaw = "places an incarnation again (T49)"
	fSilenceIsGone  fFlaw = "takes silence for gone (T27, T32)"
	fAnyGeneration  fFlaw = "takes an answer to an older generation (T36)"
	fAnyIncarnation fFlaw = "takes an older incarnation's word (T37)"
	fFreesTwice     fFlaw = "gives room back twice"
	fKeepsReturned  fFlaw = "welcomes a host with what was given up (C5)"
	fEndsLeftovers  fFlaw = "orders a leftover's end above its own level"
	fNoTombstone    fFlaw = "declares lost without a tombstone (T49)"
)

// fOrder is what the orchestrator wants next; its generation is above all before it.
type fOrder struct {
	incarnation uint8
	desired     holdfast.Desired
}

type fConfig struct {
	name       string
	orders     []fOrder
	room       int8 // of each host
	calls      int  // of the fleet to hosts at once, at most 2
	ends, hush uint8
	flaw       fFlaw
	most       int
}

// at is the level of a generation.
func (c *fConfig) at(s *fState, generation uint8) fLevel {
	o := c.orders[s.issued[generation]-1]
	return fLevel{incarnation: o.incarnation, generation: generation, desired: o.desired}
}

// top is the highest generation that was issued, 0 for none.
func (s *fState) top() uint8 {
	for g := uint8(fGenerations - 1); g > 0; g-- {
		if s.issued[g] != 0 {
			return g
		}
	}
	return 0
}

func (l fLevel) level() holdfast.Level {
	return holdfast.Level{Instance: "in", Incarnation: int64(l.incarnation), Generation: int64(l.generation), Desired: l.desired,
		Spec: &holdfast.InstanceSpec{Image: "base"}, MintedAt: fNow}
}

// recorded is the row as the decisions see it.
func (s *fState) recorded() row {
	f := s.row
	r := row{id: "in", incarnation: int64(f.incarnation), generation: int64(f.generation), desired: fDesires[f.desired], revision: 1,
		host: fHosts[f.host], held: f.held, cpu: 1, state: fStates[f.state], known: fStates[f.known], observed: int64(f.observed), settled: f.settled,
		mintedAt: fNow, placedAt: fNow, leveledAt: fNow, enteredAt: fNow, specHash: "spec"}
	if f.host != 0 {
		h := s.hosts[f.host-1]
		r.hostURL, r.hostHealth, r.hostDuty, r.hostGone = "http://h", fHealths[h.health], holdfast.HostActive, h.gone
	}
	return r
}

// write takes a row into the state: whoever read it before finds another revision.
func (s *fState) write(r row) {
	s.row = fRow{incarnation: uint8(r.incarnation), generation: uint8(r.generation), desired: fWord(fDesires, r.desired), host: fWord(fHosts, r.host),
		held: r.held, settled: r.settled, state: fWord(fStates, r.state), known: fWord(fStates, r.known), observed: uint8(r.observed)}
	s.ask.stands = false
}

// apply is apply of settle.go.
func (s *fState) apply(c change) {
	if !c.changed {
		return
	}
	before := s.row
	s.write(c.next)
	if c.freed {
		s.hosts[before.host-1].used--
	}
	if c.ended {
		s.ended[before.incarnation-1]++
	}
}

// observation is what a host says of an incarnation.
func (n fSeen) observation(host, incarnation uint8) holdfast.Observation {
	return holdfast.Observation{Instance: "in", Incarnation: int64(incarnation), Generation: int64(n.generation), State: fStates[n.state],
		Desired: fDesires[n.desired], Host: fHosts[host], At: fNow}
}

func (n fSeen) final() bool { return final(fStates[n.state]) }
func (n fSeen) lives() bool { return n.state != 0 && !n.final() }

// newest is what a host says when it is asked about the instance: 0 for nothing.
func newest(has [2]fSeen) uint8 {
	switch {
	case has[1].state != 0:
		return 2
	case has[0].state != 0:
		return 1
	}
	return 0
}

// take is a host taking a level; ok is false when it refuses.
func (h *fHost) take(l fLevel) (ok bool) {
	have := &h.has[l.incarnation-1]
	d := fWord(fDesires, l.desired)
	switch {
	case l.incarnation < newest(h.has):
		return false
	case have.state == 0:
		*have = fSeen{generation: l.generation, desired: d, state: fWord(fStates, holdfast.InstancePreparing)}
		switch l.desired {
		case holdfast.DesiredExited:
			have.state = fWord(fStates, holdfast.InstanceExited)
		case holdfast.DesiredAbsent:
			have.state = fWord(fStates, holdfast.InstanceAbsent)
		}
		return true
	case l.generation < have.generation, l.generation == have.generation && d != have.desired:
		return false
	}
	have.generation, have.desired = l.generation, d
	return true
}

// towards is the next state of an incarnation at its host.
func (h *fHost) towards(i int) holdfast.InstanceState {
	have := h.has[i]
	is, shall := fStates[have.state], fDesires[have.desired]
	switch {
	case have.state == 0, is == holdfast.InstanceAbsent:
		return is
	case i == 0 && h.has[1].state != 0: // an older incarnation is gone before a newer one begins
		return holdfast.InstanceAbsent
	case i == 1 && h.has[0].state != 0 && fStates[h.has[0].state] != holdfast.InstanceAbsent:
		return is
	case is == holdfast.InstanceExited && shall != holdfast.DesiredAbsent:
		return is
	case shall == holdfast.DesiredAbsent:
		return holdfast.InstanceAbsent
	case shall == holdfast.DesiredExited:
		return holdfast.InstanceExited
	case is == holdfast.InstancePreparing:
		return holdfast.InstanceBooting
	case is == holdfast.InstanceBooting:
		return holdfast.InstanceRunning
	case shall == holdfast.DesiredSuspended:
		return holdfast.InstanceSuspended
	}
	return holdfast.InstanceRunning
}

// What holds in every state.
func (c *fConfig) holds(s fState) error {
	for i := range s.ended {
		if s.ended[i] > 1 {
			return fmt.Errorf("the end of incarnation %d was told twice", i+1)
		}
		if s.hosts[0].has[i].lives() && s.hosts[1].has[i].lives() {
			return fmt.Errorf("incarnation %d lives on two hosts", i+1)
		}
	}
	for i, h := range s.hosts {
		want := int8(0)
		if s.row.held && int(s.row.host) == i+1 {
			want++
		}
		if int(s.left) == i+1 {
			want++
		}
		if h.used != want || h.used > c.room {
			return fmt.Errorf("host %d counts %d, %d are held there, of %d", i+1, h.used, want, c.room)
		}
	}
	if s.row.incarnation == 0 || s.row.host == 0 {
		return nil
	}
	r := s.recorded()
	h := s.hosts[s.row.host-1]
	truth := h.has[s.row.incarnation-1]
	o := r.observation()
	reached := o.Reached(holdfast.Level{Incarnation: r.incarnation, Generation: r.generation, Desired: r.desired})
	switch {
	case reached && (h.health != 0 || final(r.state)): // an end may be by a host's silence: the steps' rule has it
	case reached && truth.state == 0:
		return fmt.Errorf("the fleet says %s, and its host never had it", o.State)
	case reached && truth.generation == s.row.generation && fStates[truth.state] != o.State && !truth.final():
		return fmt.Errorf("the fleet says that generation %d is %s, and it is %s", r.generation, o.State, fStates[truth.state])
	case reached && truth.generation < s.row.generation && !truth.final():
		return fmt.Errorf("the fleet says that generation %d is reached, and its host has not seen it", r.generation)
	}
	return nil
}

// holdsOf is what holds of every step.
func (c *fConfig) holdsOf(from, to fState) error {
	a, b := from.row, to.row
	for i := range to.hosts {
		mine := int(b.host) == i+1 && !final(fStates[b.state])
		for n, has := range to.hosts[i].has {
			if back := fHealths[from.hosts[i].health] == holdfast.HostLost && to.hosts[i].health == 0; back && has.lives() && !(mine && int(b.incarnation) == n+1) {
				return fmt.Errorf("host %d is welcome, with incarnation %d, which is not its own", i+1, n+1)
			}
		}
	}
	switch {
	case b.incarnation < a.incarnation || b.generation < a.generation:
		return errors.New("an incarnation or a generation went down")
	case a.incarnation != b.incarnation:
	case a.host != 0 && b.host != a.host:
		return errors.New("an incarnation moved to another host")
	case b.observed < a.observed:
		return errors.New("what is known is of an older generation than before")
	case final(fStates[a.state]) && a.incarnation != 0 && b.state != a.state && fStates[b.state] != holdfast.InstanceAbsent:
		return fmt.Errorf("%s is followed by %s", fStates[a.state], fStates[b.state])
	case !final(fStates[a.state]) && final(fStates[b.state]) && a.host != 0:
		h := to.hosts[a.host-1]
		if has := h.has[a.incarnation-1]; has.lives() && h.health != 2 {
			return fmt.Errorf("it became %s, and it lives on a host that is %s", fStates[b.state], fHealths[h.health])
		}
	}
	return nil
}

// settledAt says whether nothing is in progress, and whether all hosts answer.
func (c *fConfig) settledAt(s fState) (quiet, rests bool) {
	quiet = s.ask.kind == askNone && s.told[0].level == 0 && s.told[1].level == 0
	rests = quiet && s.left == 0
	for _, h := range s.hosts {
		rests = rests && h.health == 0 && !h.silent && !h.gone
		for i := range h.has {
			rests = rests && h.towards(i) == fStates[h.has[i].state]
		}
	}
	return quiet, rests
}

// rests says that the newest level is answered for good, and that it is so.
func (c *fConfig) rests(s fState) bool {
	_, quiet := c.settledAt(s)
	if !quiet || s.top() == 0 {
		return false
	}
	last := c.at(&s, s.top())
	if s.row.incarnation != last.incarnation || s.row.generation != last.generation {
		return false
	}
	r := s.recorded()
	for i, h := range s.hosts {
		for n, has := range h.has {
			if has.lives() && (int(s.row.host) != i+1 || int(s.row.incarnation) != n+1) {
				return false
			}
		}
	}
	if s.row.host == 0 {
		return final(r.state)
	}
	truth := s.hosts[s.row.host-1].has[s.row.incarnation-1]
	if final(r.state) && !truth.lives() {
		return r.state == holdfast.InstanceAbsent || last.desired != holdfast.DesiredAbsent
	}
	return fStates[truth.state] == r.state && r.observation().Reached(last.level())
}

// String is a state for a person who reads how something came about.
func (s fState) String() string {
	r := s.row
	out := fmt.Sprintf("issued%v row i%d g%d %s on%d %s known %s observed%d held=%v left%d", s.issued, r.incarnation, r.generation, fDesires[r.desired], r.host,
		fStates[r.state], fStates[r.known], r.observed, r.held, s.left)
	for i, h := range s.hosts {
		out += fmt.Sprintf(" | host%d %s silent=%v gone=%v used%d", i+1, fHealths[h.health], h.silent, h.gone, h.used)
		for n, has := range h.has {
			if has.state != 0 {
				out += fmt.Sprintf(" i%d g%d %s %s", n+1, has.generation, fDesires[has.desired], fStates[has.state])
			}
		}
	}
	return out + fmt.Sprintf(" | told %v ask %v facts %v", s.told, s.ask, s.facts)
}

func (c *fConfig) explore() (explorer.Result, error) {
	return explorer.Explore(explorer.Model[fState]{Name: "fleet: " + c.name, Init: []fState{{ends: c.ends, hush: c.hush}}, Next: c.next,
		State: c.holds, Step: c.holdsOf, Rest: c.rests, Most: c.most})
}
