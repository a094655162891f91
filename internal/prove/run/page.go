package main

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
)

// page is what remains of a proof.
type page struct {
	results []result
	took    time.Duration
	timed   bool // a time was given, so that a figure may be short of its goal
}

// String is the summary: a line for each figure, then what each has to say.
func (p page) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "\nThe proof, on %d cores, in %s\n\n", runtime.NumCPU(), p.took.Round(time.Second))
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { fmt.Fprintln(table, strings.Join(cells, "\t")) } //nolint:errcheck // into memory
	line("rung", "", "counted", "figure", "goal", "", "violations", "time")
	var notes []string
	for _, r := range p.results {
		number, name, took := strconv.Itoa(r.rung.number), r.rung.name, r.took.Round(time.Second).String()
		for _, f := range r.figures {
			goal, verdict := p.goal(f)
			line(number, name, f.Name, grouped(f.Value), goal, verdict, grouped(f.Violations), took)
			if f.Note != "" {
				notes = append(notes, fmt.Sprintf("%d %s: %s", f.Rung, f.Name, f.Note))
			}
			number, name, took = "", "", ""
		}
		if len(r.figures) == 0 {
			line(number, name, "nothing", "", "", "", "", took)
		}
		if r.rung.waits && len(p.results) > 1 {
			notes = append(notes, fmt.Sprintf("%d %s: beside the other rungs, since it waits more than it computes", r.rung.number, r.rung.name))
		}
		if r.failure != "" {
			notes = append(notes, fmt.Sprintf("%d FAILED: %s", r.rung.number, r.failure))
		}
	}
	_ = table.Flush() // into memory
	fmt.Fprintf(&out, "\n%s\n", strings.Join(notes, "\n"))
	return out.String()
}

// goal is a figure's goal and whether it was met.
func (p page) goal(f prove.Figure) (goal, verdict string) {
	switch {
	case f.Goal == 0:
		return "-", ""
	case f.Value >= f.Goal:
		return grouped(f.Goal), "met"
	case p.timed:
		return grouped(f.Goal), "SHORT: time ran out"
	}
	return grouped(f.Goal), "SHORT"
}

// wrong lists what keeps this from being a proof. A figure that is short of its
// goal is none where the time was cut short.
func (p page) wrong() (list []string) {
	for _, r := range p.results {
		if r.failure != "" {
			list = append(list, fmt.Sprintf("rung %d failed", r.rung.number))
		}
		for _, f := range r.figures {
			if f.Violations > 0 {
				list = append(list, fmt.Sprintf("%d violations in %s", f.Violations, f.Name))
			}
			if f.Value < f.Goal && !p.timed {
				list = append(list, fmt.Sprintf("%s short of the goal", f.Name))
			}
		}
	}
	return list
}

// grouped writes a number with its thousands apart.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
