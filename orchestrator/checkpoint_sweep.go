package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// dueDeletions finds deletes of checkpoints that are pending and idle.
func (s *Service) dueDeletions(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	return s.due(ctx, kindCheckpoint, after, limit, func(ctx context.Context, id string) error {
		return s.carryOnDeletion(ctx, holdfast.CheckpointID(id))
	})
}

// carryOnDeletion takes another's attempt for nothing to do.
func (s *Service) carryOnDeletion(ctx context.Context, id holdfast.CheckpointID) error {
	var d deletion
	err := s.update(ctx, "carry on", func(tx store.Tx, _ time.Time) error {
		d = deletion{}
		c, found, err := oneCheckpoint(ctx, tx, id, tx.ForUpdate())
		if err != nil || !found || c.State != holdfast.CheckpointDeleting {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		d.checkpoint = c
		return s.joinDeletion(ctx, tx, now, &d)
	})
	var held *heldError
	if errors.As(err, &held) || err == nil && d.claim == nil {
		return reconcile.ErrSkipped
	}
	if err == nil {
		err = s.attemptDeletion(ctx, d)
	}
	if holdfast.CodeOf(err) == holdfast.Aborted {
		return reconcile.ErrSkipped
	}
	return err
}

// openCheckpoints finds those that are FAILED while their host may copy on, and those
// that are CREATING: of these one is stuck whose operation has ended.
func (s *Service) openCheckpoints(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	err = s.view(ctx, "checkpoints to look at", func(tx store.Tx, _ time.Time) (err error) {
		items, next = nil, ""
		rs, err := tx.QueryContext(ctx, `SELECT id FROM checkpoint WHERE (state = 'CREATING' OR copying) AND id > $1 ORDER BY id LIMIT $2`, after, limit)
		if err != nil {
			return fmt.Errorf("read checkpoints: %w", err)
		}
		defer func() { err = errors.Join(err, rs.Close()) }()
		for rs.Next() {
			var id holdfast.CheckpointID
			if err := rs.Scan(&id); err != nil {
				return fmt.Errorf("read checkpoints: %w", err)
			}
			items = append(items, reconcile.Item{Key: string(id), Act: func(ctx context.Context) error { return s.resolveCheckpoint(ctx, id) }})
		}
		if len(items) == limit {
			next = items[limit-1].Key
		}
		return rs.Err()
	})
	return items, next, err
}

// resolveCheckpoint ends the copy of a FAILED one, and makes a CREATING one FAILED that
// nothing will finish any more. What is pending is the sandbox's sweep's.
func (s *Service) resolveCheckpoint(ctx context.Context, id holdfast.CheckpointID) error {
	var acts bool
	err := s.update(ctx, "look at a checkpoint", func(tx store.Tx, _ time.Time) error {
		acts = false
		known, found, err := oneCheckpoint(ctx, tx, id, "")
		if err != nil || !found {
			return err
		}
		if acts = known.Copying; known.State != holdfast.CheckpointCreating {
			return nil
		}
		r, there, now, err := lockRow(ctx, tx, known.Sandbox)
		if err != nil {
			return err
		}
		if there {
			pending, has, err := operation.Pending(ctx, tx, r.resource())
			if err != nil || has && originOf(pending).Checkpoint == id {
				return err
			}
		}
		acts = true
		over := operation.Operation{Kind: string(holdfast.OperationCheckpoint), Input: origin{Checkpoint: id}.json()}
		return s.dropCheckpoint(ctx, tx, now, over, &holdfast.Failure{Reason: holdfast.ReasonCheckpointFailed,
			Message: "its operation has ended without it"})
	})
	if err != nil || !acts {
		return errors.Join(err, skipped(acts))
	}
	return s.endCopy(ctx, id)
}

// unnamedBlobs finds, in the blob store, copies of checkpoints that nothing is made
// of: that lost, that a dead claim left, that a host made after their end, and those
// of deleted checkpoints whose last fork is gone (contract: C4, E4).
func (s *Service) unnamedBlobs(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	if s.config.Blobs == nil {
		return nil, "", nil
	}
	infos, next, err := s.config.Blobs.List(ctx, checkpointBlobs, after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("list the blob store: %w", err)
	}
	var unnamed []blob.Info
	states := map[holdfast.CheckpointID]holdfast.CheckpointState{}
	err = s.view(ctx, "who needs which blobs", func(tx store.Tx, _ time.Time) (err error) {
		unnamed, err = unnamedOf(ctx, tx, infos, states)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	at := *s.lineage.Load()
	var items []reconcile.Item
	strange := 0
	for _, info := range unnamed {
		id := checkpointOf(info.Key)
		switch state, known := states[id]; {
		case sweepable(id, state, known, at):
			items = append(items, reconcile.Item{Key: info.Key, Act: func(ctx context.Context) error { return s.removeUnnamed(ctx, info.Key) }})
		case !known:
			strange++
		}
	}
	if strange > 0 {
		s.config.Logger.Warn("the blob store has copies of checkpoints that this database does not know, which are kept: "+
			"is it another cluster's, or was the database restored? holdfast recover --forget-unknown removes them", "blobs", strange)
	}
	return items, next, nil
}

// checkpointOf is the checkpoint that a key is of; "" for a key of another form.
func checkpointOf(key string) holdfast.CheckpointID {
	id, _, _ := strings.Cut(strings.TrimPrefix(key, checkpointBlobs), "/")
	if holdfast.CheckID("id", holdfast.PrefixCheckpoint, id) != nil {
		return ""
	}
	return holdfast.CheckpointID(id)
}

// sweepable reports whether a blob that nothing needs can be removed: its checkpoint
// is recorded and will not name it any more. What this database does not know may be
// what it has lost (trap T52): only what a person has said to forget goes. It is pure.
func sweepable(id holdfast.CheckpointID, state holdfast.CheckpointState, known bool, at lineage.Lineage) bool {
	if !known {
		born, err := holdfast.BornAt(string(id))
		return err == nil && at.Forgets(born)
	}
	return state != holdfast.CheckpointCreating
}

// unnamedOf are those of a page of blobs that nothing needs, and what is recorded of
// their checkpoints. The states are read before the uses: what names a blob later was
// CREATING before.
func unnamedOf(ctx context.Context, tx store.Tx, infos []blob.Info, states map[holdfast.CheckpointID]holdfast.CheckpointState) ([]blob.Info, error) {
	var keys []string
	for _, info := range infos {
		keys = append(keys, info.Key)
		id := checkpointOf(info.Key)
		if _, asked := states[id]; asked || id == "" {
			continue
		}
		state, found, err := copiedAs(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		if found {
			states[id] = state
		}
	}
	needed, err := used(ctx, tx, keys, "")
	if err != nil {
		return nil, err
	}
	var out []blob.Info
	for _, info := range infos {
		if !needed[info.Key] {
			out = append(out, info)
		}
	}
	return out, nil
}

// copiedAs is the state of the checkpoint that copies are of. A build's own, which is
// recorded with the build alone, names none of them any more once that has ended.
func copiedAs(ctx context.Context, tx store.Tx, id holdfast.CheckpointID) (state holdfast.CheckpointState, found bool, err error) {
	c, found, err := oneCheckpoint(ctx, tx, id, "")
	if err != nil || found {
		return c.State, found, err
	}
	b, found, err := oneBuild(ctx, tx, buildOf(id), "")
	if b.State == holdfast.BuildBuilding {
		return holdfast.CheckpointCreating, found, err
	}
	return holdfast.CheckpointDeleted, found, err
}

// removeUnnamed looks once more, then removes.
func (s *Service) removeUnnamed(ctx context.Context, key string) error {
	remove := false
	states := map[holdfast.CheckpointID]holdfast.CheckpointState{}
	err := s.view(ctx, "who needs a blob", func(tx store.Tx, _ time.Time) error {
		unnamed, err := unnamedOf(ctx, tx, []blob.Info{{Key: key}}, states)
		id := checkpointOf(key)
		state, known := states[id]
		remove = err == nil && len(unnamed) == 1 && sweepable(id, state, known, *s.lineage.Load())
		return err
	})
	if err != nil || !remove {
		return errors.Join(err, skipped(remove))
	}
	if err := s.config.Blobs.Delete(ctx, key); err != nil {
		return fmt.Errorf("remove %s: %w", key, err)
	}
	return nil
}

// oldCheckpoints finds tombstones that were kept long enough and of whose copies
// nothing is needed any more. Their request ids stay (contract: A3).
func (s *Service) oldCheckpoints(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	ids, next, err := s.overdue(ctx, `SELECT id, deleted_at FROM checkpoint WHERE deleted_at > 0 AND deleted_at <= $1
		AND (deleted_at, id) > ($2, $3) ORDER BY deleted_at, id LIMIT $4`, after, limit)
	for _, id := range ids {
		items = append(items, reconcile.Item{Key: string(id), Act: func(ctx context.Context) error { return s.purgeCheckpoint(ctx, holdfast.CheckpointID(id)) }})
	}
	return items, next, err
}

// purgeCheckpoint forgets a tombstone once the blob store has nothing of it: what the
// database does not know is never removed from there.
func (s *Service) purgeCheckpoint(ctx context.Context, id holdfast.CheckpointID) error {
	if err := s.removeBlobs(ctx, id); err != nil {
		return err
	}
	left, err := s.copiesOf(ctx, id)
	if err != nil || len(left) > 0 { // a fork still needs it
		return errors.Join(err, skipped(err != nil))
	}
	return s.update(ctx, "purge a checkpoint", func(tx store.Tx, now time.Time) error {
		c, found, err := oneCheckpoint(ctx, tx, id, tx.ForUpdate())
		if err != nil || !found || c.State != holdfast.CheckpointDeleted || c.DeletedAt.After(now.Add(-holdfast.TombstoneKept)) {
			return err
		}
		for {
			n, err := operation.Purge(ctx, tx, c.resource(), purgeRows)
			if err != nil {
				return err
			}
			if n < purgeRows {
				break
			}
		}
		for _, query := range []string{`DELETE FROM checkpoint_label WHERE checkpoint = $1`, `DELETE FROM checkpoint WHERE id = $1`} {
			if _, err := tx.ExecContext(ctx, query, string(id)); err != nil {
				return fmt.Errorf("purge checkpoint %s: %w", id, err)
			}
		}
		return nil
	})
}
