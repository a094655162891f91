package fleet

import (
	"slices"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

// trap T29: pages of what is overdue miss nothing whose id and deadline are not in the
// same order, and end.
func TestT29_PagesOfWhatIsOverdueMissNothing(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	var want []string
	for range 4 {
		want = append(want, string(w.placed(m)))
	}
	slices.Sort(want)
	for i, id := range want { // two at each instant, the later ids first
		w.exec(`UPDATE instance SET due_at = $1 WHERE id = $2`, store.Micros(w.clock.Now())-int64(i/2), id)
	}
	want = slices.Concat(want[2:], want[:2])
	var got []string
	for after := ""; len(got) <= len(want); {
		items, next, err := w.fleet.pageOverdue(t.Context(), after, 1)
		check(t, err)
		for _, item := range items {
			got = append(got, item.Key)
		}
		if next == "" {
			break
		}
		after = next
	}
	if !slices.Equal(got, want) {
		t.Errorf("paged %v, want %v", got, want)
	}
}
