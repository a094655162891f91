package orchestrator

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// checkpointObject is what an event says of a checkpoint.
type checkpointObject struct {
	ID      holdfast.CheckpointID    `json:"id"`
	Source  string                   `json:"source"`
	State   holdfast.CheckpointState `json:"state"`
	Size    int64                    `json:"size,omitempty"`
	Labels  map[string]string        `json:"labels,omitempty"`
	Failure *holdfast.Failure        `json:"failure,omitempty"`
}

// checkpointEvent is the kind of a change between two recorded states; "" when it is
// none. It is pure.
func checkpointEvent(from, to holdfast.CheckpointState) holdfast.EventKind {
	if from == to {
		return ""
	}
	switch to {
	case holdfast.CheckpointReady:
		return holdfast.EventCheckpointReady
	case holdfast.CheckpointFailed:
		return holdfast.EventCheckpointFailed
	case holdfast.CheckpointDeleting:
		return holdfast.EventCheckpointDeleting
	case holdfast.CheckpointDeleted:
		return holdfast.EventCheckpointDeleted
	}
	return ""
}

// tell emits a change of a checkpoint.
func (c checkpoint) tell(ctx context.Context, tx store.Tx, now time.Time, kind holdfast.EventKind) error {
	object := checkpointObject{ID: c.ID, Source: c.Source, State: c.State, Size: c.Size, Labels: c.Labels, Failure: c.Failure}
	return emitIn(ctx, tx, now, news{project: c.Project, kind: kind, resource: string(c.ID), object: object})
}
