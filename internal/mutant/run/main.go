// Command run seeds every bug of package mutant, one at a time, and prints which
// rung of the proof caught it (make prove-mutants). It changes no file of the
// checkout, and exits 1 if a bug was not caught or no longer applies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/holdfast-dev/holdfast/internal/mutant"
)

func main() {
	only := flag.String("only", "", "traps or bugs to seed, such as T12,T31; all if empty")
	every := flag.Bool("every-rung", false, "go on to the other rungs once one has caught a bug")
	rungs := flag.String("rungs", "", "hold the bugs against these rungs of the whole system instead, such as 'simulation,crash points'; what they miss is no failure")
	parallel := flag.Int("parallel", 2, "how many at once")
	verbose := flag.Bool("v", false, "print what the tests said")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, options{only: *only, every: *every || *rungs != "", rungs: *rungs, parallel: max(1, *parallel), verbose: *verbose})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

type options struct {
	only, rungs    string
	every, verbose bool
	parallel       int
}

func run(ctx context.Context, out io.Writer, o options) (err error) {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	if chosen, err = against(chosen, o.rungs); err != nil {
		return err
	}
	root, err := mutant.Root(ctx)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "holdfast-mutants-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	tree := mutant.Tree{Root: root, Scratch: scratch}
	began := time.Now()
	if err := sound(ctx, tree, chosen, o); err != nil {
		return err
	}
	fmt.Fprintf(out, "the %d tests that are to notice something pass without a bug (%s)\n\n", len(names(chosen)), time.Since(began).Round(time.Second))
	lines := seedAll(ctx, tree, chosen, o)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = report(out, lines, time.Since(began))
	if o.rungs != "" && errors.Is(err, errMissed) {
		return nil // to see which rung notices what was the purpose
	}
	return err
}

// errMissed says that bugs were not caught.
var errMissed = errors.New("not caught")

// against holds bugs against rungs of the whole system, by their names; "" leaves each
// to those that are expected to notice it.
func against(chosen []mutant.Mutant, rungs string) ([]mutant.Mutant, error) {
	if rungs == "" {
		return chosen, nil
	}
	var notices []mutant.Notice
	for name := range strings.SplitSeq(rungs, ",") {
		n := len(notices)
		for r := mutant.Tests; r <= mutant.Histories; r++ {
			if notice, ok := mutant.Whole(r); ok && r.String() == strings.TrimSpace(name) {
				notices = append(notices, notice)
			}
		}
		if len(notices) == n {
			return nil, fmt.Errorf("no rung of the whole system is named %q", name)
		}
	}
	held := slices.Clone(chosen)
	for i := range held {
		held[i].Noticed = notices
	}
	return held, nil
}

// choose finds what -only names: a trap's bugs, or one of them.
func choose(only string) ([]mutant.Mutant, error) {
	all := mutant.All()
	if only == "" {
		return all, nil
	}
	var chosen []mutant.Mutant
	for _, name := range strings.Split(only, ",") {
		name = strings.TrimSpace(name)
		n := len(chosen)
		for _, m := range all {
			if m.Name == name || fmt.Sprintf("T%d", m.Trap) == name {
				chosen = append(chosen, m)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("no bug is named %q", name)
		}
	}
	return chosen, nil
}

// names are the tests that are to notice something, each once.
func names(chosen []mutant.Mutant) []string {
	var all []string
	for _, m := range chosen {
		for _, n := range m.Noticed {
			for _, t := range n.Tests {
				if n.Rung != mutant.Tests {
					continue
				}
				all = append(all, n.Package+"."+t)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// sound runs all of those tests without a bug, a package at a time. Other rungs than
// the packages' own tests take long: they are held to it once one has caught a bug.
func sound(ctx context.Context, tree mutant.Tree, chosen []mutant.Mutant, o options) error {
	var batches []mutant.Notice
	for _, m := range chosen {
		for _, n := range m.Noticed {
			if n.Rung != mutant.Tests {
				continue
			}
			i := slices.IndexFunc(batches, func(b mutant.Notice) bool { return b.Package == n.Package })
			if i < 0 {
				batches = append(batches, mutant.Notice{Rung: n.Rung, Package: n.Package, Tests: slices.Clone(n.Tests)})
				continue
			}
			batches[i].Tests = append(batches[i].Tests, n.Tests...)
		}
	}
	failures := make([]error, len(batches))
	each(len(batches), o.parallel, func(i int) {
		failures[i] = clean(ctx, tree, batches[i])
	})
	return errors.Join(failures...)
}

// each runs n pieces of work, a bounded number at once.
func each(n, parallel int, work func(int)) {
	room := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for i := range n {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			work(i)
		})
	}
	all.Wait()
}

// line is one of the table: a bug, and what one rung made of it.
type line struct {
	mutant mutant.Mutant
	rung   mutant.Rung
	result mutant.Result
	err    error
}

func (l line) caught() bool { return l.err == nil && !l.result.Passed }

func seedAll(ctx context.Context, tree mutant.Tree, chosen []mutant.Mutant, o options) []line {
	found := make([][]line, len(chosen))
	each(len(chosen), o.parallel, func(i int) { found[i] = seed(ctx, tree, chosen[i], o) })
	return slices.Concat(found...)
}

// seed tries a bug on its rungs, the cheapest first, until one has caught it.
func seed(ctx context.Context, tree mutant.Tree, m mutant.Mutant, o options) []line {
	var lines []line
	for _, n := range m.Noticed {
		l := line{mutant: m, rung: n.Rung}
		l.result, l.err = tree.Try(ctx, m, n)
		if l.caught() && n.Rung != mutant.Tests {
			l.err = clean(ctx, tree, n)
		}
		lines = append(lines, l)
		said := "missed"
		if l.caught() {
			said = "caught"
		}
		fmt.Fprintf(os.Stderr, "%-10s %s by %s in %s (%s)\n", m.Name, said, n.Rung, n.Package, l.result.Took.Round(100*time.Millisecond))
		if o.verbose || l.err != nil {
			fmt.Fprintf(os.Stderr, "%s\n%v\n", l.result.Output, l.err)
		}
		if l.caught() && !o.every || l.err != nil && n.Rung == mutant.Tests {
			break
		}
	}
	return lines
}

// clean fails unless the notice's tests pass without a bug.
func clean(ctx context.Context, tree mutant.Tree, n mutant.Notice) error {
	r, err := tree.Check(ctx, n)
	if err == nil && !r.Passed {
		err = fmt.Errorf("%s.%s fails without any bug:\n%s", n.Package, r.Test, r.Output)
	}
	return err
}

// report prints the table. A bug that no rung caught is the error.
func report(out io.Writer, lines []line, took time.Duration) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BUG\tCAUGHT BY\tTEST\tAFTER\tTIME\tWHAT WAS SEEDED")
	bugs, caught := map[string]bool{}, map[string]bool{}
	for _, l := range lines {
		bugs[l.mutant.Name] = true
		by, test := l.rung.String(), l.result.Test
		switch {
		case l.err != nil:
			by, test = "-", "NOTHING WAS TESTED"
		case l.result.Passed:
			by, test = "-", "NOT BY "+strings.ToUpper(by)
		default:
			caught[l.mutant.Name] = true
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s: %s\n", l.mutant.Name, by, test, l.result.After, l.result.Took.Round(100*time.Millisecond), l.mutant.File, l.mutant.Mistake)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, t := range mutant.Traps() {
		if t.Later != "" {
			fmt.Fprintf(out, "T%d, %s: %s\n", t.Number, t.Text, t.Later)
		}
	}
	fmt.Fprintf(out, "\n%d of %d seeded bugs were caught, in %s\n", len(caught), len(bugs), took.Round(time.Second))
	var missed []string
	for _, l := range lines {
		if !caught[l.mutant.Name] {
			missed = append(missed, l.mutant.Name)
		}
	}
	if len(missed) > 0 {
		slices.Sort(missed)
		return fmt.Errorf("%w: %s", errMissed, strings.Join(slices.Compact(missed), ", "))
	}
	return nil
}
