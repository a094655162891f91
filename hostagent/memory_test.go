package hostagent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

func inMemory(b *bench) { b.config.Volatile = true }

// contract: A6; T49
func TestT49_AHostWhoseMemoryIsGoneBeginsNothingAgain(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock(), inMemory)
	placed := b.clock.Now()
	old := func(generation int64, desired holdfast.Desired) holdfast.Level {
		l := b.level(1, generation, desired)
		l.PlacedAt = placed
		return l
	}
	b.ensure(old(1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	must(t, b.Close(), "close")
	w.reboot("boot-1")
	b.clock.Advance(time.Second)
	b = start(t, w, b.config.Directory, b.clock, inMemory)
	if _, err := b.GetInstance(t.Context(), testInstance); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("it answered %v about what it does not know", err)
	}
	b.refused(old(1, holdfast.DesiredRunning), holdfast.ReasonTooOld)
	o := b.ensure(old(2, holdfast.DesiredRunning), holdfast.InstanceExited)
	if o.Failure == nil || o.Failure.Reason != holdfast.ReasonInstanceLost {
		t.Errorf("failure %+v, want INSTANCE_LOST", o.Failure)
	}
	b.ensure(old(3, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
	fresh := b.level(2, 4, holdfast.DesiredRunning)
	fresh.PlacedAt = b.clock.Now()
	b.ensure(fresh, holdfast.InstanceRunning)
	if w.booted(refOf(1)) != 1 || w.booted(refOf(2)) != 1 {
		t.Errorf("booted %d and %d times", w.booted(refOf(1)), w.booted(refOf(2)))
	}
}

func TestInMemory_NothingIsWrittenAndNoOtherRuntimesRecordIsTouched(t *testing.T) {
	w := newWorld()
	b := start(t, w, t.TempDir(), newClock())
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	record := filepath.Join(b.places.directory(refOf(1)), recordFile)
	must(t, b.Close(), "close")
	b = start(t, newWorld(), b.config.Directory, b.clock, inMemory)
	b.ensure(b.level(2, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	if _, err := os.Stat(filepath.Join(b.places.directory(refOf(2)), recordFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record on disk: %v", err)
	}
	if _, err := os.Stat(record); err != nil {
		t.Errorf("the other runtime's record: %v", err)
	}
}
