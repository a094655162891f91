package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// CreateHook makes a source of webhooks, and returns its secret, this once. A repeat
// returns the same hook without it.
func (c *Client) CreateHook(ctx context.Context, in holdfast.CreateHook) (holdfast.CreatedHook, error) {
	if err := in.Validate(); err != nil {
		return holdfast.CreatedHook{}, err
	}
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.CreatedHook, error) {
		return c.services.Hooks.CreateHook(ctx, c.caller, in)
	})
}

// ListHooks reads one page, by name.
func (c *Client) ListHooks(ctx context.Context, in holdfast.ListHooks) (holdfast.HookPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.HookPage, error) {
		return c.services.Hooks.ListHooks(ctx, c.caller, in)
	})
}

// DeleteHook ends a hook. It is one attempt: NOT_FOUND of a repeat means that it is
// gone.
func (c *Client) DeleteHook(ctx context.Context, name string) error {
	_, err := attempt(ctx, c.settings.attempt, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.services.Hooks.DeleteHook(ctx, c.caller, name)
	})
	return err
}

// ListHookActions reads one page, newest first.
func (c *Client) ListHookActions(ctx context.Context, in holdfast.ListHookActions) (holdfast.HookActionPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.HookActionPage, error) {
		return c.services.Hooks.ListHookActions(ctx, c.caller, in)
	})
}

// RetryHookAction makes a FAILED action PENDING; a repeat changes nothing.
func (c *Client) RetryHookAction(ctx context.Context, id holdfast.HookActionID) (holdfast.HookAction, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.HookAction, error) {
		return c.services.Hooks.RetryHookAction(ctx, c.caller, id)
	})
}
