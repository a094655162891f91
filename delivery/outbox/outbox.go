package outbox

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"
	"unicode/utf8"
)

//go:embed *.sql
var migrations embed.FS

// Migrations is the package's schema for goose, to be kept under the name "outbox".
// The table is called outbox.
func Migrations() fs.FS { return migrations }

// Tx is a transaction of the caller's. [*sql.Tx] is one.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// State says what became of a row.
type State string

// The states. PENDING ends as SENT or DEAD; [Replay] makes either pending again.
const (
	Pending State = "PENDING" // will be sent, or is being sent
	Sent    State = "SENT"    // acknowledged
	Dead    State = "DEAD"    // given up, for people to look at
)

// Errors of [Get] and [Replay].
var (
	ErrUnknown  = errors.New("no such row in the outbox")
	ErrNotEnded = errors.New("the row is still pending")
)

// Ref names a row.
type Ref struct{ Destination, ID string }

// Row is one event for one destination. A caller of [Enqueue] sets the first six
// fields.
type Row struct {
	ID          string // the event's id, sent on every attempt (contract: B2)
	Destination string // a name that the dispatcher's Send understands
	Kind        string // what happened
	Key         string // optional: rows of one destination and key go one after another
	Position    int64  // among those of its key, lower ones first; 0: behind all that are there
	Body        []byte // JSON

	State      State
	EnqueuedAt time.Time
	Since      time.Time // enqueued or last replayed
	DueAt      time.Time // earliest next attempt; while claimed, the claim's end
	EndedAt    time.Time // zero while pending
	Attempts   int       // claims taken since Since
	Claim      int64     // fencing number; 0 when never claimed
	Holder     string    // who holds the claim; "" when nobody does
	LastError  string    // of the last failed attempt
}

// Ref names the row.
func (r Row) Ref() Ref { return Ref{Destination: r.Destination, ID: r.ID} }

// Enqueue adds an event in the caller's transaction, due at once. Enqueuing an
// event again, which a repeated transaction does, leaves the row as it is. Rows
// with a Key and no Position keep the order in which transactions that exclude each
// other (by a lock on what the key names) enqueued them. contract: B4
func Enqueue(ctx context.Context, tx Tx, r Row, now time.Time) error {
	_, err := insert(ctx, tx, r, now, `DO NOTHING`)
	if err != nil {
		return fmt.Errorf("outbox: enqueue %s for %s: %w", r.ID, r.Destination, err)
	}
	return nil
}

// Requeue adds an event, or makes it due again if its row has ended, with a new age
// and the same id: a receiver that took it before knows it. It reports whether that
// changed anything; a pending row stays as it is.
func Requeue(ctx context.Context, tx Tx, r Row, now time.Time) (queued bool, err error) {
	queued, err = insert(ctx, tx, r, now, `DO UPDATE SET `+revived+` WHERE outbox.state <> 'PENDING'`)
	if err != nil {
		return false, fmt.Errorf("outbox: requeue %s for %s: %w", r.ID, r.Destination, err)
	}
	return queued, nil
}

func insert(ctx context.Context, tx Tx, r Row, now time.Time, conflict string) (bool, error) {
	if r.ID == "" || r.Destination == "" || r.Kind == "" {
		return false, errors.New("a row has an id, a destination and a kind")
	}
	if !utf8.Valid(r.Body) || !json.Valid(r.Body) {
		return false, errors.New("its body is not JSON")
	}
	position, args := `CASE WHEN $4 = '' THEN 0 ELSE 1 + COALESCE((SELECT MAX(o.position) FROM outbox o
			WHERE o.destination = $1 AND o.ordering_key = $4 AND o.ordering_key <> ''), 0) END`,
		[]any{r.Destination, r.ID, r.Kind, r.Key, string(r.Body), micros(now)}
	if r.Position != 0 {
		position, args = `$7`, append(args, r.Position)
	}
	return changed(tx.ExecContext(ctx, `INSERT INTO outbox (destination, id, kind, ordering_key, position, body, state,
			enqueued_at, since, due_at, ended_at, attempts, claim, holder, last_error)
		VALUES ($1, $2, $3, $4, `+position+`, $5, 'PENDING', $6, $6, $6, 0, 0, 0, '', '')
		ON CONFLICT (destination, id) `+conflict, args...))
}

// revived is what a row is set to that is to be sent again; $6 is the instant.
const revived = `state = 'PENDING', since = $6, due_at = $6, ended_at = 0, attempts = 0, claim = outbox.claim + 1, holder = ''`

// Get reads one row, or returns [ErrUnknown].
func Get(ctx context.Context, tx Tx, ref Ref) (Row, error) {
	rows, err := query(ctx, tx, `SELECT `+columns+` FROM outbox WHERE destination = $1 AND id = $2`, ref.Destination, ref.ID)
	if err == nil && len(rows) == 0 {
		err = ErrUnknown
	}
	if err != nil {
		return Row{}, fmt.Errorf("outbox: get %s for %s: %w", ref.ID, ref.Destination, err)
	}
	return rows[0], nil
}

// Filter chooses what [List] returns, ordered by destination and id.
type Filter struct {
	State       State  // "" means all; [Dead] lists the dead letters
	Destination string // one destination alone; "" means all
	After       Ref    // the last row of the page before
	Limit       int    // 0 means 100, at most 1000
}

// List returns a page of rows.
func List(ctx context.Context, tx Tx, f Filter) ([]Row, error) {
	q, args := `SELECT `+columns+` FROM outbox WHERE (destination > $1 OR destination = $1 AND id > $2)`,
		[]any{f.After.Destination, f.After.ID}
	if f.Destination != "" {
		q, args = `SELECT `+columns+` FROM outbox WHERE destination = $1 AND id > $2`, []any{f.Destination, f.After.ID}
	}
	if f.State != "" {
		q += ` AND state = $3`
		args = append(args, string(f.State))
	}
	rows, err := query(ctx, tx, q+fmt.Sprintf(` ORDER BY destination, id LIMIT %d`, limit(f.Limit)), args...)
	if err != nil {
		return nil, fmt.Errorf("outbox: list: %w", err)
	}
	return rows, nil
}

// Replay makes an ended row due again, with a new age and the same id: a receiver
// that took it before knows it. It returns [ErrUnknown], or [ErrNotEnded] for one
// that is pending.
func Replay(ctx context.Context, tx Tx, ref Ref, now time.Time) error {
	done, err := changed(tx.ExecContext(ctx, `UPDATE outbox SET state = 'PENDING', since = $1, due_at = $1, ended_at = 0,
		attempts = 0, claim = claim + 1, holder = '' WHERE destination = $2 AND id = $3 AND state <> 'PENDING'`,
		micros(now), ref.Destination, ref.ID))
	if err == nil && !done {
		if _, err = Get(ctx, tx, ref); err == nil {
			err = ErrNotEnded
		}
	}
	if err != nil {
		return fmt.Errorf("outbox: replay %s for %s: %w", ref.ID, ref.Destination, err)
	}
	return nil
}

// Purge deletes at most n rows (0 means 100, at most 1000) that ended in the given
// state before the given instant, and says how many. Pending rows are never purged.
func Purge(ctx context.Context, tx Tx, state State, before time.Time, n int) (deleted int, err error) {
	res, err := tx.ExecContext(ctx, fmt.Sprintf(`DELETE FROM outbox WHERE (destination, id) IN (SELECT destination, id
		FROM outbox WHERE state = $1 AND state <> 'PENDING' AND ended_at < $2 ORDER BY ended_at LIMIT %d)`, limit(n)),
		string(state), micros(before))
	if err != nil {
		return 0, fmt.Errorf("outbox: purge: %w", err)
	}
	count, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("outbox: purge: %w", err)
	}
	return int(count), nil
}

// Destinations returns a page of the destinations that have rows, in order, after the
// given one, so that a sweep can ask which of them are gone.
func Destinations(ctx context.Context, tx Tx, after string, n int) (destinations []string, err error) {
	// One index step per destination, however many rows each has.
	for range limit(n) {
		var next *string
		err := tx.QueryRowContext(ctx, `SELECT MIN(destination) FROM outbox WHERE destination > $1`, after).Scan(&next)
		if err != nil {
			return nil, fmt.Errorf("outbox: list destinations: %w", err)
		}
		if next == nil {
			break
		}
		after = *next
		destinations = append(destinations, after)
	}
	return destinations, nil
}

// Forget deletes at most n rows (0 means 100, at most 1000) of a destination that is
// gone, whatever their state, and says how many.
func Forget(ctx context.Context, tx Tx, destination string, n int) (deleted int, err error) {
	res, err := tx.ExecContext(ctx, fmt.Sprintf(`DELETE FROM outbox WHERE destination = $1 AND id IN
		(SELECT id FROM outbox WHERE destination = $1 LIMIT %d)`, limit(n)), destination)
	if err != nil {
		return 0, fmt.Errorf("outbox: forget %s: %w", destination, err)
	}
	count, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("outbox: forget %s: %w", destination, err)
	}
	return int(count), nil
}
