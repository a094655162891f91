package orchestrator

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

const (
	purgeGroup = 25  // tombstones that one transaction purges
	purgeRows  = 500 // rows that one transaction deletes beside them
)

// oldTombstones finds sandboxes that were deleted longer ago than tombstones are
// kept, some to an item (contract: A4). Their request ids stay (contract: A3).
func (s *Service) oldTombstones(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	ids, next, err := s.overdue(ctx, `SELECT id, deleted_at FROM sandbox WHERE deleted_at > 0 AND deleted_at <= $1
		AND (deleted_at, id) > ($2, $3) ORDER BY deleted_at, id LIMIT $4`, after, limit)
	for group := range slices.Chunk(ids, purgeGroup) {
		items = append(items, reconcile.Item{Key: string(group[0]), Act: func(ctx context.Context) error { return s.purgeDeleted(ctx, group) }})
	}
	return items, next, err
}

// overdue reads one page of sandboxes whose instant in the query's second column
// is further back than what is over is kept, in the order of that instant.
func (s *Service) overdue(ctx context.Context, query, after string, limit int) (ids []holdfast.SandboxID, next string, err error) {
	at, last, err := parseExpiryKey(after)
	if err != nil {
		return nil, "", err
	}
	err = s.view(ctx, "what is kept no longer", func(tx store.Tx, now time.Time) (err error) {
		ids, next = nil, ""
		rs, err := tx.QueryContext(ctx, query, store.Micros(now.Add(-holdfast.TombstoneKept)), at, last, limit)
		if err != nil {
			return fmt.Errorf("read what is kept no longer: %w", err)
		}
		defer func() { err = errors.Join(err, rs.Close()) }()
		for rs.Next() {
			var id holdfast.SandboxID
			var since int64
			if err := rs.Scan(&id, &since); err != nil {
				return fmt.Errorf("read what is kept no longer: %w", err)
			}
			ids, next = append(ids, id), expiryKey(since, id)
		}
		if len(ids) < limit {
			next = ""
		}
		return rs.Err()
	})
	return ids, next, err
}

// purgeDeleted purges some tombstones together. Should the database not take that,
// each is tried alone, so that a bad one keeps no other (trap T19).
func (s *Service) purgeDeleted(ctx context.Context, ids []holdfast.SandboxID) error {
	purged, err := s.purgeSome(ctx, ids)
	if err == nil || len(ids) == 1 || ctx.Err() != nil {
		return skippedIf(purged == 0, err)
	}
	var errs []error
	for _, id := range ids {
		if _, err := s.purgeSome(ctx, []holdfast.SandboxID{id}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func skippedIf(nothing bool, err error) error {
	if err == nil && nothing {
		return reconcile.ErrSkipped
	}
	return err
}

// purgeSome purges in as many small transactions as it takes, and returns how many
// tombstones are gone. One that something is pending on, which should not be, stays
// and is an error that a person sees.
func (s *Service) purgeSome(ctx context.Context, ids []holdfast.SandboxID) (purged int, err error) {
	for {
		var p purge
		err := s.update(ctx, "purge", func(tx store.Tx, now time.Time) error {
			p = purge{tx: tx, ids: ids, before: now.Add(-holdfast.TombstoneKept), room: purgeRows}
			return p.run(ctx)
		})
		switch {
		case err != nil:
			return purged, err
		case p.more:
			continue
		case len(p.pending) > 0:
			return len(p.found), fmt.Errorf("deleted, and an operation is pending on it, so it is kept: %s", strings.Join(p.pending, ", "))
		}
		return len(p.found), nil
	}
}

// purge is one transaction over some tombstones.
type purge struct {
	tx      store.Tx
	ids     []holdfast.SandboxID
	before  time.Time
	room    int  // rows that may still be deleted beside them
	more    bool // there are more such rows: the tombstones stay for the next transaction
	found   []tombstone
	pending []string
}

// tombstone is what a purge reads of a deleted sandbox.
type tombstone struct {
	id       holdfast.SandboxID
	project  holdfast.ProjectID
	instance holdfast.InstanceID
	version  int64
}

// run takes the locks of the projects' numbers before those of the sandboxes, as
// whoever numbers changes does (contract: D3).
func (p *purge) run(ctx context.Context) error {
	unlocked, err := p.read(ctx, "")
	if err != nil {
		return err
	}
	projects := map[holdfast.ProjectID]*numbers{}
	for _, id := range sortedProjects(unlocked) {
		if projects[id], err = lockNumbers(ctx, p.tx, id); err != nil {
			return err
		}
	}
	if p.found, err = p.read(ctx, p.tx.ForUpdate()); err != nil {
		return err
	}
	if err := p.keepPending(ctx); err != nil || len(p.found) == 0 {
		return err
	}
	if err := p.children(ctx); err != nil || p.more {
		return err
	}
	for _, t := range p.found {
		projects[t.project].lose(t.version)
	}
	for _, id := range sortedProjects(p.found) {
		if err := projects[id].save(ctx, p.tx, id); err != nil {
			return err
		}
	}
	marks, args := inList(p.found)
	if _, err := p.tx.ExecContext(ctx, `DELETE FROM sandbox WHERE id IN `+marks, args...); err != nil {
		return fmt.Errorf("purge sandboxes: %w", err)
	}
	return nil
}

func (p *purge) read(ctx context.Context, lock string) (found []tombstone, err error) {
	args := []any{store.Micros(p.before)}
	var marks []string
	for _, id := range p.ids {
		args = append(args, string(id))
		marks = append(marks, "$"+strconv.Itoa(len(args)))
	}
	rs, err := p.tx.QueryContext(ctx, `SELECT id, project, instance, version FROM sandbox WHERE id IN (`+strings.Join(marks, ", ")+`)
		AND deleted_at > 0 AND deleted_at <= $1 ORDER BY id`+lock, args...)
	if err != nil {
		return nil, fmt.Errorf("read tombstones: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		var t tombstone
		if err := rs.Scan(&t.id, &t.project, &t.instance, &t.version); err != nil {
			return nil, fmt.Errorf("read tombstones: %w", err)
		}
		found = append(found, t)
	}
	return found, rs.Err()
}

// keepPending takes out what an operation is pending on.
func (p *purge) keepPending(ctx context.Context) error {
	kept := p.found[:0]
	for _, t := range p.found {
		_, has, err := operation.Pending(ctx, p.tx, operation.Resource{Kind: kindSandbox, ID: string(t.id)})
		switch {
		case err != nil:
			return err
		case has:
			p.pending = append(p.pending, string(t.id))
		default:
			kept = append(kept, t)
		}
	}
	p.found = kept
	return nil
}

// children deletes what belongs to the tombstones, as far as there is room: the
// journal, process request ids, what their boots sent, and labels.
func (p *purge) children(ctx context.Context) error {
	for _, t := range p.found {
		for _, one := range []func(limit int) (int, error){
			func(limit int) (int, error) {
				return operation.Purge(ctx, p.tx, operation.Resource{Kind: kindSandbox, ID: string(t.id)}, limit)
			},
			func(limit int) (int, error) {
				return purgeProcessRequests(ctx, p.tx, t.id, maxIncarnation, limit)
			},
			func(limit int) (int, error) { return purgeBoots(ctx, p.tx, t.instance, limit) },
		} {
			n, err := one(p.room)
			if err != nil {
				return err
			}
			if p.room -= n; p.room <= 0 {
				p.more = true
				return nil
			}
		}
	}
	marks, args := inList(p.found)
	if _, err := p.tx.ExecContext(ctx, `DELETE FROM sandbox_label WHERE sandbox IN `+marks, args...); err != nil {
		return fmt.Errorf("purge labels: %w", err)
	}
	return nil
}

// maxIncarnation is above every incarnation.
const maxIncarnation = 1 << 62

// purgeProcessRequests deletes request ids of processes of boots before one.
func purgeProcessRequests(ctx context.Context, tx store.Tx, id holdfast.SandboxID, before int64, limit int) (int, error) {
	res, err := tx.ExecContext(ctx, `DELETE FROM process_request WHERE sandbox = $1 AND request_id IN
		(SELECT request_id FROM process_request WHERE sandbox = $1 AND incarnation < $2 LIMIT $3)`, string(id), before, limit)
	if err != nil {
		return 0, fmt.Errorf("purge process requests of %s: %w", id, err)
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// purgeBoots deletes the deliveries of every boot of an instance. None can have an
// effect any more: what concerns an unknown instance is not recorded (trap T20).
func purgeBoots(ctx context.Context, tx store.Tx, id holdfast.InstanceID, limit int) (int, error) {
	res, err := tx.ExecContext(ctx, `DELETE FROM delivery WHERE (source, id) IN (SELECT source, id FROM delivery
		WHERE source > $1 AND source < $2 ORDER BY source, id LIMIT $3)`, "instance/"+string(id)+"/", "instance/"+string(id)+"0", limit)
	if err != nil {
		return 0, fmt.Errorf("purge deliveries of %s: %w", id, err)
	}
	n, err := res.RowsAffected()
	return int(n), err
}

func sortedProjects(list []tombstone) []holdfast.ProjectID {
	ids := make([]holdfast.ProjectID, len(list))
	for i, t := range list {
		ids[i] = t.project
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func inList(list []tombstone) (marks string, args []any) {
	parts := make([]string, len(list))
	for i, t := range list {
		args = append(args, string(t.id))
		parts[i] = "$" + strconv.Itoa(i+1)
	}
	return "(" + strings.Join(parts, ", ") + ")", args
}

// oldDeliveries has one item while the fleet's deliveries have rows that are older
// than any retry of one, and one while those of hooks are.
func (s *Service) oldDeliveries(ctx context.Context, _ string, _ int) (items []reconcile.Item, next string, err error) {
	fleets, err := s.oldFleetDeliveries(ctx)
	if err != nil {
		return nil, "", err
	}
	hooks, err := s.oldHookRows(ctx)
	return append(fleets, hooks...), "", err
}

func (s *Service) oldFleetDeliveries(ctx context.Context) (items []reconcile.Item, err error) {
	due := false
	err = s.view(ctx, "old deliveries", func(tx store.Tx, now time.Time) error {
		var oldest int64 // the first of the index, whatever the planner believes of how many are old
		err := tx.QueryRowContext(ctx, `SELECT received_at FROM delivery WHERE source = 'fleet' AND received_at > 0
			ORDER BY received_at, id LIMIT 1`).Scan(&oldest)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		due = oldest < store.Micros(now.Add(-holdfast.TombstoneKept))
		return err
	})
	if err == nil && due {
		items = append(items, reconcile.Item{Key: fleetSource, Act: s.purgeFleetDeliveries})
	}
	return items, err
}

func (s *Service) purgeFleetDeliveries(ctx context.Context) error {
	for {
		var n int64
		err := s.update(ctx, "purge deliveries", func(tx store.Tx, now time.Time) error {
			res, err := tx.ExecContext(ctx, `DELETE FROM delivery WHERE source = 'fleet' AND id IN (SELECT id FROM delivery
				WHERE source = 'fleet' AND received_at < $1 ORDER BY received_at, id LIMIT $2)`,
				store.Micros(now.Add(-holdfast.TombstoneKept)), purgeRows)
			if err == nil {
				n, err = res.RowsAffected()
			}
			if err != nil {
				return fmt.Errorf("purge deliveries: %w", err)
			}
			return nil
		})
		if err != nil || n < purgeRows {
			return err
		}
	}
}
