package outbox

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
)

func TestB5_WhatAnAttemptMeansForItsRow(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	refused := func(status int, after time.Duration) error {
		return &delivery.RefusedError{Status: status, RetryAfter: after}
	}
	down := errors.New("connection refused")
	cases := []struct {
		name     string
		err      error
		age      time.Duration
		attempts int
		stopped  bool
		third    bool
		state    State
		wait     time.Duration
	}{
		{name: "taken", state: Sent},
		{name: "taken after all that time", age: 6 * day, state: Sent},
		{name: "down", err: down, attempts: 1, state: Pending, wait: 500 * time.Millisecond},
		{name: "down again", err: down, attempts: 2, state: Pending, wait: time.Second},
		{name: "down for long", err: down, attempts: 100, state: Pending, wait: 150 * time.Second},
		{name: "down, nearly five days", err: down, attempts: 100, age: 5*day - 1, state: Pending, wait: 150 * time.Second},
		{name: "down, five days", err: down, attempts: 100, age: 5 * day, state: Dead},
		{name: "5xx", err: &delivery.StatusError{Status: 503}, attempts: 1, state: Pending, wait: 500 * time.Millisecond},
		{name: "5xx that asks for time", err: &delivery.StatusError{Status: 503, RetryAfter: 7 * time.Second}, attempts: 1, state: Pending, wait: 7 * time.Second},
		{name: "5xx that asks for a year", err: &delivery.StatusError{Status: 503, RetryAfter: 365 * day}, attempts: 1, state: Pending, wait: 5 * time.Minute},
		{name: "404", err: refused(404, 0), attempts: 1, state: Dead},
		{name: "429 of our own", err: refused(429, 0), attempts: 1, state: Dead},
		{name: "429 of a third party", err: refused(429, 3*time.Second), attempts: 1, third: true, state: Pending, wait: 3 * time.Second},
		{name: "408 of a third party", err: refused(408, 0), attempts: 1, third: true, state: Pending, wait: 500 * time.Millisecond},
		{name: "404 of a third party", err: refused(404, 0), attempts: 1, third: true, state: Dead},
		{name: "429 of a third party, five days", err: refused(429, 0), age: 5 * day, third: true, state: Dead},
		{name: "stopping", err: down, attempts: 9, stopped: true, state: Pending},
		{name: "stopping, five days", err: down, age: 5 * day, stopped: true, state: Pending},
		{name: "refused while stopping", err: refused(400, 0), stopped: true, state: Dead},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			a := attempted{row: Row{Since: now.Add(-tc.age), Attempts: tc.attempts}, err: tc.err, stopped: tc.stopped, jitter: 0.5}
			v := decide(now, a, Policy{ThirdParty: tc.third}.withDefaults())
			if v.state != tc.state || v.state == Pending && !v.due.Equal(now.Add(tc.wait)) || (v.failure == "") != (tc.err == nil) {
				t.Errorf("%+v, due in %v", v, v.due.Sub(now))
			}
		})
	}
}

func TestT25_BackoffNeverOverflows(t *testing.T) {
	policies := []Policy{
		{}, {Base: time.Nanosecond, Cap: math.MaxInt64}, {Base: time.Hour, Cap: time.Minute},
		{Base: math.MaxInt64 / 2, Cap: math.MaxInt64}, {Base: 3 * time.Second, Cap: 100 * time.Second},
	}
	for _, p := range policies {
		p = p.withDefaults()
		before := time.Duration(0)
		for _, failures := range []int{-1, 0, 1, 2, 3, 5, 8, 20, 40, 61, 62, 63, 64, 65, 1000, math.MaxInt} {
			longest := p.backoff(failures, math.Nextafter(1, 0))
			if longest < before || longest < 0 || longest > max(p.Cap, p.Base/10) {
				t.Errorf("%+v after %d failures: %v, before it %v", p, failures, longest, before)
			}
			before = longest
			if shortest := p.backoff(failures, 0); shortest != p.Base/10 {
				t.Errorf("%+v after %d failures: at least %v", p, failures, shortest)
			}
		}
		if before < p.Cap/2 {
			t.Errorf("%+v never reaches its cap: %v", p, before)
		}
	}
}

func TestALongFailureIsClipped(t *testing.T) {
	v := decide(time.Time{}, attempted{err: errors.New(strings.Repeat("x", 1<<20))}, Policy{}.withDefaults())
	if len(v.failure) > 1010 {
		t.Errorf("%d bytes", len(v.failure))
	}
}
