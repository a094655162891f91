package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// resolved is what a sandbox of an environment is made of.
type resolved struct {
	Build    holdfast.BuildID // "" where none is needed
	Building bool             // it is not READY yet: who waits for it is told when it ends
	Version  string           // name@version of the recipe; "" where there is none
	// Environment is what the source of a fork was made from; "" where it is no fork.
	Environment string
	Image       string
	Layers      []holdfast.Layer // above the image
	Recipe      holdfast.Recipe  // its defaults, below what a caller says
}

// environmentFor resolves what a create named, in its transaction: the newest build
// that is READY, or BUILDING, which is to be waited for. The build's row is
// share-locked, so that whoever waits for it and its end see each other (trap T53).
func (s *Service) environmentFor(ctx context.Context, tx store.Tx, project holdfast.ProjectID, reference string) (resolved, error) {
	return s.resolve(ctx, tx, lookup{project: project, reference: reference, building: true})
}

// lookup is a name to resolve.
type lookup struct {
	project   holdfast.ProjectID
	reference string
	building  bool // a build that is under way will do
}

// resolve finds the newest build that will do of what is named; what needs no recipe
// needs no build.
func (s *Service) resolve(ctx context.Context, tx store.Tx, l lookup) (resolved, error) {
	name, version, named := holdfast.EnvironmentName(l.reference)
	if !named {
		image, err := s.config.Image(l.reference)
		return resolved{Image: image}, err
	}
	e, found, err := oneEnvironment(ctx, tx, l.project, name, "")
	switch {
	case err != nil:
		return resolved{}, err
	case !found:
		return resolved{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage,
			`there is no environment %q in this project, and no such base: there are "base", "debian", "debian:SUITE", "oci:REFERENCE", and what holdfast env create makes`, name).
			With("environment", name)
	case !e.DeletedAt.IsZero():
		return resolved{}, deletedEnvironment(e)
	}
	if version != 0 {
		if err := asOf(ctx, tx, &e, version); err != nil {
			return resolved{}, err
		}
	}
	return s.newestBuild(ctx, tx, e, version, l)
}

// newestBuild locks the newest build that will do. One that ended between the look
// and the lock is looked for anew: each turn follows another's commit (trap T8).
func (s *Service) newestBuild(ctx context.Context, tx store.Tx, e holdfast.Environment, version int64, l lookup) (resolved, error) {
	states := `state = 'READY'`
	if l.building {
		states = `(state = 'READY' OR state = 'BUILDING')`
	}
	for range 4 {
		found, err := gather(ctx, tx, scanBuild, `SELECT `+buildColumns+` FROM environment_build WHERE environment = $1 AND ($2 = 0 OR version = $2)
			AND `+states+` ORDER BY version DESC, id DESC LIMIT 1`, string(e.ID), version)
		if err != nil {
			return resolved{}, err
		}
		if len(found) == 0 {
			return resolved{}, s.unbuilt(ctx, tx, e, version)
		}
		b, there, err := oneBuild(ctx, tx, found[0].ID, tx.ForShare())
		if err != nil {
			return resolved{}, err
		}
		if !there || b.State != holdfast.BuildReady && (b.State != holdfast.BuildBuilding || !l.building) {
			continue
		}
		recipe, err := recipeOf(ctx, tx, b)
		return b.resolved(recipe), err
	}
	return resolved{}, holdfast.E(holdfast.Aborted, holdfast.ReasonConflict, "the builds of %s keep changing: retry", e.Name).Retry(time.Second)
}

// resolved is what is made of a build.
func (b buildRow) resolved(recipe holdfast.Recipe) resolved {
	return resolved{Build: b.ID, Building: b.State == holdfast.BuildBuilding, Version: fmt.Sprintf("%s@%d", b.Name, b.Version),
		Image: b.Image, Layers: b.Layers, Recipe: recipe}
}

// unbuilt says why an environment has no build that will do, and what helps.
func (s *Service) unbuilt(ctx context.Context, tx store.Tx, e holdfast.Environment, version int64) error {
	last, err := gather(ctx, tx, scanBuild, `SELECT `+buildColumns+` FROM environment_build WHERE environment = $1 AND ($2 = 0 OR version = $2)
		ORDER BY id DESC LIMIT 1`, string(e.ID), version)
	if err != nil {
		return err
	}
	reference := e.Name
	if version != 0 {
		reference = fmt.Sprintf("%s@%d", e.Name, version)
	}
	refused := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "environment %s is not built: holdfast env build %s", reference, reference).
		On(string(e.ID))
	if len(last) == 0 {
		return refused
	}
	switch b := last[0]; b.State {
	case holdfast.BuildBuilding:
		refused.Message = fmt.Sprintf("environment %s is being built (%s): wait until that is READY: holdfast env logs %s --follow", reference, b.ID, b.ID)
	case holdfast.BuildFailed:
		refused.Reason = holdfast.ReasonBuildFailed
		refused.Message = fmt.Sprintf("environment %s has no build that is READY; the last one, %s, failed: %s", reference, b.ID, b.Failure.Message)
	}
	return refused.With("build", string(last[0].ID))
}

// apply makes a new sandbox of what was resolved: what the caller sent comes first,
// the recipe's defaults second.
func (in resolved) apply(r *row, sent holdfast.CreateSandbox) {
	r.Spec.Image, r.Spec.Layers = in.Image, in.Layers
	if in.Version == "" {
		return
	}
	r.Environment = in.Version
	env := over(in.Recipe.Env, sent.Env)
	resources := inherited(sent.Resources, in.Recipe.Resources).WithDefaults()
	if sent.Egress == "" && in.Recipe.Egress != "" {
		r.Egress = in.Recipe.Egress
	}
	if sent.Restart == "" && in.Recipe.Restart != "" {
		r.Restart = in.Recipe.Restart
	}
	r.Env, r.Resources, r.Workdir, r.User = env, resources, in.Recipe.Workdir, in.Recipe.User
	r.Spec.Env, r.Spec.Resources, r.Spec.Egress = env, resources, r.Egress
}
