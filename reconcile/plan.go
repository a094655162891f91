package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrTooMany is the alarm of a sweep that would have destroyed unusually much, and destroyed nothing (contract: C4;
// trap T52).
var ErrTooMany = errors.New("refusing to destroy unusually much at once")

// alwaysAllowed is how many may be destroyed at once however few there are.
const alwaysAllowed = 3

// Guard returns an error that is ErrTooMany if destroying doomed of total at once is unusual: more than three, and more
// than a tenth. A wrong, restored or empty database makes everything look unwanted; a person has to see that first.
func Guard(total, doomed int) error {
	if doomed <= max(alwaysAllowed, total/10) {
		return nil
	}
	return fmt.Errorf("%w: %d of %d, at most %d are usual", ErrTooMany, doomed, total, max(alwaysAllowed, total/10))
}

// Recorded is what the database says should be at the authority.
type Recorded struct {
	Key   string
	Since time.Time // when it was recorded that it is there
	Live  bool      // an attempt on it is live: whatever the authority shows, it is in motion (trap T26)
}

// Observed is what the authority says is there.
type Observed struct {
	Key   string
	Since time.Time // when the authority first had it
}

// Reading is one answer of an authority. A read that failed is the zero Reading, with its error.
type Reading struct {
	Began    time.Time // when the question was put; what was recorded later need not be in the answer
	Ended    time.Time // when the answer was there; only a database read after that tells what is an orphan
	Complete bool      // every page was read; a part says what is there, and not what is gone
	Observed []Observed
	Err      error // the authority could not be asked, in part or at all
}

// Limits configures Plan.
type Limits struct {
	Grace  time.Duration // how old an orphan has to be before it is destroyed
	MaxAge time.Duration // a Reading that began longer ago than this tells neither gone nor orphaned; 0: 1 min
}

// Comparison is what Plan reads: the authority's answer first, the database's after it (contract: C4).
type Comparison struct {
	Reading    Reading
	RecordedAt time.Time // when the database was read
	Recorded   []Recorded
}

// Actions is what to do about the differences. Keys are sorted. Each action is taken through the resource's claim, and
// looks again first.
type Actions struct {
	Gone    []string // recorded, and confirmed not to be there
	Destroy []string // there, not recorded, and past the grace period
	Waiting []string // there and not recorded, but too young to judge
	Alarm   error    // is ErrTooMany: Destroy was emptied
	Blind   error    // why nothing can be said about what is gone: unreachable is not gone (trap T27)
}

// Plan compares what is recorded with what the authority observes, both ways. It is a pure function.
//
// Nothing counts as gone unless a complete, fresh reading lacks it that began after it was recorded. Nothing counts as
// an orphan unless it is absent from a database that was read after the authority was. What has a live attempt is left
// alone in both directions.
func Plan(c Comparison, now time.Time, limits Limits) Actions {
	var a Actions
	recorded := make(map[string]bool, len(c.Recorded))
	for _, r := range c.Recorded {
		recorded[r.Key] = true
	}
	there := make(map[string]bool, len(c.Reading.Observed))
	for _, o := range c.Reading.Observed {
		there[o.Key] = true
	}
	if a.Blind = blind(c.Reading, now, limits.MaxAge); a.Blind == nil {
		for _, r := range c.Recorded {
			if !there[r.Key] && !r.Live && r.Since.Before(c.Reading.Began) {
				a.Gone = append(a.Gone, r.Key)
			}
		}
	}
	judged := !c.Reading.Ended.IsZero() && !c.RecordedAt.Before(c.Reading.Ended) && !c.Reading.stale(now, limits.MaxAge)
	for _, o := range c.Reading.Observed {
		switch {
		case recorded[o.Key]:
		case judged && now.Sub(o.Since) >= limits.Grace:
			a.Destroy = append(a.Destroy, o.Key)
		default:
			a.Waiting = append(a.Waiting, o.Key)
		}
	}
	if a.Alarm = Guard(len(there), len(a.Destroy)); a.Alarm != nil {
		a.Destroy = nil
	}
	slices.Sort(a.Gone)
	slices.Sort(a.Destroy)
	slices.Sort(a.Waiting)
	return a
}

// stale reports whether too much may have happened since the authority was read.
func (r Reading) stale(now time.Time, maxAge time.Duration) bool {
	if maxAge <= 0 {
		maxAge = time.Minute
	}
	return now.Sub(r.Began) > maxAge
}

func blind(r Reading, now time.Time, maxAge time.Duration) error {
	switch {
	case r.Err != nil:
		return fmt.Errorf("the authority could not be read: %w", r.Err)
	case !r.Complete:
		return errors.New("the authority was read in part")
	case r.stale(now, maxAge):
		return fmt.Errorf("the authority was read %s ago", now.Sub(r.Began))
	}
	return nil
}
