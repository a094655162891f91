package hostagent

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// EnsureCheckpoint implements holdfast.HostService.
func (a *Agent) EnsureCheckpoint(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable,
		"this host takes no checkpoints").On(string(l.Instance))
}
