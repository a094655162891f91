package hostagent

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

const (
	hRun  = holdfast.DesiredRunning
	hSusp = holdfast.DesiredSuspended
	hEnd  = holdfast.DesiredExited
	hGone = holdfast.DesiredAbsent
)

// contract: C2, C6, D1; traps T26, T27, T36, T37, T39, T40, T49.
// Every state that a host's records, its runtime and its one attempt can reach
// keeps the rules, and rest is never out of reach once faults end.
func TestProveModel_AnIncarnationBootsOnceAtItsHostInEveryState(t *testing.T) {
	configs := []hConfig{
		{name: "suspend and resume", levels: []hLevel{{1, 1, hRun}, {1, 2, hSusp}, {1, 3, hRun}, {1, 4, hGone}}, ends: 2},
		{name: "replaced", levels: []hLevel{{1, 1, hRun}, {1, 2, hSusp}, {2, 3, hRun}, {2, 4, hSusp}, {2, 5, hGone}}, ends: 2},
		{name: "what survives its host", levels: []hLevel{{1, 1, hRun}, {1, 2, hSusp}, {1, 3, hRun}, {2, 4, hRun}, {2, 5, hSusp}, {2, 6, hGone}}, survives: true, ends: 2},
		{name: "ended, then removed", levels: []hLevel{{1, 1, hRun}, {1, 2, hEnd}, {2, 3, hRun}, {2, 4, hEnd}, {2, 5, hGone}}, ends: 1},
		{name: "back and forth", levels: []hLevel{{1, 1, hRun}, {1, 2, hSusp}, {1, 3, hRun}, {1, 4, hSusp}, {1, 5, hRun}, {2, 6, hRun}, {2, 7, hSusp}, {2, 8, hRun}, {2, 9, hGone}}, ends: 3, survives: true},
	}
	budget, whole := prove.Budget(t)
	if !whole {
		configs = configs[:prove.Slice(4, 1)]
	}
	began := time.Now()
	var states, broken int64
	for _, c := range configs {
		if whole && time.Since(began) > budget {
			t.Logf("no time is left for %q", c.name)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			got, err := c.explore()
			t.Logf("%d states, %d steps, %d deep, %d at rest", got.States, got.Steps, got.Depth, got.Resting)
			states += int64(got.States)
			if err != nil {
				broken++
				t.Error(err)
			}
		})
	}
	prove.Report(t, prove.Figure{Rung: 1, Name: "distinct model states: host agent", Value: states, Violations: broken})
}

// Each wrong decision is noticed, or the model would show nothing.
func TestModel_NoticesWrongDecisionsOfAHost(t *testing.T) {
	for _, flaw := range []hFlaw{hBootsAgain, hNoSync, hTwoAtOnce, hBlindIsGone, hForgetsTombstone, hAnyGeneration, hStartsFirst} {
		t.Run(string(flaw), func(t *testing.T) {
			c := hConfig{name: string(flaw), levels: []hLevel{{1, 1, hRun}, {1, 2, hSusp}, {2, 3, hRun}, {2, 4, hGone}}, ends: 1, flaw: flaw}
			_, err := c.explore()
			var v *explorer.Violation
			if !errors.As(err, &v) {
				t.Fatalf("%v: one that %s keeps every rule", err, flaw)
			}
			t.Logf("%v, in %d steps", v.Rule, len(v.Trace)-1)
		})
	}
}
