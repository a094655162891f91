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
	"runtime"
	"runtime/pprof"
	"slices"
	"text/tabwriter"
	"time"
)

// line is one row of the table.
type line struct {
	what, measured, against, ratio, goal string
	met                                  bool
}

func main() {
	rounds := flag.Int("rounds", 5, "measurements of each figure; the median is shown")
	binaries := flag.String("bin", "bin", "directory of holdfast and holdfast-guest")
	only := flag.String("only", "", "one of: control, runc, idle")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the run to this file")
	flag.Parse()
	if err := profiled(*profile, func() error { return run(*rounds, *binaries, *only) }); err != nil {
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

func run(rounds int, binaries, only string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	benches := []struct {
		name string
		run  func(context.Context, int, string) (line, error)
	}{{"control", controlPlane}, {"runc", firstOutput}, {"idle", idleServer}}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Printf("%d cores, medians of %d, each pair in one run\n\n", runtime.NumCPU(), rounds)
	fmt.Fprintln(out, "what\tmeasured\tagainst\tratio\tgoal\t")
	for _, b := range benches {
		if only != "" && only != b.name {
			continue
		}
		l, err := b.run(ctx, rounds, binaries)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		verdict := "met"
		if !l.met {
			verdict = "NOT met"
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\n", l.what, l.measured, l.against, l.ratio, l.goal, verdict)
	}
	return out.Flush()
}

func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}
