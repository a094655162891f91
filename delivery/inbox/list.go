package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Entry is a recorded delivery.
type Entry struct {
	Source, ID, Kind string
	ReceivedAt       time.Time // UTC, whole microseconds
	BodySHA256       string    // hexadecimal
	Outcome          string    // what [Note] kept; "" when nothing was
}

// Filter chooses what [List] returns, ordered by source and id.
type Filter struct {
	Source      string // one source alone; "" means all
	AfterSource string // with AfterID: the last entry of the page before
	AfterID     string
	Limit       int // 0 means 100, at most 1000
}

// List returns a page of recorded deliveries.
func List(ctx context.Context, tx Tx, f Filter) (entries []Entry, err error) {
	if f.Source != "" && f.AfterSource == "" {
		f.AfterSource = f.Source
	}
	query, args := `SELECT source, id, kind, received_at, body_sha256, outcome FROM delivery
		WHERE (source > $1 OR source = $1 AND id > $2)`, []any{f.AfterSource, f.AfterID}
	if f.Source != "" {
		query += ` AND source = $3`
		args = append(args, f.Source)
	}
	query += fmt.Sprintf(` ORDER BY source, id LIMIT %d`, limit(f.Limit))
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("inbox: list: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e Entry
		var at int64
		if err := rows.Scan(&e.Source, &e.ID, &e.Kind, &at, &e.BodySHA256, &e.Outcome); err != nil {
			return nil, fmt.Errorf("inbox: list: %w", err)
		}
		e.ReceivedAt = time.UnixMicro(at).UTC()
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inbox: list: %w", err)
	}
	return entries, nil
}

// Sources returns a page of the sources that have rows, in order, after the given
// one, so that a sweep can ask which of them have ended.
func Sources(ctx context.Context, tx Tx, after string, n int) (sources []string, err error) {
	// One index step per source, however many rows each has.
	for range limit(n) {
		var next *string
		err := tx.QueryRowContext(ctx, `SELECT MIN(source) FROM delivery WHERE source > $1`, after).Scan(&next)
		if err != nil {
			return nil, fmt.Errorf("inbox: list sources: %w", err)
		}
		if next == nil {
			break
		}
		after = *next
		sources = append(sources, after)
	}
	return sources, nil
}

// Purge deletes at most n rows (0 means 100, at most 1000) of one source that
// arrived before the given instant, and says how many. A caller purges only what
// can send no more: an ended incarnation, or another source past its longest
// retry; a row purged sooner would let a late retry take effect twice (T20).
func Purge(ctx context.Context, tx Tx, source string, before time.Time, n int) (deleted int, err error) {
	res, err := tx.ExecContext(ctx, fmt.Sprintf(`DELETE FROM delivery WHERE source = $1 AND id IN
		(SELECT id FROM delivery WHERE source = $1 AND received_at < $2 ORDER BY received_at, id LIMIT %d)`, limit(n)),
		source, before.UnixMicro())
	if err != nil {
		return 0, fmt.Errorf("inbox: purge %s: %w", source, err)
	}
	count, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("inbox: purge %s: %w", source, err)
	}
	return int(count), nil
}

func limit(n int) int {
	if n <= 0 {
		return 100
	}
	return min(n, 1000)
}
