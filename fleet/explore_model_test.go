package fleet

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/simulation/explorer"
)

const (
	fRun  = holdfast.DesiredRunning
	fSusp = holdfast.DesiredSuspended
	fGone = holdfast.DesiredAbsent
)

// contract: B3, B7, C4, C5, D1, D2; traps T27, T32, T34, T36, T37, T39, T49.
// Every state that the fleet's row, two hosts and what is on its way between them
// can reach keeps the rules, and rest is never out of reach once faults end.
func TestProveModel_AnIncarnationIsPlacedOnceInEveryState(t *testing.T) {
	if _, _, again := testenv.PostgresSchema(t); again {
		return // it has no database
	}
	configs := []fConfig{
		{name: "run, delete", orders: []fOrder{{1, fRun}, {1, fGone}}, room: 1, ends: 1},
		{name: "run", orders: []fOrder{{1, fRun}}, room: 1, ends: 1, hush: 1},
		{name: "run, suspend", orders: []fOrder{{1, fRun}, {1, fSusp}}, room: 1, ends: 1},
		{name: "replaced", orders: []fOrder{{1, fRun}, {2, fRun}}, room: 1},
		{name: "run, delete, silence", orders: []fOrder{{1, fRun}, {1, fGone}}, room: 1, hush: 1},
		{name: "suspend, resume", orders: []fOrder{{1, fRun}, {1, fSusp}, {1, fRun}}, room: 1},
		{name: "two calls at once", orders: []fOrder{{1, fRun}, {1, fGone}}, room: 1, calls: 2},
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
			c.most = 4_000_000
			got, err := c.explore()
			t.Logf("%d states, %d steps, %d deep, %d at rest, %d beyond the bounds", got.States, got.Steps, got.Depth, got.Resting, got.Cut)
			states += int64(got.States)
			if err != nil {
				broken++
				t.Error(err)
			}
		})
	}
	prove.Report(t, prove.Figure{Rung: 1, Name: "distinct model states: fleet", Value: states, Violations: broken})
}

// Each wrong decision is noticed, or the model would show nothing.
func TestModel_NoticesWrongDecisionsOfAFleet(t *testing.T) {
	for _, c := range []fConfig{
		{flaw: fPlacesAgain, orders: []fOrder{{1, fRun}, {1, fSusp}}, ends: 1, hush: 1},
		{flaw: fSilenceIsGone, orders: []fOrder{{1, fRun}}, hush: 1},
		{flaw: fAnyGeneration, orders: []fOrder{{1, fRun}, {1, fSusp}, {1, fRun}}},
		{flaw: fAnyIncarnation, orders: []fOrder{{1, fRun}, {2, fRun}}, ends: 1},
		{flaw: fFreesTwice, orders: []fOrder{{1, fRun}}, ends: 1},
		{flaw: fKeepsReturned, orders: []fOrder{{1, fRun}, {1, fGone}}, hush: 1},
		{flaw: fEndsLeftovers, orders: []fOrder{{1, fRun}, {2, fRun}}},
		{flaw: fNoTombstone, orders: []fOrder{{1, fRun}}},
	} {
		if c.flaw == fEndsLeftovers && prove.Slice(1, 0) == 0 {
			continue // it is found at the end alone, which takes the race detector long
		}
		t.Run(string(c.flaw), func(t *testing.T) {
			c.name, c.room, c.most = string(c.flaw), 1, 1_200_000
			_, err := c.explore()
			var v *explorer.Violation
			if !errors.As(err, &v) {
				t.Fatalf("%v: one that %s keeps every rule", err, c.flaw)
			}
			t.Logf("%v, in %d steps", v.Rule, len(v.Trace)-1)
		})
	}
}
