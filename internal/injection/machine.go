package injection

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// trouble is what calls to the runtime suffer (H4).
type trouble struct {
	call   string // Prepare, Start, Suspend, Stop
	after  bool   // the call has its effect, and its answer is lost
	held   <-chan struct{}
	most   int
	fired  int
	broken error
}

var errLost = errors.New("the answer of the runtime was lost")

// machine is the runtime of a throwaway system: it counts boots, and fails as it
// is told.
type machine struct {
	runtime.Driver

	mu        sync.Mutex
	boots     map[holdfast.InstanceRef]int
	troubles  []*trouble
	stillborn bool // guests die as soon as they are started
	mute      bool // guests never call home, and are not reached
	died      int
}

func newMachine(d runtime.Driver) *machine {
	return &machine{Driver: d, boots: map[holdfast.InstanceRef]int{}}
}

func (m *machine) suffer(t *trouble) *trouble {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.troubles = append(m.troubles, t)
	return t
}

func (m *machine) count(t *trouble) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.fired
}

// do makes a call with whatever trouble it has left.
func (m *machine) do(ctx context.Context, call string, make func() error) error {
	m.mu.Lock()
	var now *trouble
	for _, t := range m.troubles {
		if t.call == call && t.fired < t.most {
			t.fired++
			now = t
			break
		}
	}
	m.mu.Unlock()
	if now == nil {
		return make()
	}
	if now.held != nil {
		select {
		case <-now.held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if now.broken != nil && !now.after {
		return now.broken
	}
	return errors.Join(make(), now.broken)
}

// Prepare is the driver's.
func (m *machine) Prepare(ctx context.Context, b runtime.Bundle) error {
	m.mu.Lock()
	if m.mute {
		b.Guest.CallbackURL = "" // it has nowhere to call
	}
	m.mu.Unlock()
	return m.do(ctx, "Prepare", func() error { return m.Driver.Prepare(ctx, b) })
}

// Start is the driver's, and counts what booted.
func (m *machine) Start(ctx context.Context, ref holdfast.InstanceRef) error {
	return m.do(ctx, "Start", func() error {
		before, err := m.Inspect(ctx, ref)
		if err != nil {
			return err
		}
		if err := m.Driver.Start(ctx, ref); err != nil {
			return err
		}
		m.mu.Lock()
		if before.Phase == runtime.PhasePrepared {
			m.boots[ref]++
		}
		stillborn := m.stillborn
		if stillborn {
			m.died++
		}
		m.mu.Unlock()
		if stillborn {
			return m.Driver.Stop(ctx, ref)
		}
		return nil
	})
}

// Suspend is the driver's.
func (m *machine) Suspend(ctx context.Context, ref holdfast.InstanceRef) error {
	return m.do(ctx, "Suspend", func() error { return m.Driver.Suspend(ctx, ref) })
}

// Stop is the driver's.
func (m *machine) Stop(ctx context.Context, ref holdfast.InstanceRef) error {
	return m.do(ctx, "Stop", func() error { return m.Driver.Stop(ctx, ref) })
}

// DialGuest is the driver's.
func (m *machine) DialGuest(ctx context.Context, ref holdfast.InstanceRef) (net.Conn, error) {
	m.mu.Lock()
	mute := m.mute
	if mute {
		m.died++
	}
	m.mu.Unlock()
	if mute {
		return nil, errors.New("nobody listens")
	}
	return m.Driver.DialGuest(ctx, ref)
}

// kill ends an instance behind its host's back.
func (m *machine) kill(ctx context.Context, ref holdfast.InstanceRef) error {
	return m.Driver.Stop(ctx, ref)
}

// booted is how often an incarnation booted.
func (m *machine) booted(ref holdfast.InstanceRef) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boots[ref]
}

// bootsInAll is how often anything booted.
func (m *machine) bootsInAll() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boots {
		n += b
	}
	return n
}

// fail makes guests stillborn, or mute; it tells how many have died of it when the
// experiment is over.
func (m *machine) fail(stillborn, mute bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stillborn, m.mute = stillborn, mute
}

// heal ends every trouble.
func (m *machine) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.troubles, m.stillborn, m.mute = nil, false, false
}

func (m *machine) deaths() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.died
}

// clock is the time that a throwaway system judges by. It can be put forward, so
// that deadlines of minutes are over at once.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}
