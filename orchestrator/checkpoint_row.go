package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// kindCheckpoint is the kind under which deletes of checkpoints are recorded; the
// taking of one is an operation of its sandbox.
const kindCheckpoint = "checkpoint"

// checkpoint is one as it is stored.
type checkpoint struct {
	holdfast.Checkpoint
	Instance    holdfast.InstanceID
	Incarnation int64
	Generation  int64 // of the sandbox, as its operation made it
	Spec        storedSpec
	Copying     bool                     // FAILED, and its host has not confirmed that no copy goes on
	Claim       int64                    // of the attempt whose copy it is
	was         holdfast.CheckpointState // as it was read or saved last
	// Unreadable is what is wrong with a column: nothing is decided on such a row (trap T19).
	Unreadable error
}

func (c checkpoint) resource() operation.Resource {
	return operation.Resource{Kind: kindCheckpoint, ID: string(c.ID)}
}

// blobPrefix begins the keys of every copy of a checkpoint; after it comes the
// number of the claim that began the copy.
func blobPrefix(id holdfast.CheckpointID) string { return checkpointBlobs + string(id) + "/" }

const checkpointBlobs = "checkpoints/"

const checkpointColumns = `id, project, creator, source, sandbox, instance, incarnation, generation, environment, spec, state, failure,
	labels, copying, claim, size, sha256, created_at, updated_at, deleted_at`

func scanCheckpoint(scan func(...any) error) (checkpoint, error) {
	var c checkpoint
	var spec, failure, labels string
	var created, updated, deleted int64
	err := scan(&c.ID, &c.Project, &c.Creator, &c.Source, &c.Sandbox, &c.Instance, &c.Incarnation, &c.Generation, &c.Environment, &spec,
		&c.State, &failure, &labels, &c.Copying, &c.Claim, &c.Size, &c.SHA256, &created, &updated, &deleted)
	if err != nil {
		return checkpoint{}, err
	}
	c.was = c.State
	c.CreatedAt, c.UpdatedAt, c.DeletedAt = store.FromMicros(created), store.FromMicros(updated), store.FromMicros(deleted)
	for _, column := range []struct {
		text string
		into any
	}{{spec, &c.Spec}, {labels, &c.Labels}, {failure, &c.Failure}} {
		if column.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(column.text), column.into); err != nil {
			c.Unreadable = errors.Join(c.Unreadable, fmt.Errorf("checkpoint %s: %w", c.ID, err))
		}
	}
	return c, nil
}

// oneCheckpoint reads a checkpoint under a lock: tx.ForUpdate(), tx.ForShare() or "".
func oneCheckpoint(ctx context.Context, tx store.Tx, id holdfast.CheckpointID, lock string) (checkpoint, bool, error) {
	c, err := scanCheckpoint(tx.QueryRowContext(ctx, `SELECT `+checkpointColumns+` FROM checkpoint WHERE id = $1`+lock, string(id)).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return checkpoint{}, false, nil
	}
	if err = errors.Join(err, c.Unreadable); err != nil {
		return checkpoint{}, false, fmt.Errorf("read checkpoint %s: %w", id, err)
	}
	return c, true, nil
}

func checkpointsWhere(ctx context.Context, tx store.Tx, where string, args ...any) (list []checkpoint, err error) {
	rs, err := tx.QueryContext(ctx, `SELECT `+checkpointColumns+` FROM checkpoint `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read checkpoints: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		c, err := scanCheckpoint(rs.Scan)
		if err != nil {
			return nil, fmt.Errorf("read checkpoints: %w", err)
		}
		list = append(list, c)
	}
	return list, rs.Err()
}

func (c checkpoint) insert(ctx context.Context, tx store.Tx) error {
	spec, err := json.Marshal(c.Spec)
	if err != nil {
		return fmt.Errorf("insert checkpoint: %w", err)
	}
	labels, err := json.Marshal(c.Labels)
	if err != nil {
		return fmt.Errorf("insert checkpoint: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO checkpoint (id, project, creator, source, sandbox, instance, incarnation, generation, environment,
		spec, state, labels, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13)`,
		string(c.ID), string(c.Project), c.Creator, c.Source, string(c.Sandbox), string(c.Instance), c.Incarnation, c.Generation,
		c.Environment, string(spec), string(c.State), string(labels), store.Micros(c.CreatedAt))
	if err != nil {
		return fmt.Errorf("insert checkpoint: %w", err)
	}
	if err := c.insertLabels(ctx, tx); err != nil {
		return err
	}
	return c.tell(ctx, tx, c.CreatedAt, holdfast.EventCheckpointCreated)
}

func (c checkpoint) insertLabels(ctx context.Context, tx store.Tx) error {
	if len(c.Labels) == 0 {
		return nil
	}
	args := []any{string(c.ID)}
	var values []string
	for k, v := range c.Labels {
		args = append(args, k, v)
		values = append(values, fmt.Sprintf("($1, $%d, $%d)", len(args)-1, len(args)))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO checkpoint_label (checkpoint, key, value) VALUES `+strings.Join(values, ", "), args...); err != nil {
		return fmt.Errorf("insert labels: %w", err)
	}
	return nil
}

// save writes what may change of a locked checkpoint.
func (c *checkpoint) save(ctx context.Context, tx store.Tx, now time.Time) error {
	spec, err := json.Marshal(c.Spec)
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", c.ID, err)
	}
	failure, err := optionalJSON(c.Failure, c.Failure == nil)
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", c.ID, err)
	}
	c.UpdatedAt = now
	_, err = tx.ExecContext(ctx, `UPDATE checkpoint SET spec = $2, state = $3, failure = $4, copying = $5, claim = $6, size = $7, sha256 = $8,
		updated_at = $9, deleted_at = $10 WHERE id = $1`, string(c.ID), string(spec), string(c.State), failure, c.Copying, c.Claim, c.Size,
		c.SHA256, store.Micros(now), store.Micros(c.DeletedAt))
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", c.ID, err)
	}
	was := c.was
	c.was = c.State
	return c.tell(ctx, tx, now, checkpointEvent(was, c.State))
}
