package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type hookHandler struct{ service holdfast.HookService }

func (h hookHandler) CreateHook(ctx context.Context, req *v1.CreateHookRequest) (*v1.CreateHookResponse, error) {
	in := holdfast.CreateHook{Name: req.GetName(), Project: req.GetProject(), Kind: word[holdfast.HookKind](v1.Hook_Kind_name, req.GetKind()),
		Secret: req.GetSecret(), Rules: req.GetRules()}
	return answer(createdHookToWire)(h.service.CreateHook(ctx, callerOf(ctx), in))
}

func (h hookHandler) ListHooks(ctx context.Context, req *v1.ListHooksRequest) (*v1.ListHooksResponse, error) {
	in := holdfast.ListHooks{PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(hooksToWire)(h.service.ListHooks(ctx, callerOf(ctx), in))
}

func (h hookHandler) DeleteHook(ctx context.Context, req *v1.DeleteHookRequest) (*v1.DeleteHookResponse, error) {
	return &v1.DeleteHookResponse{}, h.service.DeleteHook(ctx, callerOf(ctx), req.GetName())
}

func (h hookHandler) ListHookActions(ctx context.Context, req *v1.ListHookActionsRequest) (*v1.ListHookActionsResponse, error) {
	in := holdfast.ListHookActions{Hook: req.GetHook(), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken(),
		States: each(req.GetStates(), func(s v1.HookAction_State) holdfast.HookActionState {
			return word[holdfast.HookActionState](v1.HookAction_State_name, s)
		})}
	return answer(actionsToWire)(h.service.ListHookActions(ctx, callerOf(ctx), in))
}

func (h hookHandler) RetryHookAction(ctx context.Context, req *v1.RetryHookActionRequest) (*v1.HookAction, error) {
	return answer(actionToWire)(h.service.RetryHookAction(ctx, callerOf(ctx), holdfast.HookActionID(req.GetId())))
}

type hookDialer struct {
	client holdfastv1connect.HookServiceClient
}

func (d hookDialer) CreateHook(ctx context.Context, _ holdfast.Caller, in holdfast.CreateHook) (holdfast.CreatedHook, error) {
	req := &v1.CreateHookRequest{Name: in.Name, Project: in.Project, Kind: enum[v1.Hook_Kind](v1.Hook_Kind_value, in.Kind), Secret: in.Secret, Rules: in.Rules}
	return call(ctx, "CreateHook", d.client.CreateHook, req, createdHookFromWire)
}

func (d hookDialer) ListHooks(ctx context.Context, _ holdfast.Caller, in holdfast.ListHooks) (holdfast.HookPage, error) {
	return call(ctx, "ListHooks", d.client.ListHooks, &v1.ListHooksRequest{PageSize: pageSize(in.PageSize), PageToken: in.PageToken}, hooksFromWire)
}

func (d hookDialer) DeleteHook(ctx context.Context, _ holdfast.Caller, name string) error {
	_, err := call(ctx, "DeleteHook", d.client.DeleteHook, &v1.DeleteHookRequest{Name: name}, nothing)
	return err
}

func (d hookDialer) ListHookActions(ctx context.Context, _ holdfast.Caller, in holdfast.ListHookActions) (holdfast.HookActionPage, error) {
	req := &v1.ListHookActionsRequest{Hook: in.Hook, PageSize: pageSize(in.PageSize), PageToken: in.PageToken,
		States: each(in.States, func(s holdfast.HookActionState) v1.HookAction_State {
			return enum[v1.HookAction_State](v1.HookAction_State_value, s)
		})}
	return call(ctx, "ListHookActions", d.client.ListHookActions, req, actionsFromWire)
}

func (d hookDialer) RetryHookAction(ctx context.Context, _ holdfast.Caller, id holdfast.HookActionID) (holdfast.HookAction, error) {
	return call(ctx, "RetryHookAction", d.client.RetryHookAction, &v1.RetryHookActionRequest{Id: string(id)}, actionFromWire)
}

func hookToWire(h holdfast.Hook) *v1.Hook {
	return &v1.Hook{Name: h.Name, Project: string(h.Project), Kind: enum[v1.Hook_Kind](v1.Hook_Kind_value, h.Kind), Rules: text(h.Rules),
		Creator: text(h.Creator), CreatedAt: stamp(h.CreatedAt)}
}

func hookFromWire(h *v1.Hook) holdfast.Hook {
	return holdfast.Hook{Name: h.GetName(), Project: holdfast.ProjectID(h.GetProject()), Kind: word[holdfast.HookKind](v1.Hook_Kind_name, h.GetKind()),
		Rules: h.GetRules(), Creator: h.GetCreator(), CreatedAt: instant(h.GetCreatedAt())}
}

func createdHookToWire(h holdfast.CreatedHook) *v1.CreateHookResponse {
	return &v1.CreateHookResponse{Hook: hookToWire(h.Hook), Secret: text(h.Secret)}
}

func createdHookFromWire(h *v1.CreateHookResponse) holdfast.CreatedHook {
	return holdfast.CreatedHook{Hook: hookFromWire(h.GetHook()), Secret: h.GetSecret()}
}

func hooksToWire(page holdfast.HookPage) *v1.ListHooksResponse {
	return &v1.ListHooksResponse{Hooks: each(page.Hooks, hookToWire), NextPageToken: page.NextPageToken}
}

func hooksFromWire(page *v1.ListHooksResponse) holdfast.HookPage {
	return holdfast.HookPage{Hooks: each(page.GetHooks(), hookFromWire), NextPageToken: page.GetNextPageToken()}
}

func actionToWire(a holdfast.HookAction) *v1.HookAction {
	return &v1.HookAction{Id: string(a.ID), Hook: a.Hook, Project: string(a.Project), Delivery: text(a.Delivery), Event: text(a.Event), Rule: text(a.Rule),
		State: enum[v1.HookAction_State](v1.HookAction_State_value, a.State), Failure: failureToWire(a.Failure), Resources: each(a.Resources, text),
		Attempts: int32(a.Attempts), CreatedAt: stamp(a.CreatedAt), UpdatedAt: stamp(a.UpdatedAt)}
}

func actionFromWire(a *v1.HookAction) holdfast.HookAction {
	return holdfast.HookAction{ID: holdfast.HookActionID(a.GetId()), Hook: a.GetHook(), Project: holdfast.ProjectID(a.GetProject()), Delivery: a.GetDelivery(),
		Event: a.GetEvent(), Rule: a.GetRule(), State: word[holdfast.HookActionState](v1.HookAction_State_name, a.GetState()),
		Failure: failureFromWire(a.GetFailure()), Resources: a.GetResources(), Attempts: int(a.GetAttempts()),
		CreatedAt: instant(a.GetCreatedAt()), UpdatedAt: instant(a.GetUpdatedAt())}
}

func actionsToWire(page holdfast.HookActionPage) *v1.ListHookActionsResponse {
	return &v1.ListHookActionsResponse{Actions: each(page.Actions, actionToWire), NextPageToken: page.NextPageToken}
}

func actionsFromWire(page *v1.ListHookActionsResponse) holdfast.HookActionPage {
	return holdfast.HookActionPage{Actions: each(page.GetActions(), actionFromWire), NextPageToken: page.GetNextPageToken()}
}
