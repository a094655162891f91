package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// ListOperations reads one page of a resource's journal, newest first.
func (c *Client) ListOperations(ctx context.Context, in holdfast.ListOperations) (holdfast.OperationPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.OperationPage, error) {
		return c.services.Operations.ListOperations(ctx, c.caller, in)
	})
}

// GetOperation reads one entry of a journal.
func (c *Client) GetOperation(ctx context.Context, id holdfast.OperationID) (holdfast.Operation, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Operation, error) {
		return c.services.Operations.GetOperation(ctx, c.caller, id)
	})
}
