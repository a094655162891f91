// Command bench prints the project's speed table: each figure beside what it is
// measured against, in one run, as medians and ratios. The machine is described
// by its cores only; other machines give other figures and similar ratios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// line is one row of the table. One without a goal stands beside another.
type line struct {
	what, measured, against string
	ratio                   float64
	goal                    string
	met                     bool
	skipped                 string // why it was not measured
}

// options are what every measurement is told.
type options struct {
	rounds   int
	binaries string
}

// bench is one measurement, which may fill several rows.
type bench func(context.Context, options) ([]line, error)

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "measurements of each figure; the median is shown")
	flag.StringVar(&o.binaries, "bin", "bin", "directory of holdfast, holdfast-guest and bench-dbos")
	only := flag.String("only", "", "some of the names below, with commas: "+strings.Join(names(), ", "))
	profile := flag.String("cpuprofile", "", "write a CPU profile of the run to this file")
	dir := flag.String("held", "", "no measurement: print what this process holds after sweeping the databases in a directory")
	copies := flag.Int("suspended", 0, "with -held: copies there")
	flag.Parse()
	if *dir != "" {
		if err := held(context.Background(), *dir, *copies); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := profiled(*profile, func() error { return run(o, *only) }); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// profiled runs work, recording where its time goes if a file is named.
func profiled(path string, work func() error) (err error) {
	if path == "" {
		return work()
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return work()
}

// named is a measurement with its name and the engine it needs.
type named struct {
	name     string
	postgres bool
	run      func(engine) bench
}

func table() []named {
	plain := func(b bench) func(engine) bench { return func(engine) bench { return b } }
	return []named{
		{"creates-postgres", true, func(e engine) bench { return creates(e, 2) }},
		{"creates-sqlite", false, func(e engine) bench { return creates(e, 7) }},
		{"deliveries-postgres", true, deliveries},
		{"deliveries-sqlite", false, deliveries},
		{"sweeps-postgres", true, sweeps},
		{"sweeps-sqlite", false, sweeps},
		{"backlog", false, plain(backlog)},
		{"runc", false, plain(firstOutput)},
		{"forks-tasks", false, plain(forksAndTasks)},
		{"memory", false, plain(suspendedMemory)},
		{"idle", false, plain(idleServer)},
	}
}

func names() []string {
	var out []string
	for _, b := range table() {
		out = append(out, b.name)
	}
	return out
}

// chosen are the measurements that a list of names asks for; "" is all.
func chosen(only string) ([]named, error) {
	if only == "" {
		return table(), nil
	}
	var out []named
	for _, name := range strings.Split(only, ",") {
		i := slices.IndexFunc(table(), func(b named) bool { return b.name == name })
		if i < 0 {
			return nil, fmt.Errorf("nothing is named %q: there are %s", name, strings.Join(names(), ", "))
		}
		out = append(out, table()[i])
	}
	return out, nil
}

func run(o options, only string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // and then removes what it made
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	defer cancel()
	benches, err := chosen(only)
	if err != nil {
		return err
	}
	postgres := engine{name: "PostgreSQL"}
	if slices.ContainsFunc(benches, func(b named) bool { return b.postgres }) {
		if postgres.postgres, err = testenv.NewPostgres(durable()...); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, postgres.postgres.Remove()) }()
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Printf("%d cores, medians of %d, each pair in one run\n\n", runtime.NumCPU(), o.rounds)
	fmt.Fprintln(out, "what\tmeasured\tagainst\tratio\tgoal\t")
	began := time.Now()
	var errs []error
	for _, b := range benches {
		e := engine{name: "SQLite"}
		if b.postgres {
			e = postgres
		}
		lines, err := b.run(e)(ctx, o)
		if ctx.Err() != nil { // whatever else failed then did so by that
			errs = append(errs, fmt.Errorf("%s: stopped: %w", b.name, context.Cause(ctx)))
			break
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.name, err))
			lines = []line{{what: b.name, against: "-", goal: "-", skipped: "it failed, see below"}}
		}
		fmt.Fprintf(os.Stderr, "%s: done at %s\n", b.name, time.Since(began).Round(time.Second))
		for _, l := range lines {
			l.print(out)
		}
	}
	return errors.Join(append([]error{out.Flush()}, errs...)...)
}

func (l line) print(out *tabwriter.Writer) {
	goal, verdict := l.goal, "met"
	if l.skipped != "" {
		fmt.Fprintf(out, "%s\t-\t%s\t-\t%s\tSKIPPED: %s\n", l.what, l.against, goal, l.skipped)
		return
	}
	switch {
	case goal == "":
		goal, verdict = "-", "-"
	case !l.met:
		verdict = "MISSED"
	}
	fmt.Fprintf(out, "%s\t%s\t%s\t%.2f\t%s\t%s\n", l.what, l.measured, l.against, l.ratio, goal, verdict)
}

func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// medianOf is the median of one figure of several rounds.
func medianOf[R any](rounds []R, of func(R) float64) float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return median(values)
}
