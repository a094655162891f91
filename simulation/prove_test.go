package simulation

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
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

// tell shows a violation: what it is, a schedule that is as short as it gets, what
// happened in it, and how to see it again.
func (b *bench) tell(t *testing.T, r *Report) {
	t.Helper()
	short := Shrink(r.Schedule, r.Violations[0], 300, func(s Schedule) []string { return b.run(t, s).Violations })
	again := b.run(t, short)
	t.Errorf("seed %d breaks an invariant:\n\t%s\nits shortest schedule has %d of %d elements; again:\n\tgo test ./simulation -run TestReplay -v -schedule '%s'\n%s",
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

// tally is what all runs of a proof showed.
type tally struct {
	next      atomic.Uint64 // the seed to run
	seeds     atomic.Int64
	failures  atomic.Int64
	differing atomic.Int64
	lines     atomic.Int64

	mu    sync.Mutex
	fired map[string]int64
}

func (y *tally) add(r *Report) {
	y.seeds.Add(1)
	y.lines.Add(int64(len(r.Trace.lines)))
	y.mu.Lock()
	defer y.mu.Unlock()
	for kind, n := range r.Fired {
		y.fired[kind] += n
	}
}

// enough is how many failing seeds one test shows.
const enough = 3

// patience is how long a slice may take, on a machine that has other things to do: it
// then shows fewer seeds.
const patience = 150 * time.Second

// TestProveSimulation runs seeds, each twice, until there were enough of them or the
// time is over. No run may break an invariant, no seed may be two runs, and every
// kind of fault must have happened.
func TestProveSimulation(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // short lives: collecting less often is faster
	budget, whole := prove.Budget(t)
	seeds := uint64(prove.Slice(2000, 20))
	deadline := time.Now().Add(patience)
	if whole {
		seeds, deadline = 1<<62, time.Now().Add(budget)
	}
	b, y := newBench(t), &tally{fired: map[string]int64{}}
	t.Run("shards", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for time.Now().Before(deadline) && y.failures.Load() < enough {
					seed := y.next.Add(1)
					if seed > seeds {
						return
					}
					b.prove(t, y, seed)
				}
			})
		}
	})
	prove.Report(t, prove.Figure{Rung: 3, Name: "simulation seeds, each run twice", Value: y.seeds.Load(), Goal: 100_000,
		Violations: y.failures.Load() + y.differing.Load(), Note: fmt.Sprintf("%d steps; faults: %s", y.lines.Load(), y.faults())})
	if y.seeds.Load() < 1000 {
		return // too few for every kind of fault to have had its turn
	}
	for _, kind := range append(hopFaults(), troubleKinds()...) {
		if y.fired[kind] == 0 {
			t.Errorf("in %d runs nothing suffered %q: the run shows nothing about it", y.seeds.Load(), kind)
		}
	}
}

func (b *bench) prove(t *testing.T, y *tally, seed uint64) {
	s := Generate(seed)
	r, again := b.run(t, s), b.run(t, s)
	y.add(r)
	if r.Sum != again.Sum {
		y.differing.Add(1)
		t.Errorf("seed %d is two runs, %016x and %016x: %s", seed, r.Sum, again.Sum, firstDifference(r.Trace, again.Trace))
	}
	if len(r.Violations) > 0 {
		y.failures.Add(1)
		b.tell(t, r)
	}
}

func firstDifference(a, b *Trace) string {
	one, two := a.Lines(true), b.Lines(true)
	for i := range min(len(one), len(two)) {
		if one[i] != two[i] {
			return fmt.Sprintf("\n\t%s\n\t%s\n\t%s", strings.Join(one[max(0, i-3):i], "\n\t"), one[i], two[i])
		}
	}
	return fmt.Sprintf("one has %d lines, the other %d", len(one), len(two))
}

func troubleKinds() []string {
	return []string{"crash", string(Restart), "pause", "host loss", "partition", string(BadCall), string(StallCall), string(LieCall),
		string(GuestDies), string(BootFails), string(Unknown), string(Mute)}
}

// faults is how often each happened.
func (y *tally) faults() string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(y.fired)) {
		all = append(all, fmt.Sprintf("%s %d", kind, y.fired[kind]))
	}
	return strings.Join(all, ", ")
}
