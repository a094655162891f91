package simulation

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
)

var (
	seedFlag     = flag.Uint64("seed", 1, "the seed that TestReplay runs")
	scheduleFlag = flag.String("schedule", "", "the schedule that TestReplay runs instead, as a failure prints it")
	readsFlag    = flag.Bool("reads", false, "TestReplay's trace has reads, too")
)

// bench is what the runs of one test share.
type bench struct {
	templates *Templates
	directory string
	runs      atomic.Int64
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return &bench{templates: templates(t), directory: memoryDir(t)}
}

// run runs a schedule in a bubble of its own.
func (b *bench) run(t *testing.T, s Schedule) (report *Report) {
	t.Helper()
	dir := fmt.Sprintf("%s/%d", b.directory, b.runs.Add(1))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var err error
		if report, err = Run(t.Context(), Base{Templates: b.templates, Directory: dir}, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	return report
}

// tell says what a violation is, with a schedule that is as short as it gets, what
// happened in it, and how to see it again.
func (b *bench) tell(t *testing.T, r *Report) string {
	t.Helper()
	short := Shrink(r.Schedule, r.Violations[0], 300, func(s Schedule) []string { return b.run(t, s).Violations })
	again := b.run(t, short)
	return fmt.Sprintf("seed %d breaks an invariant:\n\t%s\nits shortest schedule has %d of %d elements; again:\n\tgo test ./simulation -run TestReplay -v -schedule '%s'\n%s",
		r.Schedule.Seed, strings.Join(r.Violations, "\n\t"), short.Len(), r.Schedule.Len(), short, strings.Join(again.Trace.Lines(false), "\n"))
}

// TestReplay runs one seed, or one schedule, and shows what happens in it.
func TestReplay(t *testing.T) {
	s := Generate(*seedFlag)
	if *scheduleFlag != "" {
		var err error
		if s, err = parse(*scheduleFlag); err != nil {
			t.Fatal(err)
		}
	}
	report := newBench(t).run(t, s)
	t.Logf("%s\n%s\ntook %s of virtual time, trace %016x, faults %v", s, strings.Join(report.Trace.Lines(*readsFlag), "\n"), report.Took, report.Sum, report.Fired)
	for _, v := range report.Violations {
		t.Error(v)
	}
}

// TestASeedIsTheSameRunInAnotherProcess: nothing in a run depends on the process, its
// address space or its hash seeds.
func TestASeedIsTheSameRunInAnotherProcess(t *testing.T) {
	const seed = 11
	here := newBench(t).run(t, Generate(seed))
	out, err := exec.Command(os.Args[0], "-test.run=^TestReplay$", "-test.v", fmt.Sprintf("-seed=%d", seed)).CombinedOutput()
	if want := fmt.Sprintf("trace %016x", here.Sum); err != nil || !strings.Contains(string(out), want) {
		t.Errorf("another process did not give %q: %v\n%s", want, err, out)
	}
}

// seeds are some that follow each other, and what their runs showed.
type seeds struct{ First, Last uint64 }

type shown struct {
	Seeds, Steps int64
	Fired        map[string]int64
	Violations   []string // each told at length
	Differing    []string
}

// enough is how many failing seeds one test shows.
const enough = 3

// patience is how long a slice may take, on a machine that has other things to do: it
// then shows fewer seeds.
const patience = 100 * time.Second

// The goal of a whole proof, and how many seeds a worker gets at a time.
const (
	goal  = 100_000
	batch = 10
)

// TestProveSimulation runs seeds, each twice, until there were enough of them or the
// time is over. No run may break an invariant, no seed may be two runs, and every
// kind of fault must have happened.
func TestProveSimulation(t *testing.T) {
	budget, whole := prove.Budget(t)
	last, deadline := uint64(prove.Slice(2000, 20)), time.Now().Add(patience)
	if whole {
		last, deadline = goal, time.Now().Add(budget)
	}
	b, next := newBench(t), uint64(1)
	sum := shown{Fired: map[string]int64{}}
	ran := prove.Farm[seeds, shown]{
		Next: func() (seeds, bool) {
			if next > last || time.Now().After(deadline) || len(sum.Violations)+len(sum.Differing) >= enough {
				return seeds{}, false
			}
			some := seeds{next, min(next+batch-1, last)}
			next = some.Last + 1
			return some, true
		},
		Work: b.prove,
		Done: func(_ seeds, one shown) {
			sum.add(one)
			for _, text := range slices.Concat(one.Violations, one.Differing) {
				t.Error(text)
			}
		},
	}.Run(t)
	if !ran {
		return
	}
	prove.Report(t, prove.Figure{Rung: 3, Name: "simulation seeds, each run twice", Value: sum.Seeds, Goal: goal,
		Violations: int64(len(sum.Violations)), Note: fmt.Sprintf("%d were two runs; %d steps; faults: %s", len(sum.Differing), sum.Steps, sum.faults())})
	if sum.Seeds < 1000 {
		return // too few for every kind of fault to have had its turn
	}
	for _, kind := range slices.Concat(hopFaults(), troubleKinds(), receiverTroubles()) {
		if sum.Fired[kind] == 0 {
			t.Errorf("in %d runs nothing suffered %q: the run shows nothing about it", sum.Seeds, kind)
		}
	}
}

// prove runs each of some seeds twice.
func (b *bench) prove(t *testing.T, some seeds) shown {
	out := shown{Fired: map[string]int64{}}
	for seed := some.First; seed <= some.Last; seed++ {
		s := Generate(seed)
		r, again := b.run(t, s), b.run(t, s)
		out.Seeds++
		out.Steps += int64(len(r.Trace.lines))
		for kind, n := range r.Fired {
			out.Fired[kind] += n
		}
		if r.Sum != again.Sum {
			out.Differing = append(out.Differing, fmt.Sprintf("seed %d is two runs, %016x and %016x: %s", seed, r.Sum, again.Sum, firstDifference(r.Trace, again.Trace)))
		}
		if len(r.Violations) > 0 {
			out.Violations = append(out.Violations, b.tell(t, r))
		}
	}
	return out
}

func (y *shown) add(one shown) {
	y.Seeds, y.Steps = y.Seeds+one.Seeds, y.Steps+one.Steps
	y.Violations, y.Differing = append(y.Violations, one.Violations...), append(y.Differing, one.Differing...)
	for kind, n := range one.Fired {
		y.Fired[kind] += n
	}
}

// firstDifference tells where two runs part, to the nanosecond, which Lines does not show.
func firstDifference(a, b *Trace) string {
	one, two := a.sorted(), b.sorted()
	for i := range min(len(one), len(two)) {
		if one[i] != two[i] {
			before := strings.Join(a.Lines(true)[max(0, i-3):i], "\n\t")
			return fmt.Sprintf("\n\t%s\n\t%+v\n\t%+v", before, one[i], two[i])
		}
	}
	return fmt.Sprintf("one has %d lines, the other %d", len(one), len(two))
}

func troubleKinds() []string {
	return []string{"crash", string(Restart), "pause", "host loss", "partition", string(BadCall), string(StallCall), string(LieCall),
		string(GuestDies), string(BootFails), string(Unknown), string(Mute)}
}

// faults is how often each happened.
func (y *shown) faults() string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(y.Fired)) {
		all = append(all, fmt.Sprintf("%s %d", kind, y.Fired[kind]))
	}
	return strings.Join(all, ", ")
}
