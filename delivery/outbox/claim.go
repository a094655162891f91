package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// outcome is what became of a claimed row.
type outcome int

const (
	outcomeUnknown outcome = iota // the database did not say; the claim's end settles it
	outcomeSent
	outcomeRetried
	outcomeDead
	outcomeStale
)

// clock is what a transaction that knows the database's time has.
type clock interface {
	Now(ctx context.Context) (time.Time, error)
}

func (d *Dispatcher) now(ctx context.Context, tx Tx) (time.Time, error) {
	if c, ok := tx.(clock); ok {
		return c.Now(ctx)
	}
	return d.config.Clock(), nil
}

// due is the condition of a row that may be claimed at $1 and whose destination is
// not among the full ones, which are passed from the given argument on. It looks at
// each row's own time, never at an id beyond the last one seen, which would skip
// rows that commit out of order (T18); a row with a key waits for the pending ones
// before it.
func due(full []string, from int) (where string, args []any) {
	where = `o.state = 'PENDING' AND o.due_at <= $1 AND (o.ordering_key = '' OR NOT EXISTS (SELECT 1 FROM outbox e
		WHERE e.destination = o.destination AND e.ordering_key = o.ordering_key AND e.ordering_key <> ''
		AND e.state = 'PENDING' AND (e.position < o.position OR e.position = o.position AND e.id < o.id)))`
	if len(full) == 0 {
		return where, nil
	}
	places := make([]string, len(full))
	for i, destination := range full {
		places[i] = "$" + strconv.Itoa(from+i)
		args = append(args, destination)
	}
	return where + ` AND o.destination NOT IN (` + strings.Join(places, ", ") + `)`, args
}

// look says, without a write, whether anything may be claimed, and if not, in how
// long something comes due (0: not known).
func (d *Dispatcher) look(ctx context.Context, full []string) (found bool, next time.Duration, err error) {
	err = d.config.View(ctx, func(tx Tx) error {
		found, next = false, 0
		now, err := d.now(ctx, tx)
		if err != nil {
			return err
		}
		where, more := due(full, 2)
		q := `SELECT EXISTS (SELECT 1 FROM outbox o WHERE ` + where + `)`
		if err := tx.QueryRowContext(ctx, q, append([]any{micros(now)}, more...)...).Scan(&found); err != nil || found {
			return err
		}
		var at sql.NullInt64
		err = tx.QueryRowContext(ctx, `SELECT MIN(due_at) FROM outbox WHERE state = 'PENDING' AND due_at > $1`,
			micros(now)).Scan(&at)
		if err == nil && at.Valid {
			next = instant(at.Int64).Sub(now)
		}
		return err
	})
	if err != nil {
		return false, 0, fmt.Errorf("outbox: look for due rows: %w", err)
	}
	return found, next, nil
}

// claim takes up to r.chunk due rows, the longest due first. The outer condition is
// there for PostgreSQL, where a row that another replica takes at the same moment is
// judged again after the wait for it.
func (d *Dispatcher) claim(ctx context.Context, r room) (rows []Row, err error) {
	err = d.config.Update(ctx, func(tx Tx) error {
		now, err := d.now(ctx, tx)
		if err != nil {
			return err
		}
		where, more := due(r.full, 4)
		args := append([]any{micros(now), micros(now.Add(d.config.Claim)), d.config.Holder}, more...)
		rows, err = query(ctx, tx, fmt.Sprintf(`UPDATE outbox SET claim = claim + 1, attempts = attempts + 1, due_at = $2,
			holder = $3 WHERE (destination, id) IN (SELECT o.destination, o.id FROM outbox o WHERE %s
			ORDER BY o.due_at LIMIT %d) AND state = 'PENDING' AND due_at <= $1 RETURNING %s`, where, r.chunk, columns), args...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: claim: %w", err)
	}
	return rows, nil
}

// deliver sends one claimed row and records the outcome. The record does not depend
// on ctx: an attempt that was made is worth knowing about.
func (d *Dispatcher) deliver(ctx context.Context, row Row) (result outcome, err error) {
	defer d.leave(row)
	sending, cancel := context.WithTimeout(ctx, d.config.Timeout)
	err = d.send(sending, row)
	cancel()
	a := attempted{row: row, err: err, stopped: err != nil && ctx.Err() != nil, jitter: d.config.Jitter(row.ID, row.Attempts)}

	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.config.Timeout)
	defer cancel()
	result, err = d.finish(recording, a)
	switch {
	case err != nil:
		// The claim's end makes the row due again; the receiver knows the id.
		d.log(ctx, slog.LevelError, "outbox outcome not recorded", row, err)
	case result == outcomeDead:
		d.log(ctx, slog.LevelWarn, "outbox dead letter", row, a.err)
	}
	return result, err
}

func (d *Dispatcher) log(ctx context.Context, level slog.Level, text string, row Row, err error) {
	d.config.Log.LogAttrs(ctx, level, text, slog.String("destination", row.Destination), slog.String("id", row.ID),
		slog.String("kind", row.Kind), slog.Int("attempts", row.Attempts), slog.Any("error", err))
}

// send keeps a row that makes Send panic from taking the process, and with it all
// other rows, along (T19).
func (d *Dispatcher) send(ctx context.Context, row Row) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("send panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return d.config.Send(ctx, row)
}

// finish records an attempt, if its claim is still the row's: the number decides,
// whatever any clock says (T11).
func (d *Dispatcher) finish(ctx context.Context, a attempted) (result outcome, err error) {
	policy := d.config.Policy(a.row.Destination).withDefaults()
	err = d.config.Update(ctx, func(tx Tx) error {
		now, err := d.now(ctx, tx)
		if err != nil {
			return err
		}
		v, ended := decide(now, a, policy), now
		if v.state == Pending {
			ended = time.Time{}
		}
		done, err := changed(tx.ExecContext(ctx, `UPDATE outbox SET state = $1, due_at = $2, ended_at = $3, holder = '',
			last_error = CASE WHEN $4 = '' THEN last_error ELSE $4 END
			WHERE destination = $5 AND id = $6 AND claim = $7 AND state = 'PENDING'`,
			string(v.state), micros(v.due), micros(ended), v.failure, a.row.Destination, a.row.ID, a.row.Claim))
		result = v.outcome(done)
		return err
	})
	if err != nil {
		return outcomeUnknown, fmt.Errorf("outbox: record the outcome of %s for %s: %w", a.row.ID, a.row.Destination, err)
	}
	return result, nil
}

func (v verdict) outcome(recorded bool) outcome {
	switch {
	case !recorded:
		return outcomeStale
	case v.state == Sent:
		return outcomeSent
	case v.state == Dead:
		return outcomeDead
	default:
		return outcomeRetried
	}
}
