package orchestrator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// tally is what the sandboxes of one shard hold, by the counter or by counting.
type tally struct {
	project holdfast.ProjectID
	shard   int64
	holdfast.Usage
}

func scanHeld(scan func(...any) error) (tally, error) {
	var h tally
	err := scan(&h.project, &h.shard, &h.Sandboxes, &h.CPUMillis, &h.MemoryBytes)
	return h, err
}

// countedRows counts what is held, shard by shard. Sums are cast, since they
// are of another type than what they add up on one of the databases.
const countedRows = `SELECT project, quota_shard, COUNT(*), CAST(SUM(cpu_millis) AS BIGINT), CAST(SUM(memory_bytes) AS BIGINT) FROM sandbox `

// drifted are the projects whose counters are not what their sandboxes hold, in
// order. It is pure.
func drifted(counters, counted []tally) []holdfast.ProjectID {
	type key struct {
		project holdfast.ProjectID
		shard   int64
	}
	differ := map[key]holdfast.Usage{}
	for _, h := range counters {
		differ[key{h.project, h.shard}] = h.Usage
	}
	for _, h := range counted {
		at := key{h.project, h.shard}
		was := differ[at]
		differ[at] = holdfast.Usage{Sandboxes: was.Sandboxes - h.Sandboxes, CPUMillis: was.CPUMillis - h.CPUMillis, MemoryBytes: was.MemoryBytes - h.MemoryBytes}
	}
	projects := map[holdfast.ProjectID]bool{}
	for at, by := range differ {
		if by != (holdfast.Usage{}) {
			projects[at.project] = true
		}
	}
	return slices.Sorted(maps.Keys(projects))
}

// quotaPage recounts what a page of projects hold. The counters and the
// sandboxes are read in one snapshot and change in one transaction, so that they
// differ only where something is wrong, and finding that locks nothing.
func (s *Service) quotaPage(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	var items []reconcile.Item
	next := ""
	err := s.view(ctx, "recount quotas", func(tx store.Tx, _ time.Time) error {
		items, next = nil, ""
		projects, err := gather(ctx, tx, scanID, `SELECT id FROM project WHERE id > $1 ORDER BY id LIMIT $2`, after, limit)
		if err != nil || len(projects) == 0 {
			return err
		}
		last := projects[len(projects)-1]
		if len(projects) == limit {
			next = last
		}
		strays, err := gather(ctx, tx, scanID, `SELECT id FROM sandbox WHERE (quota_shard > 0) = (state = 'FAILED' OR state = 'DELETED')
			AND project > $1 AND project <= $2 ORDER BY project, id LIMIT $3`, after, last, limit)
		if err != nil {
			return err
		}
		for _, id := range strays {
			items = append(items, reconcile.Item{Key: id, Act: func(ctx context.Context) error { return s.countAnew(ctx, holdfast.SandboxID(id)) }})
		}
		counters, err := gather(ctx, tx, scanHeld, `SELECT project, shard, sandboxes, cpu_millis, memory_bytes FROM quota_shard
			WHERE project > $1 AND project <= $2`, after, last)
		if err != nil {
			return err
		}
		counted, err := gather(ctx, tx, scanHeld, countedRows+`WHERE quota_shard > 0 AND project > $1 AND project <= $2 GROUP BY project, quota_shard`, after, last)
		if err != nil {
			return err
		}
		for _, id := range drifted(counters, counted) {
			items = append(items, reconcile.Item{Key: string(id), Act: func(ctx context.Context) error { return s.recountProject(ctx, id) }})
		}
		return nil
	})
	return items, next, err
}

func scanID(scan func(...any) error) (string, error) {
	var id string
	err := scan(&id)
	return id, err
}

// countAnew counts a sandbox that holds resources and is not counted, or the
// reverse.
func (s *Service) countAnew(ctx context.Context, id holdfast.SandboxID) error {
	right := false
	err := s.update(ctx, "count a sandbox anew", func(tx store.Tx, _ time.Time) error {
		r, found, _, err := lockRow(ctx, tx, id)
		if right = err == nil && (!found || (r.Shard > 0) == holds(r.State)); right || err != nil {
			return err
		}
		to := int64(0)
		if holds(r.State) {
			to = shardOf(r.ID)
		}
		_, err = tx.ExecContext(ctx, `UPDATE sandbox SET quota_shard = $2, cpu_millis = $3, memory_bytes = $4 WHERE id = $1`,
			string(r.ID), to, r.Resources.CPUMillis, r.Resources.MemoryBytes)
		if err != nil {
			return fmt.Errorf("count sandbox %s: %w", r.ID, err)
		}
		_, err = s.recount(ctx, tx, r.Project)
		return err
	})
	if err == nil && right {
		return reconcile.ErrSkipped // set right meanwhile
	}
	return err
}

// recountProject sets counters right that are not, and says so: that they were
// wrong is a bug.
func (s *Service) recountProject(ctx context.Context, id holdfast.ProjectID) error {
	var by []tally
	err := s.update(ctx, "recount quotas", func(tx store.Tx, _ time.Time) error {
		var err error
		by, err = s.recount(ctx, tx, id)
		return err
	})
	if err == nil && len(by) == 0 {
		return reconcile.ErrSkipped // it was right by the time that it was locked
	}
	if err == nil {
		s.config.Logger.Error("quota counters had drifted, and were set right", "project", id, "counted", by)
	}
	return err
}

// recount counts a project's sandboxes under the lock of all its shards, and
// returns the shards that were wrong, as they are now. The count is a statement of
// its own, after the lock: whatever a transaction that held a shard has done to
// its sandboxes is committed by then, and nothing else counts (trap T53).
func (s *Service) recount(ctx context.Context, tx store.Tx, id holdfast.ProjectID) ([]tally, error) {
	shards, quotas, err := lockShards(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	counted, err := gather(ctx, tx, scanHeld, countedRows+`WHERE quota_shard > 0 AND project = $1 GROUP BY project, quota_shard`, string(id))
	if err != nil {
		return nil, err
	}
	truth := map[int64]holdfast.Usage{}
	for _, h := range counted {
		truth[h.shard] = h.Usage
	}
	var wrong []tally
	for i := range shards {
		if now := truth[shards[i].number]; now != shards[i].held {
			wrong = append(wrong, tally{project: id, shard: shards[i].number, Usage: now})
			shards[i].held, shards[i].recorded = now, false
		}
	}
	if len(wrong) == 0 {
		return nil, nil
	}
	return wrong, saveShards(ctx, tx, id, share(shards, quotas, 0, holdfast.Usage{}))
}
