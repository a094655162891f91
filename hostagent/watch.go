package hostagent

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// watch waits for one incarnation to end.
type watch struct {
	ended chan struct{}
	stop  context.CancelFunc
}

// watchAgain is how long a watcher rests after it failed or raised a false alarm.
const watchAgain = time.Second

// watch makes sure that someone waits for the incarnation's end, and returns
// what is closed by it.
func (m *machine) watch(ref holdfast.InstanceRef) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watches[ref.Incarnation]; w != nil {
		return w.ended
	}
	ctx, stop := context.WithCancel(m.agent.life)
	w := &watch{ended: make(chan struct{}), stop: stop}
	m.watches[ref.Incarnation] = w
	if !m.agent.enter() {
		stop()
		return w.ended
	}
	go m.waitForEnd(ctx, ref, w)
	return w.ended
}

func (m *machine) waitForEnd(ctx context.Context, ref holdfast.InstanceRef, w *watch) {
	defer m.agent.leave()
	began := m.agent.config.Clock()
	for {
		err := m.agent.config.Driver.Wait(ctx, ref)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			break
		}
		m.agent.log.Warn("waiting for the instance's end failed", "instance", ref.Instance, "incarnation", ref.Incarnation, "error", err)
		if !rest(ctx, watchAgain) {
			return
		}
	}
	m.alarm(ref, w)
	// Whether it really ended, the runtime says. If it did not, the next watcher
	// must not spin.
	if m.agent.config.Clock().Sub(began) < watchAgain && !rest(ctx, watchAgain) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watches[ref.Incarnation] == w && !m.dropped {
		delete(m.watches, ref.Incarnation)
		if r := m.records[ref.Incarnation]; !r.final() {
			m.begin(false)
		}
	}
}

// alarm tells a waiting boot, and looks at once.
func (m *machine) alarm(ref holdfast.InstanceRef, w *watch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(w.ended)
	if r, ok := m.records[ref.Incarnation]; ok && !r.final() {
		m.begin(false)
	}
}

// forget stops watching and talking to an incarnation that has ended.
func (m *machine) forget(incarnation int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watches[incarnation]; w != nil {
		w.stop()
		delete(m.watches, incarnation)
	}
	delete(m.guests, incarnation)
}

// rest reports whether the time passed before ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
