package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type environmentHandler struct{ service holdfast.EnvironmentService }

func (h environmentHandler) CreateEnvironment(ctx context.Context, req *v1.CreateEnvironmentRequest) (*v1.Environment, error) {
	in := holdfast.CreateEnvironment{Name: req.GetName(), Recipe: recipeFromWire(req.GetRecipe())}
	return answer(environmentToWire)(h.service.CreateEnvironment(ctx, callerOf(ctx), in))
}

func (h environmentHandler) GetEnvironment(ctx context.Context, req *v1.GetEnvironmentRequest) (*v1.Environment, error) {
	return answer(environmentToWire)(h.service.GetEnvironment(ctx, callerOf(ctx), req.GetName()))
}

func (h environmentHandler) ListEnvironments(ctx context.Context, req *v1.ListEnvironmentsRequest) (*v1.ListEnvironmentsResponse, error) {
	in := holdfast.ListEnvironments{PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(environmentsToWire)(h.service.ListEnvironments(ctx, callerOf(ctx), in))
}

func (h environmentHandler) DeleteEnvironment(ctx context.Context, req *v1.DeleteEnvironmentRequest) (*v1.Environment, error) {
	return answer(environmentToWire)(h.service.DeleteEnvironment(ctx, callerOf(ctx), req.GetName()))
}

func (h environmentHandler) BuildEnvironment(ctx context.Context, req *v1.BuildEnvironmentRequest) (*v1.Build, error) {
	in := holdfast.BuildEnvironment{RequestID: req.GetRequestId(), Environment: req.GetEnvironment()}
	return answer(buildToWire)(h.service.BuildEnvironment(ctx, callerOf(ctx), in))
}

func (h environmentHandler) GetBuild(ctx context.Context, req *v1.GetBuildRequest) (*v1.Build, error) {
	return answer(buildToWire)(h.service.GetBuild(ctx, callerOf(ctx), holdfast.BuildID(req.GetId())))
}

func (h environmentHandler) ListBuilds(ctx context.Context, req *v1.ListBuildsRequest) (*v1.ListBuildsResponse, error) {
	in := holdfast.ListBuilds{Environment: req.GetEnvironment(), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(buildsToWire)(h.service.ListBuilds(ctx, callerOf(ctx), in))
}

func (h environmentHandler) StreamBuildLog(ctx context.Context, req *v1.StreamBuildLogRequest, stream *connect.ServerStream[v1.OutputChunk]) error {
	in := holdfast.BuildLog{ID: holdfast.BuildID(req.GetId()), Offset: req.GetOffset(), Follow: req.GetFollow()}
	return h.service.StreamBuildLog(ctx, callerOf(ctx), in, func(c holdfast.OutputChunk) error {
		return chunks(c, stream.Send)
	})
}

type environmentDialer struct {
	client holdfastv1connect.EnvironmentServiceClient
}

func (d environmentDialer) CreateEnvironment(ctx context.Context, _ holdfast.Caller, in holdfast.CreateEnvironment) (holdfast.Environment, error) {
	req := &v1.CreateEnvironmentRequest{Name: in.Name, Recipe: recipeToWire(in.Recipe)}
	return call(ctx, "CreateEnvironment", d.client.CreateEnvironment, req, environmentFromWire)
}

func (d environmentDialer) GetEnvironment(ctx context.Context, _ holdfast.Caller, name string) (holdfast.Environment, error) {
	return call(ctx, "GetEnvironment", d.client.GetEnvironment, &v1.GetEnvironmentRequest{Name: name}, environmentFromWire)
}

func (d environmentDialer) ListEnvironments(ctx context.Context, _ holdfast.Caller, in holdfast.ListEnvironments) (holdfast.EnvironmentPage, error) {
	req := &v1.ListEnvironmentsRequest{PageSize: pageSize(in.PageSize), PageToken: in.PageToken}
	return call(ctx, "ListEnvironments", d.client.ListEnvironments, req, environmentsFromWire)
}

func (d environmentDialer) DeleteEnvironment(ctx context.Context, _ holdfast.Caller, name string) (holdfast.Environment, error) {
	return call(ctx, "DeleteEnvironment", d.client.DeleteEnvironment, &v1.DeleteEnvironmentRequest{Name: name}, environmentFromWire)
}

func (d environmentDialer) BuildEnvironment(ctx context.Context, _ holdfast.Caller, in holdfast.BuildEnvironment) (holdfast.Build, error) {
	req := &v1.BuildEnvironmentRequest{RequestId: in.RequestID, Environment: in.Environment}
	return call(ctx, "BuildEnvironment", d.client.BuildEnvironment, req, buildFromWire)
}

func (d environmentDialer) GetBuild(ctx context.Context, _ holdfast.Caller, id holdfast.BuildID) (holdfast.Build, error) {
	return call(ctx, "GetBuild", d.client.GetBuild, &v1.GetBuildRequest{Id: string(id)}, buildFromWire)
}

func (d environmentDialer) ListBuilds(ctx context.Context, _ holdfast.Caller, in holdfast.ListBuilds) (holdfast.BuildPage, error) {
	req := &v1.ListBuildsRequest{Environment: in.Environment, PageSize: pageSize(in.PageSize), PageToken: in.PageToken}
	return call(ctx, "ListBuilds", d.client.ListBuilds, req, buildsFromWire)
}

func (d environmentDialer) StreamBuildLog(ctx context.Context, _ holdfast.Caller, in holdfast.BuildLog, yield func(holdfast.OutputChunk) error) error {
	req := &v1.StreamBuildLogRequest{Id: string(in.ID), Offset: in.Offset, Follow: in.Follow}
	return received(ctx, "StreamBuildLog", opening(d.client.StreamBuildLog, req), func(c *v1.OutputChunk) error {
		return yield(chunkFromWire(c))
	})
}
