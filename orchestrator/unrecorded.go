package orchestrator

import (
	"context"
	"fmt"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// Unrecorded returns those of the fleet's instances that no sandbox of a database
// has, for a person who has restored it. It changes nothing.
func Unrecorded(ctx context.Context, db store.DB, observed []holdfast.Observation) ([]holdfast.Observation, error) {
	var out []holdfast.Observation
	err := db.View(ctx, func(tx store.Tx) error {
		out = nil
		for _, seen := range observed {
			_, found, err := oneRow(ctx, tx, `WHERE instance = $1`, string(seen.Instance))
			if err != nil {
				return err
			}
			if !found {
				out = append(out, seen)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for instances without a sandbox: %w", err)
	}
	return out, nil
}
