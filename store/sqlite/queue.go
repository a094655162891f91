package sqlite

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-dev/holdfast/store"
)

// member is one Update on its way through a group. Its function runs in its caller's goroutine, when the writer gives
// it the turn, so that a panic or Goexit stays where it belongs.
type member struct {
	ctx  context.Context
	fn   func(store.Tx) error
	turn chan turn    // from the writer: run, or the final word
	ran  chan outcome // to the writer: what became of the run

	mu    sync.Mutex
	taken bool // the writer has it: it can no longer leave the queue
	gone  bool // its caller left before that
}

// turn is what the writer tells a member: run on this handle or, without one, that it is over (or, again, that its run
// came to nothing and another turn follows).
type turn struct {
	tx    *tx
	err   error
	again bool
}

// outcome is what a run left.
type outcome struct {
	ran      bool
	err      error // fn's, or what stands for its panic
	vanished bool  // fn ended its goroutine: it cannot run again
}

func newMember(ctx context.Context, fn func(store.Tx) error) *member {
	return &member{ctx: ctx, fn: fn, turn: make(chan turn, 1), ran: make(chan outcome, 1)}
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

// wait waits for the first turn, no longer than the member's context.
func (m *member) wait() turn {
	select {
	case t := <-m.turn:
		return t
	case <-m.ctx.Done():
		if m.leave() {
			return turn{err: fmt.Errorf("update: %w", ended(m.ctx))}
		}
		return <-m.turn
	}
}

// run takes turns until the final word.
func (m *member) run() error {
	for t := m.wait(); ; t = <-m.turn {
		if t.tx == nil {
			return t.err
		}
		if err, over := m.play(t.tx); over {
			return err
		}
	}
}

// play runs fn once and waits for what became of it: nothing leaves before the group's commit, not even a panic. It is
// not over if the group failed and fn will run again.
func (m *member) play(t *tx) (err error, over bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		cause := recover()
		if cause == nil { // runtime.Goexit, as by t.FailNow
			m.ran <- outcome{ran: true, err: errVanished, vanished: true}
			<-m.turn
			return
		}
		m.ran <- outcome{ran: true, err: fmt.Errorf("panic: %v", cause)}
		if verdict := <-m.turn; !verdict.again {
			panic(cause)
		}
		err, over = nil, false
	}()
	err = m.fn(t)
	returned = true
	m.ran <- outcome{ran: true, err: err}
	verdict := <-m.turn
	return verdict.err, !verdict.again
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
			m.turn <- turn{err: fmt.Errorf("update: %w", store.ErrClosed)}
		}
	}
}
