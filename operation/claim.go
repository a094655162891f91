package operation

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Attempt is who wants to work on which operation, and for how long.
type Attempt struct {
	Operation string        // id
	Holder    string        // unique per attempt: see NewHolder (trap T13)
	TTL       time.Duration // of the claim; 0 and anything longer than MaxClaim mean MaxClaim
}

// Take claims a pending operation: the claim's number is one higher than any before it, so that every earlier holder is
// fenced from here on, and its end is fixed.
//
// While another claim is live it returns a *HeldError, whoever the holder is: a process that meets its own claim is
// another attempt too. An operation that ended gives an *EndedError, an unknown one ErrNotFound (contract: A6).
func Take(ctx context.Context, tx Tx, now time.Time, a Attempt) (Operation, Claim, error) {
	ttl, err := a.ttl()
	if err != nil {
		return Operation{}, Claim{}, fmt.Errorf("take operation %s: %w", a.Operation, err)
	}
	for range rereads {
		// An attempt that never reported back breaks the row of answered ones: nobody knows what it met.
		o, ok, err := one(ctx, tx, `UPDATE operation SET claim = claim + 1, holder = $2, claimed_at = $3,
			claim_expires = $4, due_at = $4, attempts = attempts + 1, waits_for = '', updated_at = $3,
			last_answered_at = CASE WHEN claim_expires > 0 THEN 0 ELSE last_answered_at END
			WHERE id = $1 AND state = 'PENDING' AND claim_expires <= $3 RETURNING `+columns,
			a.Operation, a.Holder, micros(now), micros(now.Add(ttl)))
		if err != nil {
			return Operation{}, Claim{}, fmt.Errorf("take operation %s: %w", a.Operation, err)
		}
		if ok {
			return o, o.claim(), nil
		}
		if err := unavailable(ctx, tx, now, a.Operation); err != nil {
			return Operation{}, Claim{}, fmt.Errorf("take operation %s: %w", a.Operation, err)
		}
	}
	return Operation{}, Claim{}, fmt.Errorf("take operation %s: %w", a.Operation, ErrHeld)
}

// ttl is how long the claim lasts.
func (a Attempt) ttl() (time.Duration, error) {
	if a.Holder == "" || a.TTL < 0 {
		return 0, fmt.Errorf("holder %q with a claim of %s", a.Holder, a.TTL)
	}
	if a.TTL == 0 || a.TTL > MaxClaim {
		return MaxClaim, nil
	}
	return a.TTL, nil
}

// claim is the claim that the row says is the current one.
func (o Operation) claim() Claim {
	return Claim{Operation: o.ID, Number: o.Claim, Holder: o.Holder, Taken: o.ClaimedAt, Expires: o.ClaimExpires}
}

// unavailable says why a pending, unclaimed row was not found under id; nil when it is there by now.
func unavailable(ctx context.Context, tx Tx, now time.Time, id string) error {
	o, ok, err := byID(ctx, tx, id)
	switch {
	case err != nil:
		return err
	case !ok:
		return ErrNotFound
	case o.State.Ended():
		return &EndedError{Operation: o}
	case o.Claimed(now):
		return &HeldError{Operation: o.ID, Holder: o.Holder, Expires: o.ClaimExpires}
	}
	return nil
}

// current is the fence: the claim's number and holder are the recorded ones, it was not released, and the operation is
// pending. A claim that ran out and that nobody took is still current: its holder may record what it did.
const current = ` WHERE id = $1 AND claim = $2 AND holder = $3 AND state = 'PENDING'`

// fence runs an UPDATE that ends in the fence, and says which claim is current if this one is not.
func fence(ctx context.Context, tx Tx, c Claim, update string, args ...any) (Operation, error) {
	args = append([]any{c.Operation, c.Number, c.Holder}, args...)
	if c.Holder != "" { // a row that nobody holds has an empty holder too
		o, ok, err := one(ctx, tx, update+` RETURNING `+columns, args...)
		if err != nil || ok {
			return o, err
		}
	}
	return Operation{}, fenced(ctx, tx, c)
}

// fenceOnly is fence for a caller that does not need the row.
func fenceOnly(ctx context.Context, tx Tx, c Claim, update string, args ...any) error {
	if c.Holder != "" {
		n, err := changed(tx.ExecContext(ctx, update, append([]any{c.Operation, c.Number, c.Holder}, args...)...))
		if err != nil || n == 1 {
			return err
		}
	}
	return fenced(ctx, tx, c)
}

// fenced is the error of a claim that is not the current one.
func fenced(ctx context.Context, tx Tx, c Claim) error {
	o, ok, err := byID(ctx, tx, c.Operation)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.Join(ErrFenced, ErrNotFound)
	}
	return &FencedError{Claim: c, Operation: o}
}

// Check reports whether the claim is current and has time left, and holds the row until the transaction ends, so that
// it stays so. Call it before a write or a call that begins something new; a *FencedError means: begin nothing. (Finish
// and Release have a fence of their own, and a holder may record late what it did while nobody took over.)
func Check(ctx context.Context, tx Tx, now time.Time, c Claim) (Operation, error) {
	o, err := fence(ctx, tx, c, `UPDATE operation SET claim = claim`+current+` AND claim_expires > $4`, micros(now))
	if err != nil {
		return Operation{}, fmt.Errorf("check operation %s: %w", c.Operation, err)
	}
	return o, nil
}

// Issue records that a call which may change the far side is about to begin, so that whoever comes next knows that its
// outcome is uncertain. It refuses a claim with no time left (contract: A7).
func Issue(ctx context.Context, tx Tx, now time.Time, c Claim) error {
	err := fenceOnly(ctx, tx, c, `UPDATE operation SET issued = TRUE, updated_at = $4`+current+` AND claim_expires > $4`, micros(now))
	if err != nil {
		return fmt.Errorf("issue operation %s: %w", c.Operation, err)
	}
	return nil
}

// Report is what an attempt that did not finish its operation leaves behind.
type Report struct {
	Failure     *Failure      // why it stopped; nil when nothing went wrong
	WaitsFor    string        // something named that has to happen first; such an attempt counts towards no giving up
	Answered    bool          // the authority answered (contract: A15: unreachable never counts)
	ClearIssued bool          // the far side said that nothing was begun
	Backoff     time.Duration // how long Due leaves the operation alone; anyone else may take it at once
}

// Release ends the claim and leaves the operation pending. A claim that is not current releases nothing, least of all
// its successor's (trap T15).
func Release(ctx context.Context, tx Tx, now time.Time, c Claim, r Report) error {
	failure, err := encodeFailure(r.Failure)
	if err != nil {
		return fmt.Errorf("release operation %s: %w", c.Operation, err)
	}
	counted := 0
	if r.Answered && r.WaitsFor == "" {
		counted = 1
	}
	err = fenceOnly(ctx, tx, c, `UPDATE operation SET holder = '', claim_expires = 0, updated_at = $4, due_at = $5,
		last_error = $6, waits_for = $7, issued = issued AND NOT $8,
		answered = answered + $9,
		answered_for = answered_for + $9 * ($4 - CASE WHEN last_answered_at > 0 THEN last_answered_at ELSE claimed_at END),
		last_answered_at = $9 * $4`+current,
		micros(now), micros(now.Add(max(r.Backoff, 0))), failure, r.WaitsFor, r.ClearIssued, counted)
	if err != nil {
		return fmt.Errorf("release operation %s: %w", c.Operation, err)
	}
	return nil
}

// ReleaseHolders ends every recorded claim and returns how many there were. It is for the start of a process that knows
// every earlier holder to be dead, as the lock on an embedded database's directory proves.
func ReleaseHolders(ctx context.Context, tx Tx, now time.Time) (int, error) {
	res, err := tx.ExecContext(ctx, `UPDATE operation SET holder = '', claim_expires = 0, last_answered_at = 0,
		updated_at = $1, due_at = CASE WHEN due_at > $1 THEN $1 ELSE due_at END
		WHERE state = 'PENDING' AND claim_expires > 0`, micros(now))
	if err != nil {
		return 0, fmt.Errorf("release the claims of dead holders: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("count the claims of dead holders: %w", err)
	}
	return int(n), nil
}
