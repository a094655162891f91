package operation

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Progress is how far an operation is that another one carries out.
type Progress struct {
	Issued   bool   // the far side may have been changed
	WaitsFor string // what it waits for; empty for nothing
}

// Entrust records how far pending operations are that others carry out: those of what their resources own, say, whose
// claims fence what is done. Call it in the transaction that begins, releases or takes the other one, under a lock that
// everybody who decides on this one takes. It returns how many were pending, with no claim of their own live: only
// those were changed (contract: A7).
func Entrust(ctx context.Context, tx Tx, now time.Time, p Progress, ids ...string) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	args := []any{micros(now), p.Issued, p.WaitsFor}
	marks := listed(&args, ids)
	n, err := changed(tx.ExecContext(ctx, `UPDATE operation SET issued = $2, waits_for = $3, updated_at = $1, due_at = $1
		WHERE id IN (`+marks+`) AND state = 'PENDING' AND claim_expires <= $1`, args...))
	if err != nil {
		return 0, fmt.Errorf("entrust operations: %w", err)
	}
	return int(n), nil
}

// PendingOn returns the operations that are pending on resources of a kind, by the resource's id.
func PendingOn(ctx context.Context, tx Tx, kind string, ids ...string) (map[string]Operation, error) {
	out := make(map[string]Operation, len(ids))
	if len(ids) == 0 {
		return out, nil
	}
	args := []any{kind}
	marks := listed(&args, ids)
	rows, err := tx.QueryContext(ctx, `SELECT `+columns+` FROM operation
		WHERE resource_kind = $1 AND resource_id IN (`+marks+`) AND state = 'PENDING'`, args...)
	if err != nil {
		return nil, fmt.Errorf("pending operations: %w", err)
	}
	ops, err := scanAll(rows)
	if err != nil {
		return nil, fmt.Errorf("pending operations: %w", err)
	}
	for _, o := range ops {
		out[o.Resource.ID] = o
	}
	return out, nil
}

// RecordAll is Record for many intents at once, on resources of which none has a pending operation. One that is in the
// way of another is an error without a name: record them one by one to learn which.
func RecordAll(ctx context.Context, tx Tx, now time.Time, intents []Intent) error {
	if len(intents) == 0 {
		return nil
	}
	args := []any{micros(now)}
	rows := make([]string, len(intents))
	for i, in := range intents {
		if err := in.validate(); err != nil {
			return fmt.Errorf("record operations: %w", err)
		}
		n := len(args)
		args = append(args, in.ID, in.Resource.Kind, in.Resource.ID, in.Kind, in.Generation, micros(in.Deadline), string(in.Input), in.Issued, in.WaitsFor)
		rows[i] = fmt.Sprintf("($%d, $%d, $%d, $%d, $%d, 'PENDING', $1, $%d, $1, $1, $%d, $%d, $%d)", n+1, n+2, n+3, n+4, n+5, n+6, n+7, n+8, n+9)
	}
	n, err := changed(tx.ExecContext(ctx, `INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at,
		deadline, due_at, updated_at, input, issued, waits_for) VALUES `+strings.Join(rows, ", ")+` ON CONFLICT DO NOTHING`, args...))
	if err == nil && int(n) != len(intents) {
		err = ErrPending
	}
	if err != nil {
		return fmt.Errorf("record %d operations: %w", len(intents), err)
	}
	return nil
}

// listed adds values to a statement's arguments, and returns their marks.
func listed(args *[]any, values []string) string {
	marks := make([]string, len(values))
	for i, v := range values {
		*args = append(*args, v)
		marks[i] = "$" + strconv.Itoa(len(*args))
	}
	return strings.Join(marks, ", ")
}
