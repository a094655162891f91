package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// methodBuildEnvironment scopes request ids, with the project (contract: A3).
const methodBuildEnvironment = "BuildEnvironment"

// errBaseChanged says that an environment got another base while it was looked up.
var errBaseChanged = errors.New("the environment's base changed")

// BuildEnvironment begins a build and returns it; it goes on by itself. The same
// request id is the same build, as it is now (contract: A3). Unfinished builds of the
// same or an older version give way to it.
func (s *Service) BuildEnvironment(ctx context.Context, caller holdfast.Caller, in holdfast.BuildEnvironment) (holdfast.Build, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Build{}, err
	}
	f, err := fingerprintOfFields(field{"environment", true, in.Environment})
	if err != nil {
		return holdfast.Build{}, err
	}
	key := requestKey{project: caller.Project, method: methodBuildEnvironment, id: in.RequestID}
	for range 3 {
		begin := buildBegin{caller: caller, in: in, key: key, print: f}
		if begin.known, begin.base, err = s.lookUpBuild(ctx, begin); err != nil {
			return holdfast.Build{}, err
		}
		if begin.known == "" {
			if begin.image, err = s.pin(ctx, begin.base); err != nil {
				return holdfast.Build{}, err
			}
		}
		var out holdfast.Build
		if out, err = s.beginBuild(ctx, begin); !errors.Is(err, errBaseChanged) {
			return out, err
		}
	}
	return holdfast.Build{}, holdfast.E(holdfast.Aborted, holdfast.ReasonConflict, "the recipe of %s keeps changing: look, then build again", in.Environment)
}

// buildBegin is a build that is about to be recorded.
type buildBegin struct {
	caller holdfast.Caller
	in     holdfast.BuildEnvironment
	key    requestKey
	print  fingerprint
	known  holdfast.BuildID // that the key was used for already
	base   string           // of the recipe, as it was looked up
	image  string           // that the base is now
}

// lookUpBuild finds what the key was used for, or the base of the recipe to build.
func (s *Service) lookUpBuild(ctx context.Context, b buildBegin) (known holdfast.BuildID, base string, err error) {
	err = s.view(ctx, "look up build", func(tx store.Tx, _ time.Time) error {
		resource, found, err := lookUp(ctx, tx, b.key, b.print)
		if err != nil || found {
			known = holdfast.BuildID(resource)
			return err
		}
		e, err := buildable(ctx, tx, b.caller, b.in.Environment, "")
		base = e.Recipe.Base
		return err
	})
	return known, base, err
}

// buildable is the version of an environment that a reference names, if it can be built.
func buildable(ctx context.Context, tx store.Tx, caller holdfast.Caller, reference, lock string) (holdfast.Environment, error) {
	name, version, _ := holdfast.EnvironmentName(reference)
	e, found, err := oneEnvironment(ctx, tx, caller.Project, name, lock)
	switch {
	case err != nil:
		return e, err
	case !found:
		return e, noEnvironment(name)
	case !e.DeletedAt.IsZero():
		return e, deletedEnvironment(e)
	}
	return e, asOf(ctx, tx, &e, version)
}

func deletedEnvironment(e holdfast.Environment) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "environment %s is deleted: create it again", e.Name).On(string(e.ID))
}

// pin is the image reference of a base, with the digest of what it is now where it
// has one.
func (s *Service) pin(ctx context.Context, base string) (string, error) {
	image, err := s.config.Image(base)
	if err != nil || s.config.Pin == nil {
		return image, err
	}
	return s.config.Pin(ctx, image)
}

// beginBuild records a build, its builder and both operations in one transaction, or
// returns the build that the key already has.
func (s *Service) beginBuild(ctx context.Context, in buildBegin) (holdfast.Build, error) {
	out, err := s.tryBuild(ctx, in, row.take)
	if errors.Is(err, errShardFull) {
		return s.tryBuild(ctx, in, row.takeFromAll)
	}
	return out, err
}

func (s *Service) tryBuild(ctx context.Context, in buildBegin, count func(row, context.Context, store.Tx) error) (holdfast.Build, error) {
	id := holdfast.BuildID(s.config.IDs.New(holdfast.PrefixBuild))
	var out holdfast.Build
	err := s.update(ctx, "build environment", func(tx store.Tx, now time.Time) error {
		out = holdfast.Build{}
		existing, err := reserve(ctx, tx, now, in.key, in.print, string(id))
		if err != nil {
			return err
		}
		if existing != "" {
			out, err = s.repeatedBuild(ctx, tx, in.caller, holdfast.BuildID(existing))
			return err
		}
		e, err := buildable(ctx, tx, in.caller, in.in.Environment, tx.ForUpdate())
		if err != nil {
			return err
		}
		if e.Recipe.Base != in.base {
			return errBaseChanged
		}
		if now, err = tx.Now(ctx); err != nil { // the environment was waited for
			return err
		}
		b := buildRow{Build: holdfast.Build{ID: id, Project: in.caller.Project, Environment: e.ID, Name: e.Name, Version: e.Version,
			State: holdfast.BuildBuilding, Image: in.image, CreatedAt: now, UpdatedAt: now, Deadline: now.Add(timeoutOf(e.Recipe))}}
		out, err = s.recordBuild(ctx, tx.(*unit), now, &recording{build: &b, recipe: e.Recipe, caller: in.caller, count: count})
		return err
	})
	return out, err
}

func timeoutOf(recipe holdfast.Recipe) time.Duration {
	if recipe.Timeout > 0 {
		return recipe.Timeout
	}
	return holdfast.BuildTimeout
}

// repeatedBuild is what a known key stands for, as it is now.
func (s *Service) repeatedBuild(ctx context.Context, tx store.Tx, caller holdfast.Caller, id holdfast.BuildID) (holdfast.Build, error) {
	b, found, err := oneBuild(ctx, tx, id, "")
	if err != nil {
		return holdfast.Build{}, err
	}
	if !found { // purged: the key alone is kept (contract: A3, trap T5)
		return holdfast.Build{ID: id, Project: caller.Project, State: holdfast.BuildFailed,
			Failure: &holdfast.Failure{Reason: holdfast.ReasonUnknown, Message: "it ended long ago, and its record is purged"}}, nil
	}
	return s.showPending(ctx, tx, b)
}

// recording is a build to record.
type recording struct {
	build  *buildRow
	recipe holdfast.Recipe
	caller holdfast.Caller
	count  func(row, context.Context, store.Tx) error
}

// needsBuilder reports whether a recipe has anything to do inside an instance.
func needsBuilder(recipe holdfast.Recipe) bool {
	return recipe.Setup != "" || len(recipe.Files) > 0 || recipe.Workdir != ""
}

// recordBuild writes a build of a locked environment down: with its builder, which is
// on its way once this is committed, or READY at once where none is needed.
func (s *Service) recordBuild(ctx context.Context, u *unit, now time.Time, in *recording) (holdfast.Build, error) {
	b := in.build
	operationID := s.config.IDs.New(holdfast.PrefixOperation)
	if err := s.supersedeBuilds(ctx, u, now, superseding{build: *b, operation: operationID}); err != nil {
		return holdfast.Build{}, err
	}
	if !needsBuilder(in.recipe) {
		b.State, b.FinishedAt, b.Cleared = holdfast.BuildReady, now, true
		if err := errors.Join(b.insert(ctx, u), b.outdated(ctx, u)); err != nil {
			return holdfast.Build{}, err
		}
		return b.Build, s.advanceWaiting(ctx, u, now, *b)
	}
	builder := s.newBuilder(in.caller, *b, in.recipe)
	b.Sandbox = builder.ID
	builder.CreatedAt, builder.MintedAt, builder.UpdatedAt, builder.Generation = now, now, now, 1
	if err := errors.Join(b.insert(ctx, u), builder.insert(ctx, u)); err != nil {
		return holdfast.Build{}, err
	}
	op, err := operation.Record(ctx, u, now, operation.Intent{ID: operationID, Resource: b.resource(), Kind: string(holdfast.OperationBuild),
		Generation: 1, Deadline: b.Deadline})
	if err != nil {
		return holdfast.Build{}, err
	}
	create := intent{id: derivedOperation(operationID, 1), verb: holdfast.OperationCreate}
	if _, err := operation.Record(ctx, u, now, create.on(builder, now)); err != nil {
		return holdfast.Build{}, err
	}
	u.soon(func() { s.carryOnSoon(builder.ID) })
	return s.showBuild(*b, &op), in.count(builder, ctx, u)
}

// derivedOperation is the id of the n-th operation on what another operation owns: one
// id for all attempts.
func derivedOperation(id string, n byte) string {
	const digits = "0123456789abcdefghjkmnpqrstvwxyz"
	last := strings.IndexByte(digits, id[len(id)-1])
	return id[:len(id)-1] + string(digits[(last+int(n)*4)%len(digits)])
}

// newBuilder is the sandbox that a build runs its setup in. It reaches the internet
// whatever the recipe says of what is made from it, since a setup installs things.
func (s *Service) newBuilder(caller holdfast.Caller, b buildRow, recipe holdfast.Recipe) row {
	r := s.newRow(caller, holdfast.CreateSandbox{Name: fmt.Sprintf("build of %s@%d", b.Name, b.Version), Environment: recipe.Base,
		Env: recipe.Env, Resources: recipe.Resources}, b.Image)
	r.Owner = string(b.ID)
	return r
}

// GetBuild observes.
func (s *Service) GetBuild(ctx context.Context, caller holdfast.Caller, id holdfast.BuildID) (holdfast.Build, error) {
	if err := holdfast.CheckID("id", holdfast.PrefixBuild, string(id)); err != nil {
		return holdfast.Build{}, err
	}
	var out holdfast.Build
	err := s.view(ctx, "get build", func(tx store.Tx, _ time.Time) error {
		b, found, err := oneBuild(ctx, tx, id, "")
		if err != nil {
			return err
		}
		if !found || b.Project != caller.Project {
			return noBuild(id)
		}
		out, err = s.showPending(ctx, tx, b)
		return err
	})
	return out, err
}

func noBuild(id holdfast.BuildID) *holdfast.Error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no build %s in this project", id).On(string(id))
}

// ListBuilds pages a project's builds, or one environment's, newest first.
func (s *Service) ListBuilds(ctx context.Context, caller holdfast.Caller, in holdfast.ListBuilds) (holdfast.BuildPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.BuildPage{}, err
	}
	if err := checkToken(in.PageToken, holdfast.PrefixBuild); err != nil {
		return holdfast.BuildPage{}, err
	}
	size := in.PageSize
	if size == 0 {
		size = holdfast.DefaultPageSize
	}
	where, args := `project = $1`, []any{string(caller.Project)}
	add := func(condition, value string) {
		args = append(args, value)
		where += fmt.Sprintf(condition, len(args))
	}
	if in.PageToken != "" {
		add(` AND id < $%d`, in.PageToken)
	}
	if in.Environment != "" {
		add(` AND name = $%d`, in.Environment)
	}
	var page holdfast.BuildPage
	err := s.view(ctx, "list builds", func(tx store.Tx, _ time.Time) error {
		page = holdfast.BuildPage{}
		list, err := gather(ctx, tx, scanBuild, fmt.Sprintf(`SELECT `+buildColumns+` FROM environment_build WHERE `+where+` ORDER BY id DESC LIMIT %d`, size+1), args...)
		if err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		for _, b := range list {
			shown, err := s.showPending(ctx, tx, b)
			if err != nil {
				return err
			}
			page.Builds = append(page.Builds, shown)
		}
		return nil
	})
	return page, err
}

func (s *Service) showPending(ctx context.Context, tx store.Tx, b buildRow) (holdfast.Build, error) {
	if b.State != holdfast.BuildBuilding {
		return b.Build, nil
	}
	op, has, err := operation.Pending(ctx, tx, b.resource())
	if err != nil || !has {
		return b.Build, err
	}
	out := s.showBuild(b, &op)
	if out.Operation.WaitsFor != string(stepBuilder) || b.Sandbox == "" {
		return out, nil
	}
	builder, has, err := operation.Pending(ctx, tx, operation.Resource{Kind: kindSandbox, ID: string(b.Sandbox)})
	if err == nil && has {
		waitsForBuilder(out.Operation, showOperation(builder, s.databaseClock(), false))
	}
	return out, err
}

// showBuild is a build with what is pending, and what that waits for.
func (s *Service) showBuild(b buildRow, pending *operation.Operation) holdfast.Build {
	out := b.Build
	op := showOperation(*pending, s.databaseClock(), false)
	if op.WaitsFor == "" && op.Claim == nil {
		op.WaitsFor = string(stepBuilder)
		if b.Prepared {
			op.WaitsFor = string(stepSetup)
		}
	}
	out.Operation = &op
	return out
}

// waitsForBuilder says what a builder that a build waits for is waiting for itself, and
// what it met.
func waitsForBuilder(op *holdfast.Operation, builder holdfast.Operation) {
	if builder.WaitsFor != "" {
		op.WaitsFor += ", and that for the " + builder.WaitsFor
	}
	if op.LastError == nil {
		op.LastError = builder.LastError
	}
}
