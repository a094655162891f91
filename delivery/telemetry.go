package delivery

import (
	"context"
	"errors"
	"sync"
	"time"
)

// TelemetryConfig configures [NewTelemetry].
type TelemetryConfig struct {
	// Send sends one message once, for example [Sender.Attempt] of a sender with a
	// client of its own, so that no connection limit is shared with events that
	// bear state. Required.
	Send func(context.Context, Message) error
	// Capacity is how many messages wait at most; 0 means 256.
	Capacity int
	// Timeout ends one send; 0 means 5 s.
	Timeout time.Duration
}

// TelemetryCounts says what became of what was offered.
type TelemetryCounts struct {
	Sent    int64 // acknowledged
	Failed  int64 // sent once, not acknowledged, forgotten
	Dropped int64 // displaced by newer ones, or left when the worker stopped
}

// Telemetry carries metrics, logs and heartbeats: fire and forget. It has one
// worker, keeps a bounded number of messages, drops the oldest when they are too
// many, never retries, and never makes its caller wait (contract: B6).
type Telemetry struct {
	config TelemetryConfig
	wake   chan struct{}

	mu     sync.Mutex
	ring   []Message
	first  int // index of the oldest
	length int
	counts TelemetryCounts
}

// NewTelemetry makes a Telemetry; nothing is sent until [Telemetry.Run].
func NewTelemetry(c TelemetryConfig) *Telemetry {
	if c.Capacity <= 0 {
		c.Capacity = 256
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	return &Telemetry{config: c, wake: make(chan struct{}, 1), ring: make([]Message, c.Capacity)}
}

// Offer hands m over and returns at once. When there is no room the oldest waiting
// message makes it: news is worth more than history.
func (t *Telemetry) Offer(m Message) {
	t.mu.Lock()
	if t.length == len(t.ring) {
		t.first = (t.first + 1) % len(t.ring)
		t.length--
		t.counts.Dropped++
	}
	t.ring[(t.first+t.length)%len(t.ring)] = m
	t.length++
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Run sends what is offered until ctx ends, then drops what is left. One Run at a
// time.
func (t *Telemetry) Run(ctx context.Context) {
	for ctx.Err() == nil {
		m, ok := t.take()
		if ok {
			t.runOnce(ctx, m)
			continue
		}
		select {
		case <-t.wake:
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Dropped += int64(t.length)
	t.first, t.length = 0, 0
	clear(t.ring)
}

func (t *Telemetry) runOnce(ctx context.Context, m Message) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.config.Timeout, errors.New("telemetry took too long"))
	defer cancel()
	err := t.config.Send(ctx, m)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.counts.Failed++
	} else {
		t.counts.Sent++
	}
}

func (t *Telemetry) take() (Message, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.length == 0 {
		return Message{}, false
	}
	m := t.ring[t.first]
	t.ring[t.first] = Message{}
	t.first = (t.first + 1) % len(t.ring)
	t.length--
	return m, true
}

// Counts says what became of the messages so far.
func (t *Telemetry) Counts() TelemetryCounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}
