package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// JointColumns are what a caller gives for [JointRecord], as [JointValues] returns it.
const JointColumns = `source text, id text, kind text, body_sha256 text, outcome text`

// JointRecord is the query of a joint statement (store.Joint, on PostgreSQL) that
// records the deliveries of which a condition holds, and tells 1 of them, if that is
// all there is to do about them. Of those that are recorded already it tells 2. The
// condition may name the columns of g, which is given, and now.
func JointRecord(condition string) string {
	return `, known AS MATERIALIZED (SELECT g.position FROM given g JOIN delivery d ON d.source = g.source AND d.id = g.id
), recorded AS (
	INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome)
	SELECT g.source, g.id, g.kind, now, g.body_sha256, g.outcome FROM given g, clock
	WHERE g.position NOT IN (SELECT position FROM known) AND ` + condition + `
	ON CONFLICT (source, id) DO NOTHING RETURNING source, id
) SELECT g.position, 1::bigint, now FROM given g JOIN recorded r ON r.source = g.source AND r.id = g.id, clock
UNION ALL SELECT position, 2::bigint, now FROM known, clock`
}

// JointValues are a delivery's values for [JointColumns]. It is received at the
// statement's clock.
func JointValues(d Delivery) ([]any, error) {
	if d.Source == "" || d.ID == "" {
		return nil, errors.New("inbox: record: a delivery has a source and an id")
	}
	return []any{d.Source, d.ID, d.Kind, d.hash(), d.Outcome}, nil
}

// RecordIf is [Record] of a delivery that needs nothing else if a condition in SQL
// holds, whose parameters are numbered from 7 on. False is that it does not, or that
// the delivery is a repeat: nothing was written, and [Record] tells which.
func RecordIf(ctx context.Context, tx Tx, d Delivery, condition string, args ...any) (bool, error) {
	values, err := JointValues(d)
	if err != nil {
		return false, err
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO delivery (source, id, kind, body_sha256, outcome, received_at)
		SELECT $1, $2, $3, $4, $5, $6 WHERE `+condition+` ON CONFLICT (source, id) DO NOTHING`,
		append(append(values, d.ReceivedAt.UnixMicro()), args...)...)
	var n int64
	if err == nil {
		n, err = res.RowsAffected()
	}
	if err != nil {
		return false, fmt.Errorf("inbox: record %s of %s: %w", d.ID, d.Source, err)
	}
	return n == 1, nil
}

func (d Delivery) hash() string {
	sum := sha256.Sum256(d.Body)
	return hex.EncodeToString(sum[:])
}
