package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/reconcile"
)

// quiet is a Config whose log goes nowhere and whose jitter is the middle.
func quiet() reconcile.Config {
	return reconcile.Config{Logger: slog.New(slog.DiscardHandler), Jitter: func(string, int) float64 { return 0.5 }}
}

// paged serves items in pages by key.
func paged(items []reconcile.Item) func(context.Context, string, int) ([]reconcile.Item, string, error) {
	return func(_ context.Context, after string, limit int) ([]reconcile.Item, string, error) {
		var page []reconcile.Item
		for _, i := range items {
			if i.Key > after && len(page) < limit {
				page = append(page, i)
			}
		}
		if len(page) < limit {
			return page, "", nil
		}
		return page, page[limit-1].Key, nil
	}
}

func items(n int, act func(ctx context.Context, i int) error) []reconcile.Item {
	out := make([]reconcile.Item, n)
	for i := range out {
		out[i] = reconcile.Item{Key: fmt.Sprintf("k%04d", i), Act: func(ctx context.Context) error { return act(ctx, i) }}
	}
	return out
}

func runner(t *testing.T, config reconcile.Config, sweeps ...reconcile.Sweep) *reconcile.Runner {
	t.Helper()
	r, err := reconcile.NewRunner(config, sweeps...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// contract: C1; trap T19: a failing, a panicking, a deaf and a vanishing row stop none of the others.
func TestC1_OneBadRowNeverStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		letGo := make(chan struct{})
		var good atomic.Int32
		var log bytes.Buffer
		config := quiet()
		config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r := runner(t, config, reconcile.Sweep{Name: "s", Every: time.Minute, PageSize: 7, Concurrency: 2, ItemTimeout: time.Second,
			Page: paged(items(40, func(ctx context.Context, i int) error {
				switch i {
				case 3:
					return errors.New("bad row")
				case 5:
					panic("worse row")
				case 8:
					<-letGo // deaf to its context
					return nil
				case 9:
					<-ctx.Done()
					return ctx.Err()
				case 11:
					return fmt.Errorf("held by another: %w", reconcile.ErrSkipped)
				}
				good.Add(1)
				return nil
			}))})
		report, err := r.RunOnce(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		if report.Seen != 40 || report.Acted != 35 || report.Skipped != 1 || report.Failed != 4 || good.Load() != 35 {
			t.Errorf("%+v", report)
		}
		if err := report.Err(); !errors.Is(err, reconcile.ErrStuck) || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "item k0005: panic: worse row") {
			t.Errorf("errors: %v", err)
		}
		// The deaf one is left alone until it has returned (trap T13), and acted on again after that.
		report, err = r.RunOnce(t.Context(), "s")
		if err != nil || report.Failed != 4 || !strings.Contains(report.Err().Error(), "k0008: the item did not return after its deadline, in an earlier run") {
			t.Errorf("second run: %+v, %v", report, err)
		}
		close(letGo)
		synctest.Wait()
		if report, err = r.RunOnce(t.Context(), "s"); err != nil || report.Failed != 3 {
			t.Errorf("third run: %+v, %v", report, err)
		}
		if !strings.Contains(log.String(), "bad row") {
			t.Errorf("not logged: %s", log.String())
		}
	})
}

func TestC1_StuckItemsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		letGo := make(chan struct{})
		var begun atomic.Int32
		r := runner(t, quiet(), reconcile.Sweep{Name: "s", Every: time.Minute, Concurrency: 2, ItemTimeout: time.Second,
			Page: paged(items(100, func(context.Context, int) error {
				begun.Add(1)
				<-letGo
				return nil
			}))})
		report, err := r.RunOnce(t.Context(), "s")
		if err != nil || report.Failed != 100 || len(report.Errors) != 20 {
			t.Errorf("%d failed, %d errors kept, %v", report.Failed, len(report.Errors), err)
		}
		if n := begun.Load(); n > 18 {
			t.Errorf("%d deaf items at once", n)
		}
		close(letGo)
	})
}

func TestC1_ASweepGoesOnBehindABadPage(t *testing.T) {
	boom := errors.New("row unreadable")
	var acted atomic.Int32
	one := items(1, func(context.Context, int) error { acted.Add(1); return nil })
	pages := map[string]func() ([]reconcile.Item, string, error){
		"":  func() ([]reconcile.Item, string, error) { return one, "a", nil },
		"a": func() ([]reconcile.Item, string, error) { return nil, "b", boom },
		"b": func() ([]reconcile.Item, string, error) { return one, "", nil },
	}
	r := runner(t, quiet(), reconcile.Sweep{Name: "s", Every: time.Minute, Concurrency: 1,
		Page: func(_ context.Context, after string, _ int) ([]reconcile.Item, string, error) { return pages[after]() }},
		reconcile.Sweep{Name: "loops", Every: time.Minute,
			Page: func(_ context.Context, after string, _ int) ([]reconcile.Item, string, error) { return nil, "x", nil }},
		reconcile.Sweep{Name: "panics", Every: time.Minute,
			Page: func(context.Context, string, int) ([]reconcile.Item, string, error) { panic("boom") }})
	if report, err := r.RunOnce(t.Context(), "s"); !errors.Is(err, boom) || report.Seen != 2 || report.Pages != 3 || acted.Load() == 0 {
		t.Errorf("%+v, %v", report, err)
	}
	for _, name := range []string{"loops", "panics", "nobody"} {
		if _, err := r.RunOnce(t.Context(), name); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// contract: C6; trap T30
func TestT30_ABacklogIsWorkedOffABoundedNumberAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at, most atomic.Int32
		began := time.Now()
		r := runner(t, quiet(), reconcile.Sweep{Name: "s", Every: time.Minute, Concurrency: 3, Pace: 10 * time.Millisecond,
			Page: paged(items(500, func(context.Context, int) error {
				n := at.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(20 * time.Millisecond) // virtual: work
				at.Add(-1)
				return nil
			}))})
		report, err := r.RunOnce(t.Context(), "s")
		if err != nil || report.Acted != 500 || most.Load() > 3 {
			t.Errorf("%+v, %v, at most %d at once", report, err, most.Load())
		}
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second || report.Took != took {
			t.Errorf("500 items, 10 ms apart, took %s (report: %s)", took, report.Took)
		}
	})
}

// trap T28, within one process; between processes the claims do it
func TestT28_OverlappingRunsOfASweepDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at atomic.Int32
		r := runner(t, quiet(), reconcile.Sweep{Name: "s", Every: time.Minute, Concurrency: 1,
			Page: paged(items(3, func(context.Context, int) error {
				if at.Add(1) > 1 {
					t.Error("two runs at once")
				}
				time.Sleep(time.Second) // virtual
				at.Add(-1)
				return nil
			}))})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if report, err := r.RunOnce(t.Context(), "s"); err != nil || report.Acted != 3 {
					t.Errorf("%+v, %v", report, err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.RunOnce(ctx, "s"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller whose time ended while it waited: %v", err)
		}
		wg.Wait()
	})
}

func TestRun_KeepsItsScheduleAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var starts []time.Duration
		began := time.Now()
		config := quiet()
		config.Jitter = func(_ string, run int) float64 { return float64(run%2) * 0.999 }
		boom := errors.New("database is down")
		var down atomic.Bool
		r := runner(t, config, reconcile.Sweep{Name: "s", Every: time.Minute,
			Page: func(context.Context, string, int) ([]reconcile.Item, string, error) {
				mu.Lock()
				defer mu.Unlock()
				starts = append(starts, time.Since(began).Round(time.Second))
				if down.Load() {
					return nil, "", boom
				}
				return nil, "", nil
			}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.Run(ctx); close(ended) }()
		time.Sleep(3*time.Minute + time.Second) // virtual
		want := []time.Duration{0, 66 * time.Second, 120 * time.Second}
		mu.Lock()
		if !slices.Equal(starts, want) {
			t.Errorf("began at %v, want %v", starts, want)
		}
		starts = nil
		mu.Unlock()
		down.Store(true)
		time.Sleep(5 * time.Minute) // virtual
		mu.Lock()
		if len(starts) < 8 || len(starts) > 40 {
			t.Errorf("while its database was down, a sweep tried %d times in 5 min", len(starts))
		}
		mu.Unlock()
		if report, ok := r.Last("s"); !ok || !errors.Is(report.Err(), boom) {
			t.Errorf("last: %+v, %v", report, ok)
		}
		cancel()
		<-ended
	})
}

func TestRun_ACancelledRunSaysThatItWasCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runner(t, quiet(), reconcile.Sweep{Name: "s", Every: time.Minute, Concurrency: 1,
			Page: paged(items(10, func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }))})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		report, err := r.RunOnce(ctx, "s")
		if !errors.Is(err, context.DeadlineExceeded) || report.Seen != 1 {
			t.Errorf("%+v, %v", report, err)
		}
	})
}

func TestNewRunner_RefusesWhatCannotRun(t *testing.T) {
	good := reconcile.Sweep{Name: "s", Every: time.Minute, Page: paged(nil)}
	for name, sweeps := range map[string][]reconcile.Sweep{
		"no name": {{Every: time.Minute, Page: paged(nil)}}, "no period": {{Name: "s", Page: paged(nil)}},
		"no pages": {{Name: "s", Every: time.Minute}}, "the same name twice": {good, good},
	} {
		if _, err := reconcile.NewRunner(reconcile.Config{}, sweeps...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if r := runner(t, reconcile.Config{}, good); !slices.Equal(r.Names(), []string{"s"}) {
		t.Errorf("names: %v", r.Names())
	}
}
