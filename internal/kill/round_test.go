package kill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// callers is how many clients are at work at once.
const callers = 4

// round is one deployment's, from its start to its end.
type round struct {
	t          *testing.T
	d          *deployment
	patient    bool         // waits for the sweep of orphans
	over       atomic.Bool  // no blow comes any more
	hostDeaths atomic.Int64 // so far, of host agents
	stillborn  atomic.Int64 // creates that a blow ended for good

	mu         sync.Mutex
	struck     map[holdfast.InstanceID]blow
	lives      []*life
	works      []*work
	copies     []*taken
	builds     []*made
	failures   map[string]int // calls that had to be repeated, by code and reason
	violations []string
}

func (r *round) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

func (r *round) born(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lives = append(r.lives, l)
}

func (r *round) engaged(w *work) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.works = append(r.works, w)
}

// dismiss takes a session out that was refused: nothing is recorded of it.
func (r *round) dismiss(w *work) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.works = slices.DeleteFunc(r.works, func(other *work) bool { return other == w })
}

func (r *round) building(b *made) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.builds = append(r.builds, b)
}

// canWait reports whether the environment has a build that sessions can wait for.
func (r *round) canWait() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.builds) > 0
}

func (r *round) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures[fmt.Sprint(holdfast.CodeOf(err), " ", holdfast.ReasonOf(err))]++
}

func (r *round) strike(id holdfast.InstanceID, b blow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.struck[id] = max(r.struck[id], b)
}

func (r *round) wasStruck(l *life) bool { return r.blowAt(l) != none }

func (r *round) blowAt(l *life) blow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.struck[l.instance]
}

// tally is what rounds add to the figures.
type tally struct {
	mu                                sync.Mutex
	blows, lives, repeats, violations int
	works, tasks, copies, builds      int
	hits                              map[string]int
}

// count is how many blows were struck in rounds that are over.
func (sum *tally) count() int {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	return sum.blows
}

// add counts a round, whether or not it came to its end.
func (sum *tally) add(r *round, s *striker) {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	sum.blows += s.total()
	sum.lives += len(r.lives)
	sum.works, sum.copies, sum.builds = sum.works+len(r.works), sum.copies+len(r.copies), sum.builds+len(r.builds)
	for _, w := range r.works {
		sum.tasks += len(w.jobs)
	}
	sum.violations += len(r.violations)
	for _, n := range r.failures {
		sum.repeats += n
	}
	for what, times := range s.hits {
		sum.hits[what] += times
	}
}

// battle is how many blows there are in a round, from which seed, and when the
// last may come at the latest.
type battle struct {
	seed  uint64
	blows int
	until time.Time // zero: whenever
}

// play is one round: blows under load, then rest, then the account.
func (sum *tally) play(ctx context.Context, t *testing.T, k kind, b battle) {
	t.Helper()
	dir := t.TempDir()
	d, err := k.start(t, dir)
	if err != nil {
		if d != nil {
			err = errors.Join(err, d.stop())
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		// What a failed round leaves is no matter of the next one.
		if err := d.stop(); err != nil {
			t.Error(err)
		}
		for _, dir := range d.dirs {
			if err := testenv.WipeMachine(dir); err != nil {
				t.Error(err)
			}
		}
	})
	r := &round{t: t, d: d, patient: b.blows >= whole, struck: map[holdfast.InstanceID]blow{}, failures: map[string]int{}}
	s := &striker{d: d, frozen: map[int]bool{}, hits: map[string]int{},
		hostDeaths: func() { r.hostDeaths.Add(1) },
		struck:     r.strike}
	defer sum.add(r, s)
	seen, watching := make(chan struct{}), sync.WaitGroup{}
	watching.Go(func() { r.watchBoots(seen) })
	endWatch := sync.OnceFunc(func() { close(seen); watching.Wait() })
	defer endWatch()
	r.load(ctx, s, plan(b.seed, b.blows, k.menu), b.until)
	if err := errors.Join(s.errs...); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Fatalf("seed %d\n%s", b.seed, d.logs())
	}
	r.account()
	endWatch()
	r.end(t.Context())
	for _, v := range r.violations {
		t.Error(v)
	}
	if t.Failed() {
		t.Logf("seed %d\n%s", b.seed, d.logs())
		r.explain()
	}
	t.Logf("%d blows %v; %d sandboxes and %d sessions, %d of them stillborn; %d checkpoints, %d builds; calls repeated: %v", s.total(), s.hits,
		len(r.lives), len(r.works), r.stillborn.Load(), len(r.copies), len(r.builds), r.failures)
}

// load strikes while the callers are at work, and returns when all have ended
// and everything runs again.
func (r *round) load(interrupted context.Context, s *striker, blows []strike, until time.Time) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	var work sync.WaitGroup
	for n := range callers {
		c := &caller{round: r, number: n, turn: n, random: rand.New(rand.NewPCG(uint64(n), 7))} //nolint:gosec // to be repeated
		work.Go(func() { c.run(ctx) })
	}
	work.Go(func() {
		c := &caller{round: r, number: callers, random: rand.New(rand.NewPCG(callers, 7))} //nolint:gosec // to be repeated
		c.build(ctx)
	})
	for i, b := range blows {
		if interrupted.Err() != nil { // what was made is taken away all the same
			r.t.Error("interrupted")
			break
		}
		if !until.IsZero() && time.Now().After(until) {
			break
		}
		wait(b.after)
		if err := s.do(b); err != nil {
			r.t.Errorf("blow %d: %v", i, err)
			cancel()
			break
		}
	}
	s.goingOn.Wait()
	r.over.Store(true)
	work.Wait()
}

// account lets the deployment come to rest and holds it against the lives.
func (r *round) account() {
	r.t.Helper()
	ctx := r.t.Context()
	c := &caller{round: r, number: callers + 1, random: rand.New(rand.NewPCG(1, 1))} //nolint:gosec // to be repeated
	for i, b := range r.builds {
		if err := c.verifyBuild(ctx, b, i == len(r.builds)-1); err != nil {
			r.violate("at rest, %s %s: %v", b.in.RequestID, b.id, err)
		}
	}
	all := r.rest(ctx)
	known := map[holdfast.SandboxID]bool{}
	for _, w := range r.works {
		if err := c.verifyWork(ctx, w); err != nil {
			r.violate("at rest, %s %s: %v", w.create.RequestID, w.id, err)
		}
		known[w.life.id] = true
	}
	for _, k := range r.copies {
		if err := c.verifyCheckpoint(ctx, k); err != nil {
			r.violate("at rest, %s %s: %v", k.create.RequestID, k.id, err)
		}
	}
	for _, l := range r.lives {
		known[l.id] = true
		if err := c.verify(ctx, l); err != nil {
			r.violate("at rest, %s %s: %v", l.create.RequestID, l.id, err)
		}
	}
	for _, sb := range all {
		if !known[sb.ID] {
			r.violate("%s was made and nobody was told", sb.ID)
		}
	}
	r.instances(r.rest(ctx)) // what was kept asleep is awake now
}

// rest waits until nothing is pending any more, and lists what there is then.
func (r *round) rest(ctx context.Context) []holdfast.Sandbox {
	r.t.Helper()
	var all []holdfast.Sandbox
	pending := ""
	quiet := func() bool {
		var err error
		pending = ""
		if all, err = r.list(ctx); err != nil {
			pending = err.Error()
			return false
		}
		for _, sb := range all {
			if sb.Operation != nil || sb.State == holdfast.SandboxCreating || sb.State == holdfast.SandboxDeleting || sb.HostUnreachable {
				pending += fmt.Sprintf("%s %s host unreachable %v %+v\n", sb.ID, sb.State, sb.HostUnreachable, sb.Operation)
			}
		}
		return pending == ""
	}
	if !testenv.Eventually(unhurried(patience), quiet) {
		r.violate("pending long after the last blow:\n%s", pending)
	}
	return all
}

// list is every sandbox that is not deleted, as each orchestrator says.
func (r *round) list(ctx context.Context) (all []holdfast.Sandbox, err error) {
	for i, api := range r.d.apis {
		one, cancel := context.WithTimeout(ctx, attempt)
		page, err := api.ListSandboxes(one, holdfast.ListSandboxes{PageSize: holdfast.MaxPageSize, States: []holdfast.SandboxState{
			holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended, holdfast.SandboxFailed, holdfast.SandboxDeleting}})
		cancel()
		if err != nil {
			return nil, err
		}
		if page.NextPageToken != "" {
			return nil, errors.New("more sandboxes than a page holds")
		}
		if i > 0 && len(page.Sandboxes) != len(all) {
			return nil, fmt.Errorf("one orchestrator has %d sandboxes, another %d", len(all), len(page.Sandboxes))
		}
		all = page.Sandboxes
	}
	return all, nil
}

// instances holds what runs on the machine against what should: one boot for
// each sandbox that lives, and nothing else.
func (r *round) instances(all []holdfast.Sandbox) {
	r.t.Helper()
	var wrong string
	right := testenv.Eventually(unhurried(20*time.Second), func() bool {
		guests, err := r.d.guests()
		if err != nil {
			wrong = err.Error()
			return false
		}
		count := map[holdfast.InstanceID]int{}
		for _, g := range guests {
			count[g.instance]++
		}
		wrong = ""
		for _, sb := range all {
			want := 1
			if sb.State == holdfast.SandboxFailed {
				want = 0
			}
			if count[sb.Instance] != want {
				wrong += fmt.Sprintf("%s %s has %d instances of %s\n", sb.ID, sb.State, count[sb.Instance], sb.Instance)
			}
			delete(count, sb.Instance)
		}
		for id := range count {
			wrong += fmt.Sprintf("%s runs for nobody\n", id)
		}
		return wrong == ""
	})
	if !right {
		r.violate("%s", strings.TrimSpace(wrong))
	}
}

// end deletes everything, and holds machine and databases against nothing.
func (r *round) end(ctx context.Context) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, unhurried(5*time.Minute))
	defer cancel()
	if err := r.deleteAll(ctx); err != nil {
		r.violate("%v", err)
	}
	r.rows(ctx)
	r.tidy()
	if err := r.d.stop(); err != nil {
		r.t.Error(err)
	}
	var left []string
	clean := func() bool {
		left = r.leftBehind()
		return len(left) == 0
	}
	if !testenv.Eventually(unhurried(10*time.Second), clean) {
		r.violate("left behind:\n  %s", strings.Join(left, "\n  "))
	}
}

// deleteAll deletes all that there is: sessions, with their tasks, what has no owner,
// checkpoints, and the environment.
func (r *round) deleteAll(ctx context.Context) error {
	api := r.d.one(0)
	var errs []error
	for _, w := range r.works {
		_, err := api.DeleteSession(ctx, holdfast.MutateSession{ID: w.id, Force: true})
		errs = append(errs, err)
	}
	all, err := r.list(ctx)
	errs = append(errs, err)
	for _, sb := range all {
		if sb.Owner != "" {
			continue
		}
		_, err := api.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: sb.ID})
		errs = append(errs, err)
	}
	page, err := api.ListCheckpoints(ctx, holdfast.ListCheckpoints{PageSize: holdfast.MaxPageSize})
	errs = append(errs, err)
	for _, k := range page.Checkpoints {
		_, err := api.DeleteCheckpoint(ctx, holdfast.MutateCheckpoint{ID: k.ID})
		errs = append(errs, err)
	}
	_, err = api.DeleteEnvironment(ctx, environment)
	return errors.Join(append(errs, err)...)
}

// leftBehind is what the census finds, but for what the sweep of orphans has yet
// to take, where that is not waited for.
func (r *round) leftBehind() []string {
	r.t.Helper()
	left := testenv.TakeCensus(r.t, r.d.dirs...).Difference(testenv.Census{})
	if r.patient {
		return left
	}
	return slices.DeleteFunc(left, isOrphansOutput)
}

// isOrphansOutput reports whether a line of the census is about the output of an
// incarnation that has ended, and nothing else is there of it.
func isOrphansOutput(line string) bool {
	path, found := strings.CutPrefix(line, "files: ")
	directory, _, output := strings.Cut(path, "/spool/")
	record, err := os.ReadFile(filepath.Join(directory, "record.json"))
	return found && output && err == nil && strings.Contains(string(record), `"state":"EXITED"`)
}

// tidy lets hosts remove what nobody orders them to: the output of an incarnation
// that had ended, was replaced, and whose successor was never placed where it was,
// stays until the sweep of orphans takes it for one (contract: C4), which a slice
// of the rung does not wait for.
func (r *round) tidy() {
	r.t.Helper()
	began, within := time.Now(), unhurried(10*time.Second)
	if r.patient {
		within = holdfast.OrphanGrace + unhurried(time.Minute)
	}
	clean := func() bool { return len(testenv.TakeCensus(r.t, r.d.dirs...)["files"]) == 0 }
	if testenv.Eventually(within, clean) && time.Since(began) > time.Minute {
		r.t.Logf("an orphan's files were removed %s after all else", time.Since(began).Round(time.Second))
	}
}
