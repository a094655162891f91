package kill

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	g := game{sum: &tally{hits: map[string]int{}}, seed: seed, until: deadline, lanes: 1, blows: prove.Slice(14, 4), rounds: prove.Slice(len(kinds()), 1)}
	if all { // until the goal or the time is reached
		g.lanes, g.blows, g.rounds, g.goal = len(kinds()), whole, goal, goal
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	g.play(ctx, t)
	sum := g.sum
	var hits []string
	for what, times := range sum.hits {
		hits = append(hits, fmt.Sprintf("%s %d", what, times))
	}
	slices.Sort(hits)
	prove.Report(t, prove.Figure{Rung: 5, Name: "real kills", Value: int64(sum.blows), Goal: goal, Violations: int64(sum.violations),
		Note: fmt.Sprintf("%s; %d sandboxes, %d sessions with %d tasks, %d checkpoints, %d builds; %d calls repeated", strings.Join(hits, ", "),
			sum.lives, sum.works, sum.tasks, sum.copies, sum.builds, sum.repeats)})
}

// game is rounds, some of which are played side by side: they wait more than they
// compute. Each has a deployment of its own, and counts what that one leaves.
type game struct {
	sum    *tally
	seed   uint64
	blows  int       // in a round
	rounds int       // at most
	lanes  int       // rounds at once
	goal   int       // blows that are enough; 0: all rounds
	until  time.Time // zero: whenever

	mu     sync.Mutex
	begun  int // rounds
	now    int // rounds that are being played
	failed int
}

// play plays the rounds.
func (g *game) play(ctx context.Context, t *testing.T) {
	t.Helper()
	var lanes sync.WaitGroup
	for range g.lanes {
		lanes.Go(func() {
			for n, ok := g.next(); ok && ctx.Err() == nil; n, ok = g.next() {
				k, seed := kinds()[n%len(kinds())], g.seed+uint64(n/len(kinds()))
				well := t.Run(fmt.Sprintf("%s seed %d", strings.ReplaceAll(k.name, " ", "_"), seed), func(t *testing.T) {
					g.sum.play(ctx, t, k, battle{seed: seed, blows: g.blows, until: g.until})
				})
				g.over(well)
			}
		})
	}
	lanes.Wait()
}

// next begins a round, unless those that were and are being played are enough.
func (g *game) next() (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	enoughBlows := g.goal > 0 && (g.sum.count()+g.now*g.blows*9/10 >= g.goal || time.Now().After(g.until)) // some blows find nobody
	if g.begun >= g.rounds || g.failed >= enough || enoughBlows {
		return 0, false
	}
	g.begun, g.now = g.begun+1, g.now+1
	return g.begun - 1, true
}

func (g *game) over(well bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now--; !well {
		g.failed++
	}
}
