package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// The blobs that sandboxes, checkpoints and builds are made of are shared, and each
// of them has a row for each blob that it needs (layer_use). A new user takes its
// layers over from one that has them, in a transaction that keeps that one from
// letting go: a sandbox's row is locked, a checkpoint's or build's is share-locked.
// So a blob that nothing in a committed state needs is never needed again (trap T53).

// useLayers records that something is made of layers; what is recorded stays.
func useLayers(ctx context.Context, tx store.Tx, by string, layers []holdfast.Layer) error {
	if len(layers) == 0 {
		return nil
	}
	args, values := []any{by}, make([]string, len(layers))
	for i, l := range layers {
		args, values[i] = append(args, l.Key), fmt.Sprintf("($%d, $1)", i+2)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO layer_use (key, used_by) VALUES `+strings.Join(values, ", ")+` ON CONFLICT DO NOTHING`, args...)
	if err != nil {
		return fmt.Errorf("record the layers of %s: %w", by, err)
	}
	return nil
}

// dropLayers lets go of everything that something was made of.
func dropLayers(ctx context.Context, tx store.Tx, by string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM layer_use WHERE used_by = $1`, by); err != nil {
		return fmt.Errorf("let go of the layers of %s: %w", by, err)
	}
	return nil
}

// letGo drops the layers of a sandbox that has come to be DELETED: its host has
// confirmed that nothing of it is left.
func (r *row) letGo(ctx context.Context, tx store.Tx) error {
	if r.State != holdfast.SandboxDeleted || len(r.Spec.Layers) == 0 {
		return nil
	}
	return dropLayers(ctx, tx, string(r.ID))
}

// layersOf are the keys that something needs.
func layersOf(ctx context.Context, tx store.Tx, by string) ([]string, error) {
	return keysWhere(ctx, tx, `used_by = $1`, by)
}

// used are those of some keys that anything but one needs; "": anything at all.
func used(ctx context.Context, tx store.Tx, keys []string, except string) (map[string]bool, error) {
	out := make(map[string]bool, len(keys))
	if len(keys) == 0 {
		return out, nil
	}
	args, marks := []any{except}, make([]string, len(keys))
	for i, key := range keys {
		args, marks[i] = append(args, key), fmt.Sprintf("$%d", i+2)
	}
	found, err := keysWhere(ctx, tx, `used_by <> $1 AND key IN (`+strings.Join(marks, ", ")+`)`, args...)
	for _, key := range found {
		out[key] = true
	}
	return out, err
}

func keysWhere(ctx context.Context, tx store.Tx, where string, args ...any) (keys []string, err error) {
	rs, err := tx.QueryContext(ctx, `SELECT DISTINCT key FROM layer_use WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read who needs which layers: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		var key string
		if err := rs.Scan(&key); err != nil {
			return nil, fmt.Errorf("read who needs which layers: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, rs.Err()
}
