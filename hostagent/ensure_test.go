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
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/runtime"
)

func TestRunningMeansThatTheGuestSaidSoOverItsOwnSocket(t *testing.T) {
	w := newWorld()
	w.readyFrom = false
	b := start(t, w, t.TempDir(), newClock())
	b.begin(b.level(1, 1, holdfast.DesiredRunning))
	b.becomes(testInstance, holdfast.InstanceBooting)
	w.change(func() { w.instances[refOf(1)].ready = true })
	o := b.becomes(testInstance, holdfast.InstanceRunning)
	if o.Address == "" || len(o.Ports) != 1 || o.Owner != "sb-1" || o.Host != b.ID() || o.HostURL != "http://host.test" || o.BootID != "boot-1" {
		t.Errorf("facts are missing: %+v", o)
	}
	w.mu.Lock()
	g := w.instances[refOf(1)].bundle.Guest
	w.mu.Unlock()
	if string(g.Secret) != string(delivery.InstanceSecret([]byte("key"), string(testInstance), 1)) || g.Env["A"] != "1" || !strings.HasPrefix(g.CallbackURL, "http://") {
		t.Errorf("the guest was told %+v", g)
	}
}

// contract: A6, B1; T36, T37, T39
func TestLevelsAreJudgedByIncarnationAndGeneration(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	run := b.level(2, 5, holdfast.DesiredRunning)
	b.ensure(run, holdfast.InstanceRunning)
	b.ensure(run, holdfast.InstanceRunning) // joined

	other := b.level(2, 5, holdfast.DesiredRunning)
	other.Cluster = "cl-2"
	b.refused(other, holdfast.ReasonCluster)

	err := b.refused(b.level(2, 4, holdfast.DesiredAbsent), holdfast.ReasonStaleGeneration)
	if seen := holdfast.AsError(err).Details["seen"]; seen != "5" {
		t.Errorf("seen %q, want 5", seen)
	}
	b.refused(b.level(2, 5, holdfast.DesiredSuspended), holdfast.ReasonLevelConflict)
	spec := b.level(2, 5, holdfast.DesiredRunning)
	spec.Spec.Image = "debian"
	b.refused(spec, holdfast.ReasonLevelConflict)
	b.refused(b.level(1, 9, holdfast.DesiredAbsent), holdfast.ReasonStaleIncarnation)
	for _, bad := range []func(*holdfast.Level){
		func(l *holdfast.Level) { l.Instance = "../../etc" },
		func(l *holdfast.Level) { l.Incarnation = 0 },
		func(l *holdfast.Level) { l.Generation = 0 },
		func(l *holdfast.Level) { l.Desired = "DANCING" },
	} {
		l := b.level(2, 6, holdfast.DesiredRunning)
		bad(&l)
		b.refused(l, holdfast.ReasonBadField)
	}
	if len(b.find(testInstance).records) != 1 {
		t.Error("a refused level was recorded")
	}
	if b.get(holdfast.InstanceRunning).Generation != 5 || b.driver.booted(refOf(2)) != 1 {
		t.Error("a refused level changed something")
	}
	b.ensure(b.level(2, 6, holdfast.DesiredRunning), holdfast.InstanceRunning)
	if got := b.get(holdfast.InstanceRunning).Generation; got != 6 {
		t.Errorf("generation %d, want 6", got)
	}
}

// T39, T40, T49
func TestT39_ARunningAfterADeleteThatCameFirstBootsNothing(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	b.ensure(b.level(1, 3, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	b.refused(b.level(1, 2, holdfast.DesiredRunning), holdfast.ReasonStaleGeneration)
	b.ensure(b.level(1, 4, holdfast.DesiredRunning), holdfast.InstanceAbsent)
	b = b.restart()
	b.ensure(b.level(1, 4, holdfast.DesiredRunning), holdfast.InstanceAbsent)
	b.ensure(b.level(1, 5, holdfast.DesiredRunning), holdfast.InstanceAbsent)
	if n := b.driver.booted(refOf(1)); n != 0 {
		t.Errorf("booted %d times", n)
	}
}

// T40
func TestT40_AnUnknownIncarnationPlacedLongAgoIsRefused(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	b.ensure(b.level(1, 3, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	late := b.level(1, 2, holdfast.DesiredRunning)
	b.clock.Advance(holdfast.TombstoneKept - time.Second)
	report, err := b.RunSweep(t.Context(), SweepInstances)
	must(t, err, "sweep")
	if report.Acted != 0 {
		t.Error("a tombstone went before its time")
	}
	b.clock.Advance(time.Second)
	_, err = b.RunSweep(t.Context(), SweepInstances)
	must(t, err, "sweep")
	if _, err := b.GetInstance(t.Context(), testInstance); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("the tombstone is still there: %v", err)
	}
	left, err := os.ReadDir(filepath.Join(b.config.Directory, "instances"))
	must(t, err, "read the directory")
	if len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
	b.refused(late, holdfast.ReasonTooOld)
	b.ensure(b.level(1, 2, holdfast.DesiredRunning), holdfast.InstanceRunning)
}

func TestEveryDesiredStateIsReachedFromEveryOther(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.ensure(b.level(1, 2, holdfast.DesiredSuspended), holdfast.InstanceSuspended)
	b.ensure(b.level(1, 2, holdfast.DesiredSuspended), holdfast.InstanceSuspended)
	b.ensure(b.level(1, 3, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.ensure(b.level(1, 4, holdfast.DesiredSuspended), holdfast.InstanceSuspended)
	o := b.ensure(b.level(1, 5, holdfast.DesiredExited), holdfast.InstanceExited)
	if o.Failure == nil || o.Failure.Reason != holdfast.ReasonExited {
		t.Errorf("failure %+v", o.Failure)
	}
	if w.phase(refOf(1)) != runtime.PhaseAbsent {
		t.Error("EXITED, yet the runtime still has it")
	}
	if _, err := os.Stat(filepath.Join(b.places.spool(refOf(1)), "console")); err != nil {
		t.Errorf("the output did not survive: %v", err)
	}
	b.ensure(b.level(1, 6, holdfast.DesiredRunning), holdfast.InstanceExited)
	b.ensure(b.level(1, 7, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	entries, err := os.ReadDir(b.places.directory(refOf(1)))
	must(t, err, "read the directory")
	if len(entries) != 1 || entries[0].Name() != recordFile {
		t.Errorf("more than a tombstone is left: %v", entries)
	}
	if n := b.driver.booted(refOf(1)); n != 1 {
		t.Errorf("booted %d times", n)
	}
}

// contract: C2
func TestC2_ABootThatIsRefusedEndsWithAReasonAndItsLog(t *testing.T) {
	refuse := func(at string) func(*bench) {
		return func(b *bench) {
			b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
				if point == at {
					return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonPrepareFailed, "the root file system is broken")
				}
				return nil
			}
		}
	}
	for name, c := range map[string]struct {
		adjust func(*bench)
		world  func(*world)
		level  func(*holdfast.Level)
		want   holdfast.Reason
		log    bool
	}{
		"no such image":   {level: func(l *holdfast.Level) { l.Spec.Image = "no-such" }, want: holdfast.ReasonNoSuchImage},
		"prepare refused": {adjust: refuse("before Prepare"), want: holdfast.ReasonPrepareFailed},
		"start refused":   {adjust: refuse("before Start"), want: holdfast.ReasonBootFailed, log: true},
		"setup failed":    {world: func(w *world) { w.failing = "no shell" }, want: holdfast.ReasonSetupFailed, log: true},
		"never ready":     {world: func(w *world) { w.readyFrom = false }, adjust: func(b *bench) { b.config.Timing.Boot = 30 * time.Millisecond }, want: holdfast.ReasonBootTimeout, log: true},
		"dies before ready": {world: func(w *world) { w.readyFrom = false }, adjust: func(b *bench) {
			b.driver.meet = func(_ context.Context, point string, ref holdfast.InstanceRef) error {
				if point == "after Start" {
					b.driver.exit(ref)
				}
				return nil
			}
		}, want: holdfast.ReasonBootFailed, log: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			if c.world != nil {
				c.world(w)
			}
			b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
				if c.adjust != nil {
					c.adjust(b)
				}
			})
			l := b.level(1, 1, holdfast.DesiredRunning)
			if c.level != nil {
				c.level(&l)
			}
			o := b.ensure(l, holdfast.InstanceExited)
			if o.Failure == nil || o.Failure.Reason != c.want {
				t.Fatalf("failure %+v, want reason %s", o.Failure, c.want)
			}
			if got := strings.Contains(o.Failure.LogTail, "booting in-"); got != c.log {
				t.Errorf("log tail %q, want one: %v", o.Failure.LogTail, c.log)
			}
			if w.phase(refOf(1)) != runtime.PhaseAbsent {
				t.Error("something of it is left in the runtime")
			}
			b.ensure(l, holdfast.InstanceExited)
		})
	}
}

// T22
func TestT22_ATransientErrorIsAnsweredAndNotRetried(t *testing.T) {
	for _, point := range []string{"before Inspect", "before Prepare", "after Prepare", "before Start", "after Start"} {
		t.Run(point, func(t *testing.T) {
			var mu sync.Mutex
			failures := 0
			w := newWorld()
			b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
				b.driver.meet = func(_ context.Context, at string, _ holdfast.InstanceRef) error {
					mu.Lock()
					defer mu.Unlock()
					if at == point && failures == 0 {
						failures++
						return errors.New("the disk hiccups")
					}
					return nil
				}
			})
			_, err := b.EnsureInstance(t.Context(), b.level(1, 1, holdfast.DesiredRunning))
			if holdfast.CodeOf(err) != holdfast.Unavailable || !strings.Contains(err.Error(), "hiccups") {
				t.Fatalf("error %v, want UNAVAILABLE with the detail", err)
			}
			if o, _ := b.GetInstance(t.Context(), testInstance); o.State == holdfast.InstanceRunning || o.State == holdfast.InstanceExited {
				t.Errorf("it went on by itself, to %s", o.State)
			}
			b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
			if n := w.booted(refOf(1)); n != 1 {
				t.Errorf("booted %d times", n)
			}
		})
	}
}

// The must-hold item: deleting in any state works, even while a boot hangs.
func TestADeleteDoesNotWaitForAHungBoot(t *testing.T) {
	for _, point := range []string{"image", "before Prepare", "before Start", "before DialGuest"} {
		t.Run(point, func(t *testing.T) {
			hung := make(chan struct{}, 64)
			w := newWorld()
			b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
				if point == "image" {
					b.images.block, b.images.began, b.images.ended = make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
				}
				b.driver.meet = func(ctx context.Context, at string, _ holdfast.InstanceRef) error {
					if at != point {
						return nil
					}
					hung <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}
			})
			answer := make(chan error, 1)
			go func() {
				_, err := b.EnsureInstance(context.Background(), b.level(1, 1, holdfast.DesiredRunning))
				answer <- err
			}()
			if point == "image" {
				<-b.images.began
			} else {
				<-hung
			}
			b.ensure(b.level(1, 2, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
			if err := <-answer; holdfast.ReasonOf(err) != holdfast.ReasonStaleGeneration {
				t.Errorf("the overtaken call got %v", err)
			}
			if point == "image" {
				if err := <-b.images.ended; !errors.Is(err, context.Canceled) {
					t.Errorf("the preparing ended with %v", err)
				}
			}
			if w.phase(refOf(1)) != runtime.PhaseAbsent {
				t.Error("something of it is left")
			}
		})
	}
}

// contract: A2
func TestA2_WhatWasBegunGoesOnWhenTheCallerLeaves(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) {
		b.images.block, b.images.began, b.images.ended = make(chan struct{}), make(chan struct{}, 2), make(chan error, 2)
	})
	ctx, leave := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() {
		_, err := b.EnsureInstance(ctx, b.level(1, 1, holdfast.DesiredRunning))
		answer <- err
	}()
	<-b.images.began
	o := b.get(holdfast.InstancePreparing)
	if o.Progress != "unpacking base" {
		t.Errorf("progress %q", o.Progress)
	}
	leave()
	if err := <-answer; holdfast.CodeOf(err) != holdfast.Cancelled {
		t.Errorf("the caller got %v", err)
	}
	close(b.images.block)
	b.becomes(testInstance, holdfast.InstanceRunning)
}

func TestAnImageIsPreparedOnceForAllThatWaitForIt(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) {
		b.images.block, b.images.began, b.images.ended = make(chan struct{}), make(chan struct{}, 8), make(chan error, 8)
	})
	ids := []holdfast.InstanceID{"in-00000000000000000000000001", "in-00000000000000000000000002", "in-00000000000000000000000003"}
	for _, id := range ids {
		l := b.level(1, 1, holdfast.DesiredRunning)
		l.Instance = id
		b.begin(l)
	}
	<-b.images.began
	gone := b.level(1, 2, holdfast.DesiredAbsent)
	b.ensure(gone, holdfast.InstanceAbsent) // one of three leaves; the others still wait
	close(b.images.block)
	for _, id := range ids[1:] {
		b.becomes(id, holdfast.InstanceRunning)
	}
	b.images.mu.Lock()
	defer b.images.mu.Unlock()
	if b.images.working != 1 {
		t.Errorf("prepared %d times", b.images.working)
	}
}

func TestAnImageThatIsNotReadyInTimeEndsTheInstance(t *testing.T) {
	c := newClock()
	b := start(t, newWorld(), t.TempDir(), c, func(b *bench) {
		b.config.Timing.Prepare = time.Millisecond
		b.images.block, b.images.began, b.images.ended = make(chan struct{}), make(chan struct{}, 8), make(chan error, 8)
	})
	o := b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceExited)
	if o.Failure.Reason != holdfast.ReasonImageFailed {
		t.Errorf("failure %+v", o.Failure)
	}
}

// T37, T49
func TestANewIncarnationBeginsOnlyWhenTheOlderIsGone(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, at string, ref holdfast.InstanceRef) error {
			if at == "before Prepare" && ref == refOf(2) && w.phase(refOf(1)) != runtime.PhaseAbsent {
				t.Error("incarnation 2 is prepared while incarnation 1 is there")
			}
			return nil
		}
	})
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.ensure(b.level(2, 2, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.refused(b.level(1, 3, holdfast.DesiredRunning), holdfast.ReasonStaleIncarnation)
	// A delete of an incarnation never seen takes what there is of older ones.
	b.ensure(b.level(3, 4, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	for i := int64(1); i <= 3; i++ {
		if w.phase(refOf(i)) != runtime.PhaseAbsent {
			t.Errorf("incarnation %d is left", i)
		}
	}
	if w.booted(refOf(1)) != 1 || w.booted(refOf(2)) != 1 || w.booted(refOf(3)) != 0 {
		t.Errorf("boots %v", w.boots)
	}
}

// T24: attempts that arrive while one runs join it.
func TestT24_ConcurrentLevelsBootOnce(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			if o, err := b.EnsureInstance(t.Context(), b.level(1, 1, holdfast.DesiredRunning)); err != nil || o.State != holdfast.InstanceRunning {
				t.Errorf("%s, %v", o.State, err)
			}
		})
	}
	group.Wait()
	if w.booted(refOf(1)) != 1 || w.prepares[refOf(1)] != 1 {
		t.Errorf("booted %d, prepared %d times", w.booted(refOf(1)), w.prepares[refOf(1)])
	}
}

// A runtime that cannot freeze says so, and the instance runs on.
func TestARefusedSuspendChangesNothing(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, at string, _ holdfast.InstanceRef) error {
			if at == "before Suspend" {
				return holdfast.E(holdfast.Unimplemented, holdfast.ReasonNotCapable, "this runtime cannot freeze")
			}
			return nil
		}
	})
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.refused(b.level(1, 2, holdfast.DesiredSuspended), holdfast.ReasonNotCapable)
	b.get(holdfast.InstanceRunning)
	b.ensure(b.level(1, 3, holdfast.DesiredRunning), holdfast.InstanceRunning)
}

// T12: what was gone when it was to be frozen has ended, whoever says so first.
func TestSuspendingWhatIsGoneEndsIt(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, at string, ref holdfast.InstanceRef) error {
			if at == "before Suspend" {
				w.change(func() { w.instances[ref].phase = runtime.PhaseExited })
				return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonInstanceLost, "it is gone")
			}
			return nil
		}
	})
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	if o := b.ensure(b.level(1, 2, holdfast.DesiredSuspended), holdfast.InstanceExited); o.Failure.Reason != holdfast.ReasonExited {
		t.Errorf("failure %+v", o.Failure)
	}
}

// The answer is the newest that is known when the wait ends.
func TestAWaitThatEndsIsAnsweredWithWhatIsSeen(t *testing.T) {
	w := newWorld()
	w.readyFrom = false
	b := start(t, w, t.TempDir(), newClock())
	l := b.level(1, 1, holdfast.DesiredRunning)
	l.Wait = 20 * time.Millisecond
	for {
		o, err := b.EnsureInstance(t.Context(), l)
		must(t, err, "ensure")
		if o.State == holdfast.InstanceBooting {
			break
		}
	}
	w.change(func() { w.instances[refOf(1)].ready = true })
	l.Wait = holdfast.MaxLevelWait
	b.ensure(l, holdfast.InstanceRunning)
}

// A list stays small enough for its hop, whatever has failed and been deleted here.
func TestAListLeavesOutTombstonesAndTooMuchLog(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	tail := strings.Repeat("x", maxMessage)
	for i := range 300 {
		id := holdfast.InstanceID(fmt.Sprintf("in-%026d", i+100))
		m := b.machine(id)
		m.records[1] = record{
			Ref: holdfast.InstanceRef{Instance: id, Incarnation: 1}, State: holdfast.InstanceExited,
			Failure: &holdfast.Failure{Reason: holdfast.ReasonExited, LogTail: tail},
		}
	}
	list, err := b.ListInstances(t.Context())
	must(t, err, "list")
	tails := 0
	for _, o := range list {
		tails += len(o.Failure.LogTail)
	}
	if len(list) != 300 || tails > maxTails || list[0].Failure.LogTail != tail {
		t.Errorf("%d listed, %d bytes of log", len(list), tails)
	}
	one, err := b.GetInstance(t.Context(), list[299].Instance)
	if err != nil || one.Failure.LogTail != tail {
		t.Errorf("its own read lacks the log: %v", err)
	}
}
