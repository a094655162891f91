package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Config configures a Runner. Its zero value is usable.
type Config struct {
	// Clock is for reports; waits use timers. nil: time.Now.
	Clock func() time.Time
	// Jitter returns a number in [0, 1) for a sweep's run, counted from 0. nil: at random.
	Jitter func(sweep string, run int) float64
	// Logger hears about failed items, panics and stuck items. nil: slog.Default.
	Logger *slog.Logger
	// Done is told about every run, for metrics. nil: nobody is.
	Done func(Report)
}

// Runner runs sweeps. It is safe for concurrent use.
type Runner struct {
	config Config
	order  []string
	sweeps map[string]*running
}

// running is a sweep with what its runs share.
type running struct {
	Sweep
	config Config
	turn   chan struct{} // holds one token: a process runs a sweep once at a time (trap T28)

	mu    sync.Mutex
	busy  map[string]bool // keys whose Act has not returned
	stuck int             // of those, the ones past their deadline
	last  *Report
	since time.Time // when Run began; zero before
	began time.Time // of the run in progress; zero if none is
}

// NewRunner returns a Runner of these sweeps, whose names differ. Nothing runs yet.
func NewRunner(config Config, sweeps ...Sweep) (*Runner, error) {
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if config.Jitter == nil {
		config.Jitter = func(string, int) float64 { return rand.Float64() }
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	r := &Runner{config: config, sweeps: map[string]*running{}}
	for _, s := range sweeps {
		s, err := s.withDefaults()
		if err != nil {
			return nil, fmt.Errorf("reconcile: %w", err)
		}
		if r.sweeps[s.Name] != nil {
			return nil, fmt.Errorf("reconcile: two sweeps are named %s", s.Name)
		}
		r.order = append(r.order, s.Name)
		r.sweeps[s.Name] = &running{Sweep: s, config: config, turn: make(chan struct{}, 1), busy: map[string]bool{}}
	}
	return r, nil
}

// Names lists the sweeps in the order in which they were given.
func (r *Runner) Names() []string { return append([]string(nil), r.order...) }

// Run runs every sweep on its schedule until ctx ends, and returns when the runs in progress have ended too. A run that
// could not read its pages is tried again sooner than its schedule says, with backoff.
func (r *Runner) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, name := range r.order {
		wg.Go(func() { r.sweeps[name].loop(ctx) })
	}
	wg.Wait()
}

// RunOnce runs one sweep to its end and reports what it did. While a run of the same sweep is in progress in this
// process, it waits for that first. Failed items are in the report; the error is for a sweep that does not exist, for
// pages that could not be read, and for a run that ctx cut short.
func (r *Runner) RunOnce(ctx context.Context, name string) (Report, error) {
	s, ok := r.sweeps[name]
	if !ok {
		return Report{}, fmt.Errorf("reconcile: no sweep is named %q", name)
	}
	return s.runOnce(ctx)
}

// Last returns the report of the last run of a sweep that ended, if there was one.
func (r *Runner) Last(name string) (Report, bool) {
	s, ok := r.sweeps[name]
	if !ok {
		return Report{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return Report{}, false
	}
	return *s.last, true
}

// Status is how a sweep is doing.
type Status struct {
	Name    string
	Every   time.Duration
	Since   time.Time // when the schedule began; zero: it runs on none
	Running time.Time // when the run in progress began; zero if none is
	Last    *Report   // the last run that ended; nil if none has
}

// Status says how each sweep is doing, in the order in which they were given, and what time it is by the runner's clock.
func (r *Runner) Status() (at time.Time, all []Status) {
	for _, name := range r.order {
		s := r.sweeps[name]
		s.mu.Lock()
		one := Status{Name: name, Every: s.Every, Since: s.since, Running: s.began}
		if s.last != nil {
			last := *s.last
			one.Last = &last
		}
		s.mu.Unlock()
		all = append(all, one)
	}
	return r.config.Clock(), all
}

// lateBy is how much later than its schedule says a sweep may begin a run before that is a fault, beside three periods: a
// loaded machine is no fault.
const lateBy = 10 * time.Second

// Late reports that the sweep should have run again by now: no run is in progress, and none began within three periods
// and 10 s. It is pure.
func (s Status) Late(now time.Time) bool {
	from := s.Since
	if s.Last != nil && s.Last.Began.After(from) {
		from = s.Last.Began
	}
	return s.Running.IsZero() && now.Sub(from) > 3*s.Every+lateBy
}

func (s *running) loop(ctx context.Context) {
	s.mu.Lock()
	s.since = s.config.Clock()
	s.mu.Unlock()
	failures := 0
	wait := firstWait(s.Sweep, s.config.Jitter(s.Name, 0))
	for run := 1; ; run++ {
		if !sleep(ctx, wait) {
			return
		}
		report, err := s.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failures++
			s.config.Logger.Error("sweep failed", "sweep", s.Name, "failures", failures, "error", err)
		} else {
			failures = 0
		}
		wait = nextWait(s.Sweep, report.Took, failures, s.config.Jitter(s.Name, run))
	}
}

// firstWait spreads the first runs of sweeps and replicas that start together (trap T30).
func firstWait(s Sweep, random float64) time.Duration {
	return time.Duration(random * float64(s.First))
}

// nextWait is how long a sweep rests after a run that took so long. Its runs begin Every apart, give or take a tenth; a
// run that took longer than that is followed by a short rest, and a failed one by a backoff that ends at Every.
func nextWait(s Sweep, took time.Duration, failures int, random float64) time.Duration {
	if failures > 0 {
		return s.Every/100 + Backoff{Base: s.Every / 10, Cap: s.Every}.Delay(failures, random)
	}
	period := time.Duration((0.9 + 0.2*random) * float64(s.Every))
	return max(period-took, s.Every/10)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (s *running) runOnce(ctx context.Context) (Report, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return Report{Sweep: s.Name}, fmt.Errorf("sweep %s: wait for the run in progress: %w", s.Name, ctx.Err())
	}
	defer func() { <-s.turn }()
	began := s.config.Clock()
	s.mu.Lock()
	s.began = began
	s.mu.Unlock()
	w := &walk{running: s, report: Report{Sweep: s.Name, Began: began}, slots: make(chan struct{}, s.Concurrency)}
	err := w.pages(ctx)
	w.items.Wait()
	err = errors.Join(err, ctx.Err())
	w.report.Took = s.config.Clock().Sub(began)
	if err != nil {
		err = fmt.Errorf("sweep %s: %w", s.Name, err)
	}
	s.mu.Lock()
	s.last = new(Report)
	*s.last = w.report
	s.began = time.Time{}
	s.mu.Unlock()
	if s.config.Done != nil {
		s.config.Done(w.report)
	}
	return w.report, err
}
