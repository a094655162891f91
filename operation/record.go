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
	now = fromMicros(micros(now))
	o := in.pending(now)
	o.DueAt = now
	return o, o.insert(ctx, tx, in)
}

// RecordTaken is Record and Take in one statement, for an intent that the caller carries out at once: the operation
// comes into being with its first claim. a.Operation is not looked at.
func RecordTaken(ctx context.Context, tx Tx, now time.Time, in Intent, a Attempt) (Operation, Claim, error) {
	o, c, err := taken(now, in, a)
	if err == nil {
		err = o.insert(ctx, tx, in)
	}
	if err != nil {
		return Operation{}, Claim{}, err
	}
	return o, c, nil
}

// taken is the operation that an intent becomes with its first claim.
func taken(now time.Time, in Intent, a Attempt) (Operation, Claim, error) {
	ttl, err := a.ttl()
	if err != nil {
		return Operation{}, Claim{}, fmt.Errorf("record operation %s: %w", in.ID, err)
	}
	now = fromMicros(micros(now))
	o := in.pending(now)
	o.Claim, o.Holder, o.Attempts = 1, a.Holder, 1
	o.ClaimedAt, o.ClaimExpires = now, fromMicros(micros(now.Add(ttl)))
	o.DueAt = o.ClaimExpires
	return o, o.claim(), nil
}

// pending is the operation that an intent becomes, as it will be read back.
func (i Intent) pending(now time.Time) Operation {
	o := Operation{
		ID: i.ID, Resource: i.Resource, Kind: i.Kind, Generation: i.Generation, State: StatePending,
		EnteredAt: now, Deadline: fromMicros(micros(i.Deadline)), UpdatedAt: now, Issued: i.Issued, WaitsFor: i.WaitsFor,
	}
	if len(i.Input) > 0 {
		o.Input = i.Input
	}
	return o
}

func (o Operation) insert(ctx context.Context, tx Tx, in Intent) error {
	if err := in.validate(); err != nil {
		return fmt.Errorf("record operation: %w", err)
	}
	if len(in.Input) > 0 && !json.Valid(in.Input) {
		return fmt.Errorf("record operation %s: input is not JSON", in.ID)
	}
	for range rereads {
		n, err := changed(tx.ExecContext(ctx, `INSERT INTO operation
			(id, resource_kind, resource_id, kind, generation, state, claim, holder, claimed_at, claim_expires, attempts,
			entered_at, deadline, due_at, updated_at, input, issued, waits_for)
			VALUES ($1, $2, $3, $4, $5, 'PENDING', $6, $7, $8, $9, $10, $11, $12, $13, $11, $14, $15, $16) ON CONFLICT DO NOTHING`,
			in.ID, in.Resource.Kind, in.Resource.ID, in.Kind, in.Generation, o.Claim, o.Holder, micros(o.ClaimedAt),
			micros(o.ClaimExpires), o.Attempts, micros(o.EnteredAt), micros(o.Deadline), micros(o.DueAt), string(in.Input), in.Issued, in.WaitsFor))
		if err != nil {
			return fmt.Errorf("record operation %s: %w", in.ID, err)
		}
		if n == 1 {
			return nil
		}
		// A new statement sees what the insert ran into, even if that was committed after this transaction began.
		if err := inTheWay(ctx, tx, in); err != nil {
			return fmt.Errorf("record operation %s: %w", in.ID, err)
		}
	}
	return fmt.Errorf("record operation %s on %s: %w", in.ID, in.Resource, ErrPending)
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
