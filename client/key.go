package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// CreateKey makes an API key and returns its secret, this once. It is never
// repeated: where the answer is lost, a key may be there that nobody has; revoke
// it, and make another.
func (c *Client) CreateKey(ctx context.Context, in holdfast.CreateKey) (holdfast.CreatedKey, error) {
	if err := in.Validate(); err != nil {
		return holdfast.CreatedKey{}, err
	}
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.CreatedKey, error) {
		return c.services.Keys.CreateKey(ctx, c.caller, in)
	})
}

// ListKeys reads one page, by id.
func (c *Client) ListKeys(ctx context.Context, in holdfast.ListKeys) (holdfast.KeyPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.KeyPage, error) {
		return c.services.Keys.ListKeys(ctx, c.caller, in)
	})
}

// RevokeKey makes a key worthless. It is one attempt: a repeat changes nothing.
func (c *Client) RevokeKey(ctx context.Context, id holdfast.KeyID) (holdfast.Key, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Key, error) {
		return c.services.Keys.RevokeKey(ctx, c.caller, id)
	})
}
