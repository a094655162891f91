package operation

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxPage bounds what one List or Due returns; it is also what a Limit of 0 means.
const maxPage = 1000

// Get returns an operation, or ErrNotFound.
func Get(ctx context.Context, tx Tx, id string) (Operation, error) {
	o, ok, err := byID(ctx, tx, id)
	if err == nil && !ok {
		err = ErrNotFound
	}
	if err != nil {
		return Operation{}, fmt.Errorf("get operation %s: %w", id, err)
	}
	return o, nil
}

func byID(ctx context.Context, tx Tx, id string) (Operation, bool, error) {
	return one(ctx, tx, `SELECT `+columns+` FROM operation WHERE id = $1`, id)
}

// Pending returns the operation that is pending on a resource, if there is one.
func Pending(ctx context.Context, tx Tx, r Resource) (Operation, bool, error) {
	o, ok, err := one(ctx, tx, `SELECT `+columns+` FROM operation
		WHERE resource_kind = $1 AND resource_id = $2 AND state = 'PENDING'`, r.Kind, r.ID)
	if err != nil {
		return Operation{}, false, fmt.Errorf("pending operation of %s: %w", r, err)
	}
	return o, ok, nil
}

// Filter says what List lists. Its zero value is everything.
type Filter struct {
	Resource Resource // zero for all, without an ID for all of its kind
	Pending  bool     // only what is pending
	Newest   bool     // from the highest id down, instead of from the lowest up
	After    string   // the id of the last one seen; empty to begin
	Limit    int      // rows at most; 0 means 1000, which is also the most
}

// List returns operations in the order of their ids. The ended ones are the journal of their resource.
func List(ctx context.Context, tx Tx, f Filter) ([]Operation, error) {
	where, args, order := []string{"id > $1"}, []any{f.After}, "id"
	if f.Newest {
		where, order = []string{"($1 = '' OR id < $1)"}, "id DESC"
	}
	add := func(column string, value any) {
		args = append(args, value)
		where = append(where, column+" = $"+strconv.Itoa(len(args)))
	}
	if f.Resource.Kind != "" {
		add("resource_kind", f.Resource.Kind)
	}
	if f.Resource.ID != "" {
		add("resource_id", f.Resource.ID)
	}
	if f.Pending {
		where = append(where, "state = 'PENDING'") // a literal, so that the partial index is seen to fit
	}
	ops, err := page(ctx, tx, where, args, order, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	return ops, nil
}

// DueFilter says which idle operations Due names.
type DueFilter struct {
	ResourceKind string        // empty for all
	Idle         time.Duration // how long nobody must have been at it, so that whoever asked for it may retry first
	After        string        // the DueKey of the last one seen; empty to begin
	Limit        int           // rows at most; 0 means 1000, which is also the most
}

// Due returns pending operations that nobody is working on and nobody has touched for a while, the longest idle first:
// recorded and never claimed, released, or abandoned by a holder whose claim ran out. A sweep carries them on, by the
// same Take as everyone else. Rows that do not qualify take no room on a page, so they hide nothing (trap T29), and
// the cost follows what is due.
func Due(ctx context.Context, tx Tx, now time.Time, f DueFilter) ([]Operation, error) {
	where := []string{"state = 'PENDING'", "due_at <= $1", "claim_expires <= $2"}
	args := []any{micros(now.Add(-f.Idle)), micros(now)}
	if f.After != "" {
		at, id, err := parseDueKey(f.After)
		if err != nil {
			return nil, fmt.Errorf("due operations: %w", err)
		}
		where, args = append(where, "(due_at, id) > ($3, $4)"), append(args, at, id)
	}
	if f.ResourceKind != "" {
		args = append(args, f.ResourceKind)
		where = append(where, "resource_kind = $"+strconv.Itoa(len(args)))
	}
	ops, err := page(ctx, tx, where, args, "due_at, id", f.Limit)
	if err != nil {
		return nil, fmt.Errorf("due operations: %w", err)
	}
	return ops, nil
}

func page(ctx context.Context, tx Tx, where []string, args []any, order string, limit int) ([]Operation, error) {
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	rows, err := tx.QueryContext(ctx, `SELECT `+columns+` FROM operation WHERE `+strings.Join(where, " AND ")+
		` ORDER BY `+order+` LIMIT `+strconv.Itoa(limit), args...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows)
}

// DueKey is the operation's place in the order of Due, for DueFilter.After.
func (o Operation) DueKey() string { return strconv.FormatInt(micros(o.DueAt), 10) + "/" + o.ID }

func parseDueKey(key string) (at int64, id string, err error) {
	n, id, ok := strings.Cut(key, "/")
	if !ok {
		return 0, "", fmt.Errorf("%q is no key of a due operation", key)
	}
	at, err = strconv.ParseInt(n, 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("%q is no key of a due operation: %w", key, err)
	}
	return at, id, nil
}

// Purge deletes up to limit ended operations of a resource, and returns how many. It is for resources whose record is
// gone; what is pending stays.
func Purge(ctx context.Context, tx Tx, r Resource, limit int) (int, error) {
	res, err := tx.ExecContext(ctx, `DELETE FROM operation WHERE id IN (SELECT id FROM operation
		WHERE resource_kind = $1 AND resource_id = $2 AND state <> 'PENDING' ORDER BY id LIMIT $3)`, r.Kind, r.ID, limit)
	var n int64
	if err == nil {
		n, err = res.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("purge operations of %s: %w", r, err)
	}
	return int(n), nil
}
