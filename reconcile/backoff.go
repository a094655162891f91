package reconcile

import (
	"math"
	"time"
)

// Backoff is capped exponential backoff with full jitter. It overflows nowhere (trap T25).
type Backoff struct {
	Base time.Duration // ceiling of the first delay; below 1 ns: 1 s
	Cap  time.Duration // ceiling of every delay; less than Base means Base
}

// Delay is how long to wait after the given number of failures in a row, of which there was at least one. random is in
// [0, 1), and so is the delay's share of its ceiling, which doubles with each failure: callers that fail together come
// back apart.
func (b Backoff) Delay(failures int, random float64) time.Duration {
	share := min(max(random, 0), math.Nextafter(1, 0))
	return time.Duration(share * float64(b.Ceiling(failures)))
}

// Ceiling is the longest that Delay may be.
func (b Backoff) Ceiling(failures int) time.Duration {
	base := b.Base
	if base <= 0 {
		base = time.Second
	}
	ceiling, limit := base, max(b.Cap, base)
	for range max(failures, 1) - 1 {
		if ceiling >= limit-ceiling { // doubling would reach the cap, or run over
			return limit
		}
		ceiling *= 2
	}
	return ceiling
}
