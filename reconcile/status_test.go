package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/reconcile"
)

// contract: F1
func TestF1_StatusTellsASweepThatRunsFromOneThatDoesNot(t *testing.T) {
	const every = time.Minute
	at := now.Add
	ran := func(d time.Duration) *reconcile.Report { return &reconcile.Report{Began: at(d)} }
	for name, c := range map[string]struct {
		status reconcile.Status
		late   bool
	}{
		"runs on no schedule":           {reconcile.Status{}, true},
		"just began":                    {reconcile.Status{Since: at(-time.Second)}, false},
		"never ran":                     {reconcile.Status{Since: at(-4 * every)}, true},
		"ran in time":                   {reconcile.Status{Since: at(-time.Hour), Last: ran(-3 * every)}, false},
		"ran too long ago":              {reconcile.Status{Since: at(-time.Hour), Last: ran(-4 * every)}, true},
		"runs now, and has for an hour": {reconcile.Status{Since: at(-2 * time.Hour), Last: ran(-2 * time.Hour), Running: at(-time.Hour)}, false},
		"began anew after a long pause": {reconcile.Status{Since: at(-time.Second), Last: ran(-time.Hour)}, false},
	} {
		if c.status.Every = every; c.status.Late(now) != c.late {
			t.Errorf("%s: late %v", name, !c.late)
		}
	}
}

// contract: F1
func TestF1_StatusFollowsASweepThroughItsRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runner(t, quiet(), reconcile.Sweep{Name: "s", Every: time.Minute, Page: paged(items(1, func(ctx context.Context, _ int) error {
			time.Sleep(10 * time.Second) // virtual: work
			return nil
		}))}, reconcile.Sweep{Name: "other", Every: time.Hour, First: time.Hour, Page: paged(nil)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Run(ctx)
		}()
		began := time.Now()
		time.Sleep(5 * time.Second)
		if _, all := r.Status(); len(all) != 2 || all[0].Name != "s" || all[0].Running.IsZero() || all[0].Last != nil || !all[0].Since.Equal(began) {
			t.Errorf("during the first run: %+v", all)
		}
		time.Sleep(10 * time.Second)
		at, all := r.Status()
		if !all[0].Running.IsZero() || all[0].Last == nil || all[0].Last.Acted != 1 || all[0].Late(at) || !at.Equal(time.Now()) {
			t.Errorf("after it: %+v", all[0])
		}
		cancel()
		<-ended
		time.Sleep(time.Hour)
		if at, all = r.Status(); !all[0].Late(at) {
			t.Errorf("an hour after its schedule ended: %+v", all[0])
		}
	})
}
