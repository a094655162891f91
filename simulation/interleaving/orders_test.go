package interleaving

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// The scheduler goes through every order once: as many as there are ways to merge
// the actors' steps.
func TestEveryOrderIsRunOnce(t *testing.T) {
	for _, tc := range []struct{ actors, steps, orders int }{{1, 5, 1}, {2, 3, 20}, {2, 4, 70}, {3, 2, 90}} {
		var o orders
		seen := map[string]bool{}
		for {
			var trace []string
			synctest.Test(t, func(t *testing.T) { trace = merged(t, tc.actors, tc.steps, &o) })
			if o.changed != nil {
				t.Fatal(o.changed)
			}
			order := strings.Join(trace, " ")
			if seen[order] {
				t.Errorf("twice: %s", order)
			}
			seen[order] = true
			if !o.next() {
				break
			}
		}
		if len(seen) != tc.orders {
			t.Errorf("%d actors of %d steps: %d orders, want %d", tc.actors, tc.steps, len(seen), tc.orders)
		}
	}
}

// merged is one order of actors that take so many steps each.
func merged(t *testing.T, actors, steps int, o *orders) []string {
	s := &scheduler{}
	var acts []func()
	for a := range actors {
		acts = append(acts, func() {
			for range steps {
				s.step(as(context.Background(), fmt.Sprint(a)), "")
			}
		})
	}
	if err := s.run(o.pick, acts); err != nil {
		t.Error(err)
	}
	return s.trace
}

// A race that does not go the same way twice shows nothing, and says so.
func TestAnOrderThatLeadsElsewhereIsNoticed(t *testing.T) {
	var o orders
	o.pick([]string{"a", "b"})
	if !o.next() {
		t.Fatal("there is another order")
	}
	o.pick([]string{"a", "c"})
	if o.changed == nil || !strings.Contains(o.changed.Error(), "led elsewhere") {
		t.Errorf("%v", o.changed)
	}
}
