package hostagent

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

// trap T40: an order that does not say when its incarnation was placed is as old as
// can be: the tombstone of what it is about may be gone.
func TestT40_AnOrderWithoutAnAgeIsTooOld(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	l := b.level(1, 1, holdfast.DesiredRunning)
	l.PlacedAt = time.Time{}
	b.refused(l, holdfast.ReasonTooOld)
}

// trap T31: the deadline of an image's preparation counts from the first order, and
// an attempt that is made at its end has no more than a moment.
func TestT31_AnImagesDeadlineCountsFromTheFirstOrder(t *testing.T) {
	c, failed := newClock(), false
	b := start(t, newWorld(), t.TempDir(), c, func(b *bench) {
		b.config.Timing.Prepare = 10 * time.Minute
		b.images.began, b.images.ended = make(chan struct{}, 8), make(chan error, 8)
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point != "before Prepare" || failed {
				return nil
			}
			failed = true
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonRuntime, "not now")
		}
	})
	l := b.level(1, 1, holdfast.DesiredRunning)
	b.refused(l, holdfast.ReasonRuntime)
	b.rests()
	c.Advance(10 * time.Minute)
	b.images.mu.Lock()
	b.images.block = make(chan struct{})
	b.images.mu.Unlock()
	if o := b.ensure(l, holdfast.InstanceExited); o.Failure.Reason != holdfast.ReasonImageFailed {
		t.Errorf("failure %+v", o.Failure)
	}
}

// trap T31: a boot's deadline counts from its start, however often its host's agent
// restarts.
func TestT31_ABootsDeadlineCountsFromItsStart(t *testing.T) {
	w := newWorld()
	w.readyFrom = false
	b := start(t, w, t.TempDir(), newClock())
	b.begin(b.level(1, 1, holdfast.DesiredRunning))
	b.becomes(testInstance, holdfast.InstanceBooting)
	b.clock.Advance(holdfast.InstanceBootAfter)
	again := b.restart()
	if o := again.becomes(testInstance, holdfast.InstanceExited); o.Failure == nil || o.Failure.Reason != holdfast.ReasonBootTimeout {
		t.Errorf("failure %+v", o.Failure)
	}
}

// trap T37: what an earlier boot of the instance says, signed and late, makes the
// present one not RUNNING: that one goes on being asked.
func TestT37_AnEarlierBootsReadyMakesNoOtherRunning(t *testing.T) {
	w, asked := newWorld(), make(chan struct{}, 1)
	w.readyFrom = false
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(ctx context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "before DialGuest" {
				select {
				case asked <- struct{}{}:
				case <-ctx.Done():
				}
			}
			return nil
		}
	})
	b.begin(b.level(2, 1, holdfast.DesiredRunning))
	b.becomes(testInstance, holdfast.InstanceBooting)
	body := []byte(`{"type":"instance.ready","data":null}`)
	h := delivery.Sign(delivery.InstanceSecret(b.config.ClusterKey, string(testInstance), 1), "dl-ready", time.Unix(1, 0), body)
	h.Set(holdfast.HeaderInstance, string(testInstance))
	h.Set(holdfast.HeaderIncarnation, "1")
	m := b.find(testInstance)
	m.heard(h, body)
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for rounds := 0; rounds < 3 || len(m.word) > 0; rounds++ {
		select {
		case <-asked:
		case <-deadline.C:
			t.Fatal("the guest is asked no more")
		}
	}
	b.get(holdfast.InstanceBooting)
}

// trap T24: a level that arrives while the same one is carried out joins that attempt.
func TestT24_ALevelThatArrivesMeanwhileJoins(t *testing.T) {
	w, entered, release := newWorld(), make(chan struct{}, 1), make(chan struct{})
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(ctx context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "before Prepare" {
				select {
				case entered <- struct{}{}:
				default: // the first alone is waited for
				}
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return nil
		}
	})
	b.begin(b.level(1, 1, holdfast.DesiredRunning))
	<-entered
	m := b.find(testInstance)
	running := func() *attempt {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.attempt
	}
	first := running()
	for range 3 {
		b.begin(b.level(1, 1, holdfast.DesiredRunning))
		if now := running(); now != first {
			t.Error("it began an attempt of its own")
		}
	}
	close(release)
	b.becomes(testInstance, holdfast.InstanceRunning)
	if w.booted(refOf(1)) != 1 || w.prepares[refOf(1)] != 1 {
		t.Errorf("booted %d, prepared %d times", w.booted(refOf(1)), w.prepares[refOf(1)])
	}
}
