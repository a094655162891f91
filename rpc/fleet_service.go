package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

// fleetHandler is the API's FleetService, for operators: an admin's key.
type fleetHandler struct{ service holdfast.OperatorService }

func (h fleetHandler) ListHosts(ctx context.Context, _ *v1.ListHostsRequest) (*v1.ListHostsResponse, error) {
	if err := callerOf(ctx).RequireAdmin("listing hosts"); err != nil {
		return nil, err
	}
	return answer(hostsToWire)(h.service.ListHosts(ctx))
}

func (h fleetHandler) CordonHost(ctx context.Context, req *v1.CordonHostRequest) (*v1.Host, error) {
	return h.set(ctx, req, holdfast.HostCordoned, false)
}

func (h fleetHandler) UncordonHost(ctx context.Context, req *v1.UncordonHostRequest) (*v1.Host, error) {
	return h.set(ctx, req, holdfast.HostActive, false)
}

func (h fleetHandler) DrainHost(ctx context.Context, req *v1.DrainHostRequest) (*v1.Host, error) {
	return h.set(ctx, req, holdfast.HostDraining, false)
}

func (h fleetHandler) RetireHost(ctx context.Context, req *v1.RetireHostRequest) (*v1.Host, error) {
	return h.set(ctx, req, holdfast.HostRetired, req.GetForce())
}

// dutyRequest is what the requests about a host's duty have in common.
type dutyRequest interface {
	GetId() string
	GetReason() string
}

func (h fleetHandler) set(ctx context.Context, req dutyRequest, duty holdfast.HostDuty, force bool) (*v1.Host, error) {
	if err := callerOf(ctx).RequireAdmin("setting a host's duty"); err != nil {
		return nil, err
	}
	in := holdfast.SetHostDuty{Host: holdfast.HostID(req.GetId()), Duty: duty, Reason: req.GetReason(), Force: force}
	return answer(hostToWire)(h.service.SetHostDuty(ctx, in))
}

func (h fleetHandler) ListInstances(ctx context.Context, req *v1.ListInstancesRequest) (*v1.ListInstancesResponse, error) {
	if err := callerOf(ctx).RequireAdmin("listing instances"); err != nil {
		return nil, err
	}
	in := holdfast.FindInstances{Host: holdfast.HostID(req.GetHost()), Unreachable: req.GetUnreachable(),
		After: holdfast.InstanceID(req.GetPageToken()), Limit: int(req.GetPageSize())}
	if in.Limit == 0 {
		in.Limit = holdfast.DefaultPageSize
	}
	return answer(instancesToWire)(h.service.FindInstances(ctx, in))
}

type fleetDialer struct {
	client holdfastv1connect.FleetServiceClient
}

func (d fleetDialer) ListHosts(ctx context.Context) ([]holdfast.Host, error) {
	return call(ctx, "ListHosts", d.client.ListHosts, &v1.ListHostsRequest{}, hostsFromWire)
}

func (d fleetDialer) SetHostDuty(ctx context.Context, in holdfast.SetHostDuty) (holdfast.Host, error) {
	id, reason := string(in.Host), in.Reason
	switch in.Duty {
	case holdfast.HostActive:
		return call(ctx, "UncordonHost", d.client.UncordonHost, &v1.UncordonHostRequest{Id: id, Reason: reason}, hostFromWire)
	case holdfast.HostCordoned:
		return call(ctx, "CordonHost", d.client.CordonHost, &v1.CordonHostRequest{Id: id, Reason: reason}, hostFromWire)
	case holdfast.HostDraining:
		return call(ctx, "DrainHost", d.client.DrainHost, &v1.DrainHostRequest{Id: id, Reason: reason}, hostFromWire)
	case holdfast.HostRetired:
		return call(ctx, "RetireHost", d.client.RetireHost, &v1.RetireHostRequest{Id: id, Reason: reason, Force: in.Force}, hostFromWire)
	}
	return holdfast.Host{}, in.Validate()
}

func (d fleetDialer) FindInstances(ctx context.Context, in holdfast.FindInstances) (holdfast.InstancePage, error) {
	req := &v1.ListInstancesRequest{Host: string(in.Host), Unreachable: in.Unreachable, PageSize: pageSize(in.Limit), PageToken: string(in.After)}
	return call(ctx, "ListInstances", d.client.ListInstances, req, instancesFromWire)
}
