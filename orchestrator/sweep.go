package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// The names of the sweeps.
const (
	SweepOperations = "sandbox-operations" // pending, and nobody is at it
	SweepInstances  = "sandbox-instances"  // recorded but gone, and there but not wanted
	SweepExpiry     = "sandbox-expiry"     // lifetimes, retentions and records that are over
	SweepPurge      = "sandbox-purge"      // tombstones that were kept long enough
	SweepBoots      = "sandbox-boots"      // what boots left that are over
	SweepInbox      = "orchestrator-inbox" // old delivery rows of the fleet's and of hooks, and hooks' ended actions
	SweepBuilds     = "build-operations"   // builds that nobody is at, or whose time is over
	SweepBuilders   = "build-builders"     // builders of builds that have ended
	SweepBuildPurge = "build-purge"        // builds that ended long ago and nothing is made of
	SweepQuotas     = "project-quotas"     // counters that are not what sandboxes hold

	SweepDeletions       = "checkpoint-operations" // deletes that are pending, and nobody is at them
	SweepCheckpoints     = "checkpoint-copies"     // FAILED while their host may copy on, or CREATING for nobody
	SweepBlobs           = "checkpoint-blobs"      // copies that nothing is made of
	SweepCheckpointPurge = "checkpoint-purge"      // tombstones that were kept long enough
	SweepEvents          = "events"                // events and outgoing webhooks that were kept long enough; what is still to be sent
	SweepActions         = "hook-actions"          // what webhooks asked for, and nobody is at
)

// patience is how much answered trying an operation is worth (contract: A15).
var patience = operation.Patience{Attempts: 10, For: 15 * time.Minute}

// backlogPace is the least time between the beginnings of two items where a long
// downtime leaves very many: callers are served meanwhile (trap T30).
const backlogPace = 2 * time.Millisecond

// Sweeps are the orchestrator's reconcilers (contract: C1).
func (s *Service) Sweeps() []reconcile.Sweep {
	pending, rest, blobs := 10*time.Second, time.Minute, holdfast.CheckpointAfter
	expiry := holdfast.ExpiryAfter * 9 / 10 // with the schedule's jitter still within it
	if every := s.config.SweepEvery; every > 0 {
		pending, rest, blobs, expiry = every, every, every, min(every, expiry)
	}
	return []reconcile.Sweep{
		{Name: SweepOperations, Every: pending, Page: s.dueOperations, ItemTimeout: operation.MaxClaim + closing,
			Concurrency: 16, Pace: backlogPace},
		{Name: SweepBuilds, Every: pending, Page: s.dueBuilds, ItemTimeout: operation.MaxClaim + closing, Concurrency: 16, Pace: backlogPace},
		{Name: SweepBuilders, Every: rest, Page: s.leftBuilders, ItemTimeout: operation.MaxClaim},
		{Name: SweepBuildPurge, Every: rest, Page: s.oldBuilds},
		{Name: SweepExpiry, Every: expiry, Page: s.expired, Concurrency: 8, Pace: backlogPace},
		{Name: SweepInstances, Every: rest, Page: s.instancePage},
		{Name: SweepPurge, Every: rest, Page: s.oldTombstones, PageSize: 20 * purgeGroup, Concurrency: 2},
		{Name: SweepBoots, Every: rest, Page: s.oldBoots, Concurrency: 2},
		{Name: SweepInbox, Every: rest, Page: s.oldDeliveries},
		{Name: SweepQuotas, Every: rest, Page: s.quotaPage},
		{Name: SweepDeletions, Every: pending, Page: s.dueDeletions, ItemTimeout: operation.MaxClaim + closing, Concurrency: 4},
		{Name: SweepCheckpoints, Every: rest, Page: s.openCheckpoints, Concurrency: 4},
		{Name: SweepBlobs, Every: blobs, Page: s.unnamedBlobs, Concurrency: 2},
		{Name: SweepCheckpointPurge, Every: rest, Page: s.oldCheckpoints},
		{Name: SweepEvents, Every: rest, Page: s.oldEvents},
		{Name: SweepActions, Every: pending, Page: s.dueActions, ItemTimeout: operation.MaxClaim + closing, Concurrency: 8, Pace: backlogPace},
		{Name: SweepSessionOperations, Every: pending, Page: s.dueSessions, ItemTimeout: operation.MaxClaim + closing,
			Concurrency: 16, Pace: backlogPace},
		{Name: SweepSessionWaiting, Every: rest, Page: s.waitingSessions, ItemTimeout: operation.MaxClaim},
		{Name: SweepTasks, Every: min(rest, taskSweepEvery), Page: s.dueTasks, ItemTimeout: time.Minute, Concurrency: 16, Pace: backlogPace},
		{Name: SweepIdle, Every: min(rest, idleSweepEvery), Page: s.idleSessions, Concurrency: 4},
		{Name: SweepSessionPurge, Every: rest, Page: s.oldSessions, Concurrency: 2},
	}
}

// dueOperations finds what is pending and idle. After a restart nobody else is
// known to be at it, so what dead holders left is due at once.
func (s *Service) dueOperations(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	return s.due(ctx, kindSandbox, after, limit, func(ctx context.Context, id string) error {
		return s.carryOnQuietly(ctx, holdfast.SandboxID(id))
	})
}

// due finds what is pending and idle on resources of a kind.
func (s *Service) due(ctx context.Context, kind, after string, limit int, carryOn func(ctx context.Context, id string) error) ([]reconcile.Item, string, error) {
	idle := holdfast.OperationUnclaimedAfter
	if s.config.SweepEvery > 0 {
		idle = min(idle, s.config.SweepEvery)
	}
	var items []reconcile.Item
	next := ""
	err := s.view(ctx, "due operations", func(tx store.Tx, now time.Time) error {
		items, next = nil, ""
		if err := s.readLineage(ctx, tx); err != nil {
			return err
		}
		due, err := operation.Due(ctx, tx, now, operation.DueFilter{ResourceKind: kind, Idle: idle, After: after, Limit: limit})
		if err != nil {
			return err
		}
		for _, op := range due {
			items = append(items, reconcile.Item{Key: op.ID, Act: func(ctx context.Context) error { return carryOn(ctx, op.Resource.ID) }})
		}
		if len(due) == limit {
			next = due[len(due)-1].DueKey()
		}
		return nil
	})
	return items, next, err
}

// carryOnQuietly takes another's attempt for nothing to do.
func (s *Service) carryOnQuietly(ctx context.Context, id holdfast.SandboxID) error {
	err := s.carryOn(ctx, id)
	var held *heldError
	if errors.As(err, &held) || holdfast.CodeOf(err) == holdfast.Aborted {
		return reconcile.ErrSkipped
	}
	return err
}

// giveUp ends an operation that the authority kept answering without success. A
// create becomes FAILED and its instance is ended; a suspend or resume gives way
// to the recorded state, issued anew above it (lifecycle.md).
func (s *Service) giveUp(ctx context.Context, b begun) error {
	verb := holdfast.OperationKind(b.op.Kind)
	if verb == holdfast.OperationCheckpoint {
		return ended(s.refused(ctx, b, judgement{err: holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonGaveUp,
			"gave up on it after %d attempts that were answered; the last: %s", b.op.Answered, lastError(*b.op))}))
	}
	level := s.level(ctx, b)
	if err := s.raise(ctx, &b, judgement{outcome: outcomeRaise}); err != nil {
		return s.fenced(ctx, b, err)
	}
	level.Generation, level.Desired, level.Wait = b.op.Generation, recordedLevel(b.row.State), time.Second
	seen, err := s.config.Fleet.EnsureInstance(ctx, level)
	if err != nil && holdfast.Transient(err) {
		return s.releaseWith(ctx, b, judgeError(holdfast.AsError(err)))
	}
	failure := &holdfast.Failure{Reason: holdfast.ReasonGaveUp, Message: fmt.Sprintf(
		"gave up on the %s after %d attempts that were answered; the last: %s", verb, b.op.Answered, lastError(*b.op))}
	if seen.Failure != nil {
		failure.LogTail = seen.Failure.LogTail
	}
	if verb == holdfast.OperationCreate || verb == holdfast.OperationReplace {
		return ended(s.end(ctx, b, failure))
	}
	return ended(s.refused(ctx, b, judgement{err: holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonGaveUp, "%s", failure.Message)}))
}

// ended takes the word that an operation failed, which was meant, for success.
func ended(err error) error {
	if holdfast.CodeOf(err) == holdfast.FailedPrecondition {
		return nil
	}
	return err
}

func lastError(op operation.Operation) string {
	if op.LastError == nil {
		return "no error"
	}
	return op.LastError.Message
}

// recordedPage bounds the sandboxes that one page compares: a fleet that has lost its
// instances answers with one page for all of them.
const recordedPage = 1000

// upTo is the part of a page of the fleet's up to an instance, where it goes on.
func upTo(page holdfast.InstancePage, last holdfast.InstanceID) holdfast.InstancePage {
	end := slices.IndexFunc(page.Instances, func(o holdfast.Observation) bool { return o.Instance > last })
	if end >= 0 {
		page.Instances = page.Instances[:end]
	}
	page.Next = string(last)
	return page
}

// instancePage compares one page of the fleet's instances with the sandboxes of
// the same stretch of ids, both ways (contract: C4). The fleet is read first and
// the database second, so that nothing recorded meanwhile is taken for unwanted.
func (s *Service) instancePage(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	page, err := s.config.Fleet.ListInstances(ctx, after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("ask the fleet: %w", err)
	}
	var recorded []row
	var now time.Time
	err = s.view(ctx, "sandboxes of a page", func(tx store.Tx, at time.Time) error {
		now = at
		where, args := `WHERE instance > $1 AND state <> 'DELETED'`, []any{after}
		if page.Next != "" {
			where, args = where+` AND instance <= $2`, append(args, page.Next)
		}
		var err error
		if recorded, err = rows(ctx, tx, where+fmt.Sprintf(` ORDER BY instance LIMIT %d`, recordedPage), args...); err != nil {
			return err
		}
		if len(recorded) == recordedPage {
			page = upTo(page, recorded[recordedPage-1].Instance)
		}
		return s.addDeleted(ctx, tx, page, &recorded)
	})
	if err != nil {
		return nil, "", err
	}
	at := *s.lineage.Load()
	s.missing.seen(page.Instances)
	recorded, observed, items := leaveOutUnreadable(recorded, page.Instances)
	plan := planInstances(recorded, observed, at, now)
	s.tell(plan)
	for _, seen := range plan.behind {
		items = append(items, reconcile.Item{Key: string(seen.Instance), Act: func(ctx context.Context) error { return s.catchUp(ctx, seen) }})
	}
	for _, seen := range plan.ended {
		items = append(items, reconcile.Item{Key: string(seen.Instance), Act: func(ctx context.Context) error { return s.confirmEnded(ctx, seen) }})
	}
	for _, id := range plan.moves {
		items = append(items, reconcile.Item{Key: string(id), Act: func(ctx context.Context) error { return s.move(ctx, id) }})
	}
	for _, level := range plan.levels {
		level.Cluster, level.Epoch = at.Cluster, at.Epoch
		items = append(items, reconcile.Item{Key: string(level.Instance), Act: func(ctx context.Context) error {
			_, err := s.config.Fleet.EnsureInstance(ctx, level)
			return err
		}})
	}
	return items, page.Next, nil
}

// leaveOutUnreadable takes sandboxes whose rows cannot be read out of a comparison,
// and their instances too, which are known and no orphans: each is an item that says
// what is wrong, and nothing is done about it (trap T19).
func leaveOutUnreadable(recorded []row, observed []holdfast.Observation) ([]row, []holdfast.Observation, []reconcile.Item) {
	var items []reconcile.Item
	bad := map[holdfast.InstanceID]bool{}
	for _, r := range recorded {
		if r.Unreadable != nil {
			bad[r.Instance] = true
			items = append(items, reconcile.Item{Key: string(r.Instance), Act: func(context.Context) error { return r.Unreadable }})
		}
	}
	if len(bad) == 0 {
		return recorded, observed, nil
	}
	recorded = slices.DeleteFunc(recorded, func(r row) bool { return bad[r.Instance] })
	observed = slices.DeleteFunc(slices.Clone(observed), func(o holdfast.Observation) bool { return bad[o.Instance] })
	return recorded, observed, items
}

// addDeleted reads the tombstones of those instances of a page that are not
// gone: they are few, and a deleted sandbox's instance is known, not an orphan.
func (s *Service) addDeleted(ctx context.Context, tx store.Tx, page holdfast.InstancePage, recorded *[]row) error {
	known := map[holdfast.InstanceID]bool{}
	for _, r := range *recorded {
		known[r.Instance] = true
	}
	for _, seen := range page.Instances {
		if known[seen.Instance] || seen.State == holdfast.InstanceAbsent {
			continue
		}
		its, err := rows(ctx, tx, `WHERE instance = $1`, string(seen.Instance))
		if err != nil {
			return err
		}
		*recorded = append(*recorded, its...)
	}
	return nil
}

// instancePlan is what to do about a page.
type instancePlan struct {
	ended  []holdfast.Observation // READY or SUSPENDED, and the fleet says that the instance ended
	levels []holdfast.Level       // what is there and should not be
	moves  []holdfast.InstanceID  // on a host that is lost or drained, to be booted anew elsewhere
	alarm  error                  // what was left out, because it was unusually much or this database cannot know
	kept   []holdfast.Observation // unknown, and older than the recovery of this database: a person decides
	behind []holdfast.Observation // the fleet has seen more than is recorded, which a recovered database takes up
}

// planInstances compares what is recorded with what the fleet has. It is pure.
// An instance that the page lacks is asked for by name before anything is done:
// an Observation without a state stands for that (trap T27).
func planInstances(recorded []row, observed []holdfast.Observation, at lineage.Lineage, now time.Time) instancePlan {
	var plan instancePlan
	byInstance := make(map[holdfast.InstanceID]row, len(recorded))
	for _, r := range recorded {
		byInstance[r.Instance] = r
	}
	seenAt := make(map[holdfast.InstanceID]bool, len(observed))
	var unwanted []holdfast.Level
	var behind []holdfast.Observation
	for _, seen := range observed {
		seenAt[seen.Instance] = true
		r, known := byInstance[seen.Instance]
		gone := seen.State == holdfast.InstanceExited || seen.State == holdfast.InstanceAbsent
		switch {
		case !known && seen.State != holdfast.InstanceAbsent:
			unwanted = append(unwanted, plan.unknown(seen, at, now)...)
		case !known:
		case r.State == holdfast.SandboxDeleted && seen.State != holdfast.InstanceAbsent:
			plan.levels = append(plan.levels, levelFor(r, seen, holdfast.DesiredAbsent))
		case r.State == holdfast.SandboxFailed && !gone:
			plan.levels = append(plan.levels, levelFor(r, seen, holdfast.DesiredExited))
		case ahead(r, seen):
			behind = append(behind, seen)
		case resting(r) && gone && seen.Incarnation == r.Incarnation:
			plan.ended = append(plan.ended, seen)
		case leaving(r, seen) != nil:
			plan.moves = append(plan.moves, seen.Instance)
		}
	}
	var gone []holdfast.Observation
	for _, r := range recorded {
		if !seenAt[r.Instance] && resting(r) && now.Sub(r.UpdatedAt) > time.Minute {
			gone = append(gone, holdfast.Observation{Instance: r.Instance, Incarnation: r.Incarnation})
		}
	}
	plan.guard(gone, unwanted, behind, at, [2]int{len(recorded), len(observed)})
	return plan
}

func resting(r row) bool {
	return r.State == holdfast.SandboxReady || r.State == holdfast.SandboxSuspended
}

// levelFor issues a level above whatever the fleet has seen.
func levelFor(r row, seen holdfast.Observation, desired holdfast.Desired) holdfast.Level {
	spec := r.Spec
	return holdfast.Level{Instance: r.Instance, Incarnation: seen.Incarnation, Generation: max(r.Generation, seen.Generation) + 1,
		Desired: desired, Spec: &spec, MintedAt: r.MintedAt}
}

// confirmEnded asks for the one instance, and makes its sandbox FAILED only on
// the fleet's own word that it ended.
func (s *Service) confirmEnded(ctx context.Context, was holdfast.Observation) error {
	seen, err := s.config.Fleet.GetInstance(ctx, was.Instance)
	switch {
	case holdfast.CodeOf(err) == holdfast.NotFound && !s.missing.confirmed(was.Instance, s.config.Clock(), s.missingFor()):
		return reconcile.ErrSkipped
	case holdfast.CodeOf(err) == holdfast.NotFound:
		seen = holdfast.Observation{Instance: was.Instance, Incarnation: was.Incarnation, State: holdfast.InstanceAbsent,
			Failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the fleet does not know the instance"}}
	case err != nil:
		return err
	case seen.Stale, seen.State != holdfast.InstanceExited && seen.State != holdfast.InstanceAbsent:
		return reconcile.ErrSkipped
	}
	if seen.State == holdfast.InstanceAbsent && seen.Failure == nil {
		seen.Failure = &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the instance is gone from its host"}
	}
	var e exit
	err = s.update(ctx, "instance ended", func(tx store.Tx, _ time.Time) error {
		e = exit{}
		r, found, now, err := lockByInstance(ctx, tx, seen.Instance)
		if err != nil || !found {
			return err
		}
		e, err = s.applyExit(ctx, tx, now, r, seen)
		return err
	})
	s.exited(e, err)
	return err
}
