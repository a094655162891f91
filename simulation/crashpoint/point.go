package crashpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/simulation"
	"github.com/holdfast-dev/holdfast/simulation/step"
)

// Point is a place where a party can die: before or after one of its steps.
type Point struct {
	Party  string
	Number int // the party's steps until this one, over all its lives
	After  bool
	Kind   step.Kind
	Name   string
	// Machine says that the host's machine dies with its agent, as when its power is cut.
	Machine bool
}

// String is the point as a failure shows it; Parse reads the part before the blank.
func (p Point) String() string {
	return fmt.Sprintf("%s (%s %s)", p.place(), p.Kind, p.Name)
}

func (p Point) place() string {
	when := "-"
	if p.After {
		when = "+"
	}
	party := p.Party
	if p.Machine {
		party += "!"
	}
	return fmt.Sprintf("%s%s%d", party, when, p.Number)
}

// Parse reads a point's place: a party, "-" for before or "+" for after, and the
// step's number; an "!" behind the party is its machine's power.
func Parse(text string) (Point, error) {
	i := strings.LastIndexAny(text, "-+")
	if i < 0 {
		return Point{}, fmt.Errorf("%q names no step", text)
	}
	p := Point{Party: text[:i], After: text[i] == '+'}
	p.Party, p.Machine = strings.CutSuffix(p.Party, "!")
	if _, err := fmt.Sscan(text[i+1:], &p.Number); err != nil {
		return Point{}, fmt.Errorf("%q names no step: %w", text, err)
	}
	return p, nil
}

// recorder is the hook that notes the steps of servers.
type recorder struct {
	mu    sync.Mutex
	on    bool
	steps []step.Step
}

// hook notes what is about to happen; it never holds anything.
func (r *recorder) hook() step.Hook {
	return step.Hooks{OnBefore: func(_ context.Context, s *step.Step) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.on && counts(s) {
			r.steps = append(r.steps, *s)
		}
		return nil
	}}
}

func (r *recorder) switchOn(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on = on
}

// count is how many steps were noted until now.
func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.steps)
}

// counts reports whether a step is one to die at. What only reads changes nothing,
// what arrives is the sender's hop, and heartbeats and purges are no part of a verb.
func counts(s *step.Step) bool {
	switch {
	case s.Kind == step.View || s.Kind == step.Serve, strings.HasPrefix(s.Party, "client-"), strings.HasPrefix(s.Party, "guest-"):
		return false
	case s.Kind == step.Call:
		return !slices.Contains([]string{"Inspect", "List", "Wait", "DialGuest", "Close"}, s.Name)
	}
	return !slices.ContainsFunc([]string{"heartbeat", "fleet.recordBeat", "urge", "/list"}, func(part string) bool { return strings.Contains(s.Name, part) })
}

// points are the places to die at among steps: before each, and after each.
func points(steps []step.Step) []Point {
	var out []Point
	for _, s := range steps {
		p := Point{Party: s.Party, Number: s.Number, Kind: s.Kind, Name: s.Name}
		out = append(out, p)
		p.After = true
		out = append(out, p)
	}
	return out
}

// powerPoints are those at which a host's machine can die.
func powerPoints(all []Point) []Point {
	var out []Point
	for _, p := range all {
		if strings.HasPrefix(p.Party, "host-") {
			p.Machine = true
			out = append(out, p)
		}
	}
	return out
}

// die carries a point's death out, and lets the party come back.
func die(ctx context.Context, w *simulation.World, p Point, back *sync.WaitGroup) {
	party := w.Party(p.Party)
	if !p.Machine {
		party.Bounce(downFor)
		return
	}
	party.Crash()
	for _, h := range w.Hosts {
		if h.Party != party {
			continue
		}
		back.Go(func() {
			if err := h.Lose(ctx); err != nil {
				w.Trace.Note(h.Name, "the machine did not end: %v", err)
			}
			pass(ctx, downFor)
			if err := h.Start(ctx); err != nil {
				w.Trace.Note(h.Name, "does not come back: %v", err)
			}
		})
	}
}

// downFor is how long a party that died is away.
const downFor = time.Second
