// Package reconcile is for the messages that never come: loops that find what is stuck, ask the authority what became
// of it, and act on the answer.
//
// A Sweep walks a set of rows page by page and acts on each; a Runner runs sweeps on a jittered schedule, a bounded
// number of items at once, with a deadline each, so that one bad row never stops the rest. Plan compares what is
// recorded with what an authority observes, in both directions, and takes silence for neither. Guard stops a sweep that
// would destroy unusually much. Repair answers a read from the authority when the record lacks the fact. A Registry
// names, for each resource, who notices what, by when, and reports every cell that is missing.
//
// The package knows no resource and no database: what it needs, it is given.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrSkipped is what an item's Act returns, wrapped or not, when there was nothing to do or somebody else is at it: the
// row moved on, or its claim is held. It counts as no failure.
var ErrSkipped = errors.New("nothing to do here")

// ErrStuck is an item whose Act did not return after its deadline. It runs on alone; later runs leave its key alone
// until it has returned.
var ErrStuck = errors.New("the item did not return after its deadline")

// Item is one row that a sweep found.
type Item struct {
	Key string // unique within the sweep
	// Act looks again and does what is needed, through the same claims as everyone else. It may run twice, and must
	// end with its context.
	Act func(ctx context.Context) error
}

// Sweep is one loop: for one resource type, in one direction (contract: C1). Name, Every and Page are required.
type Sweep struct {
	Name  string
	Every time.Duration // between the beginnings of runs, give or take a tenth
	// First bounds the wait before the first run, which is drawn from it. 0: Every, at most half a second.
	First time.Duration
	// Page returns items whose keys follow `after`, and the key to go on from, which is empty when there are no more.
	// It pages by key, and leaves no room on a page to rows that do not qualify (trap T29). Page may return an error
	// together with a next key: the run then records the error and goes on behind the bad page.
	Page        func(ctx context.Context, after string, limit int) (items []Item, next string, err error)
	PageSize    int           // rows per page; 0: 100
	PageTimeout time.Duration // 0: 10 s
	ItemTimeout time.Duration // deadline of one Act; 0: 30 s
	Concurrency int           // items at once; 0: 4
	// Pace is the least time between the beginnings of two items, so that a backlog leaves room for the foreground
	// (trap T30). 0: none.
	Pace time.Duration
}

func (s Sweep) withDefaults() (Sweep, error) {
	switch {
	case s.Name == "":
		return s, errors.New("a sweep has no name")
	case s.Every <= 0:
		return s, fmt.Errorf("sweep %s: runs every %s", s.Name, s.Every)
	case s.Page == nil:
		return s, fmt.Errorf("sweep %s: has no pages", s.Name)
	}
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&s.First, min(s.Every, 500*time.Millisecond))
	set(&s.PageTimeout, 10*time.Second)
	set(&s.ItemTimeout, 30*time.Second)
	if s.PageSize <= 0 {
		s.PageSize = 100
	}
	if s.Concurrency <= 0 {
		s.Concurrency = 4
	}
	return s, nil
}

// maxErrors bounds the errors that a Report keeps; the counts are whole.
const maxErrors = 20

// ItemError is one item's failure.
type ItemError struct {
	Key string // empty for a page
	Err error
}

// Error names the item.
func (e ItemError) Error() string {
	if e.Key == "" {
		return "page: " + e.Err.Error()
	}
	return "item " + e.Key + ": " + e.Err.Error()
}

// Unwrap is the failure itself.
func (e ItemError) Unwrap() error { return e.Err }

// Report is what one run saw and did. Seen is Acted + Skipped + Failed.
type Report struct {
	Sweep   string
	Began   time.Time
	Took    time.Duration
	Pages   int
	Seen    int
	Acted   int
	Skipped int
	Failed  int         // items; a page that could not be read is an error, but no item
	Errors  []ItemError // the first 20
}

// Err joins the errors that the report kept; nil for none.
func (r Report) Err() error {
	errs := make([]error, len(r.Errors))
	for i, e := range r.Errors {
		errs[i] = e
	}
	return errors.Join(errs...)
}

func (r *Report) note(key string, err error) {
	if len(r.Errors) < maxErrors {
		r.Errors = append(r.Errors, ItemError{Key: key, Err: err})
	}
}

func (r *Report) count(key string, err error) {
	r.Seen++
	switch {
	case err == nil:
		r.Acted++
	case errors.Is(err, ErrSkipped):
		r.Skipped++
	default:
		r.Failed++
		r.note(key, err)
	}
}
