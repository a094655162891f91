package hostagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/runtime"
)

// stray puts something into the runtime that nobody recorded.
func (w *world) stray(ref holdfast.InstanceRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.instances[ref] = &body{phase: runtime.PhaseRunning, ended: make(chan struct{})}
}

func (b *bench) sweep(name string, acted int) {
	b.t.Helper()
	report, err := b.RunSweep(b.t.Context(), name)
	if err == nil {
		err = report.Err()
	}
	must(b.t, err, "sweep %s", name)
	if report.Acted != acted {
		b.t.Errorf("sweep %s acted on %d, want %d", name, report.Acted, acted)
	}
}

// contract: C4; T26, T49
func TestC4_AnOrphanIsDestroyedAfterTheGraceAndNeverBootsAgain(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	w.stray(refOf(7))
	b.sweep(SweepOrphans, 0)
	b.clock.Advance(holdfast.OrphanGrace - time.Second)
	b.sweep(SweepOrphans, 0)
	if w.phase(refOf(7)) != runtime.PhaseRunning {
		t.Fatal("destroyed within the grace")
	}
	b.clock.Advance(time.Second)
	b.sweep(SweepOrphans, 1)
	if w.phase(refOf(7)) != runtime.PhaseAbsent {
		t.Error("the orphan is still there")
	}
	if _, err := b.GetInstance(t.Context(), testInstance); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("an orphan is told of as if it had been ordered: %v", err)
	}
	b = b.restart()
	b.ensure(b.level(7, 1, holdfast.DesiredRunning), holdfast.InstanceAbsent)
	if w.booted(refOf(7)) != 0 {
		t.Error("it booted a second time")
	}
}

func TestC4_AnOrphanOfAnotherIncarnationTakesNothingWithIt(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	b.ensure(b.level(2, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	w.stray(refOf(1))
	w.stray(refOf(3))
	b.sweep(SweepOrphans, 0)
	b.clock.Advance(holdfast.OrphanGrace)
	b.sweep(SweepOrphans, 2)
	if w.phase(refOf(1)) != runtime.PhaseAbsent || w.phase(refOf(3)) != runtime.PhaseAbsent {
		t.Error("orphans are left")
	}
	if o := b.get(holdfast.InstanceRunning); o.Incarnation != 2 || w.phase(refOf(2)) != runtime.PhaseRunning {
		t.Errorf("the ordered one suffered: %+v", o)
	}
}

// T26: what a live attempt prepares is no orphan, however long it takes.
func TestT26_WhatIsBeingPreparedIsNoOrphan(t *testing.T) {
	w := newWorld()
	hung, release := make(chan struct{}, 1), make(chan struct{})
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "after Prepare" {
				hung <- struct{}{}
				<-release
			}
			return nil
		}
	})
	b.begin(b.level(1, 1, holdfast.DesiredRunning))
	<-hung
	b.sweep(SweepOrphans, 0)
	b.clock.Advance(24 * time.Hour)
	b.sweep(SweepOrphans, 0)
	b.sweep(SweepInstances, 0)
	close(release)
	b.becomes(testInstance, holdfast.InstanceRunning)
	if w.stops[refOf(1)] != 0 {
		t.Error("a sweep stopped what an attempt was creating")
	}
}

// T52
func TestT52_ASweepThatWouldDestroyUnusuallyMuchDestroysNothing(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	for i := range 4 {
		w.stray(holdfast.InstanceRef{Instance: holdfast.InstanceID(fmt.Sprintf("in-%026d", i)), Incarnation: 1})
	}
	b.sweep(SweepOrphans, 0)
	b.clock.Advance(time.Hour)
	_, err := b.RunSweep(t.Context(), SweepOrphans)
	if !errors.Is(err, reconcile.ErrTooMany) {
		t.Errorf("error %v, want the alarm", err)
	}
	if len(w.instances) != 4 {
		t.Errorf("%d of 4 are left", len(w.instances))
	}
}

// contract: C1
func TestC1_TheSweepFindsAnEndThatTheWatcherMissed(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.rests()
	w.change(func() { w.instances[refOf(1)].phase = runtime.PhaseExited }) // and nobody is told
	b.sweep(SweepInstances, 1)
	o := b.get(holdfast.InstanceExited)
	if o.Failure.Reason != holdfast.ReasonExited || w.phase(refOf(1)) != runtime.PhaseAbsent {
		t.Errorf("failure %+v, runtime %s", o.Failure, w.phase(refOf(1)))
	}
	b.sweep(SweepInstances, 0)
}

func TestC1_TheSweepEndsABootThatNobodyCarriesOn(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "before Start" {
				return errors.New("not now")
			}
			return nil
		}
	})
	b.refused(b.level(1, 1, holdfast.DesiredRunning), holdfast.ReasonRuntime)
	b = b.restart()
	b.get(holdfast.InstanceBooting)
	if w.booted(refOf(1)) != 0 {
		t.Fatal("a restarted agent boots by itself")
	}
	b.clock.Advance(holdfast.InstanceBootAfter)
	b.sweep(SweepInstances, 1)
	if o := b.get(holdfast.InstanceExited); o.Failure.Reason != holdfast.ReasonBootTimeout {
		t.Errorf("failure %+v", o.Failure)
	}
}

// T47: what an ended incarnation left in the runtime is found and given back.
func TestT47_TheSweepGivesBackWhatAnEndedIncarnationLeft(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.ensure(b.level(1, 2, holdfast.DesiredExited), holdfast.InstanceExited)
	b.rests()
	w.stray(refOf(1))
	b.sweep(SweepInstances, 1)
	if w.phase(refOf(1)) != runtime.PhaseAbsent {
		t.Error("it is still there")
	}
	b.get(holdfast.InstanceExited)
}

// T47
func TestT47_GoneIsSaidOnlyWhenTheRuntimeHasNothingLeft(t *testing.T) {
	w := newWorld()
	var mu sync.Mutex
	stuck := true
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, ref holdfast.InstanceRef) error {
			mu.Lock()
			defer mu.Unlock()
			if point == "after Stop" && stuck {
				w.stray(ref) // Stop says done, something is left
			}
			return nil
		}
	})
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.refused(b.level(1, 2, holdfast.DesiredAbsent), holdfast.ReasonRuntime)
	b.get(holdfast.InstanceStopping)
	mu.Lock()
	stuck = false
	mu.Unlock()
	b.ensure(b.level(1, 2, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
}
