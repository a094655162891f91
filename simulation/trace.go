package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation/step"
)

// line is one thing that happened.
type line struct {
	at      time.Duration // since the bubble's beginning
	who     string
	what    string // kind and name
	about   string // ids
	outcome string
	quiet   bool // a read: part of the trace's hash, not of what is printed
}

// Trace is what happened in a run, a line for each hop, commit, runtime call and
// record, in the order in which they ended.
type Trace struct {
	begin time.Time

	mu    sync.Mutex
	lines []line
	ended bool
}

func newTrace() *Trace { return &Trace{begin: time.Now()} }

func (t *Trace) step(s *step.Step, outcome string) {
	t.add(line{who: s.Party, what: string(s.Kind) + " " + s.Name, about: s.Key, outcome: outcome,
		quiet: s.Kind == step.View || s.Kind == step.Serve})
}

// Note adds a line about a party that is no step.
func (t *Trace) Note(who, format string, args ...any) {
	t.add(line{who: who, what: fmt.Sprintf(format, args...)})
}

func (t *Trace) add(l line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	l.at = time.Since(t.begin)
	t.lines = append(t.lines, l)
}

// end keeps out what comes later: how a world is taken down is no part of it.
func (t *Trace) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

// sorted orders what happened at one instant, where two goroutines may have run.
func (t *Trace) sorted() []line {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.lines)
	slices.SortStableFunc(all, func(a, b line) int {
		if a.at != b.at {
			return int(min(max(a.at-b.at, -1), 1))
		}
		return strings.Compare(a.who+a.what+a.about+a.outcome, b.who+b.what+b.about+b.outcome)
	})
	return all
}

// Sum is the same for two runs exactly if everything in them happened at the same
// instants with the same outcomes.
func (t *Trace) Sum() uint64 {
	h := fnv.New64a()
	var buffer []byte
	for _, l := range t.sorted() {
		buffer = buffer[:0]
		for range 8 {
			buffer = append(buffer, byte(l.at))
			l.at >>= 8
		}
		for _, text := range []string{l.who, l.what, l.about, l.outcome} {
			buffer = append(append(buffer, text...), 0)
		}
		_, _ = h.Write(buffer) // a hash never fails
	}
	return h.Sum64()
}

// Lines is the trace for a person, without reads; all is with them.
func (t *Trace) Lines(all bool) []string {
	var out []string
	for _, l := range t.sorted() {
		if l.quiet && !all {
			continue
		}
		text := fmt.Sprintf("%14s %-15s %s", clock(l.at), l.who, l.what)
		if l.about != "" {
			text += " " + step.Short(l.about)
		}
		if l.outcome != "" {
			text += " → " + l.outcome
		}
		out = append(out, text)
	}
	return out
}

func clock(d time.Duration) string {
	return fmt.Sprintf("%d:%02d:%09.6f", int(d.Hours()), int(d.Minutes())%60, (d % time.Minute).Seconds())
}

// drawn is what names are given at random.
var drawn = regexp.MustCompile(`[A-Z2-7]{26}`)

// outcome is an error as the trace shows it: what it is, never how it is worded,
// since words may carry names that are drawn at random.
func outcome(err error) string {
	var domain *holdfast.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &domain):
		return string(domain.Code) + " " + string(domain.Reason)
	case errors.Is(err, errDead):
		return "dead"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "too late"
	}
	text := drawn.ReplaceAllString(err.Error(), "*")
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return step.Short(text[:min(len(text), 60)])
}
