package outbox

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Config configures [New].
type Config struct {
	// Update runs a function in a transaction that is durable when it returns nil,
	// View in one that only reads. A transaction with a method
	// Now(context.Context) (time.Time, error) is asked for the time, so that replicas
	// judge claims by one clock, their database's (T41). Required.
	Update func(context.Context, func(Tx) error) error
	View   func(context.Context, func(Tx) error) error
	// Send delivers one row with one attempt, for example [delivery.Sender.Attempt]
	// with a sender for row.Destination: a retry of its own would multiply with the
	// outbox's (T22). Required.
	Send func(context.Context, Row) error
	// Holder names this dispatcher's life, unlike any other's. Required.
	Holder string

	// Policy gives each destination's; nil means the zero Policy for all.
	Policy func(destination string) Policy
	// Concurrency is how many sends run at once; 0 means 16. PerDestination is how
	// many of them go to one destination, so that one that hangs leaves room for the
	// others; 0 means half.
	Concurrency, PerDestination int
	// Claim is how long a claim lasts; 0 means 1 min. Timeout ends a send, and is at
	// most half of Claim; 0 means 15 s.
	Claim, Timeout time.Duration
	// Poll is the pause between looks when nothing is known to come due; 0 means 1 s.
	Poll time.Duration

	// Clock is for transactions that do not know the time; nil means [time.Now].
	Clock func() time.Time
	// After times the pauses; nil means [time.After].
	After func(time.Duration) <-chan time.Time
	// Jitter gives a number in [0, 1) for a row's id and attempt, or for the n-th
	// look ("poll", n); nil means random.
	Jitter func(id string, n int) float64
	// Log gets dead letters and failures of the database; nil means [slog.Default].
	Log *slog.Logger
}

// Report counts what became of the rows that one [Dispatcher.RunOnce] claimed.
type Report struct {
	Claimed int
	Sent    int
	Retried int // failed, due again later
	Dead    int // became dead letters
	Stale   int // came back after the claim was lost, and changed nothing (T11)
}

// Dispatcher sends what is in the outbox. Any number of them, in any number of
// processes, may share one database.
type Dispatcher struct {
	config Config
	wake   chan struct{}

	mu     sync.Mutex
	busy   map[string]int // sends in progress by destination
	active int            // their sum
	polls  int
}

// New makes a dispatcher; nothing happens until [Dispatcher.Run] or
// [Dispatcher.RunOnce].
func New(c Config) (*Dispatcher, error) {
	if c.Update == nil || c.View == nil || c.Send == nil || c.Holder == "" {
		return nil, errors.New("outbox: a dispatcher needs Update, View, Send and Holder")
	}
	return &Dispatcher{config: c.withDefaults(), wake: make(chan struct{}, 1), busy: map[string]int{}}, nil
}

func (c Config) withDefaults() Config {
	orInt(&c.Concurrency, 16)
	orInt(&c.PerDestination, (c.Concurrency+1)/2)
	orDuration(&c.Claim, time.Minute)
	orDuration(&c.Timeout, 15*time.Second)
	orDuration(&c.Poll, time.Second)
	c.Timeout = min(c.Timeout, c.Claim/2)
	if c.Policy == nil {
		c.Policy = func(string) Policy { return Policy{} }
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.After == nil {
		c.After = time.After
	}
	if c.Jitter == nil {
		c.Jitter = func(string, int) float64 { return rand.Float64() }
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

func orInt(n *int, def int) {
	if *n <= 0 {
		*n = def
	}
}

func orDuration(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

// Wake makes the next look happen now. It is a hint for after a commit that
// enqueued something; without it the row waits for the next poll (T21).
func (d *Dispatcher) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run dispatches until ctx ends, then waits for the sends in progress, whose claims
// it gives back. A database that fails is tried again at the next poll.
func (d *Dispatcher) Run(ctx context.Context) {
	var sends sync.WaitGroup
	defer sends.Wait()
	for ctx.Err() == nil {
		pause, err := d.fill(ctx, func(row Row) {
			sends.Go(func() {
				// A freed slot is a reason to look; what failed is in the row and the log.
				_, _ = d.deliver(ctx, row)
				d.Wake()
			})
		})
		if err != nil && ctx.Err() == nil {
			d.config.Log.LogAttrs(ctx, slog.LevelError, "outbox not read", slog.Any("error", err))
		}
		select {
		case <-d.config.After(pause):
		case <-d.wake:
		case <-ctx.Done():
		}
	}
}

// RunOnce claims what is due, as far as there is room, sends each row once and
// waits for all. Its error is the database's; what a receiver said is in the rows.
func (d *Dispatcher) RunOnce(ctx context.Context) (Report, error) {
	var (
		sends    sync.WaitGroup
		mu       sync.Mutex
		report   Report
		failures []error
	)
	_, err := d.fill(ctx, func(row Row) {
		sends.Go(func() {
			result, failure := d.deliver(ctx, row)
			mu.Lock()
			defer mu.Unlock()
			report.add(result)
			failures = append(failures, failure)
		})
	})
	sends.Wait()
	return report, errors.Join(append(failures, err)...)
}

func (r *Report) add(result outcome) {
	r.Claimed++
	switch result {
	case outcomeSent:
		r.Sent++
	case outcomeRetried:
		r.Retried++
	case outcomeDead:
		r.Dead++
	case outcomeStale:
		r.Stale++
	}
}

// fill claims rows while there is room and rows are due, hands each to start, and
// says how long nothing else is known to come due.
func (d *Dispatcher) fill(ctx context.Context, start func(Row)) (pause time.Duration, err error) {
	for ctx.Err() == nil {
		r := d.room()
		if r.chunk == 0 {
			return d.pause(0), nil
		}
		found, next, err := d.look(ctx, r.full)
		if err != nil || !found {
			return d.pause(next), err
		}
		rows, err := d.claim(ctx, r)
		if err != nil {
			return d.pause(0), err
		}
		if len(rows) == 0 {
			// Another replica was faster; the next poll looks again.
			return d.pause(0), nil
		}
		d.occupy(rows)
		for _, row := range rows {
			start(row)
		}
	}
	return 0, ctx.Err()
}

// room is what may be claimed now.
type room struct {
	chunk int      // rows, so few that no destination gets more than its share
	full  []string // destinations that have theirs
}

func (d *Dispatcher) room() room {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := room{chunk: min(d.config.Concurrency-d.active, d.config.PerDestination)}
	for destination, n := range d.busy {
		if left := d.config.PerDestination - n; left <= 0 {
			r.full = append(r.full, destination)
		} else {
			r.chunk = min(r.chunk, left)
		}
	}
	return r
}

func (d *Dispatcher) occupy(rows []Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, row := range rows {
		d.busy[row.Destination]++
		d.active++
	}
}

func (d *Dispatcher) leave(row Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active--
	if d.busy[row.Destination]--; d.busy[row.Destination] == 0 {
		delete(d.busy, row.Destination)
	}
}

// pause is a poll, spread so that replicas do not look together, or until the next
// row comes due if that is sooner.
func (d *Dispatcher) pause(next time.Duration) time.Duration {
	d.mu.Lock()
	d.polls++
	n := d.polls
	d.mu.Unlock()
	poll := time.Duration(float64(d.config.Poll) * (0.5 + d.config.Jitter("poll", n)))
	if next > 0 {
		return min(next, poll)
	}
	return poll
}
