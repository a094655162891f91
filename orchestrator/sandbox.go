package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// CreateSandbox creates, carries an unfinished create on, or returns what the
// request id already stands for (contract: A1, A3). Everything about the input is
// checked before the key is reserved (trap T7).
func (s *Service) CreateSandbox(ctx context.Context, caller holdfast.Caller, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	image := ""
	if _, _, named := holdfast.EnvironmentName(in.Environment); in.Source == "" && !named { // what else is decided with the key
		var err error
		if image, err = s.config.Image(in.Environment); err != nil {
			return holdfast.Sandbox{}, err
		}
	}
	f, err := fingerprintOf(in)
	if err != nil {
		return holdfast.Sandbox{}, err
	}
	fresh := s.newRow(caller, in, image)
	return s.pursue(ctx, holdfast.OperationCreate, func(ctx context.Context) (begun, error) {
		return s.beginCreate(ctx, caller, in, f, fresh)
	})
}

// newRow applies the defaults; the fingerprint was taken before.
func (s *Service) newRow(caller holdfast.Caller, in holdfast.CreateSandbox, image string) row {
	if in.TTL == 0 {
		in.TTL = min(holdfast.DefaultTTL, s.config.MaxTTL)
	}
	if in.OnExpiry == "" {
		in.OnExpiry = holdfast.ExpiryDelete
	}
	if in.Restart == "" {
		in.Restart = holdfast.RestartNone
	}
	if in.Egress == "" {
		in.Egress = holdfast.EgressInternet
	}
	id := holdfast.SandboxID(s.config.IDs.New(holdfast.PrefixSandbox))
	resources := in.Resources.WithDefaults()
	return row{
		Sandbox: holdfast.Sandbox{
			ID: id, Name: in.Name, Project: caller.Project, Creator: caller.Name, Environment: in.Environment,
			State: holdfast.SandboxCreating, Incarnation: 1, Instance: holdfast.InstanceID(s.config.IDs.New(holdfast.PrefixInstance)),
			Resources: resources, Egress: in.Egress, Env: in.Env, Labels: in.Labels, TTL: in.TTL, OnExpiry: in.OnExpiry, Restart: in.Restart,
		},
		Shard: shardOf(id),
		Spec:  holdfast.InstanceSpec{Owner: string(id), Image: image, Env: in.Env, Resources: resources, Egress: in.Egress},
	}
}

// SuspendSandbox keeps the sandbox and stops it from running.
func (s *Service) SuspendSandbox(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return s.mutate(ctx, caller, in, holdfast.OperationSuspend)
}

// ResumeSandbox lets a suspended one run on.
func (s *Service) ResumeSandbox(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return s.mutate(ctx, caller, in, holdfast.OperationResume)
}

// DeleteSandbox ends it in any state. Met by a live attempt, the delete is
// recorded as wanted and begun when that ends (contract: A4, A6).
func (s *Service) DeleteSandbox(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return s.mutate(ctx, caller, in, holdfast.OperationDelete)
}

func (s *Service) mutate(ctx context.Context, caller holdfast.Caller, in holdfast.MutateSandbox, verb holdfast.OperationKind) (holdfast.Sandbox, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Sandbox{}, err
	}
	return s.pursue(ctx, verb, func(ctx context.Context) (begun, error) {
		return s.beginMutation(ctx, caller, in, verb)
	})
}

// pursue begins, makes the attempt if there is one to make, and waits a little
// where another's attempt is in the way.
func (s *Service) pursue(ctx context.Context, verb holdfast.OperationKind, begin func(context.Context) (begun, error)) (holdfast.Sandbox, error) {
	patience := time.NewTimer(s.config.HeldWait)
	defer patience.Stop()
	for {
		b, err := begin(ctx)
		var held *heldError
		switch {
		case errors.Is(err, errDoneElsewhere):
			return s.doneElsewhere(ctx, b.row)
		case errors.As(err, &held):
			if rung := s.done.on(held.op.Resource.ID); s.done.await(ctx, rung, patience.C) {
				continue
			}
			return holdfast.Sandbox{}, aborted(row{Sandbox: holdfast.Sandbox{ID: holdfast.SandboxID(held.op.Resource.ID)}}, held.op, held.now)
		case err != nil:
			return holdfast.Sandbox{}, err
		case b.claim == nil && b.row.DeleteWanted && verb == holdfast.OperationDelete:
			s.runner.Stop(b.op.ID)
			if s.done.await(ctx, s.done.on(string(b.row.ID)), patience.C) {
				continue
			}
			return holdfast.Sandbox{}, aborted(b.row, *b.op, s.databaseClock()).With("delete_wanted", "true")
		case b.claim == nil:
			return s.show(b.row, b.op), nil
		}
		r, err := s.attempt(ctx, b)
		switch {
		case errors.Is(err, errDoneElsewhere):
			return s.doneElsewhere(ctx, b.row)
		case holdfast.ReasonOf(err) == holdfast.ReasonPreparing && ctx.Err() == nil:
			// The image takes its time and holds no claim; the caller waits as long
			// as it likes (architecture.md, "Images").
			if s.prepared(ctx, b.row.Instance) {
				begin = s.goOn(b) // with this one: it may be done by then, and something have come after it
				continue
			}
		}
		if err != nil {
			return holdfast.Sandbox{}, err
		}
		return s.show(r, nil), nil
	}
}

// doneElsewhere answers a call whose operation another has finished. Done once is
// done: to begin again could undo what came after it.
func (s *Service) doneElsewhere(ctx context.Context, r row) (holdfast.Sandbox, error) {
	r, op, err := s.read(ctx, holdfast.Caller{Project: r.Project}, r.ID)
	if err != nil {
		return holdfast.Sandbox{}, err
	}
	return s.show(r, op), nil
}

// prepareLook is how often a caller looks whether an image is ready.
const prepareLook = 500 * time.Millisecond

// prepared waits until the instance is past PREPARING, or the caller leaves: its
// own deadline is the limit. It observes only.
func (s *Service) prepared(ctx context.Context, id holdfast.InstanceID) bool {
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) < 2*prepareLook {
		return false // a caller without a deadline gets its answer at once
	}
	tick := time.NewTicker(prepareLook)
	defer tick.Stop()
	for {
		deadline, _ := ctx.Deadline()
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			if time.Until(deadline) < 2*prepareLook {
				return false
			}
			seen, err := s.config.Fleet.GetInstance(ctx, id)
			if err == nil && seen.State != holdfast.InstancePreparing && seen.State != holdfast.InstancePlaced {
				return true
			}
		}
	}
}

// carryOn makes an attempt on whatever is pending on a sandbox and unclaimed.
// Nothing pending, or held by another, is no error.
func (s *Service) carryOn(ctx context.Context, id holdfast.SandboxID) error {
	_, err := s.carryOnUnlessHeld(ctx, id)
	return err
}

// carryOnUnlessHeld is carryOn, which says whether another attempt is at it: then
// nothing was done, and there is no need to look again before that one has ended.
func (s *Service) carryOnUnlessHeld(ctx context.Context, id holdfast.SandboxID) (held bool, err error) {
	var b begun
	err = s.update(ctx, "carry on", func(tx store.Tx, _ time.Time) error {
		b, held = begun{}, false
		r, found, now, err := lockRow(ctx, tx, id)
		if err != nil || !found {
			return err
		}
		pending, has, err := operation.Pending(ctx, tx, r.resource())
		held = err == nil && has && pending.Claimed(now)
		if err != nil || !has || held {
			return err
		}
		b.row, b.op = r, &pending
		if err := s.ownerIssued(ctx, tx, now, r); err != nil {
			return err
		}
		return s.join(ctx, tx, now, &b)
	})
	if err != nil || b.claim == nil {
		return held, err
	}
	if patience.Spent(*b.op) && b.op.Kind != string(holdfast.OperationDelete) {
		return false, s.giveUp(ctx, b)
	}
	_, err = s.attempt(ctx, b)
	if errors.Is(err, errDoneElsewhere) || holdfast.CodeOf(err) == holdfast.FailedPrecondition {
		return false, nil // it ended; the resource says how
	}
	return false, err
}

// carryOnSoon carries on in the background, at once.
func (s *Service) carryOnSoon(id holdfast.SandboxID) {
	s.background.Go(func() {
		if err := s.carryOn(s.ctx, id); err != nil {
			s.config.Logger.Info("an operation stays pending; a sweep carries it on", "sandbox", id, "error", err)
		}
	})
}

// expiryRoom is how many operations that expiry began are carried out at once; the
// others are left to the sweep of pending operations.
const expiryRoom = 64

// carryOnIfRoom carries on in the background, at once, where not many are at it
// already: after downtime everything is overdue (trap T30).
func (s *Service) carryOnIfRoom(id holdfast.SandboxID) {
	select {
	case s.room <- struct{}{}:
	default:
		return
	}
	s.background.Go(func() {
		defer func() { <-s.room }()
		if err := s.carryOn(s.ctx, id); err != nil {
			s.config.Logger.Info("an operation stays pending; a sweep carries it on", "sandbox", id, "error", err)
		}
	})
}

// GetSandbox observes (contract: A5).
func (s *Service) GetSandbox(ctx context.Context, caller holdfast.Caller, id holdfast.SandboxID) (holdfast.Sandbox, error) {
	r, op, err := s.read(ctx, caller, id)
	if err != nil {
		return holdfast.Sandbox{}, err
	}
	s.refreshReach(ctx)
	return s.show(r, op), nil
}

// read is a sandbox of the caller's project with what is pending on it.
func (s *Service) read(ctx context.Context, caller holdfast.Caller, id holdfast.SandboxID) (row, *operation.Operation, error) {
	if err := holdfast.CheckID("id", holdfast.PrefixSandbox, string(id)); err != nil {
		return row{}, nil, err
	}
	var r row
	var pending *operation.Operation
	err := s.view(ctx, "get sandbox", func(tx store.Tx, _ time.Time) error {
		var found bool
		var err error
		r, found, err = oneRow(ctx, tx, `WHERE id = $1`, string(id))
		if err != nil {
			return err
		}
		if !found || r.Project != caller.Project {
			return notFound(id)
		}
		op, has, err := operation.Pending(ctx, tx, r.resource())
		if has {
			pending = &op
		}
		return err
	})
	return r, pending, err
}

// ListSandboxes pages the project's sandboxes, newest first.
func (s *Service) ListSandboxes(ctx context.Context, caller holdfast.Caller, in holdfast.ListSandboxes) (holdfast.SandboxPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.SandboxPage{}, err
	}
	if err := checkToken(in.PageToken, holdfast.PrefixSandbox); err != nil {
		return holdfast.SandboxPage{}, err
	}
	where, args, size := listWhere(caller, in)
	s.refreshReach(ctx)
	var page holdfast.SandboxPage
	err := s.view(ctx, "list sandboxes", func(tx store.Tx, _ time.Time) error {
		page = holdfast.SandboxPage{}
		list, err := rows(ctx, tx, where, args...)
		if err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		for _, r := range list {
			op, has, err := operation.Pending(ctx, tx, r.resource())
			if err != nil {
				return err
			}
			if !has {
				page.Sandboxes = append(page.Sandboxes, s.show(r, nil))
				continue
			}
			page.Sandboxes = append(page.Sandboxes, s.show(r, &op))
		}
		return nil
	})
	return page, err
}

// listWhere selects one page of sandboxes.
func listWhere(caller holdfast.Caller, in holdfast.ListSandboxes) (where string, args []any, size int) {
	states := make([]string, len(in.States))
	for i, state := range in.States {
		states[i] = string(state)
	}
	q := listing{project: caller.Project, after: in.PageToken, size: in.PageSize, states: states, labels: in.Labels, kind: kindSandbox}
	where, args, size = q.where()
	return "WHERE " + where, args, size
}

// listing selects one page of a project's resources of a kind, newest first. Their
// table has columns project, id and state, and labels in the table KIND_label.
type listing struct {
	kind    string
	project holdfast.ProjectID
	after   string   // the last id of the page before
	size    int      // 0: the default
	states  []string // none: all but DELETED
	labels  map[string]string
}

// where asks for one row more than a page holds, which tells whether there is
// another. The token is the last id seen: a page never shifts under the reader.
func (q listing) where() (where string, args []any, size int) {
	if size = q.size; size == 0 {
		size = holdfast.DefaultPageSize
	}
	args = []any{string(q.project)}
	add := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	parts := []string{"project = $1"}
	if q.after != "" {
		parts = append(parts, "id < "+add(q.after))
	}
	if len(q.states) == 0 {
		parts = append(parts, "state <> 'DELETED'")
	} else {
		var marks []string
		for _, state := range q.states {
			marks = append(marks, add(state))
		}
		parts = append(parts, "state IN ("+strings.Join(marks, ", ")+")")
	}
	for _, k := range slices.Sorted(maps.Keys(q.labels)) {
		parts = append(parts, "id IN (SELECT "+q.kind+" FROM "+q.kind+"_label WHERE key = "+add(k)+" AND value = "+add(q.labels[k])+")")
	}
	where = strings.Join(parts, " AND ") + " ORDER BY id DESC LIMIT " + add(size+1)
	return where, args, size
}
