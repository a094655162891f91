package orchestrator

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/operation"
)

// heldError says that a live attempt is in the way; the call may wait for it.
type heldError struct {
	op  operation.Operation
	now time.Time
}

// Error names the attempt.
func (e *heldError) Error() string {
	return "an attempt of " + e.op.Kind + " is executing, until " + e.op.ClaimExpires.UTC().Format(time.RFC3339) + " at the latest"
}

// bell wakes those who wait for an attempt on a resource to end here. It is a
// hint: an attempt elsewhere is seen by looking again.
type bell struct {
	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func newBell() *bell { return &bell{waiting: map[string]chan struct{}{}} }

// on returns a channel that is closed when the resource is rung next.
func (b *bell) on(resource string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := b.waiting[resource]
	if ch == nil {
		ch = make(chan struct{})
		b.waiting[resource] = ch
	}
	return ch
}

func (b *bell) ring(resource string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ch := b.waiting[resource]; ch != nil {
		close(ch)
		delete(b.waiting, resource)
	}
}

// lookAgain is how often a waiting call looks for attempts that end elsewhere, and
// lookRarely how often one does that waits for long.
const (
	lookAgain  = 200 * time.Millisecond
	lookRarely = 2 * time.Second
)

// await returns true when it is time to look again, false when patience or ctx ended.
func (b *bell) await(ctx context.Context, rung <-chan struct{}, patience <-chan time.Time) bool {
	return b.awaitFor(ctx, rung, patience, lookAgain)
}

// awaitFor is await with another time between looks.
func (b *bell) awaitFor(ctx context.Context, rung <-chan struct{}, patience <-chan time.Time, between time.Duration) bool {
	again := time.NewTimer(between)
	defer again.Stop()
	select {
	case <-rung:
	case <-again.C:
	case <-patience:
		return false
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil // of several at once select takes any
}
