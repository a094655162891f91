package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type sessionHandler struct{ service holdfast.SessionService }

func (h sessionHandler) CreateSession(ctx context.Context, req *v1.CreateSessionRequest) (*v1.Session, error) {
	in, err := createSessionFromWire(req)
	if err != nil {
		return nil, err
	}
	return answer(sessionToWire)(h.service.CreateSession(ctx, callerOf(ctx), in))
}

func (h sessionHandler) GetSession(ctx context.Context, req *v1.GetSessionRequest) (*v1.Session, error) {
	return answer(sessionToWire)(h.service.GetSession(ctx, callerOf(ctx), holdfast.SessionID(req.GetId())))
}

func (h sessionHandler) ListSessions(ctx context.Context, req *v1.ListSessionsRequest) (*v1.ListSessionsResponse, error) {
	in := holdfast.ListSessions{
		Labels: filled(req.GetLabels()), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken(),
		States: each(req.GetStates(), func(s v1.Session_State) holdfast.SessionState {
			return word[holdfast.SessionState](v1.Session_State_name, s)
		}),
	}
	page, err := h.service.ListSessions(ctx, callerOf(ctx), in)
	for i := range page.Sessions {
		page.Sessions[i].Env = nil // up to 64 KiB each: a page would not fit in a message
	}
	return answer(sessionsToWire)(page, err)
}

func (h sessionHandler) SuspendSession(ctx context.Context, req *v1.SuspendSessionRequest) (*v1.Session, error) {
	in := holdfast.MutateSession{ID: holdfast.SessionID(req.GetId()), IfGeneration: req.GetIfGeneration(), Force: req.GetForce()}
	return answer(sessionToWire)(h.service.SuspendSession(ctx, callerOf(ctx), in))
}

func (h sessionHandler) ResumeSession(ctx context.Context, req *v1.ResumeSessionRequest) (*v1.Session, error) {
	in := holdfast.MutateSession{ID: holdfast.SessionID(req.GetId()), IfGeneration: req.GetIfGeneration()}
	return answer(sessionToWire)(h.service.ResumeSession(ctx, callerOf(ctx), in))
}

func (h sessionHandler) DeleteSession(ctx context.Context, req *v1.DeleteSessionRequest) (*v1.Session, error) {
	in := holdfast.MutateSession{ID: holdfast.SessionID(req.GetId()), IfGeneration: req.GetIfGeneration(), Force: req.GetForce()}
	return answer(sessionToWire)(h.service.DeleteSession(ctx, callerOf(ctx), in))
}

func (h sessionHandler) RenameSession(ctx context.Context, req *v1.RenameSessionRequest) (*v1.Session, error) {
	in := holdfast.RenameSession{ID: holdfast.SessionID(req.GetId()), Name: req.GetName()}
	return answer(sessionToWire)(h.service.RenameSession(ctx, callerOf(ctx), in))
}

type sessionDialer struct {
	client holdfastv1connect.SessionServiceClient
}

func (d sessionDialer) CreateSession(ctx context.Context, _ holdfast.Caller, in holdfast.CreateSession) (holdfast.Session, error) {
	return call(ctx, "CreateSession", d.client.CreateSession, createSessionToWire(in), sessionFromWire)
}

func (d sessionDialer) GetSession(ctx context.Context, _ holdfast.Caller, id holdfast.SessionID) (holdfast.Session, error) {
	return call(ctx, "GetSession", d.client.GetSession, &v1.GetSessionRequest{Id: string(id)}, sessionFromWire)
}

func (d sessionDialer) ListSessions(ctx context.Context, _ holdfast.Caller, in holdfast.ListSessions) (holdfast.SessionPage, error) {
	req := &v1.ListSessionsRequest{
		Labels: filled(in.Labels), PageSize: pageSize(in.PageSize), PageToken: in.PageToken,
		States: each(in.States, func(s holdfast.SessionState) v1.Session_State {
			return enum[v1.Session_State](v1.Session_State_value, s)
		}),
	}
	return call(ctx, "ListSessions", d.client.ListSessions, req, sessionsFromWire)
}

func (d sessionDialer) SuspendSession(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	req := &v1.SuspendSessionRequest{Id: string(in.ID), IfGeneration: in.IfGeneration, Force: in.Force}
	return call(ctx, "SuspendSession", d.client.SuspendSession, req, sessionFromWire)
}

func (d sessionDialer) ResumeSession(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	req := &v1.ResumeSessionRequest{Id: string(in.ID), IfGeneration: in.IfGeneration}
	return call(ctx, "ResumeSession", d.client.ResumeSession, req, sessionFromWire)
}

func (d sessionDialer) DeleteSession(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	req := &v1.DeleteSessionRequest{Id: string(in.ID), IfGeneration: in.IfGeneration, Force: in.Force}
	return call(ctx, "DeleteSession", d.client.DeleteSession, req, sessionFromWire)
}

func (d sessionDialer) RenameSession(ctx context.Context, _ holdfast.Caller, in holdfast.RenameSession) (holdfast.Session, error) {
	req := &v1.RenameSessionRequest{Id: string(in.ID), Name: in.Name}
	return call(ctx, "RenameSession", d.client.RenameSession, req, sessionFromWire)
}
