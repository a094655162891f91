package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// dueBuilds finds builds that nobody is at: whose attempt was let go a while ago, or
// whose time is over (contract: C1). Carrying one on asks the builder's host what
// became of its setup.
func (s *Service) dueBuilds(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	idle := holdfast.OperationUnclaimedAfter
	if s.config.SweepEvery > 0 {
		idle = min(idle, s.config.SweepEvery)
	}
	err = s.view(ctx, "due builds", func(tx store.Tx, now time.Time) error {
		items, next = nil, ""
		due, err := operation.Due(ctx, tx, now, operation.DueFilter{ResourceKind: kindBuild, Idle: idle, After: after, Limit: limit})
		if err != nil {
			return err
		}
		for _, op := range due {
			items = append(items, s.buildItem(op.ID, holdfast.BuildID(op.Resource.ID)))
		}
		if len(due) == limit {
			next = due[len(due)-1].DueKey()
		}
		if after != "" {
			return nil
		}
		late, err := gather(ctx, tx, scanBuild, fmt.Sprintf(`SELECT `+buildColumns+` FROM environment_build
			WHERE state = 'BUILDING' AND deadline <= $1 ORDER BY deadline, id LIMIT %d`, limit), store.Micros(now))
		for _, b := range late {
			items = append(items, s.buildItem(string(b.ID), b.ID))
		}
		return err
	})
	return items, next, err
}

func (s *Service) buildItem(key string, id holdfast.BuildID) reconcile.Item {
	return reconcile.Item{Key: key, Act: func(ctx context.Context) error { return s.carryOnBuild(ctx, id) }}
}

// leftBuilders finds builders of builds that have ended.
func (s *Service) leftBuilders(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	err = s.view(ctx, "left builders", func(tx store.Tx, _ time.Time) error {
		list, err := gather(ctx, tx, scanBuild, fmt.Sprintf(`SELECT `+buildColumns+` FROM environment_build
			WHERE finished_at > 0 AND cleared = FALSE AND id > $1 ORDER BY id LIMIT %d`, limit), after)
		items, next = nil, ""
		for _, b := range list {
			items = append(items, reconcile.Item{Key: string(b.ID), Act: func(ctx context.Context) error { return s.clearBuilder(ctx, b.ID) }})
		}
		if len(list) == limit {
			next = string(list[limit-1].ID)
		}
		return err
	})
	return items, next, err
}

// oldBuilds finds builds that ended long ago and that nothing new is made of: those
// that are not READY, those of deleted environments, and those that a newer one of
// the same version has followed.
func (s *Service) oldBuilds(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	at, last, err := parseExpiryKey(after)
	if err != nil {
		return nil, "", err
	}
	err = s.view(ctx, "old builds", func(tx store.Tx, now time.Time) error {
		list, err := gather(ctx, tx, scanBuild, fmt.Sprintf(`SELECT `+buildColumns+` FROM environment_build WHERE finished_at > 0 AND kept = FALSE
			AND finished_at <= $1 AND (finished_at, id) > ($2, $3) ORDER BY finished_at, id LIMIT %d`, limit),
			store.Micros(now.Add(-holdfast.TombstoneKept)), at, last)
		items, next = nil, ""
		for _, b := range list {
			items = append(items, reconcile.Item{Key: string(b.ID), Act: func(ctx context.Context) error { return s.purgeBuild(ctx, b.ID) }})
		}
		if len(list) == limit {
			next = strconv.FormatInt(store.Micros(list[limit-1].FinishedAt), 10) + "/" + string(list[limit-1].ID)
		}
		return err
	})
	return items, next, err
}

// old reports whether a build ended long ago and nothing new is made of it.
func (b buildRow) old(now time.Time) bool {
	return !b.Kept && b.Cleared && !b.FinishedAt.IsZero() && !b.FinishedAt.After(now.Add(-holdfast.TombstoneKept))
}

// purgeBuild removes a build's record, with its log and journal, once it has let go of
// its layers and the blob store has nothing of it: what the database does not know is
// never removed from there. Its request id stays.
func (s *Service) purgeBuild(ctx context.Context, id holdfast.BuildID) error {
	var old bool
	err := s.update(ctx, "let go of a build's layers", func(tx store.Tx, _ time.Time) error {
		b, found, now, err := lockBuild(ctx, tx, id)
		if old = err == nil && found && b.old(now); !old {
			return err
		}
		return dropLayers(ctx, tx, string(id))
	})
	if err != nil || !old {
		return errors.Join(err, skipped(err != nil))
	}
	if err := s.removeObjects(ctx, buildPrefix(id)); err != nil {
		return err
	}
	if s.config.Blobs != nil {
		copies := buildRow{Build: holdfast.Build{ID: id}}.checkpoint()
		if err := s.removeBlobs(ctx, copies); err != nil {
			return err
		}
		left, err := s.copiesOf(ctx, copies)
		if err != nil || len(left) > 0 { // what was made of it still needs it
			return errors.Join(err, skipped(err != nil))
		}
	}
	for {
		var left int
		err := s.update(ctx, "purge a build", func(tx store.Tx, _ time.Time) error {
			b, found, now, err := lockBuild(ctx, tx, id)
			if err != nil || !found || !b.old(now) {
				left = 0
				return err
			}
			if left, err = operation.Purge(ctx, tx, b.resource(), purgeRows); err != nil || left == purgeRows {
				return err
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM environment_build WHERE id = $1`, string(id)); err != nil {
				return fmt.Errorf("purge build %s: %w", id, err)
			}
			return nil
		})
		if err != nil || left < purgeRows {
			return err
		}
	}
}

// removeObjects removes whatever is in the blob store below a prefix: what attempts have
// put there under their numbers, the one that is named among them.
func (s *Service) removeObjects(ctx context.Context, prefix string) error {
	if s.config.Blobs == nil {
		return nil
	}
	for after := ""; ; {
		infos, next, err := s.config.Blobs.List(ctx, prefix, after, purgeRows)
		if err != nil {
			return fmt.Errorf("list what is below %s: %w", prefix, err)
		}
		for _, info := range infos {
			err = errors.Join(err, s.config.Blobs.Delete(ctx, info.Key))
		}
		if err != nil {
			return fmt.Errorf("remove what is below %s: %w", prefix, err)
		}
		if after = next; after == "" {
			return nil
		}
	}
}
