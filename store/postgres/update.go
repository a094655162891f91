package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

// Update implements store.DB. A context that ends before the function has returned makes it fail, and interrupts a
// statement that runs; later, Update waits for the commit and tells what came of it.
func (db *DB) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := db.enter(); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	defer db.running.Done()
	if ctx.Err() != nil {
		return fmt.Errorf("update: %w", ended(ctx))
	}
	for try := 1; ; try++ {
		repeat, err := db.update(ctx, fn)
		if !repeat || try >= db.cfg.Tries || !pause(ctx, try) {
			return err
		}
		db.stats.again.Add(1)
	}
}

// update runs the function once. repeat is that the server ended it because of others, and that nothing was written.
func (db *DB) update(ctx context.Context, fn func(store.Tx) error) (repeat bool, err error) {
	s, err := db.begin(ctx, forUpdates)
	if err != nil {
		return false, fmt.Errorf("update: %w", err)
	}
	t := &tx{ctx: ctx, session: s}
	returned := false
	defer func() {
		if !returned { // a panic or Goexit of the function goes on in the caller
			t.abandon()
		}
	}()
	err = fn(t)
	returned = true
	db.stats.updates.Add(1)
	if err = t.end(err); err != nil {
		s.rollback()
		return again(t.failed), err
	}
	if err = s.commit(); err != nil {
		return again(err) && !errors.Is(err, store.ErrUnknownOutcome), fmt.Errorf("update: %w", err)
	}
	return false, nil
}

// pause lets the others get out of the way: up to 2 ms, doubling, at most 256. It reports false when ctx ends.
func pause(ctx context.Context, try int) bool {
	wait := time.NewTimer(rand.N(time.Millisecond << min(try, 8)))
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// View implements store.DB. A context that ends interrupts a running statement.
func (db *DB) View(ctx context.Context, fn func(store.Tx) error) error {
	if err := db.enter(); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	defer db.running.Done()
	if ctx.Err() != nil {
		return fmt.Errorf("view: %w", ended(ctx))
	}
	s, err := db.begin(ctx, forViews)
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	t := &tx{ctx: ctx, session: s}
	returned := false
	defer func() {
		if !returned {
			t.abandon()
		}
	}()
	err = fn(t)
	returned = true
	err = t.end(err)
	s.rollback()
	return err
}
