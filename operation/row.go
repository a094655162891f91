package operation

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// columns is the order that scan reads.
const columns = `id, resource_kind, resource_id, kind, generation, state, issued, claim, holder, claimed_at,
	claim_expires, attempts, answered, answered_for, waits_for, superseded_by, entered_at, deadline, due_at, updated_at,
	finished_at, last_error, input`

// micros is an instant as the table keeps it. The zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func scan(row interface{ Scan(...any) error }) (Operation, error) {
	var o Operation
	var claimed, expires, answeredFor, entered, deadline, due, updated, finished int64
	var failure, input string
	err := row.Scan(&o.ID, &o.Resource.Kind, &o.Resource.ID, &o.Kind, &o.Generation, &o.State, &o.Issued, &o.Claim,
		&o.Holder, &claimed, &expires, &o.Attempts, &o.Answered, &answeredFor, &o.WaitsFor, &o.SupersededBy, &entered,
		&deadline, &due, &updated, &finished, &failure, &input)
	if err != nil {
		return Operation{}, err
	}
	o.ClaimedAt, o.ClaimExpires, o.EnteredAt = fromMicros(claimed), fromMicros(expires), fromMicros(entered)
	o.Deadline, o.DueAt = fromMicros(deadline), fromMicros(due)
	o.UpdatedAt, o.FinishedAt = fromMicros(updated), fromMicros(finished)
	o.AnsweredFor = time.Duration(answeredFor) * time.Microsecond
	if input != "" {
		o.Input = []byte(input)
	}
	if failure != "" {
		o.LastError = new(Failure)
		if err := json.Unmarshal([]byte(failure), o.LastError); err != nil {
			// It is for people: one that cannot be read is in no operation's way.
			o.LastError = &Failure{Message: "the last error cannot be read: " + err.Error()}
		}
	}
	return o, nil
}

// scanAll reads every row and closes them, since the transaction's next statement needs the connection.
func scanAll(rows *sql.Rows) (ops []Operation, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		o, err := scan(rows)
		if err != nil {
			return nil, err
		}
		ops = append(ops, o)
	}
	return ops, rows.Err()
}

// one runs a statement that answers with one row of columns, or none.
func one(ctx context.Context, tx Tx, query string, args ...any) (Operation, bool, error) {
	o, err := scan(tx.QueryRowContext(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return Operation{}, false, nil
	}
	return o, err == nil, err
}

// changed is how many rows a statement changed.
func changed(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func encodeFailure(f *Failure) (string, error) {
	if f == nil {
		return "", nil
	}
	b, err := json.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("encode failure: %w", err)
	}
	return string(b), nil
}
