package outbox

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

const columns = `destination, id, kind, ordering_key, body, state, enqueued_at, since, due_at, ended_at,
	attempts, claim, holder, last_error`

// query reads rows of columns, and its errors need the caller's name around them.
func query(ctx context.Context, tx Tx, q string, args ...any) (found []Row, err error) {
	rows, err := tx.QueryContext(ctx, q, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r Row
		var enqueued, since, due, ended int64
		err := rows.Scan(&r.Destination, &r.ID, &r.Kind, &r.Key, &r.Body, &r.State, &enqueued, &since, &due, &ended,
			&r.Attempts, &r.Claim, &r.Holder, &r.LastError)
		if err != nil {
			return nil, err
		}
		r.EnqueuedAt, r.Since, r.DueAt, r.EndedAt = instant(enqueued), instant(since), instant(due), instant(ended)
		found = append(found, r)
	}
	return found, rows.Err()
}

// changed says whether a statement changed a row.
func changed(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func limit(n int) int {
	if n <= 0 {
		return 100
	}
	return min(n, 1000)
}
