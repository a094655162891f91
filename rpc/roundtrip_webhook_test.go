package rpc_test

import (
	"context"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
)

// hookEcho answers every call about events and webhooks with a filled value, and keeps
// what it was asked.
type hookEcho struct{ echo }

func (e hookEcho) StreamEvents(_ context.Context, _ holdfast.Caller, in holdfast.StreamEvents, yield func(holdfast.Event) error) error {
	e.asked <- in
	return yield(filled[holdfast.Event]())
}

func (e hookEcho) ListDeliveries(_ context.Context, _ holdfast.Caller, in holdfast.ListDeliveries) (holdfast.DeliveryPage, error) {
	e.asked <- in
	return filled[holdfast.DeliveryPage](), nil
}

func (e hookEcho) CreateWebhook(_ context.Context, _ holdfast.Caller, in holdfast.CreateWebhook) (holdfast.CreatedWebhook, error) {
	e.asked <- in
	return filled[holdfast.CreatedWebhook](), nil
}

func (e hookEcho) ListWebhooks(_ context.Context, _ holdfast.Caller, in holdfast.ListWebhooks) (holdfast.WebhookPage, error) {
	e.asked <- in
	return filled[holdfast.WebhookPage](), nil
}

func (e hookEcho) DeleteWebhook(_ context.Context, _ holdfast.Caller, id holdfast.WebhookID) error {
	e.asked <- id
	return nil
}

func (e hookEcho) ListDeadLetters(_ context.Context, _ holdfast.Caller, in holdfast.ListDeadLetters) (holdfast.DeadLetterPage, error) {
	e.asked <- in
	return filled[holdfast.DeadLetterPage](), nil
}

func (e hookEcho) ReplayWebhook(_ context.Context, _ holdfast.Caller, in holdfast.ReplayWebhook) (holdfast.Replayed, error) {
	e.asked <- in
	return filled[holdfast.Replayed](), nil
}

func (e hookEcho) CreateHook(_ context.Context, _ holdfast.Caller, in holdfast.CreateHook) (holdfast.CreatedHook, error) {
	e.asked <- in
	return filled[holdfast.CreatedHook](), nil
}

func (e hookEcho) ListHooks(_ context.Context, _ holdfast.Caller, in holdfast.ListHooks) (holdfast.HookPage, error) {
	e.asked <- in
	return filled[holdfast.HookPage](), nil
}

func (e hookEcho) DeleteHook(_ context.Context, _ holdfast.Caller, name string) error {
	e.asked <- name
	return nil
}

func (e hookEcho) ListHookActions(_ context.Context, _ holdfast.Caller, in holdfast.ListHookActions) (holdfast.HookActionPage, error) {
	e.asked <- in
	return filled[holdfast.HookActionPage](), nil
}

func (e hookEcho) RetryHookAction(_ context.Context, _ holdfast.Caller, id holdfast.HookActionID) (holdfast.HookAction, error) {
	e.asked <- id
	return filled[holdfast.HookAction](), nil
}

func TestNoFieldOfAnEventOrAWebhookIsLostOnTheWayThereOrBack(t *testing.T) {
	e := hookEcho{echo{nil, make(chan any, 1)}}
	s := serve(t, rpc.Services{Events: e, Webhooks: e, Hooks: e})
	ctx, nobody := t.Context(), holdfast.Caller{}

	stream := filled[holdfast.StreamEvents]()
	err := s.Events.StreamEvents(ctx, nobody, stream, func(got holdfast.Event) error {
		same(t, "Event", got, nil, filled[holdfast.Event]())
		return nil
	})
	same[any](t, "StreamEvents", e.last(t), err, stream)

	deliveries := filled[holdfast.ListDeliveries]()
	gotDeliveries, err := s.Events.ListDeliveries(ctx, nobody, deliveries)
	same(t, "DeliveryPage", gotDeliveries, err, filled[holdfast.DeliveryPage]())
	same[any](t, "ListDeliveries", e.last(t), nil, deliveries)

	create := filled[holdfast.CreateWebhook]()
	created, err := s.Webhooks.CreateWebhook(ctx, nobody, create)
	same(t, "CreatedWebhook", created, err, filled[holdfast.CreatedWebhook]())
	same[any](t, "CreateWebhook", e.last(t), nil, create)

	list := filled[holdfast.ListWebhooks]()
	webhooks, err := s.Webhooks.ListWebhooks(ctx, nobody, list)
	same(t, "WebhookPage", webhooks, err, filled[holdfast.WebhookPage]())
	same[any](t, "ListWebhooks", e.last(t), nil, list)

	same[any](t, "DeleteWebhook", holdfast.WebhookID("wh"), s.Webhooks.DeleteWebhook(ctx, nobody, "wh"), e.last(t))

	dead := filled[holdfast.ListDeadLetters]()
	letters, err := s.Webhooks.ListDeadLetters(ctx, nobody, dead)
	same(t, "DeadLetterPage", letters, err, filled[holdfast.DeadLetterPage]())
	same[any](t, "ListDeadLetters", e.last(t), nil, dead)

	replay := filled[holdfast.ReplayWebhook]()
	replayed, err := s.Webhooks.ReplayWebhook(ctx, nobody, replay)
	same(t, "Replayed", replayed, err, filled[holdfast.Replayed]())
	same[any](t, "ReplayWebhook", e.last(t), nil, replay)

	hook := filled[holdfast.CreateHook]()
	made, err := s.Hooks.CreateHook(ctx, nobody, hook)
	same(t, "CreatedHook", made, err, filled[holdfast.CreatedHook]())
	same[any](t, "CreateHook", e.last(t), nil, hook)

	listHooks := filled[holdfast.ListHooks]()
	hooks, err := s.Hooks.ListHooks(ctx, nobody, listHooks)
	same(t, "HookPage", hooks, err, filled[holdfast.HookPage]())
	same[any](t, "ListHooks", e.last(t), nil, listHooks)

	same[any](t, "DeleteHook", "gh", s.Hooks.DeleteHook(ctx, nobody, "gh"), e.last(t))

	listActions := filled[holdfast.ListHookActions]()
	actions, err := s.Hooks.ListHookActions(ctx, nobody, listActions)
	same(t, "HookActionPage", actions, err, filled[holdfast.HookActionPage]())
	same[any](t, "ListHookActions", e.last(t), nil, listActions)

	action, err := s.Hooks.RetryHookAction(ctx, nobody, "ha")
	same(t, "HookAction", action, err, filled[holdfast.HookAction]())
	same[any](t, "RetryHookAction", e.last(t), nil, holdfast.HookActionID("ha"))
}
