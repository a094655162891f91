package interleaving

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// actorKey is where a context has the actor on whose behalf it is.
type actorKey struct{}

// as makes a context an actor's: whatever is done with it, and with what comes of it, is that actor's.
func as(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// scheduler holds every step until it is let go. It lives in one bubble.
type scheduler struct {
	mu      sync.Mutex
	open    bool   // nothing is held: the world is set up, or comes to rest
	but     string // one actor that is held even so
	serial  string // actors of that prefix take their steps one after the other, by name, as if they were one
	waiting []*gate
	trace   []string
}

type gate struct {
	label string
	pass  chan struct{}
	takes time.Duration // so much time passes while everyone else is held
}

// step waits to be let go.
func (s *scheduler) step(ctx context.Context, what string) { s.stepFor(ctx, what, 0) }

// stepFor is a step that takes its time: claims run out under those who are held.
func (s *scheduler) stepFor(ctx context.Context, what string, takes time.Duration) {
	actor, _ := ctx.Value(actorKey{}).(string)
	s.mu.Lock()
	if s.open && (s.but == "" || s.but != actor) {
		s.mu.Unlock()
		return
	}
	g := &gate{label: strings.TrimSpace(cmp.Or(actor, "background") + ": " + what), pass: make(chan struct{}), takes: takes}
	s.waiting = append(s.waiting, g)
	s.mu.Unlock()
	<-g.pass
}

// held are the steps that wait, sorted by what they are.
func (s *scheduler) held() []*gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.waiting)
	slices.SortStableFunc(list, func(a, b *gate) int { return cmp.Compare(a.label, b.label) })
	return list
}

// offered are those of them that may come next.
func (s *scheduler) offered() []*gate {
	held := s.held()
	if s.serial == "" {
		return held
	}
	var out []*gate
	seen := false
	for _, g := range held {
		if strings.HasPrefix(g.label, s.serial) {
			if seen {
				continue
			}
			seen = true
		}
		out = append(out, g)
	}
	return out
}

func (s *scheduler) let(g *gate) {
	s.mu.Lock()
	s.waiting = slices.DeleteFunc(s.waiting, func(one *gate) bool { return one == g })
	s.trace = append(s.trace, g.label)
	s.mu.Unlock()
	if g.takes > 0 {
		time.Sleep(g.takes)
	}
	close(g.pass)
}

// opened lets everything go from now on, or holds it.
func (s *scheduler) opened(open bool) {
	s.mu.Lock()
	s.open, s.but = open, ""
	waiting := s.waiting
	if open {
		s.waiting = nil
	}
	s.mu.Unlock()
	if open {
		for _, g := range waiting {
			close(g.pass)
		}
	}
}

// isOpen reports whether nothing is held.
func (s *scheduler) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// pass lets so much time pass in the bubble.
func pass(d time.Duration) { time.Sleep(d) }

// openedBut lets everyone go but one actor.
func (s *scheduler) openedBut(actor string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.but = true, actor
}

// heldAt lets steps go until one is held.
func (w *world) heldAt(label string) error {
	for range maxSteps {
		synctest.Wait()
		for _, g := range w.sched.held() {
			if g.label == label {
				return nil
			}
		}
		if held := w.sched.held(); len(held) > 0 {
			w.sched.let(held[0])
		} else {
			time.Sleep(tick)
		}
	}
	return fmt.Errorf("nobody came to %q", label)
}

// Bounds of one order.
const (
	maxSteps = 200
	tick     = 10 * time.Millisecond // that passes where everyone waits for time to
	maxTicks = 1000
)

// run starts the actors and lets one step after the other go, as pick says, until
// all have returned and nobody in the background is at it.
func (s *scheduler) run(pick func(options []string) int, actors []func()) error {
	var ended sync.WaitGroup
	done := make(chan struct{})
	for _, act := range actors {
		ended.Go(act)
	}
	go func() { ended.Wait(); close(done) }()
	for steps, ticks := 0, 0; ; {
		synctest.Wait()
		held := s.offered()
		if len(held) == 0 {
			select {
			case <-done:
				return nil
			default:
			}
			if ticks++; ticks > maxTicks {
				return fmt.Errorf("an actor neither takes a step nor returns: %s", strings.Join(s.trace, " | "))
			}
			time.Sleep(tick)
			continue
		}
		if steps++; steps > maxSteps {
			return fmt.Errorf("more than %d steps: %s", maxSteps, strings.Join(s.trace, " | "))
		}
		labels := make([]string, len(held))
		for i, g := range held {
			labels[i] = g.label
		}
		s.let(held[pick(labels)])
	}
}

// orders drives one scenario through every order, depth first: it is run again from
// the beginning for each, along the choices made before and then along new ones.
type orders struct {
	choices []int // of the order in progress
	widths  []int // how many options each of them had
	at      int
	names   []string // of the options at each choice, to see that a repeat is one
	changed error    // why it is not
}

// pick is a scheduler's choice.
func (o *orders) pick(options []string) int {
	name := strings.Join(options, " / ")
	if o.at < len(o.choices) {
		if o.names[o.at] != name && o.changed == nil {
			o.changed = fmt.Errorf("the same order led elsewhere: at choice %d there were [%s], and now [%s]", o.at, o.names[o.at], name)
		}
		if o.choices[o.at] >= len(options) {
			if o.changed == nil {
				o.changed = fmt.Errorf("the same order led elsewhere: at choice %d there are only [%s]", o.at, name)
			}
			return 0
		}
	} else {
		o.choices, o.widths, o.names = append(o.choices, 0), append(o.widths, len(options)), append(o.names, name)
	}
	o.at++
	return o.choices[o.at-1]
}

// next turns to the next order; false when there is none left.
func (o *orders) next() bool {
	o.at = 0
	for i := len(o.choices) - 1; i >= 0; i-- {
		if o.choices[i]+1 < o.widths[i] {
			o.choices, o.widths, o.names = o.choices[:i+1], o.widths[:i+1], o.names[:i+1]
			o.choices[i]++
			return true
		}
	}
	return false
}
