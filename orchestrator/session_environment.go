package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// checkpointFor resolves what a fork is made of, in its transaction: the checkpoint is
// share-locked, so that its delete and the fork see each other (trap T53). A fork of a
// session has the settings and the hooks of that one, and nothing else but what was on
// its disk (trap T50).
func (s *Service) checkpointFor(ctx context.Context, tx store.Tx, project holdfast.ProjectID, id holdfast.CheckpointID) (resolved, error) {
	c, found, err := oneCheckpoint(ctx, tx, id, tx.ForShare())
	if err != nil {
		return resolved{}, err
	}
	if !found || c.Project != project {
		return resolved{}, noCheckpoint(id)
	}
	if err := forkable(c, holdfast.CreateSandbox{Source: id}); err != nil {
		return resolved{}, err
	}
	made := resolved{Image: c.Spec.Image, Layers: c.Spec.Layers, Environment: c.Environment,
		Recipe: holdfast.Recipe{Env: c.Spec.Env, Resources: c.Spec.Resources, Egress: c.Spec.Egress,
			Workdir: c.Spec.Workdir, User: c.Spec.User}}
	source, found, err := oneSession(ctx, tx, `WHERE id = $1`, c.Checkpoint.Source)
	if found {
		made.Recipe.Hooks = source.Shape.Hooks
	}
	return made, err
}

// buildEnd is how a build ended.
type buildEnd struct {
	made    resolved          // READY
	failure *holdfast.Failure // FAILED, or SUPERSEDED by none that is left
	newer   holdfast.BuildID  // SUPERSEDED, by this one
}

// endOfBuild is how a build ended, its row locked; nil while it is BUILDING.
func (s *Service) endOfBuild(ctx context.Context, tx store.Tx, id holdfast.BuildID) (*buildEnd, error) {
	b, found, _, err := lockBuild(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	if !found {
		return &buildEnd{failure: &holdfast.Failure{Reason: holdfast.ReasonBuildFailed, Message: fmt.Sprintf("there is no build %s", id)}}, nil
	}
	return s.endOf(ctx, tx, b)
}

// endOf is how a locked build ended, for those who wait for it.
func (s *Service) endOf(ctx context.Context, tx store.Tx, b buildRow) (*buildEnd, error) {
	switch b.State {
	case holdfast.BuildReady:
		recipe, err := recipeOf(ctx, tx, b)
		return &buildEnd{made: b.resolved(recipe)}, err
	case holdfast.BuildFailed:
		return &buildEnd{failure: b.Failure}, nil
	case holdfast.BuildSuperseded:
		return &buildEnd{newer: b.SupersededBy}, nil
	}
	return nil, nil
}

// advanceWaiting lets go on what waits for a build that has ended, in the transaction
// that ends it: the build's row is locked (contract: E2).
func (s *Service) advanceWaiting(ctx context.Context, u *unit, now time.Time, b buildRow) error {
	end, err := s.endOf(ctx, u, b)
	if err != nil || end == nil {
		return err
	}
	_, err = s.follow(ctx, u, now, waitedFor{b.ID, *end})
	return err
}
