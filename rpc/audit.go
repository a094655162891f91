package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type auditHandler struct{ service holdfast.AuditService }

func (h auditHandler) GetMatrix(ctx context.Context, _ *v1.GetMatrixRequest) (*v1.AuditMatrix, error) {
	return answer(matrixToWire)(h.service.GetMatrix(ctx, callerOf(ctx)))
}

type auditDialer struct {
	client holdfastv1connect.AuditServiceClient
}

func (d auditDialer) GetMatrix(ctx context.Context, _ holdfast.Caller) (holdfast.AuditMatrix, error) {
	return call(ctx, "GetMatrix", d.client.GetMatrix, &v1.GetMatrixRequest{}, matrixFromWire)
}
