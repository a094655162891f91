package operation

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// rereads bounds how often a statement that met another's row is tried again, when a look at that row finds it gone out
// of the way. It can happen only where writers overlap (PostgreSQL, trap T8), and each turn means that one of them got
// somewhere.
const rereads = 4

// Record writes an intent down, pending and unclaimed. Call it in the transaction that changes the resource, before the
// first call downstream (contract: A1).
//
// A resource has at most one pending operation: another one in the way gives a *PendingError that carries it, and so
// does a second Record of the same pending id. An id that has already ended gives an *EndedError.
func Record(ctx context.Context, tx Tx, now time.Time, in Intent) (Operation, error) {
	if err := in.validate(); err != nil {
		return Operation{}, fmt.Errorf("record operation: %w", err)
	}
	if len(in.Input) > 0 && !json.Valid(in.Input) {
		return Operation{}, fmt.Errorf("record operation %s: input is not JSON", in.ID)
	}
	for range rereads {
		o, ok, err := one(ctx, tx, `INSERT INTO operation
			(id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at, input)
			VALUES ($1, $2, $3, $4, $5, 'PENDING', $6, $7, $6, $6, $8)
			ON CONFLICT DO NOTHING RETURNING `+columns,
			in.ID, in.Resource.Kind, in.Resource.ID, in.Kind, in.Generation, micros(now), micros(in.Deadline),
			string(in.Input))
		if err != nil {
			return Operation{}, fmt.Errorf("record operation %s: %w", in.ID, err)
		}
		if ok {
			return o, nil
		}
		// A new statement sees what the insert ran into, even if that was committed after this transaction began.
		if err := inTheWay(ctx, tx, in); err != nil {
			return Operation{}, fmt.Errorf("record operation %s: %w", in.ID, err)
		}
	}
	return Operation{}, fmt.Errorf("record operation %s on %s: %w", in.ID, in.Resource, ErrPending)
}

// inTheWay says what an intent's row conflicted with; nil when that has gone meanwhile.
func inTheWay(ctx context.Context, tx Tx, in Intent) error {
	p, ok, err := Pending(ctx, tx, in.Resource)
	if err != nil {
		return err
	}
	if ok {
		return &PendingError{Operation: p}
	}
	o, ok, err := byID(ctx, tx, in.ID)
	switch {
	case err != nil || !ok:
		return err
	case o.State.Ended():
		return &EndedError{Operation: o}
	case o.Resource != in.Resource:
		return &PendingError{Operation: o} // the id belongs to another resource's operation
	}
	return nil
}
