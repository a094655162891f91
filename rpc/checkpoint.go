package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type checkpointHandler struct{ service holdfast.CheckpointService }

func (h checkpointHandler) CreateCheckpoint(ctx context.Context, req *v1.CreateCheckpointRequest) (*v1.Checkpoint, error) {
	in := holdfast.CreateCheckpoint{RequestID: req.GetRequestId(), Source: req.GetSource(), Labels: filled(req.GetLabels())}
	return answer(checkpointToWire)(h.service.CreateCheckpoint(ctx, callerOf(ctx), in))
}

func (h checkpointHandler) GetCheckpoint(ctx context.Context, req *v1.GetCheckpointRequest) (*v1.Checkpoint, error) {
	return answer(checkpointToWire)(h.service.GetCheckpoint(ctx, callerOf(ctx), holdfast.CheckpointID(req.GetId())))
}

func (h checkpointHandler) ListCheckpoints(ctx context.Context, req *v1.ListCheckpointsRequest) (*v1.ListCheckpointsResponse, error) {
	in := holdfast.ListCheckpoints{
		Source: req.GetSource(), Labels: filled(req.GetLabels()), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken(),
		States: each(req.GetStates(), func(s v1.Checkpoint_State) holdfast.CheckpointState {
			return word[holdfast.CheckpointState](v1.Checkpoint_State_name, s)
		}),
	}
	return answer(checkpointsToWire)(h.service.ListCheckpoints(ctx, callerOf(ctx), in))
}

func (h checkpointHandler) DeleteCheckpoint(ctx context.Context, req *v1.DeleteCheckpointRequest) (*v1.Checkpoint, error) {
	in := holdfast.MutateCheckpoint{ID: holdfast.CheckpointID(req.GetId())}
	return answer(checkpointToWire)(h.service.DeleteCheckpoint(ctx, callerOf(ctx), in))
}

type checkpointDialer struct {
	client holdfastv1connect.CheckpointServiceClient
}

func (d checkpointDialer) CreateCheckpoint(ctx context.Context, _ holdfast.Caller, in holdfast.CreateCheckpoint) (holdfast.Checkpoint, error) {
	req := &v1.CreateCheckpointRequest{RequestId: in.RequestID, Source: in.Source, Labels: filled(in.Labels)}
	return call(ctx, "CreateCheckpoint", d.client.CreateCheckpoint, req, checkpointFromWire)
}

func (d checkpointDialer) GetCheckpoint(ctx context.Context, _ holdfast.Caller, id holdfast.CheckpointID) (holdfast.Checkpoint, error) {
	return call(ctx, "GetCheckpoint", d.client.GetCheckpoint, &v1.GetCheckpointRequest{Id: string(id)}, checkpointFromWire)
}

func (d checkpointDialer) ListCheckpoints(ctx context.Context, _ holdfast.Caller, in holdfast.ListCheckpoints) (holdfast.CheckpointPage, error) {
	req := &v1.ListCheckpointsRequest{
		Source: in.Source, Labels: filled(in.Labels), PageSize: pageSize(in.PageSize), PageToken: in.PageToken,
		States: each(in.States, func(s holdfast.CheckpointState) v1.Checkpoint_State {
			return enum[v1.Checkpoint_State](v1.Checkpoint_State_value, s)
		}),
	}
	return call(ctx, "ListCheckpoints", d.client.ListCheckpoints, req, checkpointsFromWire)
}

func (d checkpointDialer) DeleteCheckpoint(ctx context.Context, _ holdfast.Caller, in holdfast.MutateCheckpoint) (holdfast.Checkpoint, error) {
	return call(ctx, "DeleteCheckpoint", d.client.DeleteCheckpoint, &v1.DeleteCheckpointRequest{Id: string(in.ID)}, checkpointFromWire)
}

func checkpointToWire(c holdfast.Checkpoint) *v1.Checkpoint {
	out := &v1.Checkpoint{
		Id: string(c.ID), Project: string(c.Project), Creator: text(c.Creator), Source: c.Source, Sandbox: string(c.Sandbox),
		Environment: text(c.Environment), State: enum[v1.Checkpoint_State](v1.Checkpoint_State_value, c.State),
		Failure: failureToWire(c.Failure), Labels: texts(c.Labels), Size: c.Size, Sha256: c.SHA256,
		CreatedAt: stamp(c.CreatedAt), UpdatedAt: stamp(c.UpdatedAt), DeletedAt: stamp(c.DeletedAt),
	}
	if c.Operation != nil {
		out.Operation = operationToWire(*c.Operation)
	}
	return out
}

func checkpointFromWire(c *v1.Checkpoint) holdfast.Checkpoint {
	out := holdfast.Checkpoint{
		ID: holdfast.CheckpointID(c.GetId()), Project: holdfast.ProjectID(c.GetProject()), Creator: c.GetCreator(), Source: c.GetSource(),
		Sandbox: holdfast.SandboxID(c.GetSandbox()), Environment: c.GetEnvironment(),
		State:   word[holdfast.CheckpointState](v1.Checkpoint_State_name, c.GetState()),
		Failure: failureFromWire(c.GetFailure()), Labels: filled(c.GetLabels()), Size: c.GetSize(), SHA256: c.GetSha256(),
		CreatedAt: instant(c.GetCreatedAt()), UpdatedAt: instant(c.GetUpdatedAt()), DeletedAt: instant(c.GetDeletedAt()),
	}
	if op := c.GetOperation(); op != nil {
		o := operationFromWire(op)
		out.Operation = &o
	}
	return out
}

func checkpointsToWire(page holdfast.CheckpointPage) *v1.ListCheckpointsResponse {
	return &v1.ListCheckpointsResponse{Checkpoints: each(page.Checkpoints, checkpointToWire), NextPageToken: page.NextPageToken}
}

func checkpointsFromWire(page *v1.ListCheckpointsResponse) holdfast.CheckpointPage {
	return holdfast.CheckpointPage{Checkpoints: each(page.GetCheckpoints(), checkpointFromWire), NextPageToken: page.GetNextPageToken()}
}
