package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type operationHandler struct{ service holdfast.OperationService }

func (h operationHandler) ListOperations(ctx context.Context, req *v1.ListOperationsRequest) (*v1.ListOperationsResponse, error) {
	in := holdfast.ListOperations{Resource: req.GetResource(), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(journalToWire)(h.service.ListOperations(ctx, callerOf(ctx), in))
}

func (h operationHandler) GetOperation(ctx context.Context, req *v1.GetOperationRequest) (*v1.Operation, error) {
	return answer(operationToWire)(h.service.GetOperation(ctx, callerOf(ctx), holdfast.OperationID(req.GetId())))
}

func journalToWire(page holdfast.OperationPage) *v1.ListOperationsResponse {
	return &v1.ListOperationsResponse{Operations: each(page.Operations, operationToWire), NextPageToken: page.NextPageToken}
}

func journalFromWire(page *v1.ListOperationsResponse) holdfast.OperationPage {
	return holdfast.OperationPage{Operations: each(page.GetOperations(), operationFromWire), NextPageToken: page.GetNextPageToken()}
}

type operationDialer struct {
	client holdfastv1connect.OperationServiceClient
}

func (d operationDialer) ListOperations(ctx context.Context, _ holdfast.Caller, in holdfast.ListOperations) (holdfast.OperationPage, error) {
	req := &v1.ListOperationsRequest{Resource: in.Resource, PageSize: pageSize(in.PageSize), PageToken: in.PageToken}
	return call(ctx, "ListOperations", d.client.ListOperations, req, journalFromWire)
}

func (d operationDialer) GetOperation(ctx context.Context, _ holdfast.Caller, id holdfast.OperationID) (holdfast.Operation, error) {
	return call(ctx, "GetOperation", d.client.GetOperation, &v1.GetOperationRequest{Id: string(id)}, operationFromWire)
}
