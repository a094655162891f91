package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/runtime"
)

const testCheckpoint = holdfast.CheckpointID("ck-00000000000000000000000001")

// depot is a store that meets each Put as a driver does, and blocks and fails as it is
// told.
type depot struct {
	blob.Store
	mu    sync.Mutex
	meet  func(ctx context.Context, point string) error
	block chan struct{} // nil: it answers at once
	began chan struct{} // gets a token for every upload begun
	puts  []string
}

func newDepot(t testing.TB) *depot {
	t.Helper()
	store, err := blob.Open(t.Context(), t.TempDir())
	must(t, err, "open the blobs")
	return &depot{Store: store, meet: func(context.Context, string) error { return nil }, began: make(chan struct{}, 16)}
}

func (d *depot) Put(ctx context.Context, key string, r io.Reader) (blob.Info, error) {
	d.mu.Lock()
	d.puts = append(d.puts, key)
	block, meet := d.block, d.meet
	d.mu.Unlock()
	d.began <- struct{}{}
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return blob.Info{}, ctx.Err()
		}
	}
	if err := meet(ctx, "before Put"); err != nil {
		return blob.Info{}, err
	}
	info, err := d.Store.Put(ctx, key, r)
	return info, errors.Join(err, meet(ctx, "after Put"))
}

func (d *depot) change(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// content is what is under a key.
func (d *depot) content(t testing.TB, key string) string {
	t.Helper()
	r, _, err := d.Get(t.Context(), key)
	must(t, err, "get %s", key)
	raw, err := io.ReadAll(r)
	must(t, errors.Join(err, r.Close()), "read %s", key)
	return string(raw)
}

func withBlobs(d *depot) func(*bench) {
	return func(b *bench) { b.config.Blobs = d }
}

// copies is a bench with a running instance whose disk has that content, and a depot.
func copies(t *testing.T, content string, adjust ...func(*bench)) (*bench, *depot) {
	t.Helper()
	d := newDepot(t)
	b := start(t, newWorld(), t.TempDir(), newClock(), append(adjust, withBlobs(d))...)
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.driver.change(func() { b.driver.instances[refOf(1)].content = content })
	return b, d
}

func (b *bench) copyLevel(claim int64, desired holdfast.CheckpointDesired) holdfast.CheckpointLevel {
	return holdfast.CheckpointLevel{Cluster: "cl-1", Checkpoint: testCheckpoint, Instance: testInstance, Incarnation: 1, Generation: 2,
		Claim: claim, Desired: desired, MintedAt: b.clock.Now(), Wait: holdfast.MaxLevelWait}
}

func (b *bench) copied(l holdfast.CheckpointLevel, want holdfast.CopyState) holdfast.CheckpointObservation {
	b.t.Helper()
	o, err := b.EnsureCheckpoint(b.t.Context(), l)
	if err != nil || o.State != want {
		b.t.Fatalf("%s by claim %d: %s (%+v), %v; want %s", l.Desired, l.Claim, o.State, o.Failure, err, want)
	}
	return o
}

func (b *bench) notCopied(l holdfast.CheckpointLevel, want holdfast.Reason) {
	b.t.Helper()
	o, err := b.EnsureCheckpoint(b.t.Context(), l)
	if holdfast.ReasonOf(err) != want {
		b.t.Fatalf("%s by claim %d: %s, %v (%s); want %s", l.Desired, l.Claim, o.State, err, holdfast.ReasonOf(err), want)
	}
}

// parts lists what the checkpoint has on the host besides its record, once no attempt
// is at it: an answer may come before its attempt has quite ended.
func (b *bench) parts() []string {
	b.t.Helper()
	c := b.copying(testCheckpoint)
	c.mu.Lock()
	at := c.attempt
	c.mu.Unlock()
	if at != nil {
		<-at.done
	}
	names, err := b.copyStore.parts(testCheckpoint)
	must(b.t, err, "parts")
	return names
}

// contract: E4
func TestE4_ACheckpointIsInTheBlobStoreWhenItIsPresent(t *testing.T) {
	b, d := copies(t, "the disk")
	l := b.copyLevel(3, holdfast.CheckpointPresent)
	o := b.copied(l, holdfast.CopyPresent)
	key := "checkpoints/" + string(testCheckpoint) + "/3"
	if len(o.Layers) != 1 || o.Layers[0].Key != key || o.Layers[0].Size != 8 || len(o.Layers[0].SHA256) != 64 || o.Added != 8 || o.Claim != 3 {
		t.Errorf("observed %+v", o)
	}
	if got := d.content(t, key); got != "the disk" {
		t.Errorf("stored %q", got)
	}
	// Another claim, later, after the instance changed, and after a restart: the same.
	b.driver.change(func() { b.driver.instances[refOf(1)].content = "changed" })
	l.Claim = 9
	for range 2 {
		again := b.copied(l, holdfast.CopyPresent)
		if !slices.Equal(again.Layers, o.Layers) || again.Claim != 3 {
			t.Errorf("observed again as %+v", again)
		}
		b = b.restart(withBlobs(d))
	}
	b.ensure(b.level(1, 3, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	b.copied(l, holdfast.CopyPresent)
	if len(d.puts) != 1 || len(b.parts()) != 0 {
		t.Errorf("uploaded %q, left %q", d.puts, b.parts())
	}
}

func TestTheChainOfAForkIsThatOfItsSourceAndOneMore(t *testing.T) {
	d := newDepot(t)
	b := start(t, newWorld(), t.TempDir(), newClock(), withBlobs(d), func(b *bench) { b.config.Layers = pile{} })
	level := b.level(1, 1, holdfast.DesiredRunning)
	level.Spec.Layers = []holdfast.Layer{{Key: "a/1", SHA256: "a"}, {Key: "b/1", SHA256: "b"}}
	b.ensure(level, holdfast.InstanceRunning)
	if got := b.driver.instances[refOf(1)].bundle.Layers; !slices.Equal(got, []string{"/layers/a", "/layers/b"}) {
		t.Errorf("booted above %q", got)
	}
	o := b.copied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.CopyPresent)
	if len(o.Layers) != 3 || o.Layers[0] != level.Spec.Layers[0] || o.Layers[1] != level.Spec.Layers[1] || o.Added != o.Layers[2].Size {
		t.Errorf("observed %+v", o.Layers)
	}
}

// Where a runtime's layers have all that is below them, a checkpoint is one layer.
func TestAWholeLayerNeedsNoneBelowIt(t *testing.T) {
	d := newDepot(t)
	b := start(t, newWorld(), t.TempDir(), newClock(), withBlobs(d), func(b *bench) {
		b.config.Layers, b.driver.capabilities.WholeLayers = pile{}, true
	})
	level := b.level(1, 1, holdfast.DesiredRunning)
	level.Spec.Layers = []holdfast.Layer{{Key: "a/1", SHA256: "a"}}
	b.ensure(level, holdfast.InstanceRunning)
	if o := b.copied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.CopyPresent); len(o.Layers) != 1 || o.Layers[0].Key == "a/1" {
		t.Errorf("observed %+v", o.Layers)
	}
}

// pile is a host's layers, each there already.
type pile struct{}

func (pile) Ensure(_ context.Context, one holdfast.Layer, _ func(string)) (string, error) {
	if one.Key == "gone/1" {
		return "", holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonBlobGone, "it is gone")
	}
	return "/layers/" + one.SHA256, nil
}

func (pile) Prune(context.Context, func(string) bool) (int, error) { return 0, nil }

// pruned is a pile that notes what is needed of it.
type pruned struct {
	pile
	needed map[string]bool
}

func (p pruned) Prune(_ context.Context, needed func(string) bool) (int, error) {
	for sum := range p.needed {
		p.needed[sum] = needed(sum)
	}
	return 1, nil
}

func TestALayerIsNeededAsLongAsAnInstanceIsRecordedWithIt(t *testing.T) {
	layers := pruned{needed: map[string]bool{"a": false, "b": false}}
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.config.Layers = layers })
	level := b.level(1, 1, holdfast.DesiredRunning)
	level.Spec.Layers = []holdfast.Layer{{Key: "a/1", SHA256: "a"}}
	wants := func(needed bool) {
		t.Helper()
		_, err := b.RunSweep(t.Context(), SweepLayers)
		must(t, err, "sweep")
		if layers.needed["a"] != needed || layers.needed["b"] {
			t.Errorf("needed: %v, want a %v", layers.needed, needed)
		}
	}
	b.ensure(level, holdfast.InstanceRunning)
	wants(true)
	b = b.restart(func(b *bench) { b.config.Layers = layers })
	wants(true)
	level.Generation, level.Desired = 2, holdfast.DesiredSuspended
	b.ensure(level, holdfast.InstanceSuspended)
	wants(true)
	level.Generation, level.Desired = 3, holdfast.DesiredExited
	b.ensure(level, holdfast.InstanceExited)
	wants(false)
}

func TestALayerThatIsGoneEndsTheInstanceWithTheReason(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.config.Layers = pile{} })
	level := b.level(1, 1, holdfast.DesiredRunning)
	level.Spec.Layers = []holdfast.Layer{{Key: "gone/1", SHA256: "a"}}
	if o := b.ensure(level, holdfast.InstanceExited); o.Failure.Reason != holdfast.ReasonBlobGone {
		t.Errorf("failed with %+v", o.Failure)
	}
	level.Spec.Layers = make([]holdfast.Layer, holdfast.MaxLayers+1)
	b.refused(level, holdfast.ReasonTooLarge)
}

// contract: E4; traps T7, T36, T37, T39, T40, T52
func TestE4_WhatACheckpointsLevelMustNot(t *testing.T) {
	b, d := copies(t, "the disk")
	b.ensure(b.level(1, 5, holdfast.DesiredRunning), holdfast.InstanceRunning)
	for want, spoil := range map[holdfast.Reason]func(*holdfast.CheckpointLevel){
		holdfast.ReasonStaleGeneration: func(l *holdfast.CheckpointLevel) { l.Generation = 4 },
		holdfast.ReasonCluster:         func(l *holdfast.CheckpointLevel) { l.Cluster = "another" },
		holdfast.ReasonTooOld:          func(l *holdfast.CheckpointLevel) { l.MintedAt = l.MintedAt.Add(-7 * 24 * time.Hour) },
		holdfast.ReasonUnknown:         func(l *holdfast.CheckpointLevel) { l.Incarnation = 2 },
		holdfast.ReasonBadField:        func(l *holdfast.CheckpointLevel) { l.Desired = "RUNNING" },
	} {
		l := b.copyLevel(1, holdfast.CheckpointPresent)
		l.Generation = 6
		spoil(&l)
		b.notCopied(l, want)
	}
	if len(d.puts) != 0 || len(b.allCopies()) != 0 {
		t.Errorf("refusals uploaded %q and left %d records", d.puts, len(b.allCopies()))
	}
	l := b.copyLevel(1, holdfast.CheckpointPresent)
	l.Generation = 6
	b.copied(l, holdfast.CopyPresent)
	other := l
	other.Instance = "in-00000000000000000000000002"
	b.notCopied(other, holdfast.ReasonLevelConflict)

	// An end, even of something never seen, is for ever: a late PRESENT finds it.
	b.copied(b.copyLevel(0, holdfast.CheckpointAbsent), holdfast.CopyAbsent)
	b.copied(l, holdfast.CopyAbsent)
	unseen := b.copyLevel(1, holdfast.CheckpointAbsent)
	unseen.Checkpoint = "ck-00000000000000000000000002"
	b.copied(unseen, holdfast.CopyAbsent)
	b = b.restart(withBlobs(d))
	unseen.Desired, unseen.Generation = holdfast.CheckpointPresent, 7
	b.copied(unseen, holdfast.CopyAbsent)
	if len(d.puts) != 1 {
		t.Errorf("uploaded %q", d.puts)
	}
}

func TestAHostWithoutABlobStoreTakesNoCheckpoints(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.notCopied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.ReasonNotCapable)
	b.copied(b.copyLevel(1, holdfast.CheckpointAbsent), holdfast.CopyAbsent)
}

// Levels join a copy in progress, whichever claim they come with; its key stays.
func TestAHigherClaimJoinsACopyInProgress(t *testing.T) {
	b, d := copies(t, "the disk")
	d.block = make(chan struct{})
	l := b.copyLevel(1, holdfast.CheckpointPresent)
	l.Wait = 0
	b.copied(l, holdfast.CopyCopying)
	<-d.began
	var group sync.WaitGroup
	for claim := range int64(4) {
		group.Go(func() {
			l := b.copyLevel(claim+1, holdfast.CheckpointPresent)
			if o, err := b.EnsureCheckpoint(t.Context(), l); err != nil || o.State != holdfast.CopyPresent || o.Claim != 1 || !strings.HasSuffix(o.Layers[0].Key, "/1") {
				t.Errorf("claim %d: %+v, %v", claim+1, o, err)
			}
		})
	}
	l.Claim = 2
	if o := b.copied(l, holdfast.CopyCopying); o.Progress == "" {
		t.Error("nothing is said of how far it is")
	}
	close(d.block)
	group.Wait()
	if len(d.puts) != 1 {
		t.Errorf("uploaded %q", d.puts)
	}
}

// What may pass is tried again by the next level: with the same bytes and key where
// the disk was read already, since nobody knows what the store took.
func TestAnUploadThatFailedIsTriedAgainWithTheSameBytes(t *testing.T) {
	b, d := copies(t, "the disk")
	d.meet = func(_ context.Context, point string) error {
		if point == "before Put" {
			return errors.New("no route to host")
		}
		return nil
	}
	b.notCopied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.ReasonStorage)
	d.change(func() { d.meet = func(context.Context, string) error { return nil } })
	b.driver.change(func() { b.driver.instances[refOf(1)].content = "changed since" })
	o := b.copied(b.copyLevel(2, holdfast.CheckpointPresent), holdfast.CopyPresent)
	if o.Claim != 1 || d.content(t, o.Layers[0].Key) != "the disk" {
		t.Errorf("%+v, %q", o, d.content(t, o.Layers[0].Key))
	}
}

// A copy that its process did not finish is begun anew, under another key.
func TestAnInterruptedCopyStartsOverWithTheNextClaim(t *testing.T) {
	b, d := copies(t, "the disk")
	d.block = make(chan struct{})
	l := b.copyLevel(1, holdfast.CheckpointPresent)
	l.Wait = 0
	b.copied(l, holdfast.CopyCopying)
	<-d.began
	b = b.restart(withBlobs(d))
	if left := b.parts(); len(left) != 0 {
		t.Errorf("the restart left %q", left)
	}
	close(d.block)
	b.driver.change(func() { b.driver.instances[refOf(1)].content = "changed since" })
	o := b.copied(b.copyLevel(4, holdfast.CheckpointPresent), holdfast.CopyPresent)
	if o.Claim != 4 || d.content(t, o.Layers[0].Key) != "changed since" {
		t.Errorf("%+v", o)
	}
	b.copied(l, holdfast.CopyPresent)
}

func TestAnOlderClaimBeginsNothing(t *testing.T) {
	b, d := copies(t, "the disk")
	d.block = make(chan struct{})
	l := b.copyLevel(5, holdfast.CheckpointPresent)
	l.Wait = 0
	b.copied(l, holdfast.CopyCopying)
	<-d.began
	b = b.restart(withBlobs(d))
	b.notCopied(b.copyLevel(4, holdfast.CheckpointPresent), holdfast.ReasonClaimed)
	if len(d.puts) != 1 {
		t.Errorf("uploaded %q", d.puts)
	}
}

// contract: E4. ABSENT stops a copy, and is said when nothing is uploaded any more.
func TestE4_AbsentStopsACopy(t *testing.T) {
	for name, at := range map[string]string{"while the disk is read": "before Checkpoint", "during the upload": ""} {
		t.Run(name, func(t *testing.T) {
			reached := make(chan struct{}, 1)
			b, d := copies(t, "the disk", func(b *bench) {
				b.driver.meet = func(ctx context.Context, point string, _ holdfast.InstanceRef) error {
					if point != at {
						return nil
					}
					reached <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}
			})
			d.block = make(chan struct{})
			l := b.copyLevel(1, holdfast.CheckpointPresent)
			l.Wait = 0
			b.copied(l, holdfast.CopyCopying)
			if at != "" {
				<-reached
			} else {
				<-d.began
			}
			b.copied(b.copyLevel(1, holdfast.CheckpointAbsent), holdfast.CopyAbsent)
			if left := b.parts(); len(left) != 0 {
				t.Errorf("left %q", left)
			}
			if all, _, err := d.List(t.Context(), "", "", 10); err != nil || len(all) != 0 {
				t.Errorf("stored %v, %v", all, err)
			}
			b.copied(l, holdfast.CopyAbsent)
			b.ensure(b.level(1, 3, holdfast.DesiredSuspended), holdfast.InstanceSuspended)
		})
	}
}

// What cannot be stopped at once is not said to be: a late upload would be a blob
// that nobody names.
func TestAbsentIsNotAnsweredWhileSomethingIsUploaded(t *testing.T) {
	b, d := copies(t, "the disk")
	stopped := make(chan struct{})
	release := sync.OnceFunc(func() { close(stopped) })
	t.Cleanup(release) // before the agent is closed, which waits for it
	d.meet = func(ctx context.Context, point string) error {
		if point == "before Put" {
			<-ctx.Done()
			<-stopped
		}
		return nil
	}
	l := b.copyLevel(1, holdfast.CheckpointPresent)
	l.Wait = 0
	b.copied(l, holdfast.CopyCopying)
	<-d.began
	absent := b.copyLevel(1, holdfast.CheckpointAbsent)
	absent.Wait = 0
	b.copied(absent, holdfast.CopyCopying)
	b.copied(l, holdfast.CopyCopying)
	release()
	absent.Wait = holdfast.MaxLevelWait
	b.copied(absent, holdfast.CopyAbsent)
	if all, _, err := d.List(t.Context(), "", "", 10); err != nil || len(all) != 0 {
		t.Errorf("stored %v, %v", all, err)
	}
}

// A delete waits neither for the disk to be read nor for the upload; the copy fails.
func TestADeleteInterruptsACopy(t *testing.T) {
	for name, at := range map[string]string{"while the disk is read": "before Checkpoint", "during the upload": ""} {
		t.Run(name, func(t *testing.T) {
			reached := make(chan struct{}, 1)
			b, d := copies(t, "the disk", func(b *bench) {
				b.driver.meet = func(ctx context.Context, point string, _ holdfast.InstanceRef) error {
					if point != at {
						return nil
					}
					reached <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}
			})
			d.block = make(chan struct{})
			l := b.copyLevel(1, holdfast.CheckpointPresent)
			l.Wait = 0
			b.copied(l, holdfast.CopyCopying)
			if at != "" {
				<-reached
			} else {
				<-d.began
			}
			b.ensure(b.level(1, 3, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
			l.Wait, l.Generation = holdfast.MaxLevelWait, 3
			if o := b.copied(l, holdfast.CopyFailed); o.Failure == nil || o.Failure.Reason != holdfast.ReasonInstanceLost {
				t.Errorf("failed with %+v", o.Failure)
			}
			if left := b.parts(); len(left) != 0 {
				t.Errorf("left %q", left)
			}
		})
	}
}

// A suspend waits until the disk is read, and no longer; the copy is of that instant.
func TestASuspendWaitsUntilTheDiskIsReadAndNoLonger(t *testing.T) {
	reached, proceed, second := make(chan struct{}), make(chan struct{}), make(chan string, 8)
	b, d := copies(t, "the disk", func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "before Checkpoint" {
				close(reached)
				<-proceed
				return nil
			}
			select {
			case <-reached:
			default: // the boot
				return nil
			}
			select {
			case <-proceed:
			default:
				second <- point
			}
			return nil
		}
	})
	d.block = make(chan struct{})
	goOn := sync.OnceFunc(func() { close(proceed) })
	t.Cleanup(goOn)
	l := b.copyLevel(1, holdfast.CheckpointPresent)
	l.Wait = 0
	b.copied(l, holdfast.CopyCopying)
	<-reached
	b.begin(b.level(1, 3, holdfast.DesiredSuspended))
	select {
	case point := <-second:
		t.Errorf("%s, while the disk is read", point)
	case <-time.After(100 * time.Millisecond):
	}
	goOn()
	b.ensure(b.level(1, 3, holdfast.DesiredSuspended), holdfast.InstanceSuspended)
	close(d.block) // the upload was still on its way
	l.Wait, l.Generation = holdfast.MaxLevelWait, 3
	b.copied(l, holdfast.CopyPresent)
	if w := b.driver.phase(refOf(1)); w != runtime.PhaseSuspended {
		t.Errorf("it is %s", w)
	}
}

func TestAGuestThatDiedMeanwhileFailsTheCopyWithTheReason(t *testing.T) {
	b, _ := copies(t, "the disk", func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, ref holdfast.InstanceRef) error {
			if point == "before Checkpoint" {
				b.driver.exit(ref)
			}
			return nil
		}
	})
	o := b.copied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.CopyFailed)
	if o.Failure == nil || o.Failure.Reason != holdfast.ReasonInstanceLost && o.Failure.Reason != holdfast.ReasonExited {
		t.Errorf("failed with %+v", o.Failure)
	}
	b.becomes(testInstance, holdfast.InstanceExited)
	l := b.copyLevel(1, holdfast.CheckpointPresent)
	l.Checkpoint = "ck-00000000000000000000000002"
	b.notCopied(l, holdfast.ReasonExited)
}

func TestWhatIsTooLargeFailsForEverAndAFullDiskDoesNot(t *testing.T) {
	full := true
	b, d := copies(t, strings.Repeat("x", 101), func(b *bench) {
		b.config.MaxCheckpoint = 100
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "after Checkpoint" && full {
				return fmt.Errorf("write: %w", os.NewSyscallError("write", unix.ENOSPC))
			}
			return nil
		}
	})
	b.notCopied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.ReasonNoSpace)
	if left := b.parts(); len(left) != 0 {
		t.Errorf("left %q", left)
	}
	full = false
	if o := b.copied(b.copyLevel(2, holdfast.CheckpointPresent), holdfast.CopyFailed); o.Failure.Reason != holdfast.ReasonTooLarge {
		t.Errorf("failed with %+v", o.Failure)
	}
	if left := b.parts(); len(left) != 0 || len(d.puts) != 0 {
		t.Errorf("left %q, uploaded %q", left, d.puts)
	}
	b.driver.change(func() { b.driver.instances[refOf(1)].content = "less" })
	b.copied(b.copyLevel(3, holdfast.CheckpointPresent), holdfast.CopyFailed)
}

// contract: C1; trap T31. The deadline counts from the first level, whoever asks again.
func TestC1_ACopyThatTakesTooLongFailsAndIsForgottenInTheEnd(t *testing.T) {
	b, d := copies(t, "the disk")
	d.meet = func(context.Context, string) error { return errors.New("no route to host") }
	for range 3 {
		b.notCopied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.ReasonStorage)
		b.clock.Advance(3 * time.Minute)
	}
	sweep := func() {
		t.Helper()
		_, err := b.RunSweep(t.Context(), SweepCopies)
		must(t, err, "sweep")
	}
	sweep()
	if got := b.copying(testCheckpoint).record.State; got != holdfast.CopyCopying {
		t.Fatalf("after 9 minutes it is %s", got)
	}
	b.clock.Advance(time.Minute)
	sweep()
	if left := b.parts(); len(left) != 0 {
		t.Errorf("left %q", left)
	}
	o := b.copied(b.copyLevel(2, holdfast.CheckpointPresent), holdfast.CopyFailed)
	if o.Failure.Reason != holdfast.ReasonCheckpointFailed {
		t.Errorf("failed with %+v", o.Failure)
	}
	must(t, os.WriteFile(b.copyStore.part(testCheckpoint), nil, 0o600), "litter")
	sweep()
	if left := b.parts(); len(left) != 0 {
		t.Errorf("left %q", left)
	}
	b.clock.Advance(7*24*time.Hour - time.Second)
	sweep()
	b.copied(b.copyLevel(2, holdfast.CheckpointPresent), holdfast.CopyFailed)
	b.clock.Advance(time.Second)
	sweep()
	if left, err := os.ReadDir(b.copyStore.root); err != nil || len(left) != 0 || len(b.allCopies()) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestALevelAfterTheDeadlineFailsTheCopy(t *testing.T) {
	b, d := copies(t, "the disk")
	d.meet = func(context.Context, string) error { return errors.New("no route to host") }
	b.notCopied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.ReasonStorage)
	b.clock.Advance(11 * time.Minute)
	b.copied(b.copyLevel(2, holdfast.CheckpointPresent), holdfast.CopyFailed)
}

func TestADamagedRecordOfACheckpointIsAFailedOne(t *testing.T) {
	b, d := copies(t, "the disk")
	b.copied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.CopyPresent)
	must(t, b.Close(), "close")
	path := filepath.Join(b.copyStore.directory(testCheckpoint), recordFile)
	must(t, os.WriteFile(path, []byte("{"), 0o600), "damage")
	must(t, os.Mkdir(filepath.Join(b.copyStore.root, "ck-00000000000000000000000002"), 0o700), "a write that did not end")
	b = start(t, b.driver.world, b.config.Directory, b.clock, withBlobs(d))
	b.copied(b.copyLevel(2, holdfast.CheckpointPresent), holdfast.CopyFailed)
	b.copied(b.copyLevel(2, holdfast.CheckpointAbsent), holdfast.CopyAbsent)
	if len(b.allCopies()) != 1 {
		t.Errorf("%d checkpoints", len(b.allCopies()))
	}
}

// Killed at any moment of a copy, which is then ordered again: one PRESENT, whole, the
// instance runs, nothing is left on the host.
func TestKilledAtAnyStepACopyOrderedAgainIsWhole(t *testing.T) {
	t.Parallel()
	runs := 0
	for first := 1; ; first++ {
		var died bool
		for second := 1; ; second++ {
			w, c, dir, d := newWorld(), newClock(), t.TempDir(), newDepot(t)
			b := start(t, w, dir, c)
			b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
			w.change(func() { w.instances[refOf(1)].content = "the disk" })
			must(t, b.Close(), "close")
			crashes := []*crash{newCrash(first), newCrash(second)}
			for i, one := range crashes {
				_ = run(t, w, dir, c, one, func(b *bench) {
					_, _ = b.EnsureCheckpoint(context.Background(), b.copyLevel(int64(i+1), holdfast.CheckpointPresent))
				}, withBlobs(d), func(*bench) { d.meet = func(_ context.Context, point string) error { return one.meet(point) } })
				if !one.dead {
					break
				}
			}
			died = crashes[0].dead
			runs++
			where := fmt.Sprintf("killed at point %d (%s), then %d (%s)", first, crashes[0].at, second, crashes[1].at)
			d.meet = func(context.Context, string) error { return nil }
			b = start(t, w, dir, c, withBlobs(d))
			o := b.copied(b.copyLevel(3, holdfast.CheckpointPresent), holdfast.CopyPresent)
			if got := d.content(t, o.Layers[0].Key); got != "the disk" || o.Added != 8 {
				t.Errorf("%s: %+v is %q", where, o, got)
			}
			if left := b.parts(); len(left) != 0 {
				t.Errorf("%s: left %q", where, left)
			}
			b.get(holdfast.InstanceRunning)
			must(t, b.Close(), "close")
			if !crashes[0].dead || !crashes[1].dead || t.Failed() {
				break
			}
		}
		if !died || t.Failed() {
			break
		}
	}
	t.Logf("%d runs", runs)
}
