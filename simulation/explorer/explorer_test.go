package explorer

import (
	"errors"
	"strings"
	"testing"
)

// jugs is the riddle of the two jugs, of three and of five litres.
type jugs struct{ three, five int8 }

func pour(s jugs, to *Steps[jugs]) {
	to.Fair("fill 3", jugs{3, s.five})
	to.Fair("fill 5", jugs{s.three, 5})
	to.Fair("empty 3", jugs{0, s.five})
	to.Fair("empty 5", jugs{s.three, 0})
	n := min(s.three, 5-s.five)
	to.Fair("3 into 5", jugs{s.three - n, s.five + n})
	n = min(s.five, 3-s.three)
	to.Fair("5 into 3", jugs{s.three + n, s.five - n})
}

func TestEveryStateIsVisitedAndTheWayToABrokenRuleIsAShortestOne(t *testing.T) {
	got, err := Explore(Model[jugs]{Name: "jugs", Init: []jugs{{}}, Next: pour})
	if err != nil || got.States != 16 {
		t.Fatalf("%+v, %v; the jugs have 16 reachable states", got, err)
	}
	four := errors.New("four litres")
	_, err = Explore(Model[jugs]{Name: "jugs", Init: []jugs{{}}, Next: pour, State: func(s jugs) error {
		if s.five == 4 {
			return four
		}
		return nil
	}})
	var v *Violation
	if !errors.As(err, &v) || !errors.Is(err, four) {
		t.Fatalf("%v, want the violation", err)
	}
	if len(v.Trace) != 7 { // the riddle's answer has six steps
		t.Errorf("a way of %d lines, want 7: %v", len(v.Trace), err)
	}
	if !strings.HasSuffix(v.Trace[6], "{3 4}") || !strings.HasPrefix(v.Trace[6], "5 into 3") {
		t.Errorf("the last line is %q", v.Trace[6])
	}
}

func TestAStateThatOnlyAFaultLeadsOutOfIsStuck(t *testing.T) {
	next := func(s int, to *Steps[int]) {
		switch s {
		case 0:
			to.Fair("work", 1)
			to.Fault("stumble", 2)
		case 2:
			to.Fair("turn", 3)
			to.Fault("be lucky", 0)
		case 3:
			to.Fair("turn back", 2)
		}
	}
	m := Model[int]{Name: "stumbling", Init: []int{0}, Next: next, Rest: func(s int) bool { return s == 1 }}
	_, err := Explore(m)
	if err == nil || !strings.Contains(err.Error(), "stumble -> 2") {
		t.Fatalf("%v, want the state that is stuck", err)
	}
	m.Next = func(s int, to *Steps[int]) {
		next(s, to)
		if s == 3 {
			to.Cut()
		}
	}
	if got, err := Explore(m); err != nil || got.Cut != 1 || got.Resting != 1 || got.States != 4 {
		t.Errorf("%+v, %v; what leads beyond the bounds is not asked to rest", got, err)
	}
}

func TestAModelThatIsLargerThanItMayBeIsAnError(t *testing.T) {
	_, err := Explore(Model[int]{Name: "counting", Init: []int{0}, Most: 1000, Next: func(s int, to *Steps[int]) { to.Fair("count", s+1) }})
	var v *Violation
	if err == nil || errors.As(err, &v) || !strings.Contains(err.Error(), "1000 states") {
		t.Errorf("%v, want an error that is no violation", err)
	}
}

func TestAStepsOwnRuleAndABrokenStepAreSeen(t *testing.T) {
	falls := errors.New("it never falls")
	m := Model[int]{Name: "rising", Init: []int{0}, Next: func(s int, to *Steps[int]) {
		if s < 3 {
			to.Fair("rise", s+1)
		} else {
			to.Fair("fall", 0)
		}
	}, Step: func(from, to int) error {
		if to < from {
			return falls
		}
		return nil
	}}
	if _, err := Explore(m); !errors.Is(err, falls) || !strings.Contains(err.Error(), "fall -> 0") {
		t.Errorf("%v, want the step's rule", err)
	}
	odd := errors.New("odd")
	m = Model[int]{Name: "broken", Init: []int{0}, Next: func(_ int, to *Steps[int]) { to.Broken("decide", odd) }}
	if _, err := Explore(m); !errors.Is(err, odd) || !strings.Contains(err.Error(), "decide") {
		t.Errorf("%v, want what the step said", err)
	}
}
