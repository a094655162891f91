package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"time"
)

// stuckPerSlot bounds how many items may run on past their deadlines, per item that may run at once. Beyond that the
// sweep begins nothing more until some return: each holds a goroutine and what it has open.
const stuckPerSlot = 8

// walk is one run of a sweep.
type walk struct {
	*running
	slots chan struct{}
	items sync.WaitGroup

	mu     sync.Mutex
	report Report
}

// pages walks the pages and hands out their items. It goes on behind a page that failed but says where to go on.
func (w *walk) pages(ctx context.Context) error {
	var errs []error
	for after := ""; ; {
		items, next, err := w.page(ctx, after)
		w.mu.Lock()
		w.report.Pages++
		if err != nil {
			w.report.note("", err)
		}
		w.mu.Unlock()
		if err != nil {
			errs = append(errs, fmt.Errorf("page after %q: %w", after, err))
		}
		for _, item := range items {
			if !w.begin(ctx, item) {
				return errors.Join(errs...)
			}
		}
		switch {
		case next == "" || len(errs) >= maxErrors:
			return errors.Join(errs...)
		case next == after:
			return errors.Join(append(errs, fmt.Errorf("page after %q says to go on there", after))...)
		}
		after = next
	}
}

func (w *walk) page(ctx context.Context, after string) (items []Item, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.PageTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			items, next, err = nil, "", panicked(p)
		}
	}()
	return w.Page(ctx, after, w.PageSize)
}

// begin waits for a slot and starts the item in it. It reports false once ctx has ended.
func (w *walk) begin(ctx context.Context, item Item) bool {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil {
		return false
	}
	w.items.Go(func() {
		defer func() { <-w.slots }()
		err := w.act(ctx, item)
		if err != nil && !errors.Is(err, ErrSkipped) && ctx.Err() == nil {
			w.config.Logger.Warn("sweep item failed", "sweep", w.Name, "item", item.Key, "error", err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.report.count(item.Key, err)
	})
	return w.Pace <= 0 || sleep(ctx, w.Pace)
}

// act runs one item with its deadline. The item has a goroutine of its own, so that one which is deaf to its context
// takes no slot for ever.
func (w *walk) act(ctx context.Context, item Item) error {
	if err := w.enter(item.Key); err != nil {
		return err
	}
	itemCtx, cancel := context.WithTimeout(ctx, w.ItemTimeout)
	result := make(chan error, 1)
	go func() {
		defer cancel()
		err := errors.New("the item ended its goroutine")
		defer func() {
			if p := recover(); p != nil {
				err = panicked(p)
			}
			w.leave(item.Key)
			result <- err
		}()
		// Profiles, and whoever is handed the context, can tell items apart.
		pprof.Do(itemCtx, pprof.Labels("sweep", w.Name, "item", item.Key), func(ctx context.Context) { err = item.Act(ctx) })
	}()
	select {
	case err := <-result:
		return err
	case <-itemCtx.Done():
	}
	// It was told; a tenth of its time is for coming back in order.
	grace := time.NewTimer(w.ItemTimeout / 10)
	defer grace.Stop()
	select {
	case err := <-result:
		return err
	case <-grace.C:
		w.markStuck(item.Key)
		return fmt.Errorf("%w of %s", ErrStuck, w.ItemTimeout)
	}
}

// enter notes that a key is being worked on. An item that has not returned from an earlier run is left to it (trap T13).
func (s *running) enter(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if late, ok := s.busy[key]; late {
		return fmt.Errorf("%w, in an earlier run", ErrStuck)
	} else if ok {
		return fmt.Errorf("%w: its key came twice in one run", ErrSkipped)
	}
	if s.stuck >= stuckPerSlot*s.Concurrency {
		return fmt.Errorf("%d items are stuck, no more are begun: %w", s.stuck, ErrStuck)
	}
	s.busy[key] = false
	return nil
}

func (s *running) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[key] {
		s.stuck--
	}
	delete(s.busy, key)
}

func (s *running) markStuck(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if late, ok := s.busy[key]; ok && !late {
		s.busy[key] = true
		s.stuck++
	}
}

func panicked(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }
