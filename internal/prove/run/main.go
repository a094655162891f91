// Command run is make prove: it climbs the rungs of the proof one after another, and
// those that wait beside those that compute, each as its own tests run long, and ends with one page that says what was
// counted, against which goal, and how often an invariant was broken.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	budget := flag.Duration("time", 0, "how long all of it may take; 0: each rung until its goal")
	only := flag.String("rungs", "", "numbers of the rungs to climb, with commas; empty: all")
	list := flag.Bool("list", false, "print the packages of the rungs of which make test runs a slice without the race detector too, and do nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *budget, *only, *list)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, budget time.Duration, only string, list bool) error {
	rungs, err := find(".")
	if err != nil {
		return err
	}
	if list {
		for _, r := range rungs {
			for _, p := range r.packages {
				if !r.builds { // what has been run under the race detector is not run again without
					fmt.Println(p.path)
				}
			}
		}
		return nil
	}
	if rungs, err = choose(rungs, only); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "holdfast-prove-")
	if err != nil {
		return err
	}
	began := time.Now()
	results := climbAll(ctx, rungs, budget, dir)
	p := page{results: results, took: time.Since(began), timed: budget > 0}
	fmt.Print(p.String())
	if wrong := p.wrong(); len(wrong) > 0 {
		return fmt.Errorf("not shown: %s\nall output is in %s", strings.Join(wrong, "; "), dir)
	}
	return os.RemoveAll(dir)
}

// climbAll climbs rungs in their order, and beside them those that wait more than
// they compute. The results are in the order of the rungs.
func climbAll(ctx context.Context, rungs []rung, budget time.Duration, dir string) []result {
	began := time.Now()
	results := make([]result, len(rungs))
	one := func(i int, share time.Duration) {
		r := rungs[i]
		fmt.Printf("rung %d, %s: at most %s\n", r.number, r.name, share.Round(time.Second))
		results[i] = climb(ctx, r, share, filepath.Join(dir, fmt.Sprint("rung-", r.number)))
		if out := results[i]; out.failure != "" {
			fmt.Printf("rung %d failed after %s: %s\n%s\n", r.number, out.took.Round(time.Second), out.failure, out.tail())
		}
	}
	var beside sync.WaitGroup
	var inOrder []int
	for i, r := range rungs {
		if r.waits && len(rungs) > 1 {
			beside.Go(func() { one(i, besideShare(r, budget)) })
		} else {
			inOrder = append(inOrder, i)
		}
	}
	for n, i := range inOrder {
		share := rungs[i].generous
		if budget > 0 {
			share = shareOf(chosen(rungs, inOrder[n:]), budget-time.Since(began))
		}
		if one(i, share); ctx.Err() != nil {
			break
		}
	}
	beside.Wait()
	return slices.DeleteFunc(results, func(r result) bool { return r.rung.number == 0 }) // not begun
}
