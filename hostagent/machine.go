package hostagent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/stack"
)

// errRedirected ends a step whose outcome is no longer wanted.
var errRedirected = errors.New("another level is wanted now")

// machine is one instance: its incarnations' records, and at most one attempt
// that converges them. Nothing slow happens under its lock but its own writes.
type machine struct {
	agent *Agent
	id    holdfast.InstanceID

	mu       sync.Mutex
	dropped  bool // no longer in the agent's map: look it up again
	records  map[int64]record
	verified map[int64]bool // seen in the runtime by this process
	leftover map[int64]bool // ended, yet the runtime has something of it
	progress string         // of the preparation, for a person
	trouble  string         // why the last attempt stopped, for a person
	version  int64          // raised by whatever an attempt must look at again
	target   int64          // raised when another thing is wanted
	attempt  *attempt       // nil while nothing converges
	changed  chan struct{}  // closed and replaced by every change
	word     chan int64     // an incarnation's guest said, signed, that it is ready
	waiting  int            // calls that wait to be answered
	untold   int64          // incarnation of a fact that a waiting call's answer is to tell
	secretOf int64          // the incarnation whose secret was last derived
	secretIs []byte         // that secret
	watches  map[int64]*watch
	turn     chan struct{}      // full while something is done with the runtime's instance
	copies   map[*attached]bool // of an incarnation, which end with it
	guests   map[int64]holdfast.Guest
}

// attempt is one convergence. Calls join it, levels redirect it.
type attempt struct {
	done     chan struct{}
	err      error // set before done is closed
	asked    bool  // a level asks; else it only observes
	redirect context.CancelCauseFunc
}

func newMachine(a *Agent, id holdfast.InstanceID) *machine {
	return &machine{
		agent: a, id: id,
		records: map[int64]record{}, verified: map[int64]bool{}, leftover: map[int64]bool{},
		changed: make(chan struct{}), word: make(chan int64, 1),
		watches: map[int64]*watch{}, guests: map[int64]holdfast.Guest{},
		turn: make(chan struct{}, 1), copies: map[*attached]bool{},
	}
}

// newest is the current incarnation's number, 0 when there is none; m.mu is held.
func (m *machine) newest() int64 {
	var n int64
	for i, r := range m.records {
		if !r.Orphan {
			n = max(n, i)
		}
	}
	return n
}

func (m *machine) broadcast() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// commit changes one record, durably; change may refuse. It is applied to the
// record as it is now, so that a level that came meanwhile is never overwritten.
func (m *machine) commit(incarnation int64, change func(*record) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[incarnation].clone()
	if err := change(&r); err != nil {
		return err
	}
	return m.write(r)
}

// write makes a record durable and shows it; m.mu is held.
func (m *machine) write(r record) error {
	sync := outlives(m.records[r.Ref.Incarnation], r, m.agent.capabilities.SurvivesHost)
	if err := m.agent.store.save(r, sync); err != nil {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage,
			"the record of %s/%d could not be written", r.Ref.Instance, r.Ref.Incarnation).On(string(m.id)).Because(err)
	}
	m.records[r.Ref.Incarnation] = r
	m.endCopies()
	m.broadcast()
	return nil
}

// inTurn does something with the runtime's instance while nobody else does, or
// returns why ctx ended before.
func (m *machine) inTurn(ctx context.Context, do func() error) error {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.turn }()
	return do()
}

// attached is a copy of an incarnation that is being made.
type attached struct {
	incarnation int64
	end         context.CancelCauseFunc
}

// attach lets end be called when the incarnation ends, or has.
func (m *machine) attach(ref holdfast.InstanceRef, end context.CancelCauseFunc) (detach func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := &attached{ref.Incarnation, end}
	m.copies[one] = true
	m.endCopies()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.copies, one)
	}
}

// endCopies ends the copies of what has ended or is ending; m.mu is held.
func (m *machine) endCopies() {
	for one := range m.copies {
		r, known := m.records[one.incarnation]
		if of := (subject{record: r, known: known, newest: m.newest()}); of.ended() != nil {
			one.end(errInstanceEnds)
		}
	}
}

// begin makes sure that an attempt runs and looks at what is recorded now; m.mu
// is held. It returns nil when the agent is closing.
func (m *machine) begin(asked bool) *attempt {
	m.version++
	if at := m.attempt; at != nil {
		at.asked = at.asked || asked
		return at
	}
	if !m.agent.enter() {
		return nil
	}
	at := &attempt{done: make(chan struct{}), asked: asked, redirect: func(error) {}}
	m.attempt = at
	m.trouble = ""
	go m.run(at)
	return at
}

// observe looks at the instance without being asked (contract: C6).
func (m *machine) observe() *attempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.begin(false)
}

// observation is what is told of the current incarnation; m.mu is held.
func (m *machine) observation() (holdfast.Observation, bool) {
	n := m.newest()
	if n == 0 {
		return holdfast.Observation{}, false
	}
	r := m.records[n]
	o := m.agent.observed(r)
	o.Stale = !r.final() && !m.verified[n]
	if o.State == holdfast.InstancePreparing {
		o.Progress, o.Stale = m.progress, false
	}
	if m.trouble != "" && !r.final() {
		o.Progress = m.trouble
	}
	return o, true
}

// observed is what a record says.
func (a *Agent) observed(r record) holdfast.Observation {
	o := holdfast.Observation{
		Instance: r.Ref.Instance, Incarnation: r.Ref.Incarnation, Generation: r.Generation,
		State: r.state(), Desired: r.Desired, Failure: r.Failure, Ports: r.Ports, Address: r.Address,
		Host: a.who.ID, HostURL: a.config.URL, BootID: a.bootID, Life: a.lifeID, At: a.config.Clock(),
	}
	if r.Spec != nil {
		o.Owner = r.Spec.Owner
	}
	return o
}

// run converges until what is recorded is reached, something fails, or the
// agent closes; then it lets go in the same instant in which it saw that
// nothing new is wanted.
func (m *machine) run(at *attempt) {
	stack.Grow(0)
	defer m.agent.leave()
	for steps := 0; ; steps++ {
		ctx, cancel := context.WithCancelCause(m.agent.life)
		view := m.aim(at, cancel)
		var done bool
		err := m.inTurn(ctx, func() (err error) {
			done, err = m.safely(ctx, view)
			return err
		})
		redirected := errors.Is(context.Cause(ctx), errRedirected)
		cancel(nil)
		switch {
		case redirected && m.agent.life.Err() == nil:
			steps = 0
			continue
		case err == nil && !done && steps < maxSteps:
			continue
		case err == nil && !done:
			err = fmt.Errorf("the runtime's word and its deeds differ: no end after %d steps", maxSteps)
		}
		if m.finish(at, view, err) {
			return
		}
		steps = 0
	}
}

// maxSteps bounds an attempt that nothing redirects.
const maxSteps = 8

// view is what one step of an attempt goes by.
type view struct {
	version  int64
	target   int64
	asked    bool
	current  record
	has      bool     // whether there is a current incarnation
	others   []record // older incarnations and orphans that are not ABSENT
	leftover []record
}

func (m *machine) aim(at *attempt, redirect context.CancelCauseFunc) view {
	m.mu.Lock()
	defer m.mu.Unlock()
	at.redirect = redirect
	v := view{version: m.version, target: m.target, asked: at.asked}
	n := m.newest()
	for i, r := range m.records {
		switch {
		case m.leftover[i] && r.final():
			v.leftover = append(v.leftover, r)
		case i == n:
		case r.State != holdfast.InstanceAbsent:
			v.others = append(v.others, r)
		}
	}
	v.current, v.has = m.records[n]
	return v
}

// finish ends the attempt unless something new came since the view was taken.
func (m *machine) finish(at *attempt, v view, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	untried := m.target != v.target || at.asked && !v.asked // what was asked for since was not tried
	if m.agent.life.Err() == nil && (untried || err == nil && m.version != v.version) {
		return false
	}
	if err != nil {
		at.err = m.agent.unavailable(m.id, err)
		m.trouble = at.err.Error()
		m.agent.log.Warn("the instance did not converge", "instance", m.id, "asked", v.asked, "error", at.err)
	}
	m.attempt = nil
	m.broadcast()
	close(at.done)
	return true
}
