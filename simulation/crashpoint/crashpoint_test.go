package crashpoint

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/simulation"
)

func newBase(t testing.TB) Base {
	t.Helper()
	templates, err := simulation.NewTemplates(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-crashpoint-") // a file system in memory, where there is one
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() {
		if err := templates.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return Base{Templates: templates, Directory: dir}
}

// job is one run to make.
type job struct {
	scenario Scenario
	crashes  []Point
	repeats  bool
}

// String is what TestCrashReplay takes.
func (j job) String() string {
	var places []string
	for _, p := range j.crashes {
		places = append(places, p.place())
	}
	client := "repeats"
	if !j.repeats {
		client = "is gone"
	}
	return fmt.Sprintf("%s; client %s; %s", j.scenario.Name, client, strings.Join(places, ","))
}

// hash chooses slices: the same ones everywhere.
func (j job) hash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(j.String())) // a hash takes everything
	return h.Sum64()
}

func (b Base) run(t *testing.T, j job) (result *Result) {
	t.Helper()
	if slices.ContainsFunc(j.crashes, func(p Point) bool { return p.Machine }) && j.scenario.Power != nil {
		j.scenario.Want = j.scenario.Power
	}
	synctest.Test(t, func(t *testing.T) {
		var err error
		if result, err = Run(t.Context(), b, j.scenario, j.crashes, j.repeats); err != nil {
			t.Fatalf("%s: %v", j, err)
		}
	})
	return result
}

// campaign makes runs and counts.
type campaign struct {
	base   Base
	until  time.Time         // zero: no end
	every  uint64            // of the jobs after singles, one in so many is made
	queue  []job             // singles first; each adds the pairs that begin with it
	counts map[string]*count // by scenario
	bad    int64
	missed int64
}

type count struct{ points, pointRuns, pairs, pairRuns int64 }

// outcome is what a worker tells of a run.
type outcome struct {
	Happened   int
	Violations []string
	Follow     []Point // where the second crash of a pair can be
}

// next takes the next run to make.
func (c *campaign) next() (string, bool) {
	if len(c.queue) == 0 || !c.until.IsZero() && time.Now().After(c.until) {
		return "", false
	}
	j := c.queue[0]
	c.queue = c.queue[1:]
	return j.String(), true
}

// work makes a run.
func (c *campaign) work(t *testing.T, text string) outcome {
	j, err := parseJob(text)
	if err != nil {
		t.Fatal(err)
	}
	r := c.base.run(t, j)
	out := outcome{Happened: r.Happened, Violations: r.Violations}
	if len(j.crashes) == 1 {
		out.Follow = points(r.Steps)
	}
	return out
}

// done judges a run, and adds what follows from it.
func (c *campaign) done(t *testing.T, text string, r outcome) {
	j, err := parseJob(text)
	if err != nil {
		t.Error(err)
		return
	}
	n := c.counts[j.scenario.Name]
	switch len(j.crashes) {
	case 1:
		n.pointRuns++
	case 2:
		n.pairRuns++
	}
	for _, second := range r.Follow {
		pair := job{j.scenario, []Point{j.crashes[0], second}, j.repeats}
		if pair.hash()%max(j.scenario.Pairs, 1) != 0 {
			continue
		}
		n.pairs++
		if pair.hash()/max(j.scenario.Pairs, 1)%c.every == 0 {
			c.queue = append(c.queue, pair)
		}
	}
	c.judge(t, j, r)
}

func (c *campaign) judge(t *testing.T, j job, r outcome) {
	if r.Happened < len(j.crashes) {
		c.missed++
		t.Logf("%s: %d crashes happened", j, r.Happened)
	}
	if len(r.Violations) == 0 {
		return
	}
	c.bad++
	if c.bad > 10 {
		t.Errorf("%s: %s", j, strings.Join(r.Violations, "\n\t"))
		return
	}
	t.Errorf("%s: %s\nagain: HOLDFAST_CRASH='%s' go test ./simulation/crashpoint -run TestCrashReplay -v", j, strings.Join(r.Violations, "\n\t"), j)
}

// Rung 4: every crash point, and every pair of them. contract: A1, A2, A3, A6, A14,
// A15, B2, B3, B4, C1, C2, C4, C6
func TestProveCrashPoints(t *testing.T) {
	budget, whole := prove.Budget(t)
	c := &campaign{base: newBase(t), counts: map[string]*count{}, every: uint64(prove.Slice(60, 5000))}
	if whole {
		c.until, c.every = time.Now().Add(budget*9/10), 1
	}
	var references int
	var every int64
	if !prove.IsWorker(t) {
		c.queue, references = c.singles(t)
		every = int64(len(c.queue))
		if !whole {
			c.queue = slice(c.queue, prove.Slice(len(c.queue), 30))
		}
	}
	done := func(text string, r outcome) { c.done(t, text, r) }
	if !(prove.Farm[string, outcome]{Next: c.next, Work: c.work, Done: done}).Run(t) {
		return
	}
	c.report(t, references, every)
}

// singles makes every scenario's run without a crash, which has to keep its promise
// too, and gives all crash points of them, by the client that repeats and the one that
// is gone.
func (c *campaign) singles(t *testing.T) (jobs []job, references int) {
	for _, s := range Scenarios() {
		c.counts[s.Name] = &count{}
		reference := job{scenario: s, repeats: true}
		r := c.base.run(t, reference)
		c.judge(t, reference, outcome{Violations: r.Violations})
		places := points(r.Steps)
		if s.Machine {
			places = append(places, powerPoints(places)...)
		}
		c.counts[s.Name].points = int64(len(places))
		for _, p := range places {
			jobs = append(jobs, job{s, []Point{p}, true}, job{s, []Point{p}, false})
		}
		references++
	}
	return jobs, references
}

// slice is n of the jobs, chosen by hash.
func slice(jobs []job, n int) []job {
	jobs = slices.Clone(jobs)
	slices.SortFunc(jobs, func(a, b job) int { return cmp.Compare(a.hash(), b.hash()) })
	return jobs[:min(n, len(jobs))]
}

func (c *campaign) report(t *testing.T, references int, every int64) {
	var points, pairs, total int64
	for _, s := range Scenarios() {
		n := c.counts[s.Name]
		t.Logf("%-55s %4d points, %5d runs with one crash, %6d of %6d pairs", s.Name, n.points, n.pointRuns, n.pairRuns, n.pairs)
		points, pairs, total = points+n.pointRuns, pairs+n.pairRuns, total+n.pairs
	}
	if c.missed > 0 {
		t.Errorf("%d runs did not come to where the party was to die: runs are not the same twice", c.missed)
	}
	prove.Report(t, prove.Figure{Rung: 4, Name: "runs with one crash", Value: points, Goal: every, Violations: c.bad,
		Note: fmt.Sprintf("all crash points of %d verbs and deliveries, with a client that repeats and one that is gone", references)})
	prove.Report(t, prove.Figure{Rung: 4, Name: "runs with two crashes", Value: pairs, Goal: total,
		Note: "a second crash at every step of what follows from the first"})
}

// TestCrashReplay makes the run again that HOLDFAST_CRASH tells, as a failure prints
// it, and prints its trace; without it, a run in which nobody dies.
func TestCrashReplay(t *testing.T) {
	text := os.Getenv("HOLDFAST_CRASH")
	if text == "" {
		text = job{scenario: Scenarios()[0], repeats: true}.String()
	}
	j, err := parseJob(text)
	if err != nil {
		t.Fatal(err)
	}
	r := newBase(t).run(t, j)
	t.Logf("%s\n%s", j, strings.Join(r.Trace.Lines(false), "\n"))
	if len(r.Violations) > 0 || r.Happened < len(j.crashes) {
		t.Errorf("%d of %d crashes happened: %s", r.Happened, len(j.crashes), strings.Join(r.Violations, "\n\t"))
	}
}

// parseJob reads what String writes.
func parseJob(text string) (job, error) {
	parts := strings.Split(text, "; ")
	if len(parts) != 3 {
		return job{}, fmt.Errorf("%q is not what a failure prints, of three parts with semicolons between them", text)
	}
	j := job{repeats: parts[1] == "client repeats"}
	for _, s := range Scenarios() {
		if s.Name == parts[0] {
			j.scenario = s
		}
	}
	if j.scenario.Name == "" {
		return job{}, fmt.Errorf("there is no %q to crash in", parts[0])
	}
	for place := range strings.SplitSeq(parts[2], ",") {
		if place == "" {
			continue
		}
		p, err := Parse(place)
		if err != nil {
			return job{}, err
		}
		j.crashes = append(j.crashes, p)
	}
	return j, nil
}
