package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// GetMatrix reads what the running parties say of themselves (contract: F1).
// Its Faults say what is wrong.
func (c *Client) GetMatrix(ctx context.Context) (holdfast.AuditMatrix, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.AuditMatrix, error) {
		return c.services.Audit.GetMatrix(ctx, c.caller)
	})
}
