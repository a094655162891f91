package orchestrator

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/store"
)

// eventPage bounds the events that are in memory at a time.
const eventPage = 100

// eventNumbers are what a project's events are numbered by.
type eventNumbers struct {
	recording bool
	sequence  int64 // the last number given
	purged    int64 // up to this number events may be missing
	asked     time.Time
}

func readEvents(ctx context.Context, tx store.Tx, project holdfast.ProjectID, lock string) (n eventNumbers, err error) {
	var asked int64
	err = tx.QueryRowContext(ctx, `SELECT recording, sequence, purged, asked_at FROM event_project WHERE project = $1`+lock, string(project)).
		Scan(&n.recording, &n.sequence, &n.purged, &asked)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return eventNumbers{}, fmt.Errorf("read the numbers of events of %s: %w", project, err)
	}
	n.asked = store.FromMicros(asked)
	return n, nil
}

func lockEvents(ctx context.Context, tx store.Tx, project holdfast.ProjectID) (eventNumbers, error) {
	return readEvents(ctx, tx, project, tx.ForUpdate())
}

// numberEvents gives numbers to a project's events that are committed and have none,
// in the order of their instants, under one lock per project: no lower number becomes
// visible after a higher one (trap T18). It reports whether there may be more.
func (s *Service) numberEvents(ctx context.Context, project holdfast.ProjectID) (more bool, err error) {
	var open bool
	err = s.view(ctx, "events without a number", func(tx store.Tx, _ time.Time) error {
		return tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM event WHERE project = $1 AND sequence = 0)`, string(project)).Scan(&open)
	})
	if err != nil || !open {
		return false, err
	}
	var given int64
	err = s.update(ctx, "number events", func(tx store.Tx, _ time.Time) error {
		n, err := lockEvents(ctx, tx, project)
		if err != nil {
			return err
		}
		given, err = affected(tx.ExecContext(ctx, `UPDATE event SET sequence = $2 + batch.place FROM
			(SELECT id, ROW_NUMBER() OVER (ORDER BY at, id) AS place FROM event WHERE project = $1 AND sequence = 0 ORDER BY at, id LIMIT $3) AS batch
			WHERE event.id = batch.id AND event.sequence = 0`, string(project), n.sequence, numberBatch))
		if err == nil && given > 0 {
			_, err = tx.ExecContext(ctx, `UPDATE event_project SET sequence = $2 WHERE project = $1`, string(project), n.sequence+given)
		}
		if err != nil {
			return fmt.Errorf("number events: %w", err)
		}
		return nil
	})
	return given == numberBatch, err
}

// askForEvents makes the project record, and remembers that somebody asked, to the
// hour.
func (s *Service) askForEvents(ctx context.Context, project holdfast.ProjectID) error {
	var n eventNumbers
	var now time.Time
	err := s.view(ctx, "who asked for events", func(tx store.Tx, at time.Time) (err error) {
		now = at
		n, err = readEvents(ctx, tx, project, "")
		return err
	})
	if err != nil || n.recording && now.Sub(n.asked) < time.Hour {
		return err
	}
	var begun bool
	err = s.update(ctx, "record events", func(tx store.Tx, now time.Time) (err error) {
		begun, err = recordEvents(ctx, tx, now, project)
		return err
	})
	if err != nil {
		return err
	}
	return s.listened(ctx, begun)
}

// StreamEvents yields the project's events. The first who asks makes the project
// record them; bells only shorten the wait for the next (trap T21).
func (s *Service) StreamEvents(ctx context.Context, caller holdfast.Caller, in holdfast.StreamEvents, yield func(holdfast.Event) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	r := eventReader{Service: s, project: caller.Project, kinds: in.Kinds}
	if err := r.from(in.After); err != nil {
		return err
	}
	for {
		changed := s.changes.next()
		if err := s.askForEvents(ctx, caller.Project); err != nil {
			return err
		}
		full, err := r.step(ctx, yield)
		if err != nil {
			return err
		}
		if full {
			continue
		}
		if !in.Follow {
			return nil
		}
		if err := s.rest(ctx, changed); err != nil {
			return err
		}
	}
}

// eventReader reads a project's events in order, page by page.
type eventReader struct {
	*Service
	project holdfast.ProjectID
	kinds   []string
	seen    int64
	begun   bool // seen is a place that this database is held to
}

func (r *eventReader) from(cursor string) error {
	if cursor == "" {
		return nil
	}
	n, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil || n < 0 {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "after is no cursor that an event carried").With("field", "after")
	}
	r.seen, r.begun = n, true
	return nil
}

// step yields one page and reports whether there may be more at once.
func (r *eventReader) step(ctx context.Context, yield func(holdfast.Event) error) (full bool, err error) {
	unnumbered, err := r.numberEvents(ctx, r.project)
	if err != nil {
		return false, err
	}
	var page []recordedEvent
	err = r.view(ctx, "read events", func(tx store.Tx, _ time.Time) error {
		page, err = r.page(ctx, tx, eventPage)
		return err
	})
	if err != nil {
		return false, err
	}
	for _, e := range page {
		if holdfast.MatchKinds(r.kinds, e.Kind) {
			if err := yield(e.shown()); err != nil {
				return false, err
			}
		}
		r.seen = e.sequence
	}
	return unnumbered || len(page) == eventPage, nil
}

func (e recordedEvent) shown() holdfast.Event {
	out := e.Event
	out.Cursor = strconv.FormatInt(e.sequence, 10)
	return out
}

// page reads what was numbered behind the place that was seen, in a snapshot that
// still knows that place.
func (r *eventReader) page(ctx context.Context, tx store.Tx, limit int) ([]recordedEvent, error) {
	n, err := readEvents(ctx, tx, r.project, "")
	if err != nil {
		return nil, err
	}
	switch {
	case r.begun && r.seen > n.sequence:
		return nil, goneBehind("cursor %d is ahead of this database, which knows %d: was it restored?", r.seen, n.sequence)
	case r.begun && r.seen < n.purged:
		return nil, goneBehind("events behind cursor %d were not recorded, or are purged: they are kept for %s.", r.seen, holdfast.EventsKept)
	}
	r.begun = true
	if r.seen < n.purged {
		r.seen = n.purged
	}
	return gather(ctx, tx, scanEvent, `SELECT `+eventColumns+` FROM event WHERE project = $1 AND sequence > $2 ORDER BY sequence LIMIT $3`,
		string(r.project), r.seen, limit)
}

func goneBehind(format string, args ...any) *holdfast.Error {
	return holdfast.E(holdfast.OutOfRange, holdfast.ReasonBeginAnew, format+" Begin without a cursor, and look at what there is", args...).With("field", "after")
}

// ListDeliveries pages the inbox for operators: what came in, and what it led to.
func (s *Service) ListDeliveries(ctx context.Context, caller holdfast.Caller, in holdfast.ListDeliveries) (holdfast.DeliveryPage, error) {
	if err := caller.RequireAdmin("listing deliveries"); err != nil {
		return holdfast.DeliveryPage{}, err
	}
	if err := in.Validate(); err != nil {
		return holdfast.DeliveryPage{}, err
	}
	source, id, err := splitToken(in.PageToken)
	if err != nil {
		return holdfast.DeliveryPage{}, err
	}
	size := pageOf(in.PageSize)
	var page holdfast.DeliveryPage
	err = s.view(ctx, "list deliveries", func(tx store.Tx, _ time.Time) error {
		page = holdfast.DeliveryPage{}
		list, err := inbox.List(ctx, tx, inbox.Filter{Source: in.Source, AfterSource: source, AfterID: id, Limit: size})
		for _, e := range list {
			page.Deliveries = append(page.Deliveries, holdfast.DeliveryRecord(e))
		}
		if len(list) == size {
			page.NextPageToken = joinToken(list[size-1].Source, list[size-1].ID)
		}
		return err
	})
	return page, err
}

// pageOf is a page's size where none was asked for.
func pageOf(size int) int {
	if size == 0 {
		return holdfast.DefaultPageSize
	}
	return size
}

// joinToken makes a page token of two keys.
func joinToken(a, b string) string { return strconv.Itoa(len(a)) + ":" + a + b }

func splitToken(token string) (a, b string, err error) {
	if token == "" {
		return "", "", nil
	}
	number, rest, _ := strings.Cut(token, ":")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n > len(rest) {
		return "", "", holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "page_token is none that a list returned").With("field", "page_token")
	}
	return rest[:n], rest[n:], nil
}
