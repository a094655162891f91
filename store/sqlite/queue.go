package sqlite

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/holdfast-dev/holdfast/store"
)

// member is one Update on its way through a group.
type member struct {
	ctx  context.Context
	fn   func(store.Tx) error
	told chan verdict // from the writer: the final word

	mu    sync.Mutex
	taken bool // the writer has it: it can no longer leave the queue
	gone  bool // its caller left before that
}

// verdict is the final word on an update.
type verdict struct {
	err      error
	panicked any  // the value of the function's panic, which goes on in the caller
	vanished bool // the function ended its goroutine (runtime.Goexit, as by t.FailNow): so does the caller
}

func newMember(ctx context.Context, fn func(store.Tx) error) *member {
	return &member{ctx: ctx, fn: fn, told: make(chan verdict, 1)}
}

// take claims the member for a group; false if its caller has left.
func (m *member) take() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken = !m.gone
	return m.taken
}

// leave gives up waiting; false if the writer has it, whose answer is on its way.
func (m *member) leave() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = !m.taken
	return m.gone
}

// tell is the writer's last word to the member.
func (m *member) tell(v verdict) { m.told <- v }

// wait waits for the final word; the member's context ends the wait as long as no group has it.
func (m *member) wait() error {
	var v verdict
	select {
	case v = <-m.told:
	case <-m.ctx.Done():
		if m.leave() {
			return fmt.Errorf("update: %w", ended(m.ctx))
		}
		v = <-m.told
	}
	switch {
	case v.vanished:
		runtime.Goexit()
	case v.panicked != nil:
		panic(v.panicked)
	}
	return v.err
}

// queue holds the updates that no group has taken yet.
type queue struct {
	mu      sync.Mutex
	waiting []*member
	closed  bool
	wake    chan struct{} // holds a token when there may be something to do
}

func (q *queue) put(m *member) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return store.ErrClosed
	}
	q.waiting = append(q.waiting, m)
	q.signal()
	return nil
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// poll takes the next member whose caller still waits, or nil.
func (q *queue) poll() *member {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		m := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		if m.take() {
			return m
		}
	}
	return nil
}

// next waits for a member; nil once the queue is closed.
func (q *queue) next() *member {
	for {
		if m := q.poll(); m != nil {
			return m
		}
		q.mu.Lock()
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return nil
		}
		<-q.wake
	}
}

// close refuses further members and those that still wait.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	refused := q.waiting
	q.waiting = nil
	q.signal()
	q.mu.Unlock()
	for _, m := range refused {
		if m.take() {
			m.tell(verdict{err: fmt.Errorf("update: %w", store.ErrClosed)})
		}
	}
}
