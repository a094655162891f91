package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// CreateWebhook subscribes, and returns the secret, this once. It is never repeated:
// where the answer is lost, a webhook may be there whose secret nobody has; delete it,
// and make another.
func (c *Client) CreateWebhook(ctx context.Context, in holdfast.CreateWebhook) (holdfast.CreatedWebhook, error) {
	if err := in.Validate(); err != nil {
		return holdfast.CreatedWebhook{}, err
	}
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.CreatedWebhook, error) {
		return c.services.Webhooks.CreateWebhook(ctx, c.caller, in)
	})
}

// ListWebhooks reads one page, by id.
func (c *Client) ListWebhooks(ctx context.Context, in holdfast.ListWebhooks) (holdfast.WebhookPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.WebhookPage, error) {
		return c.services.Webhooks.ListWebhooks(ctx, c.caller, in)
	})
}

// DeleteWebhook ends a webhook. It is one attempt: NOT_FOUND of a repeat means that it
// is gone.
func (c *Client) DeleteWebhook(ctx context.Context, id holdfast.WebhookID) error {
	_, err := attempt(ctx, c.settings.attempt, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.services.Webhooks.DeleteWebhook(ctx, c.caller, id)
	})
	return err
}

// ListDeadLetters reads one page of what was given up.
func (c *Client) ListDeadLetters(ctx context.Context, in holdfast.ListDeadLetters) (holdfast.DeadLetterPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.DeadLetterPage, error) {
		return c.services.Webhooks.ListDeadLetters(ctx, c.caller, in)
	})
}

// ReplayWebhook queues one page of events to be sent again; a repeat queues what was
// sent meanwhile once more.
func (c *Client) ReplayWebhook(ctx context.Context, in holdfast.ReplayWebhook) (holdfast.Replayed, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Replayed, error) {
		return c.services.Webhooks.ReplayWebhook(ctx, c.caller, in)
	})
}
