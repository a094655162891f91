package simulation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/simulation/step"
)

// errDead is what a dead party's steps fail with: it changes nothing any more.
var errDead = errors.New("simulation: the party has died")

// Party is a process of the system: an orchestrator, a fleet, a host agent, a
// client. It is started, crashed, paused and stopped; its lives follow each other
// and never overlap.
type Party struct {
	Name  string
	world *World
	run   func(ctx context.Context, l *life) error // builds a life and serves it
	skew  time.Duration                            // of its clock before the world's

	mu     sync.Mutex
	life   *life             // nil before the first start
	wanted bool              // to be up: what fails to start is tried again
	paused chan struct{}     // closed when it goes on; nil: it is not paused
	counts map[likeness]int  // steps that were alike
	number int               // steps taken
	kinds  map[step.Kind]int // of those
	plans  map[place]func(s *step.Step)
}

// likeness is what steps that are alike have in common.
type likeness struct {
	kind             step.Kind
	name, key, actor string
}

// place is before or after a party's step of a number, of all its steps or of a kind.
type place struct {
	kind   step.Kind // "": of all
	number int
	after  bool
}

// life is one run of a party's process.
type life struct {
	party  *Party
	number int
	ctx    context.Context // ends with it
	end    context.CancelFunc
	loops  sync.WaitGroup
	closed chan struct{} // everything of it has ended

	finishing sync.Once

	mu      sync.Mutex
	dead    bool
	names   []string // at which the network finds it
	closers []func() error
}

// Up reports whether the party runs.
func (p *Party) Up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life != nil && !p.life.isDead()
}

// Clock is what the party takes for the time.
func (p *Party) Clock() time.Time { return time.Now().Add(p.skew) }

// restartAfter is how soon a supervisor tries again what failed to start.
const restartAfter = 3 * time.Second

// Start starts the party and returns once it serves. What fails to start is tried
// again until it succeeds, ctx ends, or somebody stops it.
func (p *Party) Start(ctx context.Context) error {
	p.mu.Lock()
	p.wanted = true
	p.mu.Unlock()
	for {
		err := p.startOnce(ctx)
		if err == nil {
			return nil
		}
		p.world.Trace.Note(p.Name, "did not start")
		select {
		case <-time.After(restartAfter):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
		p.mu.Lock()
		wanted := p.wanted
		p.mu.Unlock()
		if !wanted {
			return err
		}
	}
}

func (p *Party) startOnce(ctx context.Context) error {
	p.mu.Lock()
	before := p.life
	p.mu.Unlock()
	number := 1
	if before != nil {
		if !before.isDead() {
			return nil
		}
		<-before.closed
		number = before.number + 1
	}
	l := &life{party: p, number: number, closed: make(chan struct{})}
	l.ctx, l.end = context.WithCancel(context.Background())
	p.mu.Lock()
	p.life = l
	p.mu.Unlock()
	p.world.Trace.Note(p.Name, "starts, life %d", number)
	starting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	err := p.run(starting, l)
	if err == nil && l.isDead() {
		err = errDead
	}
	if err != nil {
		l.die()
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	return nil
}

// Crash ends the party as SIGKILL does: from here on nothing of it changes anything.
func (p *Party) Crash() {
	p.mu.Lock()
	l := p.life
	p.wanted = false
	p.mu.Unlock()
	if l != nil && l.die() {
		p.world.Trace.Note(p.Name, "crashes, life %d", l.number)
		p.world.count("crash")
	}
}

// Bounce crashes the party and starts it again after a while; it does not wait.
func (p *Party) Bounce(after time.Duration) {
	p.Crash()
	p.world.later.Go(func() {
		wait(p.world.ctx, after)
		// A start that fails for good is one that the world's end has stopped.
		_ = p.Start(p.world.ctx)
	})
}

// Stop ends the party in order.
func (p *Party) Stop() {
	p.mu.Lock()
	l := p.life
	p.wanted = false
	p.mu.Unlock()
	if l == nil || l.isDead() {
		return
	}
	p.world.Trace.Note(p.Name, "stops, life %d", l.number)
	l.close()
}

// Pause makes the party stand still, as SIGSTOP does: its steps wait, what reaches
// it waits, and time goes on.
func (p *Party) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil {
		p.paused = make(chan struct{})
		p.world.Trace.Note(p.Name, "is paused")
		p.world.count("pause")
	}
}

// Resume lets a paused party go on.
func (p *Party) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
		p.world.Trace.Note(p.Name, "goes on")
	}
}

// At makes something happen before or after the party's step of that number,
// counted over all its lives: a crash, mostly. It must not wait.
func (p *Party) At(number int, after bool, do func(s *step.Step)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans[place{"", number, after}] = do
}

// AtKind is At for the steps of one kind.
func (p *Party) AtKind(kind step.Kind, number int, after bool, do func(s *step.Step)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans[place{kind, number, after}] = do
}

// forget takes back everything that was to happen at a step.
func (p *Party) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.plans)
}

// Steps is how many steps the party has taken.
func (p *Party) Steps() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.number
}

// Taken is how many steps of a kind the party has taken.
func (p *Party) Taken(kind step.Kind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kinds[kind]
}

// passes holds a step while the party is paused. What stood still goes on one after
// the other, each at an instant of its own.
func (p *Party) passes(s *step.Step, when string) {
	for {
		p.mu.Lock()
		paused := p.paused
		p.mu.Unlock()
		if paused == nil {
			return
		}
		<-paused
		wait(context.Background(), between(hash(p.world.config.Seed, "goes on", when, p.Name, string(s.Kind), s.Name, s.Key, s.Actor, strconv.Itoa(s.N)),
			time.Microsecond, 500*time.Microsecond))
	}
}

// alike counts a step among those of its kind, name and key.
func (p *Party) alike(s *step.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := likeness{s.Kind, s.Name, s.Key, s.Actor}
	p.counts[key]++
	s.N = p.counts[key]
}

// unlike takes back what alike counted.
func (p *Party) unlike(s *step.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[likeness{s.Kind, s.Name, s.Key, s.Actor}]--
}

// take gives a step its number, and what is planned for it.
func (p *Party) take(s *step.Step) func(*step.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	p.kinds[s.Kind]++
	s.Number, s.OfKind = p.number, p.kinds[s.Kind]
	return p.planned(s, false)
}

// after is what is planned for when a step has happened.
func (p *Party) after(s *step.Step) func(*step.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planned(s, true)
}

// planned finds what is to happen at a step; p.mu is held.
func (p *Party) planned(s *step.Step, after bool) func(*step.Step) {
	if plan := p.plans[place{"", s.Number, after}]; plan != nil {
		return plan
	}
	return p.plans[place{s.Kind, s.OfKind, after}]
}

func (l *life) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// die ends a life at once. It may be called from within any of its steps, so it
// waits for nothing. It reports whether there was a life to end.
func (l *life) die() bool {
	l.mu.Lock()
	was := l.dead
	l.dead = true
	l.mu.Unlock()
	if was {
		return false
	}
	l.party.Resume()
	l.finish()
	return true
}

// close ends a life in order: its steps count until it is through.
func (l *life) close() {
	l.finish()
	<-l.closed
	// What was served until now ends in this instant; the process, after it.
	p := l.party
	wait(p.world.ctx, between(hash(p.world.config.Seed, "closed", p.Name, strconv.Itoa(l.number)), time.Microsecond, 200*time.Microsecond))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

func (l *life) finish() { l.finishing.Do(l.shut) }

func (l *life) shut() {
	l.mu.Lock()
	names, closers := l.names, l.closers
	l.names, l.closers = nil, nil
	l.mu.Unlock()
	for _, name := range names {
		l.party.world.network.Remove(name)
	}
	l.end()
	go func() {
		defer close(l.closed)
		for i := len(closers) - 1; i >= 0; i-- {
			// What a dying process cannot close is its machine's to clean up.
			_ = closers[i]()
		}
		l.loops.Wait()
	}()
}

// serve makes the life answer at a name.
func (l *life) serve(name string, h http.Handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return
	}
	l.names = append(l.names, name)
	l.party.world.network.Handle(name, step.Handler(l.party.Name, l, h))
}

func (l *life) onClose(close func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, close)
}

// Before implements step.Hook.
func (l *life) Before(ctx context.Context, s *step.Step) error {
	p := l.party
	if l.isDead() {
		return errDead
	}
	if err := ctx.Err(); err != nil && s.Kind != step.Serve { // a handler runs, whether its client is still there or not
		return over(err)
	}
	p.alike(s)
	if s.Kind != step.Record {
		if !p.world.take(ctx, s, "before") {
			p.unlike(s)
			return over(ctx.Err())
		}
		p.passes(s, "before")
	}
	if l.isDead() {
		return errDead
	}
	if plan := p.take(s); plan != nil {
		plan(s)
		if l.isDead() {
			p.world.Trace.step(s, "never happens")
			return errDead
		}
	}
	if hook := p.world.config.Hook; hook != nil {
		if err := hook.Before(ctx, s); err != nil {
			p.world.Trace.step(s, "never happens: "+outcome(err))
			return err
		}
	}
	if l.isDead() {
		return errDead
	}
	return nil
}

// over is what a step fails with whose context had ended before it began, or in the
// very instant: it is no step. Whoever waits for that end and for something else, and
// has both, goes on with either, as chance will have it (select does), so that nothing
// may come of the difference.
func over(err error) error { return fmt.Errorf("simulation: not begun: %w", err) }

// After implements step.Hook.
func (l *life) After(ctx context.Context, s *step.Step, err error) error {
	p := l.party
	if s.Kind == step.Hop || s.Kind == step.Call || s.Kind == step.Blob {
		p.world.take(ctx, s, "after")
	}
	if s.Kind != step.Record {
		p.passes(s, "after")
	}
	if h := p.world.host(p.Name); h != nil && s.Kind == step.Record {
		p.world.records.written(h, s)
	}
	if plan := p.after(s); plan != nil && !l.isDead() {
		plan(s)
	}
	if hook := p.world.config.Hook; hook != nil {
		err = hook.After(ctx, s, err)
	}
	if l.isDead() {
		if s.Kind == step.Update || s.Kind == step.Record || s.Kind == step.Blob { // of the rest nobody can tell: much ends at once
			p.world.Trace.step(s, outcome(err)+", unheard")
		}
		return errDead
	}
	p.world.Trace.step(s, outcome(err))
	return err
}

// take lets a step take its time. One whose context ends meanwhile goes on a little
// later, at an instant of its own: a deadline ends much at once. It is false where no
// time had passed by then.
func (w *World) take(ctx context.Context, s *step.Step, when string) bool {
	began := time.Now()
	if wait(ctx, w.delay(s, when)) {
		return true
	}
	if time.Now().Equal(began) {
		return false
	}
	w.moment(s, "late "+when)
	return true
}

// moment lets something happen at an instant of its own, a little later, whatever
// else the present one has.
func (w *World) moment(s *step.Step, what string) {
	wait(context.Background(), between(hash(w.config.Seed, what, s.Party, string(s.Kind), s.Name, s.Key, s.Actor, strconv.Itoa(s.N)),
		time.Microsecond, 200*time.Microsecond))
}

// wait lets virtual time pass, no longer than ctx lasts: then it is false.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter spreads a party's loops by what they are, so that none draws from another.
func (p *Party) jitter(what string, n int) float64 {
	return fraction(hash(p.world.config.Seed, "jitter", p.Name, what, strconv.Itoa(n)))
}
