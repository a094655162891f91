package orchestrator

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

const (
	watchPage    = 100 // events at a time; no more of a watch is ever in memory
	numberBatch  = 500 // rows that one transaction numbers
	numberRounds = 20  // batches before the numbered are yielded
	watchRest    = 50 * time.Millisecond
	watchBeat    = 15 * time.Second // of silence, after which the watch says how far it is
)

// WatchSandboxes yields every sandbox of the project, then every change.
//
// A change commits its row without a number (version 0), and whoever watches
// numbers what is committed, under one lock per project. So numbers become
// visible in their order, and a watch that goes on behind a number misses nothing
// (trap T18; docs/adr/0007). Bells only shorten the wait (trap T21).
func (s *Service) WatchSandboxes(ctx context.Context, caller holdfast.Caller, in holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	seen, err := parseVersion(in.After)
	if err != nil {
		return err
	}
	w := watch{Service: s, project: caller.Project, yield: yield, seen: seen, begun: in.After != "", anew: in.After == "" || seen.base > 0}
	for {
		changed := s.changes.next()
		more, err := w.step(ctx)
		if err != nil {
			return err
		}
		if more {
			continue
		}
		if err := s.rest(ctx, changed); err != nil {
			return err
		}
	}
}

// watch is one caller's.
type watch struct {
	*Service
	project holdfast.ProjectID
	yield   func(holdfast.SandboxEvent) error
	seen    version
	begun   bool
	anew    bool // what was deleted before it began is no news, until the watch has caught up
	caught  bool
	told    time.Time
}

// version is a place in a project's order of changes: behind the row of that id
// among those of a number, or behind all of them where the id is empty.
type version struct {
	number int64
	id     string
	// base is the last number there was when the watch began with everything, 0 once
	// it has caught up: what was deleted up to it was never shown.
	base int64
}

func (v version) String() string {
	text := strconv.FormatInt(v.number, 10)
	if v.id != "" {
		text += "." + v.id
	}
	if v.base > 0 {
		text += "@" + strconv.FormatInt(v.base, 10)
	}
	return text
}

func parseVersion(text string) (v version, err error) {
	if text == "" {
		return version{}, nil
	}
	place, base, has := strings.Cut(text, "@")
	n, id, _ := strings.Cut(place, ".")
	v.id = id
	if v.number, err = strconv.ParseInt(n, 10, 64); err == nil && has {
		v.base, err = strconv.ParseInt(base, 10, 64)
	}
	if err != nil || v.number < 0 || v.base < 0 {
		return version{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "after is no version that an event carried").With("field", "after")
	}
	return v, nil
}

// whole is the number up to which everything was seen, or was over before the
// watch began.
func (v version) whole() int64 {
	if v.id != "" {
		return max(v.number-1, v.base) // others of the same number may not have been seen
	}
	return max(v.number, v.base)
}

// step numbers what has changed, yields one page, and reports whether there may
// be more at once.
func (w *watch) step(ctx context.Context) (more bool, err error) {
	full := true // more may be waiting for a number
	for round := 0; full && round < numberRounds; round++ {
		if full, err = w.number(ctx, w.project); err != nil {
			return false, err
		}
	}
	page, last, err := w.page(ctx)
	if err != nil {
		return false, err
	}
	for i := range page {
		if err := w.tell(page[i].event(w.Service)); err != nil {
			return false, err
		}
		w.seen = page[i].at
	}
	if len(page) == watchPage {
		return true, nil
	}
	if full {
		w.seen = version{number: last, base: w.seen.base}
		return true, nil
	}
	w.seen = version{number: last}
	caught := w.caught
	w.anew, w.caught = false, true
	if !caught || time.Since(w.told) > watchBeat {
		return false, w.tell(holdfast.SandboxEvent{Version: w.seen.String()})
	}
	return false, nil
}

// tell yields one event. Whoever takes too long over one is told to come again,
// so that nothing here waits on them for ever.
func (w *watch) tell(e holdfast.SandboxEvent) error {
	began := time.Now()
	if err := w.yield(e); err != nil {
		return err
	}
	w.told = time.Now()
	if took := w.told.Sub(began); took > w.config.WatchPatience {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonSlow,
			"an event was not taken within %s: watch again after version %s, nothing is missed", w.config.WatchPatience, e.Version).
			With("after", e.Version).Retry(time.Second)
	}
	return nil
}

// watched is a row with its place and what was pending in the same snapshot.
type watched struct {
	row row
	op  *operation.Operation
	at  version
}

func (w watched) event(s *Service) holdfast.SandboxEvent {
	sandbox := s.show(w.row, w.op)
	return holdfast.SandboxEvent{Version: w.at.String(), Sandbox: &sandbox}
}

// page reads what was numbered behind the place that was seen, and the last
// number given: with a page that is not full, everything up to it was read.
func (w *watch) page(ctx context.Context) (page []watched, last int64, err error) {
	where, from := `version > $2`, []any{string(w.project), w.seen.number}
	if w.seen.id != "" {
		where, from = `(version, id) > ($2, $3)`, append(from, w.seen.id)
	}
	err = w.view(ctx, "watch sandboxes", func(tx store.Tx, _ time.Time) error {
		page = nil
		n, err := readNumbers(ctx, tx, w.project, "")
		if err != nil {
			return err
		}
		last = n.last
		if err := w.check(n); err != nil {
			return err
		}
		where, args := `WHERE project = $1 AND version > 0 AND `+where, from
		if w.anew { // one that was deleted since may have been shown
			where, args = where+` AND (state <> 'DELETED' OR version > `+fmt.Sprintf("$%d", len(args)+1)+`)`, append(slices.Clone(args), w.seen.base)
		}
		where += ` ORDER BY version, id LIMIT ` + strconv.Itoa(watchPage)
		list, err := rows(ctx, tx, where, args...)
		if err != nil {
			return err
		}
		for _, r := range list {
			op, has, err := operation.Pending(ctx, tx, r.resource())
			if err != nil {
				return err
			}
			at := watched{row: r, at: version{number: r.Version, id: string(r.ID), base: w.seen.base}}
			if has {
				at.op = &op
			}
			page = append(page, at)
		}
		return nil
	})
	w.begun = w.begun || err == nil
	return page, last, err
}

// check refuses to go on from a place behind which this database cannot tell every
// change: it was restored from before it, or tombstones of later deletions are
// purged (contract: A5). The place of a watch that begins with everything is now.
func (w *watch) check(n numbers) error {
	switch {
	case !w.begun:
		w.seen.base = n.last
	case w.seen.number > n.last:
		return beginAnew("version %s is ahead of this database, which knows %d: was it restored?", w.seen, n.last)
	case w.seen.whole() < n.purged:
		return beginAnew("deletions after version %s are purged: they are kept for %s", w.seen, holdfast.TombstoneKept)
	}
	return nil
}

func beginAnew(format string, args ...any) *holdfast.Error {
	return holdfast.E(holdfast.OutOfRange, holdfast.ReasonBeginAnew,
		format+" Watch again without a version, and forget what is not among what that begins with", args...).With("field", "after")
}

// numbers are what a project's changes are numbered by.
type numbers struct {
	last   int64 // the last one given
	purged int64 // the highest that a purged tombstone had
}

func readNumbers(ctx context.Context, tx store.Tx, project holdfast.ProjectID, lock string) (n numbers, err error) {
	err = tx.QueryRowContext(ctx, `SELECT version, purged FROM sandbox_version WHERE project = $1`+lock, string(project)).Scan(&n.last, &n.purged)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return numbers{}, fmt.Errorf("read the last version: %w", err)
	}
	return n, nil
}

// lockNumbers holds others off from numbering until the transaction ends.
func lockNumbers(ctx context.Context, tx store.Tx, project holdfast.ProjectID) (*numbers, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO sandbox_version (project, version) VALUES ($1, 0) ON CONFLICT DO NOTHING`, string(project))
	if err != nil {
		return nil, fmt.Errorf("number changes: %w", err)
	}
	n, err := readNumbers(ctx, tx, project, tx.ForUpdate())
	return &n, err
}

// lose notes that a change of that number is gone; one that nobody numbered gets
// its number first.
func (n *numbers) lose(version int64) {
	if version == 0 {
		n.last++
		version = n.last
	}
	n.purged = max(n.purged, version)
}

func (n *numbers) save(ctx context.Context, tx store.Tx, project holdfast.ProjectID) error {
	_, err := tx.ExecContext(ctx, `UPDATE sandbox_version SET version = $2, purged = $3 WHERE project = $1`, string(project), n.last, n.purged)
	if err != nil {
		return fmt.Errorf("number changes: %w", err)
	}
	return nil
}

// number gives the next number to changes that are committed and have none, and
// reports whether there may be more. The lock is held until the numbers are
// committed, so that no lower number becomes visible after a higher one.
func (s *Service) number(ctx context.Context, project holdfast.ProjectID) (full bool, err error) {
	var open int
	err = s.view(ctx, "changes without a version", func(tx store.Tx, _ time.Time) error {
		return tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT id FROM sandbox WHERE project = $1 AND version = 0 LIMIT 1) AS open`,
			string(project)).Scan(&open)
	})
	if err != nil || open == 0 {
		return false, err
	}
	var n int64
	err = s.update(ctx, "number changes", func(tx store.Tx, _ time.Time) error {
		numbers, err := lockNumbers(ctx, tx, project)
		if err != nil {
			return err
		}
		n, err = numbers.give(ctx, tx, project)
		return err
	})
	return n == numberBatch, err
}

// give numbers one batch, and returns how many that were.
func (n *numbers) give(ctx context.Context, tx store.Tx, project holdfast.ProjectID) (given int64, err error) {
	res, err := tx.ExecContext(ctx, `UPDATE sandbox SET version = $2 WHERE version = 0 AND id IN
		(SELECT id FROM sandbox WHERE project = $1 AND version = 0 ORDER BY id LIMIT $3)`, string(project), n.last+1, numberBatch)
	if err == nil {
		given, err = res.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("number changes: %w", err)
	}
	if given == 0 {
		return 0, nil
	}
	n.last++
	return given, n.save(ctx, tx, project)
}

// rest waits for a change here, or as long as changes elsewhere may go unseen.
func (s *Service) rest(ctx context.Context, changed <-chan struct{}) error {
	poll := time.NewTimer(s.config.WatchPoll)
	defer poll.Stop()
	pause := time.NewTimer(min(watchRest, s.config.WatchPoll))
	defer pause.Stop()
	for rested := false; ; {
		rung := changed
		if !rested {
			rung = nil // a busy project is looked at once in a while, not for every change
		}
		select {
		case <-pause.C:
			rested = true
		case <-rung:
			return nil
		case <-poll.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("watch sandboxes: %w", ctx.Err())
		case <-s.ctx.Done():
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonDraining, "this server is stopping: watch again after the last version").Retry(time.Second)
		}
	}
}

// gong wakes everyone who waits for any change of this process.
type gong struct {
	mu      sync.Mutex
	waiting chan struct{} // nil: nobody waits
}

func (g *gong) next() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == nil {
		g.waiting = make(chan struct{})
	}
	return g.waiting
}

func (g *gong) ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting != nil {
		close(g.waiting)
		g.waiting = nil
	}
}
