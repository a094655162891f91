package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// ListHosts lists every host, by id, the retired ones too. It needs an
// administrator's key, like all calls about hosts.
func (c *Client) ListHosts(ctx context.Context) ([]holdfast.Host, error) {
	return attempt(ctx, c.settings.attempt, c.services.Fleet.ListHosts)
}

// SetHostDuty says what a host is for. It can be said again, so it is repeated
// until it is known to be done or known to be refused (contract: A9).
func (c *Client) SetHostDuty(ctx context.Context, in holdfast.SetHostDuty) (holdfast.Host, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Host{}, err
	}
	request := IncompleteError{Method: "SetHostDuty", Request: in}
	return attempts(ctx, c, "", request, func(ctx context.Context) (holdfast.Host, error) {
		return c.services.Fleet.SetHostDuty(ctx, in)
	})
}

// FindInstances reads one page of the instances on a host, or on all.
func (c *Client) FindInstances(ctx context.Context, in holdfast.FindInstances) (holdfast.InstancePage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.InstancePage, error) {
		return c.services.Fleet.FindInstances(ctx, in)
	})
}
