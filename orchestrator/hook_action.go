package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/hook"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// action is a hook's action as it is stored.
type action struct {
	holdfast.HookAction
	plan  hook.Plan
	claim int64
	due   time.Time
	since time.Time
}

const actionColumns = `id, hook, delivery, rule, event, project, plan, state, failure, resources, attempts, claim, due_at, since, created_at, updated_at`

func scanAction(scan func(...any) error) (action, error) {
	var a action
	var plan, failure, resources string
	var due, since, created, updated int64
	err := scan(&a.ID, &a.Hook, &a.Delivery, &a.Rule, &a.Event, &a.Project, &plan, &a.State, &failure, &resources, &a.Attempts, &a.claim,
		&due, &since, &created, &updated)
	if err != nil {
		return a, err
	}
	a.due, a.since, a.CreatedAt, a.UpdatedAt = store.FromMicros(due), store.FromMicros(since), store.FromMicros(created), store.FromMicros(updated)
	for _, column := range []struct {
		text string
		into any
	}{{plan, &a.plan}, {failure, &a.Failure}, {resources, &a.Resources}} {
		if column.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(column.text), column.into); err != nil {
			return a, fmt.Errorf("hook action %s: %w", a.ID, err)
		}
	}
	return a, nil
}

// insertAction records what a rule made of a delivery: to be done, or FAILED at once
// where the payload lacks what it needs.
func (s *Service) insertAction(ctx context.Context, tx store.Tx, now time.Time, h holdfast.Hook, d hook.Delivery, plan hook.Plan) error {
	raw, err := json.Marshal(plan)
	if err != nil {
		return fmt.Errorf("record action of %s: %w", h.Name, err)
	}
	state, failure := holdfast.HookActionPending, ""
	if plan.Failure != "" {
		state = holdfast.HookActionFailed
		if failure, err = optionalJSON(holdfast.Failure{Reason: holdfast.ReasonBadField, Message: plan.Failure}, false); err != nil {
			return fmt.Errorf("record action of %s: %w", h.Name, err)
		}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO hook_action (`+actionColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, '', 0, 0, $10, $10, $10, $10)`,
		s.config.IDs.New(holdfast.PrefixHookAction), h.Name, d.ID, plan.Rule, d.Event, string(h.Project), string(raw), string(state), failure, store.Micros(now))
	if err != nil {
		return fmt.Errorf("record action of %s: %w", h.Name, err)
	}
	return nil
}

// dueActions finds what is to be done and nobody is at; the page's key is that of the
// order in which it came due.
func (s *Service) dueActions(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
	at, last, err := parseExpiryKey(after)
	if err != nil {
		return nil, "", err
	}
	type due struct {
		id holdfast.HookActionID
		at int64
	}
	var list []due
	err = s.view(ctx, "due hook actions", func(tx store.Tx, now time.Time) (err error) {
		list, err = gather(ctx, tx, func(scan func(...any) error) (d due, err error) { return d, scan(&d.id, &d.at) },
			`SELECT id, due_at FROM hook_action WHERE state = 'PENDING' AND due_at <= $1 AND (due_at, id) > ($2, $3) ORDER BY due_at, id LIMIT $4`,
			store.Micros(now), at, last, limit)
		return err
	})
	for _, d := range list {
		items = append(items, reconcile.Item{Key: string(d.id), Act: func(ctx context.Context) error { return s.carryOut(ctx, d.id) }})
	}
	if len(list) == limit {
		next = expiryKey(list[limit-1].at, holdfast.SandboxID(list[limit-1].id))
	}
	return items, next, err
}

// actingRoom is how many actions are carried out at once outside of the sweep, and
// actingPage how many are looked at together.
const (
	actingRoom = 4
	actingPage = 20
)

// actSoon carries out what is due, in the background, until nothing is. The sweep
// finds what it leaves.
func (s *Service) actSoon() {
	select {
	case s.acting <- struct{}{}:
	default:
		return
	}
	s.background.Go(func() {
		defer func() { <-s.acting }()
		for {
			items, _, err := s.dueActions(s.ctx, "", actingPage)
			for _, item := range items {
				if failed := item.Act(s.ctx); !errors.Is(failed, reconcile.ErrSkipped) {
					err = errors.Join(err, failed)
				}
			}
			if err != nil {
				s.config.Logger.Info("a hook's actions stay pending; a sweep carries them out", "error", err)
			}
			if err != nil || len(items) == 0 {
				return
			}
		}
	})
}

// carryOut makes one attempt under a claim. Calls are made outside of transactions,
// under request ids of the delivery: whoever died after one finds what it made.
func (s *Service) carryOut(ctx context.Context, id holdfast.HookActionID) error {
	a, taken, err := s.takeAction(ctx, id)
	if err != nil {
		return err
	}
	if !taken {
		return reconcile.ErrSkipped
	}
	ctx, cancel := context.WithTimeout(ctx, operation.MaxClaim-closing)
	defer cancel()
	made, err := s.perform(ctx, a)
	return s.endAction(ctx, a, made, err)
}

func (s *Service) takeAction(ctx context.Context, id holdfast.HookActionID) (a action, taken bool, err error) {
	err = s.update(ctx, "take hook action", func(tx store.Tx, now time.Time) error {
		taken = false
		a, err = scanAction(tx.QueryRowContext(ctx, `UPDATE hook_action SET claim = claim + 1, attempts = attempts + 1, due_at = $2, updated_at = $3
			WHERE id = $1 AND state = 'PENDING' AND due_at <= $3 RETURNING `+actionColumns,
			string(id), store.Micros(now.Add(operation.MaxClaim)), store.Micros(now)).Scan)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		taken = err == nil
		return err
	})
	return a, taken, err
}

// perform makes the calls of a plan, as the hook and in its project, and returns the
// ids of what they made.
func (s *Service) perform(ctx context.Context, a action) (made []string, err error) {
	caller := holdfast.Caller{Project: a.Project, Name: "hook:" + a.Hook, Role: holdfast.RoleMember}
	if in := a.plan.Sandbox; in != nil {
		sb, err := s.CreateSandbox(ctx, caller, *in)
		if err != nil {
			return named(err), err
		}
		return []string{string(sb.ID)}, nil
	}
	task := a.plan.Task
	if in := a.plan.Session; in != nil {
		if s.config.Sessions == nil {
			return nil, notOffered("sessions")
		}
		session, err := s.config.Sessions.CreateSession(ctx, caller, *in)
		if err != nil {
			return named(err), err
		}
		made = append(made, string(session.ID))
		if task != nil {
			of := *task
			of.Session = session.ID
			task = &of
		}
	}
	if task == nil {
		return made, nil
	}
	if s.config.Tasks == nil {
		return made, notOffered("tasks")
	}
	submitted, err := s.config.Tasks.SubmitTask(ctx, caller, *task)
	if err != nil {
		return made, err
	}
	return append(made, string(submitted.ID)), nil
}

func notOffered(what string) error {
	return holdfast.E(holdfast.Unimplemented, holdfast.ReasonNotCapable, "this server offers no %s", what)
}

// named is the resource that an error is about: a create that failed left it.
func named(err error) []string {
	var e *holdfast.Error
	if errors.As(err, &e) && e.Resource != "" {
		return []string{e.Resource}
	}
	return nil
}

// actionVerdict is what an attempt means for its action.
type actionVerdict struct {
	state   holdfast.HookActionState
	failure *holdfast.Failure
	pause   time.Duration // until the next attempt, of a pending one
}

// judgeAction is pure. What can pass is tried again, with pauses that grow, and a
// quota may be free later; the rest is for a person.
func judgeAction(a action, err error, now time.Time) actionVerdict {
	if err == nil {
		return actionVerdict{state: holdfast.HookActionDone}
	}
	e := holdfast.AsError(err)
	v := actionVerdict{state: holdfast.HookActionPending, failure: &holdfast.Failure{Reason: e.Reason, Message: e.Error()},
		pause: max(backoff(a.Attempts), e.RetryAfter)}
	passes := holdfast.Transient(err) || e.Code == holdfast.Aborted || e.Code == holdfast.ResourceExhausted || e.Code == holdfast.Cancelled
	if !passes || now.Sub(a.since) >= holdfast.HookActionMaxAge {
		v.state = holdfast.HookActionFailed
	}
	return v
}

// endAction records an attempt, if its claim is still the action's.
func (s *Service) endAction(ctx context.Context, a action, made []string, cause error) error {
	ctx, cancel := operation.Closing(ctx, closing)
	defer cancel()
	var v actionVerdict
	err := s.update(ctx, "end hook action", func(tx store.Tx, now time.Time) error {
		v = judgeAction(a, cause, now)
		failure, err := optionalJSON(v.failure, v.failure == nil)
		if err != nil {
			return fmt.Errorf("end hook action %s: %w", a.ID, err)
		}
		resources, err := optionalJSON(made, len(made) == 0)
		if err != nil {
			return fmt.Errorf("end hook action %s: %w", a.ID, err)
		}
		_, err = tx.ExecContext(ctx, `UPDATE hook_action SET state = $3, failure = $4, resources = CASE WHEN $5 = '' THEN resources ELSE $5 END,
			due_at = $6, updated_at = $7 WHERE id = $1 AND claim = $2 AND state = 'PENDING'`,
			string(a.ID), a.claim, string(v.state), failure, resources, store.Micros(now.Add(v.pause)), store.Micros(now))
		if err != nil {
			return fmt.Errorf("end hook action %s: %w", a.ID, err)
		}
		return nil
	})
	if err == nil && v.state == holdfast.HookActionFailed {
		s.config.Logger.Warn("a hook's action failed", "action", a.ID, "hook", a.Hook, "delivery", a.Delivery, "rule", a.Rule, "error", cause)
	}
	if err == nil && v.state == holdfast.HookActionPending {
		return cause
	}
	return err
}

// RetryHookAction makes a FAILED action PENDING. Its plan stays what the delivery made
// of it: one that the payload lacked something for fails for good.
func (s *Service) RetryHookAction(ctx context.Context, caller holdfast.Caller, id holdfast.HookActionID) (holdfast.HookAction, error) {
	if err := holdfast.CheckID("id", holdfast.PrefixHookAction, string(id)); err != nil {
		return holdfast.HookAction{}, err
	}
	var a action
	err := s.update(ctx, "retry hook action", func(tx store.Tx, _ time.Time) error {
		var err error
		a, err = scanAction(tx.QueryRowContext(ctx, `SELECT `+actionColumns+` FROM hook_action WHERE id = $1`+tx.ForUpdate(), string(id)).Scan)
		if errors.Is(err, sql.ErrNoRows) || err == nil && a.Project != caller.Project {
			return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no hook action %s in this project", id).On(string(id))
		}
		if err != nil || a.State == holdfast.HookActionPending {
			return err
		}
		if a.State == holdfast.HookActionDone || a.plan.Failure != "" {
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s: %s", id, a.State, whyNoRetry(a)).On(string(id))
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		a.State, a.Attempts, a.UpdatedAt = holdfast.HookActionPending, 0, now
		_, err = tx.ExecContext(ctx, `UPDATE hook_action SET state = 'PENDING', claim = claim + 1, attempts = 0, due_at = $2, since = $2, updated_at = $2
			WHERE id = $1`, string(id), store.Micros(now))
		if err != nil {
			return fmt.Errorf("retry hook action %s: %w", id, err)
		}
		if u, ok := tx.(*unit); ok {
			u.soon(s.actSoon)
		}
		return nil
	})
	return a.HookAction, err
}

func whyNoRetry(a action) string {
	if a.plan.Failure != "" {
		return a.plan.Failure + ", and a retry would lack it too: correct the rule, and let the provider send the delivery under another id"
	}
	return "there is nothing to retry"
}

// oldHookRows has one item while ended actions or hooks' deliveries are older than
// they are kept (trap T20).
func (s *Service) oldHookRows(ctx context.Context) (items []reconcile.Item, err error) {
	due := false
	err = s.view(ctx, "old hook rows", func(tx store.Tx, now time.Time) error {
		before := store.Micros(now.Add(-holdfast.HookKept))
		return tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM delivery WHERE source >= 'hook/' AND source < 'hook0' AND received_at < $1)
			OR EXISTS (SELECT 1 FROM hook_action WHERE state <> 'PENDING' AND updated_at < $1)`, before).Scan(&due)
	})
	if err == nil && due {
		items = append(items, reconcile.Item{Key: "hooks", Act: s.purgeHookRows})
	}
	return items, err
}

func (s *Service) purgeHookRows(ctx context.Context) error {
	for _, query := range []string{
		`DELETE FROM hook_action WHERE id IN (SELECT id FROM hook_action WHERE state <> 'PENDING' AND updated_at < $1 ORDER BY updated_at, id LIMIT $2)`,
		`DELETE FROM delivery WHERE source >= 'hook/' AND source < 'hook0' AND (source, id) IN (SELECT source, id FROM delivery
			WHERE source >= 'hook/' AND source < 'hook0' AND received_at < $1 ORDER BY received_at, id LIMIT $2)`,
	} {
		_, err := s.batches(ctx, func(tx store.Tx, now time.Time) (int, error) {
			n, err := affected(tx.ExecContext(ctx, query, store.Micros(now.Add(-holdfast.HookKept)), purgeRows))
			return int(n), err
		})
		if err != nil {
			return fmt.Errorf("purge old hook rows: %w", err)
		}
	}
	return nil
}
