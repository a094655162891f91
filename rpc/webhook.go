package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type webhookHandler struct{ service holdfast.WebhookService }

func (h webhookHandler) CreateWebhook(ctx context.Context, req *v1.CreateWebhookRequest) (*v1.CreateWebhookResponse, error) {
	in := holdfast.CreateWebhook{URL: req.GetUrl(), Kinds: req.GetKinds()}
	return answer(createdWebhookToWire)(h.service.CreateWebhook(ctx, callerOf(ctx), in))
}

func (h webhookHandler) ListWebhooks(ctx context.Context, req *v1.ListWebhooksRequest) (*v1.ListWebhooksResponse, error) {
	in := holdfast.ListWebhooks{PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(webhooksToWire)(h.service.ListWebhooks(ctx, callerOf(ctx), in))
}

func (h webhookHandler) DeleteWebhook(ctx context.Context, req *v1.DeleteWebhookRequest) (*v1.DeleteWebhookResponse, error) {
	return &v1.DeleteWebhookResponse{}, h.service.DeleteWebhook(ctx, callerOf(ctx), holdfast.WebhookID(req.GetId()))
}

func (h webhookHandler) ListDeadLetters(ctx context.Context, req *v1.ListDeadLettersRequest) (*v1.ListDeadLettersResponse, error) {
	in := holdfast.ListDeadLetters{Webhook: holdfast.WebhookID(req.GetWebhook()), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(deadLettersToWire)(h.service.ListDeadLetters(ctx, callerOf(ctx), in))
}

func (h webhookHandler) ReplayWebhook(ctx context.Context, req *v1.ReplayWebhookRequest) (*v1.ReplayWebhookResponse, error) {
	in := holdfast.ReplayWebhook{ID: holdfast.WebhookID(req.GetId()), After: req.GetAfter(),
		Events: each(req.GetEvents(), func(id string) holdfast.EventID { return holdfast.EventID(id) })}
	return answer(replayedToWire)(h.service.ReplayWebhook(ctx, callerOf(ctx), in))
}

type webhookDialer struct {
	client holdfastv1connect.WebhookServiceClient
}

func (d webhookDialer) CreateWebhook(ctx context.Context, _ holdfast.Caller, in holdfast.CreateWebhook) (holdfast.CreatedWebhook, error) {
	return call(ctx, "CreateWebhook", d.client.CreateWebhook, &v1.CreateWebhookRequest{Url: in.URL, Kinds: in.Kinds}, createdWebhookFromWire)
}

func (d webhookDialer) ListWebhooks(ctx context.Context, _ holdfast.Caller, in holdfast.ListWebhooks) (holdfast.WebhookPage, error) {
	return call(ctx, "ListWebhooks", d.client.ListWebhooks, &v1.ListWebhooksRequest{PageSize: pageSize(in.PageSize), PageToken: in.PageToken}, webhooksFromWire)
}

func (d webhookDialer) DeleteWebhook(ctx context.Context, _ holdfast.Caller, id holdfast.WebhookID) error {
	_, err := call(ctx, "DeleteWebhook", d.client.DeleteWebhook, &v1.DeleteWebhookRequest{Id: string(id)}, nothing)
	return err
}

func (d webhookDialer) ListDeadLetters(ctx context.Context, _ holdfast.Caller, in holdfast.ListDeadLetters) (holdfast.DeadLetterPage, error) {
	req := &v1.ListDeadLettersRequest{Webhook: string(in.Webhook), PageSize: pageSize(in.PageSize), PageToken: in.PageToken}
	return call(ctx, "ListDeadLetters", d.client.ListDeadLetters, req, deadLettersFromWire)
}

func (d webhookDialer) ReplayWebhook(ctx context.Context, _ holdfast.Caller, in holdfast.ReplayWebhook) (holdfast.Replayed, error) {
	req := &v1.ReplayWebhookRequest{Id: string(in.ID), After: in.After, Events: each(in.Events, func(id holdfast.EventID) string { return string(id) })}
	return call(ctx, "ReplayWebhook", d.client.ReplayWebhook, req, replayedFromWire)
}

func webhookToWire(w holdfast.Webhook) *v1.Webhook {
	return &v1.Webhook{Id: string(w.ID), Project: string(w.Project), Creator: text(w.Creator), Url: text(w.URL), Kinds: each(w.Kinds, text), CreatedAt: stamp(w.CreatedAt)}
}

func webhookFromWire(w *v1.Webhook) holdfast.Webhook {
	return holdfast.Webhook{ID: holdfast.WebhookID(w.GetId()), Project: holdfast.ProjectID(w.GetProject()), Creator: w.GetCreator(), URL: w.GetUrl(),
		Kinds: w.GetKinds(), CreatedAt: instant(w.GetCreatedAt())}
}

func createdWebhookToWire(w holdfast.CreatedWebhook) *v1.CreateWebhookResponse {
	return &v1.CreateWebhookResponse{Webhook: webhookToWire(w.Webhook), Secret: w.Secret}
}

func createdWebhookFromWire(w *v1.CreateWebhookResponse) holdfast.CreatedWebhook {
	return holdfast.CreatedWebhook{Webhook: webhookFromWire(w.GetWebhook()), Secret: w.GetSecret()}
}

func webhooksToWire(page holdfast.WebhookPage) *v1.ListWebhooksResponse {
	return &v1.ListWebhooksResponse{Webhooks: each(page.Webhooks, webhookToWire), NextPageToken: page.NextPageToken}
}

func webhooksFromWire(page *v1.ListWebhooksResponse) holdfast.WebhookPage {
	return holdfast.WebhookPage{Webhooks: each(page.GetWebhooks(), webhookFromWire), NextPageToken: page.GetNextPageToken()}
}

func deadLettersToWire(page holdfast.DeadLetterPage) *v1.ListDeadLettersResponse {
	return &v1.ListDeadLettersResponse{NextPageToken: page.NextPageToken, DeadLetters: each(page.DeadLetters, func(d holdfast.DeadLetter) *v1.DeadLetter {
		return &v1.DeadLetter{Webhook: string(d.Webhook), Event: string(d.Event), Kind: string(d.Kind), Resource: d.Resource, Attempts: int32(d.Attempts),
			LastError: text(d.LastError), QueuedAt: stamp(d.QueuedAt), DiedAt: stamp(d.DiedAt)}
	})}
}

func deadLettersFromWire(page *v1.ListDeadLettersResponse) holdfast.DeadLetterPage {
	return holdfast.DeadLetterPage{NextPageToken: page.GetNextPageToken(), DeadLetters: each(page.GetDeadLetters(), func(d *v1.DeadLetter) holdfast.DeadLetter {
		return holdfast.DeadLetter{Webhook: holdfast.WebhookID(d.GetWebhook()), Event: holdfast.EventID(d.GetEvent()), Kind: holdfast.EventKind(d.GetKind()),
			Resource: d.GetResource(), Attempts: int(d.GetAttempts()), LastError: d.GetLastError(), QueuedAt: instant(d.GetQueuedAt()), DiedAt: instant(d.GetDiedAt())}
	})}
}

func replayedToWire(r holdfast.Replayed) *v1.ReplayWebhookResponse {
	return &v1.ReplayWebhookResponse{Queued: int32(r.Queued), Next: r.Next}
}

func replayedFromWire(r *v1.ReplayWebhookResponse) holdfast.Replayed {
	return holdfast.Replayed{Queued: int(r.GetQueued()), Next: r.GetNext()}
}
