package reconcile_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/reconcile"
)

func TestBackoff_DoublesUpToItsCap(t *testing.T) {
	b := reconcile.Backoff{Base: time.Second, Cap: 5 * time.Second}
	for failures, want := range []time.Duration{1, 1, 2, 4, 5, 5} { // no failure counts as one
		if got := b.Ceiling(failures); got != want*time.Second {
			t.Errorf("after %d failures: %s, want %s", failures, got, want*time.Second)
		}
	}
	if got := (reconcile.Backoff{}).Ceiling(7); got != time.Second {
		t.Errorf("the zero Backoff: %s", got)
	}
	if a, b := b.Delay(3, 0), b.Delay(3, 0.5); a != 0 || b != 2*time.Second {
		t.Errorf("jitter is not full: %s, %s", a, b)
	}
}

// trap T25
func TestT25_BackoffOverflowsNowhere(t *testing.T) {
	huge := reconcile.Backoff{Base: 1 << 61, Cap: math.MaxInt64}
	if c, d := huge.Ceiling(70), huge.Delay(70, 1); c != math.MaxInt64 || d <= 0 {
		t.Errorf("ceiling %d, delay %d", c, d)
	}
	if c := (reconcile.Backoff{Base: time.Second, Cap: time.Hour}).Ceiling(math.MinInt); c != time.Second {
		t.Errorf("no failures: %s", c)
	}
	rapid.Check(t, func(t *rapid.T) {
		b := reconcile.Backoff{Base: time.Duration(rapid.Int64().Draw(t, "base")), Cap: time.Duration(rapid.Int64().Draw(t, "cap"))}
		failures := rapid.OneOf(rapid.IntRange(-3, 200), rapid.Just(math.MaxInt), rapid.Just(math.MinInt)).Draw(t, "failures")
		c := b.Ceiling(failures)
		d := b.Delay(failures, rapid.Float64Range(0, 0.999).Draw(t, "random"))
		if c <= 0 || d < 0 || d > c || b.Base > 0 && c > max(b.Cap, b.Base) {
			t.Fatalf("ceiling %d, delay %d of %+v", c, d, b)
		}
	})
}
