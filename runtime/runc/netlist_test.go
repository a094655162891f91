package runc

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// Other hosts' instances come and go on the same machine while a list is read.
func TestAListThatIsDisturbedIsReadAgain(t *testing.T) {
	other := errors.New("no memory")
	for name, c := range map[string]struct {
		disturbed, calls int
		last, want       error
	}{
		"at once":            {0, 1, nil, nil},
		"the third time":     {2, 3, nil, nil},
		"never":              {listTries, listTries, nil, netlink.ErrDumpInterrupted},
		"another's an error": {1, 2, other, other},
	} {
		calls := 0
		got, err := undisturbed(func() ([]int, error) {
			if calls++; calls <= c.disturbed {
				return nil, netlink.ErrDumpInterrupted
			}
			return []int{1}, c.last
		})
		if calls != c.calls || !errors.Is(err, c.want) || err == nil && len(got) != 1 {
			t.Errorf("%s: %d calls, %v, %v", name, calls, got, err)
		}
	}
}
