package interleaving

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/orchestrator"
)

// restRounds bounds how long a world may take to rest: each round is a few minutes.
const restRounds = 12

// rest lets everything go, then sweeps until what is recorded is so.
func (w *world) rest(ctx context.Context) error {
	w.sever(false)
	for _, h := range w.hosts {
		h.hush(false)
	}
	w.sched.opened(true)
	var why error
	for range restRounds {
		if why = w.unrest(ctx); why == nil {
			return nil
		}
		pass(3 * time.Minute)
		var swept []error
		for _, name := range []string{fleet.SweepHosts, fleet.SweepReturns, fleet.SweepLosses, fleet.SweepDraining, fleet.SweepOverdue, fleet.SweepInstances} {
			swept = append(swept, w.fleetSweep(ctx, 0, name))
		}
		for _, name := range []string{orchestrator.SweepOperations, orchestrator.SweepInstances} {
			swept = append(swept, w.sweep(ctx, 0, name))
		}
		if w.work != nil {
			swept = append(swept, w.restWork(ctx))
		}
		if err := errors.Join(swept...); err != nil {
			why = errors.Join(why, err)
		}
	}
	return fmt.Errorf("it comes to no rest: %w", why)
}

// unrest is what is still under way, or recorded and not so.
func (w *world) unrest(ctx context.Context) error {
	pending, err := w.count(w.odb, `SELECT COUNT(*) FROM operation WHERE state = 'PENDING'`)
	if err != nil {
		return err
	}
	wanted, err := w.count(w.odb, `SELECT COUNT(*) FROM sandbox WHERE delete_wanted AND state NOT IN ('DELETED', 'DELETING')`)
	if err != nil {
		return err
	}
	if pending+wanted > 0 {
		return fmt.Errorf("%d operations are pending, %d deletes wanted", pending, wanted)
	}
	if w.work != nil {
		if err := w.unrestWork(); err != nil {
			return err
		}
	}
	page, err := w.orch[0].ListSandboxes(ctx, alice, holdfast.ListSandboxes{States: []holdfast.SandboxState{holdfast.SandboxCreating, holdfast.SandboxReady,
		holdfast.SandboxSuspended, holdfast.SandboxFailed, holdfast.SandboxDeleting, holdfast.SandboxDeleted}})
	if err != nil {
		return err
	}
	wants := map[holdfast.InstanceRef]holdfast.SandboxState{}
	for _, sb := range page.Sandboxes {
		if sb.State == holdfast.SandboxReady || sb.State == holdfast.SandboxSuspended {
			wants[holdfast.InstanceRef{Instance: sb.Instance, Incarnation: sb.Incarnation}] = sb.State
		}
	}
	lives := 0
	for _, h := range w.hosts {
		for _, ref := range h.living() {
			lives++
			h.mu.Lock()
			is := h.has[ref].State
			h.mu.Unlock()
			state, wanted := wants[ref]
			if !wanted || (state == holdfast.SandboxReady) != (is == holdfast.InstanceRunning) {
				return fmt.Errorf("incarnation %d is %s on %s, and its sandbox %q", ref.Incarnation, is, h.id, state)
			}
		}
	}
	if lives != len(wants) {
		return fmt.Errorf("%d instances live, %d are wanted: %v", lives, len(wants), wants)
	}
	used, err := w.count(w.fdb, `SELECT COALESCE(SUM(used_instances), 0) FROM host`)
	if err == nil && used != lives {
		err = fmt.Errorf("hosts count %d instances, %d live", used, lives)
	}
	return err
}

// check is what holds of a world at rest, whatever the scenario.
func (w *world) check() error {
	var errs []error
	for _, h := range w.hosts {
		errs = append(errs, h.bootedTwice())
	}
	for _, q := range []struct {
		fleet bool
		query string
		what  string
	}{
		{false, `SELECT COUNT(*) FROM (SELECT resource_id FROM operation GROUP BY resource_id, generation HAVING COUNT(*) > 1) d`,
			"two operations of one sandbox share a generation"},
		{false, `SELECT COUNT(*) FROM (SELECT resource FROM request GROUP BY project, method, request_id HAVING COUNT(*) > 1) r`, "a request id stands for two"},
		{false, `SELECT COUNT(*) FROM sandbox s WHERE owner = '' AND NOT EXISTS (SELECT 1 FROM request r WHERE r.resource = s.id)`, "a sandbox that no request made"},
		{false, `SELECT ABS((SELECT COALESCE(SUM(sandboxes), 0) FROM quota_shard) - (SELECT COUNT(*) FROM sandbox WHERE state NOT IN ('FAILED', 'DELETED')))`, "the quota's counter is off"},
		{true, `SELECT COUNT(*) FROM leftover`, "room is still held for a superseded incarnation"},
		{true, `SELECT ABS((SELECT COALESCE(SUM(used_instances), 0) FROM host) - (SELECT COUNT(*) FROM instance WHERE held = 1) - (SELECT COUNT(*) FROM leftover))`, "the hosts' rooms are off"},
		{true, `SELECT COUNT(*) FROM host WHERE used_instances < 0`, "a host counts fewer than none"},
	} {
		db := w.odb
		if q.fleet {
			db = w.fdb
		}
		n, err := w.count(db, q.query)
		if err == nil && n != 0 {
			err = fmt.Errorf("%s: %d", q.what, n)
		}
		errs = append(errs, err)
	}
	w.mu.Lock()
	errs = append(errs, w.broken)
	w.mu.Unlock()
	return errors.Join(append(errs, w.checkAnswers())...)
}

// checkAnswers holds what the actors were told against what came of it.
func (w *world) checkAnswers() error {
	if w.sandbox == "" {
		return w.checkCodes()
	}
	var errs []error
	now, err := w.orch[1].GetSandbox(context.Background(), alice, w.sandbox)
	if err != nil && holdfast.CodeOf(err) != holdfast.NotFound {
		return err
	}
	if err != nil {
		now.State = holdfast.SandboxDeleted // and purged
	}
	deleted := false
	for who, a := range w.answers {
		switch code := holdfast.CodeOf(a.err); code {
		case "":
			if a.sandbox.ID != "" && a.sandbox.ID != w.sandbox {
				errs = append(errs, fmt.Errorf("%s answered with another sandbox", who))
			}
			deleted = deleted || a.sandbox.State == holdfast.SandboxDeleted
		case holdfast.Aborted, holdfast.FailedPrecondition, holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.ResourceExhausted:
		case holdfast.NotFound:
			if err == nil || !strings.HasPrefix(who, "delete") {
				errs = append(errs, fmt.Errorf("%s was answered %w", who, a.err))
			}
		default:
			errs = append(errs, fmt.Errorf("%s was answered %s: %w", who, code, a.err))
		}
	}
	if deleted && now.State != holdfast.SandboxDeleted {
		errs = append(errs, fmt.Errorf("a delete succeeded, and it is %s", now.State))
	}
	return errors.Join(errs...)
}

// checkCodes holds that nobody was told what no caller should be.
func (w *world) checkCodes() error {
	var errs []error
	for who, a := range w.answers {
		switch holdfast.CodeOf(a.err) {
		case "", holdfast.Aborted, holdfast.FailedPrecondition, holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.ResourceExhausted:
		default:
			errs = append(errs, fmt.Errorf("%s was answered %w", who, a.err))
		}
	}
	return errors.Join(errs...)
}
