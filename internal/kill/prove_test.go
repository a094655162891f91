package kill

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// The goal of a whole proof, and how many blows a round has there.
const (
	goal  = 1000
	whole = 100
	// enough failed rounds show what is to be shown.
	enough = 3
)

// envSeed repeats the blows of a round that failed, with its deployment's name in
// -run; what they hit is the machine's matter.
const envSeed = "HOLDFAST_KILL_SEED"

// Rung 5: nothing acknowledged is lost, nothing happens twice, and nothing is
// left behind, whatever is killed or stopped.
// contract: A1, A3, A6, A14, A15, C2, C6
func TestProve5_KillsLoseNothingRepeatNothingAndLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("real programs are killed for a minute")
	}
	testenv.RequireRoot(t)
	testenv.RequirePostgres(t)
	budget, all := prove.Budget(t)
	var deadline time.Time
	if all {
		deadline = time.Now().Add(budget)
	}
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
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	sum := tally{hits: map[string]int{}}
	failed := 0
	for n := range rounds {
		if all && (sum.blows >= goal || time.Now().After(deadline) || failed >= enough) || ctx.Err() != nil {
			break
		}
		k, round := kinds()[n%len(kinds())], seed+uint64(n/len(kinds()))
		ok := t.Run(fmt.Sprintf("%s seed %d", strings.ReplaceAll(k.name, " ", "_"), round), func(t *testing.T) {
			sum.play(ctx, t, k, battle{seed: round, blows: blows, until: deadline})
		})
		if !ok {
			failed++
		}
	}
	var hits []string
	for what, times := range sum.hits {
		hits = append(hits, fmt.Sprintf("%s %d", what, times))
	}
	slices.Sort(hits)
	prove.Report(t, prove.Figure{Rung: 5, Name: "real kills", Value: int64(sum.blows), Goal: goal, Violations: int64(sum.violations),
		Note: fmt.Sprintf("%s; %d sandboxes; %d calls repeated", strings.Join(hits, ", "), sum.lives, sum.repeats)})
}
