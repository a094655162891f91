package operation

import (
	"context"
	"fmt"
	"time"
)

// Outcome is how an operation ends.
type Outcome struct {
	State   State    // StateDone, StateFailed or StateSuperseded
	Failure *Failure // why; required with StateFailed, and none with StateDone
	By      string   // with StateSuperseded: id of the operation that takes its place
}

func (o Outcome) validate() error {
	switch {
	case !o.State.Ended():
		return fmt.Errorf("%q is no end", o.State)
	case o.State == StateFailed && o.Failure == nil:
		return fmt.Errorf("%s without a reason", o.State)
	case o.State == StateDone && o.Failure != nil:
		return fmt.Errorf("%s with a failure", o.State)
	case o.State != StateSuperseded && o.By != "":
		return fmt.Errorf("%s, yet superseded by %s", o.State, o.By)
	}
	return nil
}

// ending is the part of an UPDATE that ends an operation. Its four parameters, from number `at` on, are endingArgs. What
// an attempt met last is kept when a superseded operation has nothing better to say.
func ending(at int) string {
	return fmt.Sprintf(` holder = '', claim_expires = 0, waits_for = '', updated_at = $%[1]d, finished_at = $%[1]d,
		state = $%[2]d, last_error = CASE WHEN $%[3]d = '' AND $%[2]d = 'SUPERSEDED' THEN last_error ELSE $%[3]d END,
		superseded_by = $%[4]d`, at, at+1, at+2, at+3)
}

func endingArgs(now time.Time, out Outcome) ([]any, error) {
	if err := out.validate(); err != nil {
		return nil, err
	}
	failure, err := encodeFailure(out.Failure)
	return []any{micros(now), string(out.State), failure, out.By}, err
}

// Finish ends the operation that the claim is on. Call it in the transaction that records the effect on the resource. A
// claim that is not the current one gets a *FencedError, and the caller rolls back (contract: A6; trap T11).
func Finish(ctx context.Context, tx Tx, now time.Time, c Claim, out Outcome) error {
	args, err := endingArgs(now, out)
	if err == nil {
		err = fenceOnly(ctx, tx, c, `UPDATE operation SET`+ending(4)+current, args...)
	}
	if err != nil {
		return fmt.Errorf("finish operation %s: %w", c.Operation, err)
	}
	return nil
}

// End ends a pending operation whatever its claim, because a fact has settled it: the instance exited, say. It counts
// as a claim of its own, so that a holder at work is fenced. An operation that has already ended gives an *EndedError.
func End(ctx context.Context, tx Tx, now time.Time, id string, out Outcome) (Operation, error) {
	args, err := endingArgs(now, out)
	if err != nil {
		return Operation{}, fmt.Errorf("end operation %s: %w", id, err)
	}
	o, ok, err := one(ctx, tx, `UPDATE operation SET claim = claim + 1,`+ending(2)+`
		WHERE id = $1 AND state = 'PENDING' RETURNING `+columns, append([]any{id}, args...)...)
	if err == nil && !ok {
		err = gone(ctx, tx, id)
	}
	if err != nil {
		return Operation{}, fmt.Errorf("end operation %s: %w", id, err)
	}
	return o, nil
}

// gone says why an operation was not pending: nothing makes an ended one pending again.
func gone(ctx context.Context, tx Tx, id string) error {
	o, ok, err := byID(ctx, tx, id)
	switch {
	case err != nil:
		return err
	case !ok:
		return ErrNotFound
	}
	return &EndedError{Operation: o}
}

// Supersede ends a pending operation that nobody is working on, in favour of the operation `by`, which the caller
// records next in the same transaction. While a claim is live it changes nothing and returns a *HeldError
// (contract: A7).
func Supersede(ctx context.Context, tx Tx, now time.Time, id, by string) error {
	for range rereads {
		_, ok, err := one(ctx, tx, `UPDATE operation SET claim = claim + 1, holder = '', claim_expires = 0, waits_for = '',
			state = 'SUPERSEDED', superseded_by = $3, updated_at = $2, finished_at = $2
			WHERE id = $1 AND state = 'PENDING' AND claim_expires <= $2 RETURNING `+columns, id, micros(now), by)
		if err != nil {
			return fmt.Errorf("supersede operation %s: %w", id, err)
		}
		if ok {
			return nil
		}
		if err := unavailable(ctx, tx, now, id); err != nil {
			return fmt.Errorf("supersede operation %s: %w", id, err)
		}
	}
	return fmt.Errorf("supersede operation %s: %w", id, ErrHeld)
}
