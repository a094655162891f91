package inbox

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

//go:embed *.sql
var migrations embed.FS

// Migrations is the package's schema for goose, to be kept under the name "inbox".
// The table is called delivery.
func Migrations() fs.FS { return migrations }

// Tx is a transaction of the caller's. [*sql.Tx] is one.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// ErrUnknown says that no delivery with that source and id is recorded.
var ErrUnknown = errors.New("no such delivery is recorded")

// Delivery is what arrived.
type Delivery struct {
	Source     string    // who sent it, as authenticated: ids are unique per source
	ID         string    // the event's id
	Kind       string    // what happened
	ReceivedAt time.Time // on the receiver's clock
	Body       []byte    // its hash is kept, for people who compare
	Outcome    string    // what it will lead to, where that is known already; [Note] replaces it
}

// Record inserts d and says whether it is the first of its source and id. When it
// is not fresh, the caller commits nothing else and answers 2xx: the first one has
// committed, since a second insert waits for a first that has not. That holds too
// when the repeat's body differs: one id is one event. contract: B3
func Record(ctx context.Context, tx Tx, d Delivery) (fresh bool, err error) {
	if d.Source == "" || d.ID == "" {
		return false, errors.New("inbox: record: a delivery has a source and an id")
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (source, id) DO NOTHING`,
		d.Source, d.ID, d.Kind, d.ReceivedAt.UnixMicro(), d.hash(), d.Outcome)
	if err != nil {
		return false, fmt.Errorf("inbox: record %s of %s: %w", d.ID, d.Source, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("inbox: record %s of %s: %w", d.ID, d.Source, err)
	}
	return n == 1, nil
}

// Seen says whether a delivery's transaction has committed. It only reads, so that
// a receiver under a storm of repeats can answer them without a write; one that is
// not seen still goes through [Record].
func Seen(ctx context.Context, tx Tx, source, id string) (bool, error) {
	var one int
	err := tx.QueryRowContext(ctx, `SELECT 1 FROM delivery WHERE source = $1 AND id = $2`, source, id).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inbox: look for %s of %s: %w", id, source, err)
	}
	return true, nil
}

// Note keeps, beside a recorded delivery and in the same transaction, what it led
// to: "applied", or "ignored: stale incarnation". Operators see it (contract: B7).
// It returns [ErrUnknown] for what was not recorded.
func Note(ctx context.Context, tx Tx, source, id, outcome string) error {
	res, err := tx.ExecContext(ctx, `UPDATE delivery SET outcome = $1 WHERE source = $2 AND id = $3`, outcome, source, id)
	if err != nil {
		return fmt.Errorf("inbox: note %s of %s: %w", id, source, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("inbox: note %s of %s: %w", id, source, err)
	}
	if n == 0 {
		return fmt.Errorf("inbox: note %s of %s: %w", id, source, ErrUnknown)
	}
	return nil
}
