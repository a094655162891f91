package hostagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// contract: C6
func TestC6_ARestartedAgentFindsItsRunningInstancesAgain(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	id := b.ID()
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b = b.restart()
	if b.ID() != id {
		t.Errorf("the host is %s now, was %s", b.ID(), id)
	}
	o := b.get(holdfast.InstanceRunning)
	if o.Stale || o.Address == "" || o.Generation != 1 {
		t.Errorf("found again as %+v", o)
	}
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	w.exit(refOf(1))
	if o := b.becomes(testInstance, holdfast.InstanceExited); o.Failure.Reason != holdfast.ReasonExited {
		t.Errorf("failure %+v: nobody watched it after the restart", o.Failure)
	}
	if w.booted(refOf(1)) != 1 {
		t.Errorf("booted %d times", w.booted(refOf(1)))
	}
}

// contract: C6; T49
func TestT49_ARestartNeverBootsAgain(t *testing.T) {
	run, freeze := holdfast.DesiredRunning, holdfast.DesiredSuspended
	for name, c := range map[string]struct {
		desired  holdfast.Desired
		meantime func(*world)
		survives bool
		want     holdfast.InstanceState
		reason   holdfast.Reason
	}{
		"nothing happened":                 {desired: run, want: holdfast.InstanceRunning},
		"it exited":                        {desired: run, meantime: func(w *world) { w.exit(refOf(1)) }, want: holdfast.InstanceExited, reason: holdfast.ReasonExited},
		"it is gone":                       {desired: run, meantime: func(w *world) { delete(w.instances, refOf(1)) }, want: holdfast.InstanceExited, reason: holdfast.ReasonInstanceLost},
		"the host rebooted":                {desired: run, meantime: func(w *world) { w.reboot("boot-2") }, want: holdfast.InstanceExited, reason: holdfast.ReasonHostRebooted},
		"the host rebooted, it was frozen": {desired: freeze, meantime: func(w *world) { w.reboot("boot-2") }, want: holdfast.InstanceExited, reason: holdfast.ReasonHostRebooted},
		"its frozen state is gone":         {desired: freeze, meantime: func(w *world) { delete(w.instances, refOf(1)) }, want: holdfast.InstanceExited, reason: holdfast.ReasonSavedStateGone},
		"the host rebooted, it was saved":  {desired: freeze, meantime: func(w *world) { w.bootID = "boot-2" }, survives: true, want: holdfast.InstanceSuspended},
	} {
		t.Run(name, func(t *testing.T) {
			survives := func(b *bench) { b.driver.capabilities.SurvivesHost = c.survives }
			w := newWorld()
			b := start(t, w, t.TempDir(), newClock(), survives)
			b.ensure(b.level(1, 1, run), holdfast.InstanceRunning)
			if c.desired == freeze {
				b.ensure(b.level(1, 2, freeze), holdfast.InstanceSuspended)
			}
			must(t, b.Close(), "close")
			if c.meantime != nil {
				c.meantime(w)
			}
			b = start(t, w, b.config.Directory, b.clock, survives)
			o := b.get(c.want)
			if o.Stale || o.Failure != nil && o.Failure.Reason != c.reason || o.Failure == nil && c.reason != "" {
				t.Errorf("after the restart: %+v, failure %+v, want %s", o, o.Failure, c.reason)
			}
			after := holdfast.InstanceRunning
			if c.want == holdfast.InstanceExited {
				after = holdfast.InstanceExited
			}
			b.ensure(b.level(1, 3, run), after)
			if w.booted(refOf(1)) != 1 {
				t.Errorf("booted %d times", w.booted(refOf(1)))
			}
			b = b.restart(survives)
			b.get(after)
			b.ensure(b.level(1, 4, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
		})
	}
}

func TestARebootBeforeTheStartPreparesAnew(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "after Prepare" {
				return errors.New("the answer is lost")
			}
			return nil
		}
	})
	b.refused(b.level(1, 1, holdfast.DesiredRunning), holdfast.ReasonRuntime)
	must(t, b.Close(), "close")
	w.reboot("boot-2")
	b = start(t, w, b.config.Directory, b.clock)
	b.get(holdfast.InstancePreparing)
	if w.prepares[refOf(1)] != 1 {
		t.Error("a restarted agent prepares by itself")
	}
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	if w.booted(refOf(1)) != 1 || w.prepares[refOf(1)] != 2 {
		t.Errorf("booted %d, prepared %d times", w.booted(refOf(1)), w.prepares[refOf(1)])
	}
}

// T27
func TestT27_AFailedLookIsNeverTakenForGone(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	var mu sync.Mutex
	blind := true
	b = b.restart(func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			mu.Lock()
			defer mu.Unlock()
			if blind && (point == "before Inspect" || point == "before List") {
				return errors.New("the runtime does not answer")
			}
			return nil
		}
	})
	if o := b.get(holdfast.InstanceRunning); !o.Stale {
		t.Error("what could not be looked at is told as if it had been seen")
	}
	if _, err := b.RunSweep(t.Context(), SweepInstances); err == nil {
		t.Error("the sweep says nothing of a runtime that does not answer")
	}
	b.refused(b.level(1, 1, holdfast.DesiredRunning), holdfast.ReasonRuntime)
	b.get(holdfast.InstanceRunning)
	mu.Lock()
	blind = false
	mu.Unlock()
	_, err := b.RunSweep(t.Context(), SweepInstances)
	must(t, err, "sweep")
	if o := b.get(holdfast.InstanceRunning); o.Stale {
		t.Error("still not seen")
	}
}

func TestOneAgentAloneHasADirectory(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	_, err := New(b.config)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a second agent: %v; want a refusal that names the process", err)
	}
}

// A record that cannot be read must not be taken for "never seen" (T49).
func TestT49_ADamagedRecordNeverBootsTwice(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"garbage":       func(p string) error { return os.WriteFile(p, []byte("{\"ref\":"), 0o600) },
		"empty":         func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"another's":     func(p string) error { return os.WriteFile(p, []byte(`{"state":"PREPARING"}`), 0o600) },
		"it is missing": os.Remove,
	} {
		for _, alive := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, alive %v", name, alive), func(t *testing.T) {
				w := newWorld()
				b := start(t, w, t.TempDir(), newClock())
				b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
				must(t, b.Close(), "close")
				path := filepath.Join(b.places.directory(refOf(1)), recordFile)
				must(t, damage(path), "damage")
				want := holdfast.InstanceRunning
				if !alive {
					w.reboot("boot-2")
					want = holdfast.InstanceExited
				}
				b = start(t, w, b.config.Directory, b.clock)
				b.becomes(testInstance, want)
				b.ensure(b.level(1, 1, holdfast.DesiredRunning), want)
				if w.booted(refOf(1)) != 1 {
					t.Errorf("booted %d times", w.booted(refOf(1)))
				}
				kept, err := filepath.Glob(path + ".damaged-*")
				must(t, err, "glob")
				if len(kept) != 1 && name != "it is missing" {
					t.Errorf("the damaged record is not kept: %v", kept)
				}
				b.ensure(b.level(1, 2, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
			})
		}
	}
}

func TestADamagedIdentityIsAnErrorAndNoNewHost(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	must(t, b.Close(), "close")
	must(t, os.WriteFile(filepath.Join(b.config.Directory, "host.json"), []byte("{}"), 0o600), "damage")
	if _, err := New(b.config); err == nil {
		t.Error("a new host was made of a damaged one")
	}
}

var errCrash = errors.New("the process is dead")

// crash kills an agent at its nth point: a durable write or a runtime call,
// before or after its effect. The dead do nothing more.
type crash struct {
	mu   sync.Mutex
	left int // points until death; negative: immortal
	dead bool
	at   string
	seen int
	died chan struct{}
}

func newCrash(n int) *crash { return &crash{left: n, died: make(chan struct{})} }

func (c *crash) meet(point string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return errCrash
	}
	c.seen++
	if c.left--; c.left == 0 {
		c.dead, c.at = true, point
		close(c.died)
		return errCrash
	}
	return nil
}

func (c *crash) install(b *bench) {
	b.config.hook = c.meet
	b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error { return c.meet(point) }
}

// The must-hold item: killed at any moment, repeated, the same instance, booted
// once. Every durable step of every verb is a point, and so is every step of the
// recovery from it (every pair).
func TestKilledAtAnyStepALevelRepeatedConvergesAndBootsOnce(t *testing.T) {
	verbs := map[string][]holdfast.Desired{
		"create":           {holdfast.DesiredRunning},
		"suspend":          {holdfast.DesiredRunning, holdfast.DesiredSuspended},
		"resume":           {holdfast.DesiredRunning, holdfast.DesiredSuspended, holdfast.DesiredRunning},
		"end":              {holdfast.DesiredRunning, holdfast.DesiredExited},
		"delete":           {holdfast.DesiredRunning, holdfast.DesiredAbsent},
		"delete suspended": {holdfast.DesiredRunning, holdfast.DesiredSuspended, holdfast.DesiredAbsent},
	}
	for name, levels := range verbs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			points := 0
			for first := 1; ; first++ {
				var survived bool
				for second := 1; ; second++ {
					diedFirst, diedSecond := killTwice(t, levels, first, second)
					survived = !diedFirst
					points++
					if !diedFirst || !diedSecond || t.Failed() {
						break
					}
				}
				if survived || t.Failed() {
					break
				}
			}
			t.Logf("%d runs", points)
		})
	}
}

func killTwice(t *testing.T, levels []holdfast.Desired, first, second int) (diedFirst, diedSecond bool) {
	t.Helper()
	w, c, dir := newWorld(), newClock(), t.TempDir()
	b := start(t, w, dir, c)
	for i, desired := range levels[:len(levels)-1] {
		must(t, try(b, int64(i+1), desired), "level %d", i+1)
	}
	must(t, b.Close(), "close")
	last, desired := int64(len(levels)), levels[len(levels)-1]
	crashes := []*crash{newCrash(first), newCrash(second)}
	for _, one := range crashes {
		if run(t, w, dir, c, one, func(b *bench) { _ = try(b, last, desired) }) == "" {
			break
		}
	}
	where := fmt.Sprintf("killed at point %d (%s), then %d (%s)", first, crashes[0].at, second, crashes[1].at)
	b = start(t, w, dir, c)
	if err := try(b, last, desired); err != nil {
		t.Errorf("%s: %v", where, err)
	}
	if n := w.booted(refOf(1)); n > 1 {
		t.Errorf("%s: booted %d times", where, n)
	}
	b.get(goal(desired))
	checkPhase(t, where, w, desired)
	must(t, b.Close(), "close")
	return crashes[0].dead, crashes[1].dead
}

// T49: killed at any moment of a create, and then the machine goes down too.
func TestT49_KilledAtAnyStepAndThenRebootedItBootsOnceOrEnds(t *testing.T) {
	for point := 1; ; point++ {
		w, c, dir := newWorld(), newClock(), t.TempDir()
		death := newCrash(point)
		if run(t, w, dir, c, death, func(b *bench) { _ = try(b, 1, holdfast.DesiredRunning) }) == "" {
			break
		}
		began := w.booted(refOf(1))
		w.reboot("boot-2")
		b := start(t, w, dir, c)
		o, err := b.EnsureInstance(t.Context(), b.level(1, 1, holdfast.DesiredRunning))
		where := fmt.Sprintf("killed at point %d (%s)", point, death.at)
		must(t, err, "%s", where)
		switch {
		case began == 0 && o.State == holdfast.InstanceRunning:
		case o.State != holdfast.InstanceExited || o.Failure.Reason != holdfast.ReasonHostRebooted:
			t.Errorf("%s: %s, failure %+v", where, o.State, o.Failure)
		}
		if n := w.booted(refOf(1)); n > 1 {
			t.Errorf("%s: booted %d times", where, n)
		}
		must(t, b.Close(), "close")
	}
}

// run lets an agent live until its crash, or the work is done.
func run(t *testing.T, w *world, dir string, c *clock, death *crash, work func(*bench), adjust ...func(*bench)) (died string) {
	t.Helper()
	b := build(t, w, dir, c, append(adjust, death.install)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		select {
		case <-death.died:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := b.Start(ctx); err == nil {
		done := make(chan struct{})
		go func() { defer close(done); work(b) }()
		select {
		case <-done:
		case <-death.died:
		}
		must(t, b.Close(), "close the killed")
		<-done
	}
	must(t, b.Close(), "close the killed")
	death.mu.Lock()
	defer death.mu.Unlock()
	if !death.dead {
		return ""
	}
	return death.at
}

func try(b *bench, generation int64, desired holdfast.Desired) error {
	o, err := b.EnsureInstance(context.Background(), b.level(1, generation, desired))
	if err == nil && o.State != goal(desired) {
		err = fmt.Errorf("it is %s (failure %+v), want %s", o.State, o.Failure, goal(desired))
	}
	return err
}

func goal(d holdfast.Desired) holdfast.InstanceState { return holdfast.InstanceState(d) }

func checkPhase(t *testing.T, where string, w *world, desired holdfast.Desired) {
	t.Helper()
	want := map[holdfast.Desired]runtime.Phase{
		holdfast.DesiredRunning: runtime.PhaseRunning, holdfast.DesiredSuspended: runtime.PhaseSuspended,
		holdfast.DesiredExited: runtime.PhaseAbsent, holdfast.DesiredAbsent: runtime.PhaseAbsent,
	}[desired]
	if got := w.phase(refOf(1)); got != want {
		t.Errorf("%s: the runtime says %s, want %s", where, got, want)
	}
}
