package reconcile_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/reconcile"
)

// ports is a record and its authority in one: what a Repair stands between.
type ports struct {
	mu      sync.Mutex
	known   reconcile.Known[string]
	asked   atomic.Int32
	stores  int
	answer  func(ctx context.Context, generation int64) (string, error)
	loadErr error
}

func (p *ports) repair() *reconcile.Repair[string, string] {
	return &reconcile.Repair[string, string]{
		Load: func(context.Context, string) (reconcile.Known[string], error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.known, p.loadErr
		},
		Ask: func(ctx context.Context, _ string, generation int64) (string, error) {
			p.asked.Add(1)
			return p.answer(ctx, generation)
		},
		Store: func(_ context.Context, _ string, read int64, value string) (bool, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.known.Generation != read {
				return false, nil
			}
			p.stores++
			p.known = reconcile.Known[string]{Value: value, Present: true, Current: true, Generation: read}
			return true, nil
		},
	}
}

func (p *ports) set(k reconcile.Known[string]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = k
}

func says(value string, err error) func(context.Context, int64) (string, error) {
	return func(context.Context, int64) (string, error) { return value, err }
}

// contract: D1, D2; traps T32, T33
func TestD1_D2_WhatARepairAnswers(t *testing.T) {
	down := errors.New("connection refused")
	miss := reconcile.Known[string]{Generation: 7}
	old := reconcile.Known[string]{Value: "8080", Present: true, Generation: 7}
	current := reconcile.Known[string]{Value: "8080", Present: true, Current: true, Generation: 7}
	cases := []struct {
		name   string
		known  reconcile.Known[string]
		value  string
		err    error
		want   reconcile.Answer[string]
		is     error
		asked  int32
		stores int
	}{
		{"D1: the callback came first", current, "9090", nil, reconcile.Answer[string]{Value: "8080"}, nil, 0, 0},
		{"D1: it did not", miss, "9090", nil, reconcile.Answer[string]{Value: "9090"}, nil, 1, 1},
		{"D1: an older generation's value is a miss", old, "9090", nil, reconcile.Answer[string]{Value: "9090"}, nil, 1, 1},
		{"D2, T32: unreachable, last known", old, "", down, reconcile.Answer[string]{Value: "8080", Stale: true}, nil, 1, 0},
		{"D2, T32: unreachable, nothing known", miss, "", down, reconcile.Answer[string]{}, reconcile.ErrUnavailable, 1, 0},
		{"T33: not found is not remembered", miss, "", reconcile.ErrNotFound, reconcile.Answer[string]{}, reconcile.ErrNotFound, 1, 0},
		{"not found goes before an old value", old, "", reconcile.ErrNotFound, reconcile.Answer[string]{}, reconcile.ErrNotFound, 1, 0},
	}
	for _, c := range cases {
		p := &ports{known: c.known, answer: says(c.value, c.err)}
		got, err := p.repair().Get(t.Context(), "sbx")
		if got != c.want || !errors.Is(err, c.is) || p.asked.Load() != c.asked || p.stores != c.stores {
			t.Errorf("%s: %+v, %v, asked %d, stored %d", c.name, got, err, p.asked.Load(), p.stores)
		}
		if c.is == reconcile.ErrUnavailable && errors.Is(err, reconcile.ErrNotFound) {
			t.Errorf("%s: unreachable is taken for not found", c.name)
		}
	}
}

// trap T33: the word of an authority that did not know it yet does not outlive the moment.
func TestT33_NotFoundIsAskedAgain(t *testing.T) {
	p := &ports{answer: says("", reconcile.ErrNotFound)}
	r := p.repair()
	if _, err := r.Get(t.Context(), "sbx"); !errors.Is(err, reconcile.ErrNotFound) {
		t.Fatal(err)
	}
	p.answer = says("9090", nil)
	if got, err := r.Get(t.Context(), "sbx"); err != nil || got.Value != "9090" {
		t.Errorf("%+v, %v", got, err)
	}
}

// trap T34: while the authority is asked, the instance is replaced. Its answer is about the old one.
func TestT34_ARepairNeverOverwritesANewerGeneration(t *testing.T) {
	p := &ports{known: reconcile.Known[string]{Generation: 1}}
	p.answer = func(_ context.Context, generation int64) (string, error) {
		if generation == 1 {
			p.set(reconcile.Known[string]{Generation: 2})
			return "old", nil
		}
		return "new", nil
	}
	got, err := p.repair().Get(t.Context(), "sbx")
	if err != nil || got.Value != "new" || p.known.Value != "new" || p.known.Generation != 2 || p.stores != 1 {
		t.Errorf("%+v, %v, recorded %+v", got, err, p.known)
	}
	p.answer = func(_ context.Context, generation int64) (string, error) { // never at rest
		p.set(reconcile.Known[string]{Generation: generation + 1})
		return "old", nil
	}
	p.set(reconcile.Known[string]{Generation: 3})
	if _, err := p.repair().Get(t.Context(), "sbx"); !errors.Is(err, reconcile.ErrUnavailable) || p.stores != 1 {
		t.Errorf("%v, stored %d", err, p.stores)
	}
}

// trap T35; contract: D2
func TestT35_ConcurrentMissesShareOneCallAndNoCallerEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &ports{answer: func(ctx context.Context, _ int64) (string, error) {
			select {
			case <-time.After(5 * time.Second): // virtual
				return "9090", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}}
		r := p.repair()
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := r.Get(first, "sbx"); !errors.Is(err, context.Canceled) {
				t.Errorf("the one who left: %v", err)
			}
		})
		synctest.Wait() // the first one's call is in flight
		for range 100 {
			wg.Go(func() {
				if got, err := r.Get(t.Context(), "sbx"); err != nil || got.Value != "9090" {
					t.Errorf("%+v, %v", got, err)
				}
			})
		}
		synctest.Wait()
		leave()
		wg.Wait()
		if p.asked.Load() != 1 || p.stores != 1 {
			t.Errorf("asked %d times, stored %d times", p.asked.Load(), p.stores)
		}
	})
}

// Who reads a newer generation does not get an older one's answer, though both are in flight.
func TestT34_FlightsOfDifferentGenerationsAreNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &ports{known: reconcile.Known[string]{Generation: 1}}
		p.answer = func(_ context.Context, generation int64) (string, error) {
			time.Sleep(time.Second) // virtual
			if generation == 1 {
				return "old", nil
			}
			return "new", nil
		}
		r := p.repair()
		var wg sync.WaitGroup
		ask := func() {
			wg.Go(func() {
				if got, err := r.Get(t.Context(), "sbx"); err != nil || got.Value != "new" {
					t.Errorf("%+v, %v", got, err)
				}
			})
			synctest.Wait()
		}
		ask()
		p.set(reconcile.Known[string]{Generation: 2})
		ask()
		wg.Wait()
	})
}

func TestRepair_ReportsWhatFails(t *testing.T) {
	boom := errors.New("disk full")
	p := &ports{answer: says("9090", nil)}
	r := p.repair()
	r.Store = func(context.Context, string, int64, string) (bool, error) { return false, boom }
	if _, err := r.Get(t.Context(), "sbx"); !errors.Is(err, boom) {
		t.Error(err)
	}
	r = p.repair()
	r.Ask = func(context.Context, string, int64) (string, error) { panic("boom") }
	if _, err := r.Get(t.Context(), "sbx"); err == nil {
		t.Error("a panic is an answer")
	}
	p.loadErr = boom
	if _, err := r.Get(t.Context(), "sbx"); !errors.Is(err, boom) {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := &ports{answer: func(ctx context.Context, _ int64) (string, error) { <-ctx.Done(); return "", ctx.Err() }}
		r := p.repair()
		r.Timeout = time.Second
		if _, err := r.Get(t.Context(), "sbx"); !errors.Is(err, reconcile.ErrUnavailable) {
			t.Errorf("an authority that hangs: %v", err)
		}
	})
}
