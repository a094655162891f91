package kill

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// The goals of a whole proof, and how many blows a round has there.
const (
	goal  = 1000
	whole = 60
)

// envSeed repeats the blows of a round that failed; what they hit is the
// machine's matter.
const envSeed = "HOLDFAST_KILL_SEED"

// Rung 5: nothing acknowledged is lost, nothing happens twice, and nothing is
// left behind, whatever is killed or stopped.
// contract: A1, A3, A6, A14, A15, C2, C6
func TestProve5_KillsLoseNothingRepeatNothingAndLeaveNothing(t *testing.T) {
	testenv.RequireRoot(t)
	testenv.RequirePostgres(t)
	budget, all := prove.Budget(t)
	deadline := time.Now().Add(budget)
	seed := uint64(1)
	if value := os.Getenv(envSeed); value != "" {
		var err error
		if seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
	}
	blows, rounds := prove.Slice(14, 4), prove.Slice(len(kinds()), 1)
	if all {
		blows, rounds = whole, goal // until the goal or the time is reached
	}
	sum := tally{hits: map[string]int{}}
	for n := range rounds {
		if all && (sum.blows >= goal || time.Now().After(deadline)) {
			break
		}
		k := kinds()[n%len(kinds())]
		t.Run(fmt.Sprintf("%s seed %d", strings.ReplaceAll(k.name, " ", "_"), seed), func(t *testing.T) {
			got := play(t, k, seed, blows)
			sum.blows, sum.lives, sum.repeats, sum.violations = sum.blows+got.blows, sum.lives+got.lives, sum.repeats+got.repeats, sum.violations+got.violations
			for what, times := range got.hits {
				sum.hits[what] += times
			}
		})
		seed++
	}
	var hits []string
	for what, times := range sum.hits {
		hits = append(hits, fmt.Sprintf("%s %d", what, times))
	}
	slices.Sort(hits)
	prove.Report(t, prove.Figure{Rung: 5, Name: "real kills", Value: int64(sum.blows), Goal: goal, Violations: int64(sum.violations),
		Note: fmt.Sprintf("%s; %d sandboxes; %d calls repeated", strings.Join(hits, ", "), sum.lives, sum.repeats)})
}
