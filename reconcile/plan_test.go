package reconcile_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/reconcile"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// contract: C4; trap T52
func TestT52_C4_GuardRefusesToDestroyUnusuallyMuch(t *testing.T) {
	for _, c := range []struct {
		total, doomed int
		refused       bool
	}{
		{0, 0, false}, {3, 3, false}, {4, 4, true}, {10, 3, false}, {39, 4, true}, {40, 4, false}, {100, 10, false}, {100, 11, true},
	} {
		if err := reconcile.Guard(c.total, c.doomed); errors.Is(err, reconcile.ErrTooMany) != c.refused {
			t.Errorf("%d of %d: %v", c.doomed, c.total, err)
		}
	}
}

// contract: C4; traps T26, T27
func TestC4_PlanTellsGoneFromUnseenAndOrphanFromYoung(t *testing.T) {
	recorded := func(live bool, since time.Time) []reconcile.Recorded {
		return []reconcile.Recorded{{Key: "x", Since: since, Live: live}}
	}
	there := func(since time.Time) []reconcile.Observed { return []reconcile.Observed{{Key: "x", Since: since}} }
	good := reconcile.Reading{Began: ago(5 * time.Second), Ended: ago(4 * time.Second), Complete: true}
	cases := []struct {
		name                   string
		change                 func(c *reconcile.Comparison)
		gone, destroy, waiting string
	}{
		{"recorded and there", func(c *reconcile.Comparison) {
			c.Recorded, c.Reading.Observed = recorded(false, ago(time.Hour)), there(ago(time.Hour))
		}, "", "", ""},
		{"gone", func(c *reconcile.Comparison) { c.Recorded = recorded(false, ago(time.Hour)) }, "x", "", ""},
		{"T26: an attempt is live", func(c *reconcile.Comparison) { c.Recorded = recorded(true, ago(time.Hour)) }, "", "", ""},
		{"T27: recorded after the question was put", func(c *reconcile.Comparison) { c.Recorded = recorded(false, ago(time.Second)) }, "", "", ""},
		{"T27: the read failed", func(c *reconcile.Comparison) {
			c.Recorded, c.Reading.Err = recorded(false, ago(time.Hour)), errors.New("refused")
		}, "", "", ""},
		{"T27: it failed after a part", func(c *reconcile.Comparison) {
			c.Recorded, c.Reading.Complete = recorded(false, ago(time.Hour)), false
		}, "", "", ""},
		{"T27: the read is old", func(c *reconcile.Comparison) {
			c.Recorded, c.Reading.Began = recorded(false, ago(time.Hour)), ago(2*time.Minute)
		}, "", "", ""},
		{"an orphan", func(c *reconcile.Comparison) { c.Reading.Observed = there(ago(time.Hour)) }, "", "x", ""},
		{"T26: a young orphan", func(c *reconcile.Comparison) { c.Reading.Observed = there(ago(time.Minute)) }, "", "", "x"},
		{"T26: the database was read first", func(c *reconcile.Comparison) {
			c.Reading.Observed, c.RecordedAt = there(ago(time.Hour)), ago(4500*time.Millisecond)
		}, "", "", "x"},
		{"an orphan in an old read", func(c *reconcile.Comparison) {
			c.Reading.Observed, c.Reading.Began = there(ago(time.Hour)), ago(2*time.Minute)
		}, "", "", "x"},
		{"an orphan in a part", func(c *reconcile.Comparison) {
			c.Reading.Observed, c.Reading.Complete = there(ago(time.Hour)), false
		}, "", "x", ""},
	}
	for _, c := range cases {
		in := reconcile.Comparison{Reading: good, RecordedAt: ago(3 * time.Second)}
		c.change(&in)
		a := reconcile.Plan(in, now, reconcile.Limits{Grace: 5 * time.Minute})
		if g, d, w := strings.Join(a.Gone, ","), strings.Join(a.Destroy, ","), strings.Join(a.Waiting, ","); g != c.gone || d != c.destroy || w != c.waiting {
			t.Errorf("%s: gone %q, destroy %q, waiting %q", c.name, g, d, w)
		}
		if blind := in.Reading.Err != nil || !in.Reading.Complete || now.Sub(in.Reading.Began) > time.Minute; blind != (a.Blind != nil) {
			t.Errorf("%s: blind: %v", c.name, a.Blind)
		}
	}
}

// trap T52: the wrong database knows nothing of what runs.
func TestT52_AnEmptyDatabaseDestroysNothing(t *testing.T) {
	in := reconcile.Comparison{RecordedAt: now,
		Reading: reconcile.Reading{Began: ago(time.Second), Ended: ago(time.Second), Complete: true}}
	for i := range 50 {
		in.Reading.Observed = append(in.Reading.Observed, reconcile.Observed{Key: fmt.Sprint(i), Since: ago(time.Hour)})
	}
	a := reconcile.Plan(in, now, reconcile.Limits{})
	if len(a.Destroy) != 0 || !errors.Is(a.Alarm, reconcile.ErrTooMany) {
		t.Errorf("destroys %d, alarm %v", len(a.Destroy), a.Alarm)
	}
}

// contract: C4. Whatever the input: nothing live is touched, nothing recorded is destroyed, nothing there is gone.
func TestC4_PlanNeverTouchesWhatItShouldNot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := func(label string) time.Time {
			return ago(time.Duration(rapid.IntRange(-60, 600).Draw(t, label)) * time.Second)
		}
		keys := rapid.SliceOfDistinct(rapid.StringMatching(`[a-z]`), func(s string) string { return s })
		in := reconcile.Comparison{RecordedAt: at("recorded at")}
		in.Reading = reconcile.Reading{Began: at("began"), Ended: at("ended"), Complete: rapid.Bool().Draw(t, "complete")}
		live, recorded, there := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, k := range keys.Draw(t, "recorded") {
			r := reconcile.Recorded{Key: k, Since: at("since"), Live: rapid.Bool().Draw(t, "live")}
			in.Recorded, recorded[k], live[k] = append(in.Recorded, r), true, r.Live
		}
		for _, k := range keys.Draw(t, "observed") {
			in.Reading.Observed, there[k] = append(in.Reading.Observed, reconcile.Observed{Key: k, Since: at("had since")}), true
		}
		a := reconcile.Plan(in, now, reconcile.Limits{Grace: time.Minute})
		for _, k := range a.Gone {
			if live[k] || there[k] || !recorded[k] {
				t.Fatalf("%s is taken for gone", k)
			}
		}
		for _, k := range a.Destroy {
			if recorded[k] || !there[k] {
				t.Fatalf("%s is to be destroyed", k)
			}
		}
		if len(a.Destroy) > max(3, len(there)/10) {
			t.Fatalf("%d of %d to be destroyed", len(a.Destroy), len(there))
		}
	})
}
