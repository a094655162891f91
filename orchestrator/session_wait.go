package orchestrator

import (
	"context"
	"encoding/json"
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

// advanceGroup is how many sessions one statement advances.
const advanceGroup = 100

// advanceBuilt advances every session that waits for a build which is READY, in the
// transaction that makes it so: each is CREATING, with its sandbox, the operation that
// creates it and its preparation. It returns how many there were; a repeat finds none
// (contract: E2). The build's row is locked.
func (s *Service) advanceBuilt(ctx context.Context, u *unit, now time.Time, made resolved) (int, error) {
	list, err := waitingFor(ctx, u, made.Build)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	ready := make([]*held, len(list))
	for i, r := range list {
		r.Shape = r.Shape.under(made.Recipe)
		box := s.boxFor(r, made, now)
		r.Sandbox, r.Incarnation, r.State = box.ID, box.Incarnation, holdfast.SessionCreating
		ready[i] = &held{sessionRow: r, box: &box}
	}
	ready, short, err := s.countAll(ctx, u, ready)
	if err != nil {
		return 0, err
	}
	for group := range slices.Chunk(ready, advanceGroup) {
		if err := s.advanceSome(ctx, u, now, group); err != nil {
			return 0, err
		}
	}
	for _, none := range short {
		if err := s.releaseOne(ctx, u, now, none.sessionRow, none.why); err != nil {
			return 0, err
		}
	}
	boxes := make([]holdfast.SandboxID, len(ready))
	for i, h := range ready {
		boxes[i] = h.Sandbox
		s.ringSoon(u, h.ID)
	}
	u.soon(func() { s.carryAllSoon(boxes) })
	return len(list), nil
}

// waitingFor locks the sessions that wait for a build.
func waitingFor(ctx context.Context, tx store.Tx, build holdfast.BuildID) ([]sessionRow, error) {
	list, err := sessions(ctx, tx, `WHERE build = $1 AND state = 'WAITING' ORDER BY id`+tx.ForUpdate(), string(build))
	if err != nil {
		return nil, err
	}
	// What cannot be read stays as it is, and keeps no other from going on (trap T19).
	return slices.DeleteFunc(list, func(r sessionRow) bool { return r.Unreadable != nil }), nil
}

// lacked is a session for whose sandbox the project's quotas have no room.
type lacked struct {
	sessionRow
	why *holdfast.Failure
}

// countAll counts the sandboxes of sessions of one project together, and takes those
// out for which there is no room.
func (s *Service) countAll(ctx context.Context, tx store.Tx, all []*held) (counted []*held, short []lacked, err error) {
	project := all[0].Project
	shards, quotas, err := lockShards(ctx, tx, project)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range all {
		want := h.box.wants()
		if none := shortage(sum(shards), quotas, want); none != nil {
			short = append(short, lacked{h.sessionRow, &holdfast.Failure{Reason: holdfast.ReasonQuota, Message: fmt.Sprintf(
				"its environment is ready, and the quota of %s is %d: %d held, and this asks for %d", none.quota, none.limit, none.held, none.asks)}})
			continue
		}
		shards = share(shards, quotas, h.box.Shard, want)
		counted = append(counted, h)
	}
	return counted, short, saveShards(ctx, tx, project, shards)
}

// advanceSome writes some sessions that go on, a few statements for all of them.
func (s *Service) advanceSome(ctx context.Context, u *unit, now time.Time, group []*held) error {
	boxes, ids := make([]row, len(group)), make([]string, len(group))
	for i, h := range group {
		boxes[i], ids[i] = *h.box, string(h.ID)
	}
	if err := insertBoxes(ctx, u, boxes); err != nil {
		return err
	}
	for _, box := range boxes {
		if err := box.tell(ctx, u, now, holdfast.EventSandboxCreated); err != nil {
			return err
		}
		if err := useLayers(ctx, u, string(box.ID), box.Spec.Layers); err != nil {
			return err
		}
	}
	pending, err := operation.PendingOn(ctx, u, kindSession, ids...)
	if err != nil {
		return err
	}
	ops, carriers := make([]string, len(group)), make([]operation.Intent, len(group))
	for i, h := range group {
		op, ok := pending[string(h.ID)]
		if !ok {
			return fmt.Errorf("advance %s: it waits, and nothing is pending on it", h.ID)
		}
		carrier := intent{id: carrierOf(op.ID), verb: holdfast.OperationCreate}
		ops[i], carriers[i] = op.ID, carrier.on(*h.box, now)
	}
	if err := operation.RecordAll(ctx, u, now, carriers); err != nil {
		return err
	}
	if _, err := operation.Entrust(ctx, u, now, operation.Progress{Issued: true, WaitsFor: string(stageSandbox)}, ops...); err != nil {
		return err
	}
	if err := saveAdvanced(ctx, u, now, group); err != nil {
		return err
	}
	for _, h := range group {
		if err := h.tell(ctx, u, now); err != nil {
			return err
		}
		if err := s.prepareSession(ctx, u, now, h.sessionRow); err != nil {
			return err
		}
	}
	return nil
}

// insertBoxes writes new sandboxes, which have no labels, in one statement.
func insertBoxes(ctx context.Context, tx store.Tx, boxes []row) error {
	var values []string
	var args []any
	for _, r := range boxes {
		spec, err := json.Marshal(r.stored())
		if err != nil {
			return fmt.Errorf("insert sandboxes: %w", err)
		}
		args = append(args, string(r.ID), string(r.Project), r.Name, r.Creator, r.Environment, string(r.State), r.Generation, r.Incarnation,
			string(r.Instance), string(spec), r.TTL.Microseconds(), string(r.OnExpiry), store.Micros(r.MintedAt), store.Micros(r.CreatedAt),
			store.Micros(r.UpdatedAt), string(r.Restart), r.Shard, r.Resources.CPUMillis, r.Resources.MemoryBytes, r.Owner, "null")
		values = append(values, marksOf(len(args), 21))
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO sandbox (id, project, name, creator, environment, state, generation, incarnation,
		instance, spec, ttl, on_expiry, minted_at, created_at, updated_at, restart, quota_shard, cpu_millis, memory_bytes, owner, labels)
		VALUES `+strings.Join(values, ", "), args...)
	if err != nil {
		return fmt.Errorf("insert sandboxes: %w", err)
	}
	return nil
}

// marksOf is one row of n parameters that ends with the parameter last.
func marksOf(last, n int) string {
	marks := make([]string, n)
	for i := range marks {
		marks[i] = "$" + strconv.Itoa(last-n+1+i)
	}
	return "(" + strings.Join(marks, ", ") + ")"
}

// saveAdvanced writes what advancing changes of sessions, in one statement.
func saveAdvanced(ctx context.Context, tx store.Tx, now time.Time, group []*held) error {
	args := []any{store.Micros(now)}
	var values []string
	for _, h := range group {
		made, err := json.Marshal(h.Shape)
		if err != nil {
			return fmt.Errorf("advance sessions: %w", err)
		}
		args = append(args, string(h.ID), string(h.Sandbox), string(made))
		values = append(values, marksOf(len(args), 3))
	}
	_, err := tx.ExecContext(ctx, `UPDATE session SET state = 'CREATING', incarnation = 1, sandbox = v.column2, shape = v.column3, updated_at = $1
		FROM (VALUES `+strings.Join(values, ", ")+`) v WHERE session.id = v.column1`, args...)
	if err != nil {
		return fmt.Errorf("advance sessions: %w", err)
	}
	return nil
}

// releaseWaiting ends every session that waits for a build which will not be READY,
// with the reason, in the transaction that makes it so. It returns how many there were.
func (s *Service) releaseWaiting(ctx context.Context, u *unit, now time.Time, build holdfast.BuildID, why *holdfast.Failure) (int, error) {
	list, err := waitingFor(ctx, u, build)
	if err != nil {
		return 0, err
	}
	for _, r := range list {
		if err := s.releaseOne(ctx, u, now, r, why); err != nil {
			return 0, err
		}
	}
	return len(list), nil
}

func (s *Service) releaseOne(ctx context.Context, u *unit, now time.Time, r sessionRow, why *holdfast.Failure) error {
	h := held{sessionRow: r}
	h.Sandbox, h.Incarnation, h.State = "", 0, holdfast.SessionWaiting
	var err error
	if h.pending, err = pendingOn(ctx, u, r.resource()); err != nil {
		return err
	}
	return s.apply(ctx, u, now, &h, following{state: h.State}.fail(why))
}

// moveWaiting lets those who wait for a build that was superseded wait for the one that
// took its place, in the transaction that supersedes it.
func (s *Service) moveWaiting(ctx context.Context, u *unit, now time.Time, from, to holdfast.BuildID) error {
	_, err := u.ExecContext(ctx, `UPDATE session SET build = $2, updated_at = $3 WHERE build = $1 AND state = 'WAITING'`,
		string(from), string(to), store.Micros(now))
	if err != nil {
		return fmt.Errorf("wait for %s instead of %s: %w", to, from, err)
	}
	return nil
}

// waitingSessions finds builds that are waited for, in the order of their ids.
func (s *Service) waitingSessions(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	err = s.view(ctx, "builds that are waited for", func(tx store.Tx, now time.Time) (err error) {
		items, next = nil, ""
		rs, err := tx.QueryContext(ctx, `SELECT build, MIN(updated_at) FROM session WHERE state = 'WAITING' AND build > $1
			GROUP BY build ORDER BY build LIMIT $2`, after, limit)
		if err != nil {
			return fmt.Errorf("read what is waited for: %w", err)
		}
		defer func() { err = errors.Join(err, rs.Close()) }()
		seen := 0
		for ; rs.Next(); seen++ {
			var build holdfast.BuildID
			var since int64
			if err := rs.Scan(&build, &since); err != nil {
				return fmt.Errorf("read what is waited for: %w", err)
			}
			next = string(build)
			if store.FromMicros(since).After(now.Add(-s.waitingAfter())) {
				continue
			}
			items = append(items, reconcile.Item{Key: string(build), Act: func(ctx context.Context) error { return s.lookAtBuild(ctx, build) }})
		}
		if seen < limit {
			next = ""
		}
		return rs.Err()
	})
	return items, next, err
}

// waitingAfter is how long a session waits before a sweep asks what became of its build.
func (s *Service) waitingAfter() time.Duration {
	if s.config.SweepEvery > 0 {
		return min(holdfast.SessionWaitingAfter, s.config.SweepEvery)
	}
	return holdfast.SessionWaitingAfter
}

// lookAtBuild asks what became of a build that sessions wait for, and advances or
// releases them as its end would have.
func (s *Service) lookAtBuild(ctx context.Context, build holdfast.BuildID) error {
	moved := 0
	err := s.update(ctx, "look at a build", func(tx store.Tx, now time.Time) error {
		moved = 0
		end, err := s.endOfBuild(ctx, tx, build)
		if err != nil || end == nil {
			return err
		}
		moved, err = s.follow(ctx, tx.(*unit), now, waitedFor{build, *end})
		return err
	})
	return skippedIf(moved == 0, err)
}

// waitedFor is a build that sessions wait for, with its end.
type waitedFor struct {
	build holdfast.BuildID
	end   buildEnd
}

// follow advances, moves or releases those who wait for a build that has ended, and
// returns how many they were.
func (s *Service) follow(ctx context.Context, u *unit, now time.Time, w waitedFor) (moved int, err error) {
	switch {
	case w.end.failure != nil:
		return s.releaseWaiting(ctx, u, now, w.build, w.end.failure)
	case w.end.newer != "":
		return 1, s.moveWaiting(ctx, u, now, w.build, w.end.newer)
	}
	return s.advanceBuilt(ctx, u, now, w.end.made)
}
