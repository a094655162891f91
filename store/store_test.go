package store_test

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

func TestMicrosKeepInstantsToTheMicrosecond(t *testing.T) {
	zone := time.FixedZone("east", 2*60*60)
	for _, tc := range []struct {
		name string
		at   time.Time
		want int64
	}{
		{"zero time", time.Time{}, 0},
		{"the epoch's first microsecond", time.Unix(0, 1000), 1},
		{"nanoseconds are cut", time.Unix(1, 1999), 1_000_001},
		{"before the epoch", time.Unix(-1, 0), -1_000_000},
		{"another zone", time.Date(2026, 1, 2, 5, 4, 5, 6000, zone), 1767323045000006},
	} {
		t.Run(tc.name, func(t *testing.T) {
			us := store.Micros(tc.at)
			if us != tc.want {
				t.Fatalf("Micros = %d, want %d", us, tc.want)
			}
			back := store.FromMicros(us)
			if back.Location() != time.UTC {
				t.Errorf("FromMicros is in %v, want UTC", back.Location())
			}
			if want := tc.at.UTC().Truncate(time.Microsecond); !back.Equal(want) {
				t.Errorf("FromMicros = %v, want %v", back, want)
			}
		})
	}
	if !store.FromMicros(0).IsZero() {
		t.Error("FromMicros(0) is not the zero time")
	}
}
