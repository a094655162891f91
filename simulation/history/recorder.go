package history

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Recorder collects the calls of one history. It is safe for concurrent use.
type Recorder struct {
	mu    sync.Mutex
	calls []Call
}

// begin stamps a call's beginning.
func begin(c Call) Call {
	c.Called = time.Now()
	return c
}

// end stamps a call's end and keeps it.
func (r *Recorder) end(calls ...Call) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range calls {
		c.Ended = now
		r.calls = append(r.calls, c)
	}
}

// ghost keeps a second copy of a call that the network made of it: it may take
// effect on its own, at any time, and nobody hears its answer.
func (r *Recorder) ghost(c Call) {
	c.Outcome = Unknown
	r.end(c)
}

// Calls is what was recorded so far.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Call(nil), r.calls...)
}

// last is what was heard of a slot last, for an error.
func (r *Recorder) last(slot int) string {
	const many = 12
	var lines []string
	for _, c := range r.Calls() {
		if c.Slot == slot {
			lines = append(lines, fmt.Sprintf("\n  %s–%s %s", c.Called.Format("04:05.000"), c.Ended.Format("04:05.000"), c))
		}
	}
	return strings.Join(lines[max(0, len(lines)-many):], "")
}
