// Package explorer walks every state that a small system can reach, breadth
// first, so that the first thing that breaks a rule is found by a shortest way.
//
// A model is a comparable state and a function that names every step out of it.
// The package knows nothing of what is modelled: the models are beside the
// decisions that they drive (files named *_model_test.go), because those are
// unexported. It holds three kinds of rules: of each state, of each step, and
// that rest is never out of reach once faults end.
package explorer

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Model is what is explored. Its functions must be pure, and name the steps out
// of a state in the same order whenever they are asked.
type Model[S comparable] struct {
	Name  string
	Init  []S
	Next  func(s S, to *Steps[S])
	State func(S) error          // what holds in every state; nil: nothing
	Step  func(from, to S) error // what holds of every step; nil: nothing
	// Rest says that nothing is under way and what is recorded is so. From every
	// state it must be within reach by fair steps alone. nil: that is not asked.
	Rest func(S) bool
	// Most is how many states the model may have; more are an error, since one that
	// is not explored to its end shows nothing.
	Most int
}

// Steps collects the steps out of one state.
type Steps[S comparable] struct {
	list []step[S]
	cut  bool
}

type step[S comparable] struct {
	name   string
	next   S
	fault  bool
	broken error
}

// Fair adds a step that happens by itself sooner or later.
func (s *Steps[S]) Fair(name string, next S) {
	s.list = append(s.list, step[S]{name: name, next: next})
}

// Fault adds a step that may happen and need not: a loss, a crash, a late message, a new call.
func (s *Steps[S]) Fault(name string, next S) {
	s.list = append(s.list, step[S]{name: name, next: next, fault: true})
}

// Broken says that a step led to what no rule allows.
func (s *Steps[S]) Broken(name string, err error) {
	s.list = append(s.list, step[S]{name: name, broken: err})
}

// Cut says that a step is left out, because it leads beyond the model's bounds. Of
// such a state, and of what leads only there, it is not asked whether rest is within reach.
func (s *Steps[S]) Cut() { s.cut = true }

// Result counts what was explored.
type Result struct {
	States int // distinct
	Steps  int // between them
	Depth  int // of the longest shortest way
	Resting,
	Cut int // states at rest; states with a step beyond the bounds
}

// Violation is a broken rule, with a shortest way to it.
type Violation struct {
	Model string
	Rule  error
	Trace []string // each step and the state that it led to
}

// Error is the rule and the way to it, a line for each step.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s: %v\n  %s", v.Model, v.Rule, strings.Join(v.Trace, "\n  "))
}

// Unwrap is the rule.
func (v *Violation) Unwrap() error { return v.Rule }

// Explore visits every reachable state. It returns a *Violation for the first rule
// that is broken, and another error for a model with more states than it may have.
func Explore[S comparable](m Model[S]) (Result, error) {
	w := walk[S]{model: m, table: make([]int32, 1<<12), seed: maphash.MakeSeed()}
	for _, s := range m.Init {
		if _, err := w.visit(s, -1, 0); err != nil {
			return w.result, err
		}
	}
	var to Steps[S]
	for at := 0; at < len(w.states); at++ {
		to.list, to.cut = to.list[:0], false
		m.Next(w.states[at], &to)
		if err := w.expand(int32(at), &to); err != nil {
			return w.result, err
		}
	}
	w.result.States = len(w.states)
	if m.Rest == nil {
		return w.result, nil
	}
	return w.result, w.unsettled()
}

// walk is an exploration in progress.
type walk[S comparable] struct {
	model  Model[S]
	states []S
	parent []int32 // -1: an initial one
	by     []uint16
	depth  []uint16
	cut    []int32
	fair   [2][]int32 // from, to

	table  []int32 // open addressing: index into states + 1
	seed   maphash.Seed
	result Result
}

func (w *walk[S]) expand(at int32, to *Steps[S]) error {
	if to.cut {
		w.cut = append(w.cut, at)
		w.result.Cut++
	}
	for i, s := range to.list {
		if s.broken != nil {
			return w.violation(s.broken, at, s.name)
		}
		w.result.Steps++
		if w.model.Step != nil {
			if err := w.model.Step(w.states[at], s.next); err != nil {
				return w.violation(err, at, fmt.Sprintf("%s -> %v", s.name, s.next))
			}
		}
		next, err := w.visit(s.next, at, uint16(i))
		if err != nil {
			return err
		}
		if !s.fault && next != at {
			w.fair[0], w.fair[1] = append(w.fair[0], at), append(w.fair[1], next)
		}
	}
	return nil
}

// visit returns a state's index, and looks at it when it is new.
func (w *walk[S]) visit(s S, from int32, by uint16) (int32, error) {
	slot := w.slot(s)
	if i := w.table[slot]; i != 0 {
		return i - 1, nil
	}
	at := int32(len(w.states))
	w.states, w.parent, w.by = append(w.states, s), append(w.parent, from), append(w.by, by)
	var depth uint16
	if from >= 0 {
		depth = w.depth[from] + 1
	}
	w.depth = append(w.depth, depth)
	w.result.States, w.result.Depth = len(w.states), max(w.result.Depth, int(depth))
	w.table[slot] = at + 1
	if len(w.states)*2 > len(w.table) {
		w.grow()
	}
	if w.model.Most > 0 && len(w.states) > w.model.Most {
		return at, fmt.Errorf("%s: more than %d states: it is not explored to its end", w.model.Name, w.model.Most)
	}
	if w.model.State != nil {
		if err := w.model.State(s); err != nil {
			return at, w.violation(err, at, "")
		}
	}
	return at, nil
}

func (w *walk[S]) slot(s S) int {
	mask := len(w.table) - 1
	at := int(maphash.Comparable(w.seed, s)) & mask
	for ; w.table[at] != 0 && w.states[w.table[at]-1] != s; at = (at + 1) & mask {
	}
	return at
}

func (w *walk[S]) grow() {
	w.table = make([]int32, 2*len(w.table))
	for i, s := range w.states {
		w.table[w.slot(s)] = int32(i) + 1
	}
}

// unsettled looks for a state from which rest is out of reach by fair steps.
func (w *walk[S]) unsettled() error {
	into := make([]int32, len(w.states)+1) // of each state's fair steps in, where they begin
	for _, to := range w.fair[1] {
		into[to+1]++
	}
	for i := range w.states {
		into[i+1] += into[i]
	}
	source, filled := make([]int32, len(w.fair[0])), make([]int32, len(w.states))
	for i, to := range w.fair[1] {
		source[into[to]+filled[to]] = w.fair[0][i]
		filled[to]++
	}
	settles, queue := make([]bool, len(w.states)), make([]int32, 0, len(w.states))
	reach := func(i int32) {
		if !settles[i] {
			settles[i] = true
			queue = append(queue, i)
		}
	}
	for i, s := range w.states {
		if w.model.Rest(s) {
			w.result.Resting++
			reach(int32(i))
		}
	}
	for _, i := range w.cut {
		reach(i)
	}
	for at := 0; at < len(queue); at++ {
		for _, from := range source[into[queue[at]]:into[queue[at]+1]] {
			reach(from)
		}
	}
	for i, ok := range settles {
		if !ok {
			return w.violation(fmt.Errorf("rest is out of reach from here, though nothing fails any more"), int32(i), "")
		}
	}
	return nil
}

// violation is the way to a state, and a step beyond it that has no state.
func (w *walk[S]) violation(rule error, at int32, beyond string) error {
	var trace []string
	if beyond != "" {
		trace = append(trace, beyond)
	}
	for ; at >= 0; at = w.parent[at] {
		name := "begin"
		if from := w.parent[at]; from >= 0 {
			var to Steps[S]
			w.model.Next(w.states[from], &to)
			name = to.list[w.by[at]].name
		}
		trace = append(trace, fmt.Sprintf("%s -> %v", name, w.states[at]))
	}
	for i, j := 0, len(trace)-1; i < j; i, j = i+1, j-1 {
		trace[i], trace[j] = trace[j], trace[i]
	}
	return &Violation{Model: w.model.Name, Rule: rule, Trace: trace}
}
