package operation

import (
	"context"
	"fmt"
	"time"
)

// Raise gives the claimed operation a higher generation, because something downstream has seen a higher one than ours:
// the intent is issued anew above it. It never lowers one. Raise the resource's own generation in the same transaction.
func Raise(ctx context.Context, tx Tx, now time.Time, c Claim, generation int64) (Operation, error) {
	o, err := fence(ctx, tx, c, `UPDATE operation SET updated_at = $4,
		generation = CASE WHEN generation < $5 THEN $5 ELSE generation END`+current, micros(now), generation)
	if err != nil {
		return Operation{}, fmt.Errorf("raise operation %s: %w", c.Operation, err)
	}
	return o, nil
}
