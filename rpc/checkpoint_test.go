package rpc_test

import (
	"context"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

func (e echo) CreateCheckpoint(_ context.Context, _ holdfast.Caller, in holdfast.CreateCheckpoint) (holdfast.Checkpoint, error) {
	e.asked <- in
	return filled[holdfast.Checkpoint](), nil
}

func (e echo) GetCheckpoint(_ context.Context, _ holdfast.Caller, id holdfast.CheckpointID) (holdfast.Checkpoint, error) {
	e.asked <- id
	return filled[holdfast.Checkpoint](), nil
}

func (e echo) ListCheckpoints(_ context.Context, _ holdfast.Caller, in holdfast.ListCheckpoints) (holdfast.CheckpointPage, error) {
	e.asked <- in
	return filled[holdfast.CheckpointPage](), nil
}

func (e echo) DeleteCheckpoint(_ context.Context, _ holdfast.Caller, in holdfast.MutateCheckpoint) (holdfast.Checkpoint, error) {
	e.asked <- in
	return filled[holdfast.Checkpoint](), nil
}

func TestNoFieldOfACheckpointIsLostOnTheWayThereOrBack(t *testing.T) {
	e := echo{clienttest.New(), make(chan any, 8)}
	services, ctx, nobody := serve(t, rpc.Services{Checkpoints: e}).Checkpoints, t.Context(), holdfast.Caller{}
	checkpoint := filled[holdfast.Checkpoint]()

	create := filled[holdfast.CreateCheckpoint]()
	got, err := services.CreateCheckpoint(ctx, nobody, create)
	same(t, "Checkpoint", got, err, checkpoint)
	same[any](t, "CreateCheckpoint", e.last(t), nil, create)

	got, err = services.GetCheckpoint(ctx, nobody, "ck-1")
	same(t, "Checkpoint", got, err, checkpoint)
	same[any](t, "id", e.last(t), nil, holdfast.CheckpointID("ck-1"))

	list := filled[holdfast.ListCheckpoints]()
	page, err := services.ListCheckpoints(ctx, nobody, list)
	same(t, "CheckpointPage", page, err, filled[holdfast.CheckpointPage]())
	same[any](t, "ListCheckpoints", e.last(t), nil, list)

	got, err = services.DeleteCheckpoint(ctx, nobody, holdfast.MutateCheckpoint{ID: "ck-1"})
	same(t, "Checkpoint", got, err, checkpoint)
	same[any](t, "MutateCheckpoint", e.last(t), nil, holdfast.MutateCheckpoint{ID: "ck-1"})
}
