package outbox

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
)

// DefaultMaxAge ends a row between our own parties: the sweeps have the truth by
// then (contract: B5).
const DefaultMaxAge = 5 * 24 * time.Hour

// Policy says how long and how patiently one destination is tried.
type Policy struct {
	// ThirdParty retries 408 and 429, which others use for "later". Between our own
	// parties every 4xx ends the row at once (contract: B5).
	ThirdParty bool
	// MaxAge makes a failure that late the last one; 0 means [DefaultMaxAge].
	MaxAge time.Duration
	// Base is the longest pause after the first failure; it doubles with each
	// further one up to Cap. 0 means 1 s and 5 min.
	Base, Cap time.Duration
}

func (p Policy) withDefaults() Policy {
	if p.MaxAge <= 0 {
		p.MaxAge = DefaultMaxAge
	}
	if p.Base <= 0 {
		p.Base = time.Second
	}
	if p.Cap <= 0 {
		p.Cap = 5 * time.Minute
	}
	return p
}

// backoff is capped exponential with full jitter (a number in [0, 1)), and at least
// a tenth of Base, so that bad luck is no busy loop. It compares before it shifts, so
// that no number of failures overflows it (T25).
func (p Policy) backoff(failures int, jitter float64) time.Duration {
	shift, longest := max(failures-1, 0), p.Cap
	if shift < 62 && p.Base <= p.Cap>>shift {
		longest = p.Base << shift
	}
	return max(time.Duration(jitter*float64(longest)), p.Base/10)
}

// verdict is what an attempt means for its row.
type verdict struct {
	state   State
	due     time.Time // of a pending one
	failure string
}

// attempted is an attempt that ended at now.
type attempted struct {
	row     Row
	err     error   // of Send
	stopped bool    // the dispatcher was stopping: the error says nothing about the receiver
	jitter  float64 // in [0, 1)
}

// decide is pure.
func decide(now time.Time, a attempted, p Policy) verdict {
	if a.err == nil {
		return verdict{state: Sent}
	}
	v := verdict{state: Pending, failure: clip(a.err.Error())}
	var refused *delivery.RefusedError
	if errors.As(a.err, &refused) && !(p.ThirdParty && later(refused.Status)) {
		v.state = Dead
		return v
	}
	if a.stopped {
		v.due = now
		return v
	}
	if now.Sub(a.row.Since) >= p.MaxAge {
		v.state = Dead
		return v
	}
	v.due = now.Add(max(p.backoff(a.row.Attempts, a.jitter), min(asked(a.err), p.Cap)))
	return v
}

func later(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooManyRequests
}

// asked is the pause that the receiver asked for, if it did.
func asked(err error) time.Duration {
	var refused *delivery.RefusedError
	var status *delivery.StatusError
	switch {
	case errors.As(err, &refused):
		return refused.RetryAfter
	case errors.As(err, &status):
		return status.RetryAfter
	}
	return 0
}

// clip bounds what a failure can make a row grow by, and leaves out what is no text: a server that said it in answer to
// every attempt would otherwise keep every outcome from being recorded (PostgreSQL takes neither).
func clip(s string) string {
	const most = 1000
	more := ""
	if len(s) > most {
		s, more = s[:most], "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "") + more
}
