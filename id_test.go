package holdfast

import (
	"testing"
	"time"
)

func TestIDsAreLabelsThatSortByTimeAndTellTheirBirth(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 123_456_000, time.UTC)
	g := IDs{Now: func() time.Time { return at }}
	first := g.New(PrefixSandbox)
	if err := CheckID("id", PrefixSandbox, first); err != nil {
		t.Fatal(err)
	}
	born, err := BornAt(first)
	if err != nil || !born.Equal(at) {
		t.Fatalf("born %s, %v; want %s", born, err, at)
	}
	at = at.Add(time.Microsecond)
	if second := g.New(PrefixSandbox); second <= first {
		t.Fatalf("%s does not sort after %s", second, first)
	}
	for _, bad := range []string{"", "sb-", "in-" + first[3:], first + "0", "sb-ILOU" + first[7:], "sb-../../../../etc/passwd123"} {
		if CodeOf(CheckID("id", PrefixSandbox, bad)) != InvalidArgument {
			t.Errorf("%q was taken for an id", bad)
		}
	}
}
