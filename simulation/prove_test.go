package simulation

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seedFlag     = flag.Uint64("seed", 0, "the seed that TestReplay runs")
	scheduleFlag = flag.String("schedule", "", "the schedule that TestReplay runs, as a failure prints it")
	readsFlag    = flag.Bool("reads", false, "TestReplay's trace has reads, too")
)

// bench is what runs of one test share.
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
			t.Fatalf("seed %d: %v", s.Seed, err)
		}
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	return report
}

func TestReplay(t *testing.T) {
	s := Generate(*seedFlag)
	if *scheduleFlag != "" {
		var err error
		if s, err = parse(*scheduleFlag); err != nil {
			t.Fatal(err)
		}
	}
	if *seedFlag == 0 && *scheduleFlag == "" {
		s = Generate(1)
	}
	report := newBench(t).run(t, s)
	t.Logf("%s\n%s\ntook %s of virtual time, trace %016x, faults %v", s, strings.Join(report.Trace.Lines(*readsFlag), "\n"), report.Took, report.Sum, report.Fired)
	for _, v := range report.Violations {
		t.Error(v)
	}
}

func TestDebugSeeds(t *testing.T) {
	b := newBench(t)
	begin := time.Now()
	n := 100
	if v := os.Getenv("N"); v != "" {
		fmt.Sscan(v, &n)
	}
	var virtual time.Duration
	fired := map[string]int64{}
	lines := 0
	for seed := range uint64(n) {
		r := b.run(t, Generate(seed+1))
		again := b.run(t, Generate(seed+1))
		if r.Sum != again.Sum {
			t.Logf("seed %d: differs", seed+1)
		}
		virtual += r.Took
		lines += len(r.Trace.lines)
		for k, v := range r.Fired {
			fired[k] += v
		}
		for _, v := range r.Violations {
			t.Errorf("seed %d: %s", seed+1, v)
		}
	}
	t.Logf("%d seeds, %s each, virtual %s each, %d lines each, faults %v", n, time.Since(begin)/time.Duration(2*n), virtual/time.Duration(n), lines/n, fired)
}
