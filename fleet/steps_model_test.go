package fleet

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

// fSteps collects the steps out of one state of one configuration.
type fSteps struct {
	*fConfig
	to *explorer.Steps[fState]
}

func (c *fConfig) next(s fState, to *explorer.Steps[fState]) {
	x := fSteps{c, to}
	x.orchestrator(s)
	for i := range s.told {
		x.tell(s, i)
	}
	x.question(s)
	for i := range s.hosts {
		x.late(s, i)
		x.host(s, i)
		x.health(s, i)
	}
	x.deliveries(s)
}

func (x fSteps) fair(name string, s fState)  { x.to.Fair(name, s) }
func (x fSteps) fault(name string, s fState) { x.to.Fault(name, s) }

// orchestrator issues its next order, and repeats the newest one. An older one may
// come late.
func (x fSteps) orchestrator(s fState) {
	top := s.top()
	done := uint8(0)
	if top != 0 {
		done = s.issued[top]
	}
	if int(done) < len(x.orders) && (x.orders[done].desired != holdfast.DesiredSuspended || s.row.incarnation == x.orders[done].incarnation) {
		x.issue(s, top+1, done+1)
	}
	for g := uint8(1); g <= top; g++ {
		if s.issued[g] == 0 {
			continue
		}
		add := x.fault
		if g == top {
			add = x.fair
		}
		x.level(s, g, add)
	}
}

func (x fSteps) issue(s fState, generation, order uint8) {
	if generation >= fGenerations {
		x.to.Cut()
		return
	}
	s.issued[generation] = order
	if order == 1 {
		x.fair("the first order", s)
	} else {
		x.fault("the next order", s)
	}
}

// level is Service.EnsureInstance up to the call to the host.
func (x fSteps) level(s fState, g uint8, add func(string, fState)) {
	slot := -1
	for i, told := range s.told[:max(x.calls, 1)] {
		if told.level == 0 {
			slot = i
		}
	}
	if slot < 0 || s.told[0].level == g || s.told[1].level == g {
		return
	}
	l := x.at(&s, g)
	name := fmt.Sprintf("level i%d g%d %s", l.incarnation, g, l.desired)
	var cur *row
	if s.row.incarnation != 0 {
		r := s.recorded()
		cur = &r
	}
	if x.flaw == fPlacesAgain && cur != nil && cur.state == holdfast.InstanceUnknown {
		cur = nil
	}
	ruled, err := judge(cur, l.level(), "spec", clock{now: fNow, tooOld: time.Hour})
	if err != nil {
		return
	}
	if !ruled.place {
		if ruled.write {
			x.supersede(&s, ruled)
			s.write(ruled.next)
		}
		x.passOn(name, s, slot, ruled, add)
		return
	}
	for i, h := range s.hosts {
		if fHealths[h.health] != holdfast.HostReady || h.used >= x.room {
			continue
		}
		if i == 1 && s.row.incarnation == 0 && fHealths[s.hosts[0].health] == holdfast.HostReady {
			continue // the hosts are alike
		}
		next := s
		x.supersede(&next, ruled)
		placed := ruled.next
		placed.placeOn(hostRow{Host: holdfast.Host{ID: fHosts[i+1], Health: holdfast.HostReady, Duty: holdfast.HostActive}})
		next.write(placed)
		next.hosts[i].used++
		x.passOn(fmt.Sprintf("%s, on %d", name, i+1), next, slot, ruled, add)
	}
}

func (x fSteps) supersede(s *fState, ruled ruling) {
	if ruled.left != nil {
		s.left, s.leftOf = fWord(fHosts, ruled.left.host), uint8(ruled.next.generation)
	}
}

func (x fSteps) passOn(name string, s fState, slot int, ruled ruling, add func(string, fState)) {
	if ruled.call && s.row.host != 0 {
		if s.hosts[s.row.host-1].gone {
			x.giveUp(name, s)
			return
		}
		s.told[slot] = fTold{level: s.row.generation, host: s.row.host}
	}
	add(name, s)
}

// tell is the level on its way to the host, and storeAnswer.
func (x fSteps) tell(s fState, i int) {
	told := s.told[i]
	if told.level == 0 {
		return
	}
	off := s
	off.told[i] = fTold{}
	l := x.at(&s, told.level)
	h := told.host - 1
	if told.answered {
		x.fault("the fleet dies before it stores an answer", off)
		x.observe("the answer is stored", off, told.seen.observation(told.host, l.incarnation), answered, x.fair)
		return
	}
	off.hosts[h].levels |= 1 << told.level
	if s.hosts[h].silent {
		x.fair("no answer", off)
		return
	}
	x.fault("the level is lost", off)
	if !off.hosts[h].take(l) {
		x.refused(off, l, h)
		return
	}
	x.fault("the answer is lost", off)
	next := off
	next.told[i] = told
	next.told[i].answered, next.told[i].seen = true, off.hosts[h].has[l.incarnation-1]
	x.fair("the host answers", next)
}

// refused: the orchestrator issues its newest order anew above what a host has seen.
func (x fSteps) refused(s fState, l fLevel, h uint8) {
	has := s.hosts[h].has[l.incarnation-1]
	if l.generation != s.top() || has.generation < l.generation {
		x.fair("the host refuses", s)
		return
	}
	g := has.generation + 1
	if g >= fGenerations {
		x.to.Cut()
		return
	}
	s.issued[g] = s.issued[l.generation]
	x.fair("the host has seen more, and it is issued anew", s)
}

// observe is what a fact does to the row, and what follows in its transaction.
func (x fSteps) observe(name string, s fState, o holdfast.Observation, how channel, add func(string, fState)) {
	if s.row.incarnation == 0 {
		add(name, s)
		return
	}
	cur := s.recorded()
	switch x.flaw {
	case fAnyIncarnation:
		o.Incarnation = cur.incarnation
	case fAnyGeneration:
		o.Generation = max(o.Generation, cur.generation)
	}
	before, host := s.row.held, s.row.host
	s.apply(fold(cur, o, how, fNow))
	if x.flaw == fFreesTwice && how == delivered && host != 0 && !before && final(o.State) {
		s.hosts[host-1].used--
	}
	add(name, s)
}

// question is what the fleet asks hosts: about one instance, or for all.
func (x fSteps) question(s fState) {
	a := s.ask
	if a.kind == askNone {
		x.ask(s)
		return
	}
	died := s
	died.ask = fAsk{}
	x.fault("the fleet dies with a question", died)
	h := &s.hosts[a.host-1]
	switch {
	case a.answered:
		x.answered(s)
	case h.silent:
		x.unanswered(s)
	default:
		next := s
		next.ask.answered, next.ask.seen = true, h.has
		if a.kind == askLost {
			l := fLevel{incarnation: a.incarnation, generation: a.generation, desired: holdfast.DesiredAbsent}
			lost := died
			lost.hosts[a.host-1].absents |= absentBit(l)
			x.fault("the tombstone's order is lost", lost)
			if x.flaw != fNoTombstone && !next.hosts[a.host-1].take(l) {
				x.fair("the tombstone is refused", died)
				return
			}
			next.hosts[a.host-1].absents |= absentBit(l)
			next.ask.seen = next.hosts[a.host-1].has
		}
		x.fair("the host is asked", next)
	}
}

func absentBit(l fLevel) uint16 { return 1 << ((l.incarnation-1)*fGenerations + l.generation) }

// ask begins a question: the row is read first.
func (x fSteps) ask(s fState) {
	q := fAsk{stands: true, incarnation: s.row.incarnation, generation: s.row.generation}
	if r := s.recorded(); s.row.host != 0 && (lacks(r) || !dueAt(r).IsZero()) && !s.hosts[s.row.host-1].gone {
		one := s
		one.ask, one.ask.kind, one.ask.host = q, askOne, s.row.host
		x.fair("ask about it", one)
	}
	for i, h := range s.hosts {
		about := int(s.row.host) == i+1 || int(s.left) == i+1 || newest(h.has) != 0 // else it changes nothing
		if fHealths[h.health] == holdfast.HostReady && about {
			all := s
			all.ask, all.ask.kind, all.ask.host = q, askAll, uint8(i+1)
			x.fair(fmt.Sprintf("compare host %d", i+1), all)
		}
	}
}

// unanswered is doubt and doubtHost.
func (x fSteps) unanswered(s fState) {
	a := s.ask
	r := s.recorded()
	s.ask = fAsk{}
	doubted := a.kind == askOne && a.stands || a.kind == askAll && s.row.host == a.host
	if doubted && expected(r.state) && r.state != holdfast.InstanceUnknown {
		if x.flaw == fSilenceIsGone {
			s.apply(lose(r, fNow))
		} else {
			s.doubt()
		}
	}
	x.fair("no answer to the question", s)
}

// doubt makes the row UNKNOWN; what it was is kept.
func (s *fState) doubt() {
	switch fStates[s.row.state] {
	case holdfast.InstancePreparing, holdfast.InstanceBooting, holdfast.InstanceRunning, holdfast.InstanceSuspended, holdfast.InstanceStopping:
		s.row.known, s.row.state = s.row.state, fWord(fStates, holdfast.InstanceUnknown)
		s.ask.stands = false
	}
}

// answered is inquire, declareLost and compare, once the host has answered.
func (x fSteps) answered(s fState) {
	a := s.ask
	stands := a.stands
	s.ask = fAsk{}
	n := newest(a.seen)
	switch {
	case a.kind == askLost:
		has := a.seen[a.incarnation-1]
		if stands && (fStates[has.state] == holdfast.InstanceAbsent || x.flaw == fNoTombstone) {
			s.apply(lose(s.recorded(), fNow))
		}
		x.fair("lost", s)
	case a.kind == askAll:
		x.compare(s, a)
	case n < a.incarnation:
		s.ask = fAsk{kind: askLost, host: a.host, stands: a.stands, incarnation: a.incarnation, generation: a.generation}
		x.fair("its host does not know it", s)
	case stands:
		x.observe("the answer to the question is stored", s, a.seen[n-1].observation(a.host, n), asked, x.fair)
	default:
		x.fair("the row has changed meanwhile", s)
	}
}

// compare is planInstances and carryOut.
func (x fSteps) compare(s fState, a fAsk) {
	host := fHosts[a.host]
	c := comparison{host: host, before: map[holdfast.InstanceID]row{}, after: map[holdfast.InstanceID]row{}, unwanted: sightings{}, now: fNow, grace: time.Minute,
		lefts: map[holdfast.InstanceRef]bool{}}
	if s.left == a.host && x.flaw != fEndsLeftovers {
		c.lefts[holdfast.InstanceRef{Instance: "in", Incarnation: 1}] = true
	}
	n := newest(a.seen)
	if n != 0 {
		c.observed = append(c.observed, a.seen[n-1].observation(a.host, n))
	}
	if s.hosts[a.host-1].sighted && n != 0 {
		c.unwanted[holdfast.InstanceRef{Instance: "in", Incarnation: int64(n)}] = fNow.Add(-time.Hour)
	}
	r := s.recorded()
	c.after["in"] = r
	if r.host == host && r.state != holdfast.InstanceAbsent {
		before := r
		if !a.stands {
			before.revision = 0
		}
		c.before["in"] = before
	}
	p := planInstances(c)
	s.hosts[a.host-1].sighted = len(p.unwanted) > 0
	for _, o := range p.news {
		s.apply(fold(r, o, asked, fNow))
	}
	if s.left == a.host {
		x.clearLeftover(&s)
	}
	for _, d := range p.destroy {
		x.end(&s, a.host, d)
	}
	if len(p.confirm) > 0 {
		s.ask = fAsk{kind: askOne, host: a.host, stands: true, incarnation: s.row.incarnation, generation: s.row.generation}
	}
	x.fair("compared", s)
}

// end orders the end of what is not wanted.
func (x fSteps) end(s *fState, host uint8, d doomed) {
	if d.generation >= fGenerations || s.hosts[host-1].silent {
		return
	}
	l := fLevel{incarnation: uint8(d.ref.Incarnation), generation: uint8(d.generation), desired: d.desired}
	if d.desired == holdfast.DesiredAbsent {
		s.hosts[host-1].absents |= absentBit(l)
	}
	s.hosts[host-1].take(l)
}

// clearLeftover orders the end of a superseded incarnation, and gives its room
// back once its host says that it ended, or that it has a newer one.
func (x fSteps) clearLeftover(s *fState) {
	h := &s.hosts[s.left-1]
	if h.silent {
		return
	}
	l := fLevel{incarnation: 1, generation: s.leftOf, desired: holdfast.DesiredAbsent}
	h.absents |= absentBit(l)
	stale := newest(h.has) > 1
	if h.take(l) && h.has[0].final() || stale {
		h.used--
		s.left = 0
	}
}

// late is any level that was ever sent to a host, arriving now, be it again.
func (x fSteps) late(s fState, i int) {
	h := s.hosts[i]
	if h.silent {
		return
	}
	for g := uint8(1); g < fGenerations; g++ {
		if h.levels&(1<<g) != 0 {
			x.arrives(s, i, x.at(&s, g))
		}
		for n := uint8(1); n <= 2; n++ {
			l := fLevel{incarnation: n, generation: g, desired: holdfast.DesiredAbsent}
			if h.absents&absentBit(l) != 0 {
				x.arrives(s, i, l)
			}
		}
	}
}

func (x fSteps) arrives(s fState, i int, l fLevel) {
	before := s.hosts[i]
	if s.hosts[i].take(l); s.hosts[i] != before {
		x.fault(fmt.Sprintf("late at host %d: i%d g%d %s", i+1, l.incarnation, l.generation, l.desired), s)
	}
}

// host is what goes on at a host, and what it says of it.
func (x fSteps) host(s fState, i int) {
	for n := range s.hosts[i].has {
		h := s.hosts[i]
		if to := h.towards(n); to != fStates[h.has[n].state] {
			next := s
			next.becomes(i, n, to)
			x.fair(fmt.Sprintf("host %d: i%d %s", i+1, n+1, to), next)
		}
		if s.ends > 0 && h.has[n].lives() {
			next := s
			next.ends--
			next.becomes(i, n, holdfast.InstanceExited)
			x.fault(fmt.Sprintf("host %d: i%d ends by itself", i+1, n+1), next)
		}
	}
}

func (s *fState) becomes(host, incarnation int, to holdfast.InstanceState) {
	has := &s.hosts[host].has[incarnation]
	has.state = fWord(fStates, to)
	switch fact := (fFact{host: uint8(host + 1), generation: has.generation}); to {
	case holdfast.InstanceRunning:
		if s.facts[incarnation][0].host == 0 {
			s.facts[incarnation][0] = fact
		}
	case holdfast.InstanceExited:
		s.facts[incarnation][1] = fact
	}
}

// deliveries are facts that come at any time once they were sent; each counts once.
func (x fSteps) deliveries(s fState) {
	for n := range s.facts {
		for kind, f := range s.facts[n] {
			if f.host == 0 || f.counted && x.flaw != fFreesTwice || s.hosts[f.host-1].silent || int(s.row.incarnation) < n+1 {
				continue
			}
			next := s
			next.facts[n][kind].counted = true
			seen := fSeen{generation: f.generation, state: fWord(fStates, [...]holdfast.InstanceState{holdfast.InstanceRunning, holdfast.InstanceExited}[kind])}
			if int(s.row.incarnation) > n+1 && kind == 1 && next.left == f.host {
				next.hosts[f.host-1].used--
				next.left = 0
			}
			x.observe(fmt.Sprintf("delivery: i%d %s", n+1, fStates[seen.state]), next, seen.observation(f.host, uint8(n+1)), delivered, x.fault)
		}
	}
}

// health is a host's silence, what the fleet makes of it, and its return.
func (x fSteps) health(s fState, i int) {
	h := s.hosts[i]
	if !h.silent {
		if s.hush > 0 && fHealths[h.health] == holdfast.HostReady {
			next := s
			next.hush--
			next.hosts[i].silent = true
			x.fault(fmt.Sprintf("host %d falls silent", i+1), next)
		}
		x.heard(s, i)
		return
	}
	heard := s
	heard.hosts[i].silent = false
	x.fair(fmt.Sprintf("host %d is heard again", i+1), heard)

	long := hostRow{Host: holdfast.Host{Health: fHealths[h.health], SeenAt: fNow.Add(-24 * time.Hour)}, healthAt: fNow.Add(-24 * time.Hour)}
	if to := planHost(long, false, fNow, Limits{}.withDefaults()); to != long.Health {
		next := s
		next.hosts[i].health = fWord(fHealths, to)
		if int(s.row.host) == i+1 {
			next.doubt()
		}
		x.fault(fmt.Sprintf("host %d is %s", i+1, to), next)
	}
	if !h.gone && overdueLoss(long, fNow, Limits{}.withDefaults()) {
		next := s
		next.hosts[i].gone = true
		x.fault(fmt.Sprintf("host %d is given up", i+1), next)
	}
	x.losses(s, i)
}

// losses ends what a host had that is given up, while it is.
func (x fSteps) losses(s fState, i int) {
	if !s.hosts[i].gone {
		return
	}
	if int(s.left) == i+1 {
		next := s
		next.left = 0
		next.hosts[i].used--
		x.fair("the leftover of a host that is given up", next)
	}
	r := s.recorded()
	if int(s.row.host) == i+1 && r.state != holdfast.InstanceAbsent && (r.state != holdfast.InstanceExited || r.desired == holdfast.DesiredAbsent) {
		x.giveUp("the end of what a host had that is given up", s)
	}
}

func (x fSteps) giveUp(name string, s fState) {
	r := s.recorded()
	s.apply(giveUp(r, "gone", fNow))
	x.fair(name, s)
}

// heard is a heartbeat of a host that was silent; one that was LOST first ends
// what is no longer its own.
func (x fSteps) heard(s fState, i int) {
	x.losses(s, i)
	switch h := s.hosts[i]; fHealths[h.health] {
	case holdfast.HostSuspect:
		s.hosts[i].health = 0
		x.fair(fmt.Sprintf("host %d beats", i+1), s)
	case holdfast.HostLost:
		x.takeBack(s, i)
	}
}

func (x fSteps) takeBack(s fState, i int) {
	h := s.hosts[i]
	host := uint8(i + 1)
	var observed []holdfast.Observation
	if n := newest(h.has); n != 0 {
		observed = append(observed, h.has[n-1].observation(host, n))
	}
	lefts := map[holdfast.InstanceRef]bool{}
	if s.left == host {
		lefts[holdfast.InstanceRef{Instance: "in", Incarnation: 1}] = true
	}
	plan := planReturn(fHosts[host], observed, map[holdfast.InstanceID]row{"in": s.recorded()}, lefts)
	if len(plan) == 0 && s.left != host || x.flaw == fKeepsReturned {
		s.hosts[i].health, s.hosts[i].gone = 0, false
		x.fair(fmt.Sprintf("host %d is welcome", host), s)
		return
	}
	if s.left == host {
		x.clearLeftover(&s)
	}
	for _, d := range plan {
		x.end(&s, host, d)
	}
	x.fair(fmt.Sprintf("host %d ends what is not its own", host), s)
}
