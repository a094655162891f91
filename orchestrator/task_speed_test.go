package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// counted counts the transactions on a database.
type counted struct {
	store.DB
	views, updates atomic.Int64
}

func (c *counted) View(ctx context.Context, fn func(store.Tx) error) error {
	c.views.Add(1)
	return c.DB.View(ctx, fn)
}

func (c *counted) Update(ctx context.Context, fn func(store.Tx) error) error {
	c.updates.Add(1)
	return c.DB.Update(ctx, fn)
}

// From a submit to the first output there is one commit, in which the task begins to
// run, beside that which records its process meanwhile; and no more is read than where
// the sandbox's guest is, for the start and for the output, and the task.
func TestASubmitReadsAndCommitsLittleBeforeItsFirstOutput(t *testing.T) {
	var db *counted
	h := newHarness(t, func(c *Config) {
		db = &counted{DB: c.DB}
		c.DB, c.Joiner = db, nil
	})
	newGuests(t).serve(h)
	views, updates := int64(1000), int64(1000)
	for i := range 10 {
		se := h.session(fmt.Sprint("s", i))
		v, u := db.views.Load(), db.updates.Load()
		task := h.submit(se.ID, fmt.Sprint("t", i), "hold", "it")
		seen := errors.New("seen")
		_, err := h.StreamTaskOutput(t.Context(), alice, holdfast.TaskOutput{ID: task.ID, Follow: true}, func(holdfast.OutputChunk) error {
			views, updates = min(views, db.views.Load()-v), min(updates, db.updates.Load()-u)
			return seen
		})
		if !errors.Is(err, seen) {
			t.Fatal(err)
		}
	}
	if views > 4 || updates > 2 {
		t.Errorf("%d reads and %d commits at least", views, updates)
	}
	t.Logf("%d reads, %d commits", views, updates)
}
