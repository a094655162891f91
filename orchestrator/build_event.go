package orchestrator

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// buildObject is what an event says of a build.
type buildObject struct {
	ID           holdfast.BuildID       `json:"id"`
	Environment  holdfast.EnvironmentID `json:"environment"`
	Name         string                 `json:"name"` // of the environment
	Version      int64                  `json:"version"`
	State        holdfast.BuildState    `json:"state"`
	SupersededBy holdfast.BuildID       `json:"superseded_by,omitempty"`
	Failure      *holdfast.Failure      `json:"failure,omitempty"`
}

// buildEvent is the kind of a change between two recorded states, of which the first is
// "" for a new build; "" when it is none. It is pure.
func buildEvent(from, to holdfast.BuildState) holdfast.EventKind {
	if from == to {
		return ""
	}
	switch to {
	case holdfast.BuildBuilding:
		return holdfast.EventBuildBuilding
	case holdfast.BuildReady:
		return holdfast.EventBuildReady
	case holdfast.BuildFailed:
		return holdfast.EventBuildFailed
	case holdfast.BuildSuperseded:
		return holdfast.EventBuildSuperseded
	}
	return ""
}

// tell emits the change since the build was read or saved last, if it is one.
func (b *buildRow) tell(ctx context.Context, tx store.Tx, now time.Time) error {
	kind := buildEvent(b.was, b.State)
	b.was = b.State
	return emitIn(ctx, tx, now, news{project: b.Project, kind: kind, resource: string(b.ID), object: buildObject{
		ID: b.ID, Environment: b.Environment, Name: b.Name, Version: b.Version, State: b.State, SupersededBy: b.SupersededBy, Failure: b.Failure}})
}
