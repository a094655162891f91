package orchestrator

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// methodCreateSession scopes request ids, with the project (contract: A3).
const methodCreateSession = "CreateSession"

// CreateSession creates, carries an unfinished create on, or returns what the request
// id already stands for (contract: A3). A session whose environment is being built is
// WAITING, and is created when the build is READY (contract: E2).
func (s *Service) CreateSession(ctx context.Context, caller holdfast.Caller, in holdfast.CreateSession) (holdfast.Session, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Session{}, err
	}
	f, err := sessionFingerprint(in)
	if err != nil {
		return holdfast.Session{}, err
	}
	id := holdfast.SessionID(s.config.IDs.New(holdfast.PrefixSession))
	return s.pursueSession(ctx, caller, func(ctx context.Context) (ruling, error) {
		a, err := s.tryCreateSession(ctx, caller, in, f, id, row.take)
		if errors.Is(err, errShardFull) {
			return s.tryCreateSession(ctx, caller, in, f, id, row.takeFromAll)
		}
		return a, err
	})
}

// sessionFingerprint hashes the explicit list of fields of a create, as sent.
func sessionFingerprint(in holdfast.CreateSession) (fingerprint, error) {
	return fingerprintOfFields(
		field{"environment", in.Environment != "", in.Environment},
		field{"source", in.Source != "", in.Source},
		field{"name", in.Name != "", in.Name},
		field{"idle", in.Idle != 0, int64(in.Idle)},
		field{"restart", in.Restart != "", in.Restart},
		field{"env", len(in.Env) > 0, in.Env},
		field{"labels", len(in.Labels) > 0, in.Labels},
		field{"resources.cpu_millis", in.Resources.CPUMillis != 0, in.Resources.CPUMillis},
		field{"resources.memory_bytes", in.Resources.MemoryBytes != 0, in.Resources.MemoryBytes},
		field{"resources.pids", in.Resources.PIDs != 0, in.Resources.PIDs},
		field{"egress", in.Egress != "", in.Egress},
		field{"repository", in.Repository != nil, in.Repository},
	)
}

// tryCreateSession is the transaction of a create: the key, the session, and its
// sandbox where there is nothing to wait for. It share-locks the build, so that a
// session that starts waiting and the build's end see each other (trap T53).
func (s *Service) tryCreateSession(ctx context.Context, caller holdfast.Caller, in holdfast.CreateSession, f fingerprint, id holdfast.SessionID,
	count func(row, context.Context, store.Tx) error) (ruling, error) {
	key := requestKey{project: caller.Project, method: methodCreateSession, id: in.RequestID}
	var a ruling
	err := s.update(ctx, "create session", func(tx store.Tx, now time.Time) error {
		a = ruling{}
		existing, err := reserve(ctx, tx, now, key, f, string(id))
		if err != nil {
			return err
		}
		if existing != "" {
			a, err = s.repeatedSession(ctx, tx.(*unit), caller, holdfast.SessionID(existing))
			return err
		}
		made, err := s.madeOf(ctx, tx, caller.Project, in)
		if err != nil {
			return err // and with it the key
		}
		h := held{sessionRow: s.newSession(caller, in, id, made, now)}
		intent := s.intent(holdfast.OperationCreate)
		if !made.Building {
			box := s.boxFor(h.sessionRow, made, now)
			h.box, h.Sandbox, h.Incarnation, h.State = &box, box.ID, box.Incarnation, holdfast.SessionCreating
		}
		if err := h.sessionRow.insert(ctx, tx); err != nil {
			return err
		}
		if err := s.recordCreate(ctx, tx, now, &h, intent); err != nil {
			return err
		}
		a = ruling{row: h.sessionRow, op: h.pending, follow: intent.id}
		if h.box == nil {
			return nil
		}
		if err := s.prepareSession(ctx, tx.(*unit), now, h.sessionRow); err != nil {
			return err
		}
		return count(*h.box, ctx, tx)
	})
	return a, err
}

// madeOf resolves what a session is made of: its environment's newest build, or a
// checkpoint.
func (s *Service) madeOf(ctx context.Context, tx store.Tx, project holdfast.ProjectID, in holdfast.CreateSession) (resolved, error) {
	if in.Source != "" {
		return s.checkpointFor(ctx, tx, project, in.Source)
	}
	return s.environmentFor(ctx, tx, project, in.Environment)
}

// repeatedSession is a create whose key is known already.
func (s *Service) repeatedSession(ctx context.Context, u *unit, caller holdfast.Caller, id holdfast.SessionID) (ruling, error) {
	h, found, now, err := lockSession(ctx, u, id)
	if err != nil {
		return ruling{}, err
	}
	if !found { // purged: the key alone is kept (contract: A3, trap T5)
		return ruling{row: sessionRow{Session: holdfast.Session{ID: id, Project: caller.Project, State: holdfast.SessionDeleted}}}, nil
	}
	return s.decideAsked(ctx, u, now, &h, intent{verb: holdfast.OperationCreate})
}

// newSession applies the defaults; the fingerprint was taken before. What the caller
// does not say is as the environment's recipe has it.
func (s *Service) newSession(caller holdfast.Caller, in holdfast.CreateSession, id holdfast.SessionID, made resolved, now time.Time) sessionRow {
	if in.Idle == 0 {
		in.Idle = holdfast.DefaultIdle
	}
	r := sessionRow{
		Session: holdfast.Session{
			ID: id, Name: in.Name, Project: caller.Project, Creator: caller.Name, Environment: in.Environment, Build: made.Build, Source: in.Source,
			State: holdfast.SessionWaiting, Generation: 1, Labels: in.Labels, Idle: in.Idle, ActiveAt: now, CreatedAt: now, UpdatedAt: now,
		},
		Shape: shape{Restart: in.Restart, Env: in.Env, Resources: in.Resources, Egress: in.Egress, Repository: in.Repository},
	}
	if made.Environment != "" {
		r.Environment = made.Environment
	}
	if !made.Building {
		r.Shape = r.Shape.under(made.Recipe)
	}
	r.Restart, r.Env, r.Repository = r.Shape.Restart, r.Shape.Env, r.Shape.Repository
	return r
}

// under fills what the create left open from a recipe.
func (sh shape) under(recipe holdfast.Recipe) shape {
	if sh.Restart == "" {
		sh.Restart = recipe.Restart
	}
	if sh.Egress == "" {
		sh.Egress = recipe.Egress
	}
	if sh.Repository == nil {
		sh.Repository = recipe.Repository
	}
	sh.Env = over(recipe.Env, sh.Env)
	for _, limit := range []struct {
		own  *int64
		from int64
	}{
		{&sh.Resources.CPUMillis, recipe.Resources.CPUMillis}, {&sh.Resources.MemoryBytes, recipe.Resources.MemoryBytes},
		{&sh.Resources.PIDs, recipe.Resources.PIDs},
	} {
		if *limit.own == 0 {
			*limit.own = limit.from
		}
	}
	sh.Hooks = recipe.Hooks
	return sh
}

// boxFor is the sandbox that a session gets, which belongs to it. It is a new one with
// an identity of its own, a fork's too (trap T50).
func (s *Service) boxFor(r sessionRow, made resolved, now time.Time) row {
	caller := holdfast.Caller{Project: r.Project, Name: r.Creator}
	box := s.newRow(caller, holdfast.CreateSandbox{Environment: r.Environment, Name: r.Name, Restart: r.Shape.Restart, Env: r.Shape.Env,
		Resources: r.Shape.Resources, Egress: r.Shape.Egress}, made.Image)
	box.Owner, box.Source, box.Spec.Layers = string(r.ID), r.Source, made.Layers
	box.Workdir, box.User = made.Recipe.Workdir, made.Recipe.User
	box.Generation, box.CreatedAt, box.MintedAt, box.UpdatedAt = 1, now, now, now
	return box
}

// recordCreate records a session's create: as one that waits for its build, or as one
// that its sandbox's carries out, which is recorded with it.
func (s *Service) recordCreate(ctx context.Context, tx store.Tx, now time.Time, h *held, in intent) error {
	recorded := in.as(h.sessionRow.resource(), h.Generation, now)
	recorded.Issued, recorded.WaitsFor = h.box != nil, string(stageBuild)
	if h.box != nil {
		recorded.WaitsFor = string(stageSandbox)
	}
	op, err := operation.Record(ctx, tx, now, recorded)
	if err != nil {
		return err
	}
	h.pending = &op
	if h.box == nil {
		return nil
	}
	if err := errors.Join(h.box.insert(ctx, tx), useLayers(ctx, tx, string(h.box.ID), h.box.Spec.Layers)); err != nil {
		return err
	}
	carrier := intent{id: carrierOf(in.id), verb: holdfast.OperationCreate}
	_, err = operation.Record(ctx, tx, now, carrier.on(*h.box, now))
	return err
}

// prepareSession enqueues what a new session begins with, in the transaction that
// gives it its sandbox (contract: E2).
func (s *Service) prepareSession(ctx context.Context, u *unit, now time.Time, r sessionRow) error {
	if r.Shape.Repository == nil {
		return nil
	}
	return s.enqueueSystemTask(ctx, u, now, r, prepareScript(*r.Shape.Repository), prepareLimit)
}

// failSession makes a session FAILED, and what it runs on too, which gives its
// resources back. Both are locked.
func (s *Service) failSession(ctx context.Context, u *unit, now time.Time, h *held, failure *holdfast.Failure) error {
	if h.box != nil && holds(h.box.State) && h.box.State != holdfast.SandboxDeleting {
		return s.failRow(ctx, u, now, h.box, failure) // which the session follows
	}
	if h.State == holdfast.SessionDeleting || h.State == holdfast.SessionDeleted || h.State == holdfast.SessionFailed {
		return nil
	}
	return s.apply(ctx, u, now, h, following{state: h.State}.fail(failure))
}
