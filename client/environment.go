package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// CreateEnvironment makes an environment, or the next version of it where the recipe
// is another one. The same call again is the same version, so that it is repeated
// until it is known.
func (c *Client) CreateEnvironment(ctx context.Context, in holdfast.CreateEnvironment) (holdfast.Environment, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Environment{}, err
	}
	return attempts(ctx, c, "", IncompleteError{Method: "CreateEnvironment", Request: in}, func(ctx context.Context) (holdfast.Environment, error) {
		return c.services.Environments.CreateEnvironment(ctx, c.caller, in)
	})
}

// GetEnvironment reads an environment by NAME or NAME@VERSION.
func (c *Client) GetEnvironment(ctx context.Context, name string) (holdfast.Environment, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Environment, error) {
		return c.services.Environments.GetEnvironment(ctx, c.caller, name)
	})
}

// ListEnvironments reads one page, by name; recipes are left out.
func (c *Client) ListEnvironments(ctx context.Context, in holdfast.ListEnvironments) (holdfast.EnvironmentPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.EnvironmentPage, error) {
		return c.services.Environments.ListEnvironments(ctx, c.caller, in)
	})
}

// DeleteEnvironment ends a name: nothing new is made from it. A repeat is success.
func (c *Client) DeleteEnvironment(ctx context.Context, name string) (holdfast.Environment, error) {
	if err := holdfast.CheckEnvironmentName("name", name); err != nil {
		return holdfast.Environment{}, err
	}
	return attempts(ctx, c, holdfast.OperationDelete, IncompleteError{Method: "DeleteEnvironment", Request: name}, func(ctx context.Context) (holdfast.Environment, error) {
		return c.services.Environments.DeleteEnvironment(ctx, c.caller, name)
	})
}

// BuildEnvironment begins a build, or returns the one of its request id as it is now.
// Without a request id it mints one. It does not wait for the build's end: follow its
// log, or read it again.
func (c *Client) BuildEnvironment(ctx context.Context, in holdfast.BuildEnvironment) (holdfast.Build, error) {
	const method = "BuildEnvironment"
	minted := in.RequestID == ""
	if minted {
		in.RequestID = NewRequestID()
	}
	if err := in.Validate(); err != nil {
		return holdfast.Build{}, err
	}
	if minted {
		c.settings.requestID(method, in.RequestID)
	}
	request := IncompleteError{Method: method, RequestID: in.RequestID, Request: in}
	return attempts(ctx, c, holdfast.OperationCreate, request, func(ctx context.Context) (holdfast.Build, error) {
		return c.services.Environments.BuildEnvironment(ctx, c.caller, in)
	})
}

// GetBuild reads a build.
func (c *Client) GetBuild(ctx context.Context, id holdfast.BuildID) (holdfast.Build, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Build, error) {
		return c.services.Environments.GetBuild(ctx, c.caller, id)
	})
}

// ListBuilds reads one page, newest first.
func (c *Client) ListBuilds(ctx context.Context, in holdfast.ListBuilds) (holdfast.BuildPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.BuildPage, error) {
		return c.services.Environments.ListBuilds(ctx, c.caller, in)
	})
}

// StreamBuildLog yields a build's log from an offset on, through broken connections;
// with Follow until its setup has ended.
func (c *Client) StreamBuildLog(ctx context.Context, in holdfast.BuildLog, yield func(holdfast.OutputChunk) error) error {
	follow := follower{client: c, yield: yield}
	return follow.run(ctx, func(ctx context.Context, take func(holdfast.OutputChunk) error) error {
		in.Offset = max(in.Offset, follow.stdout)
		follow.stdout = in.Offset
		return c.services.Environments.StreamBuildLog(ctx, c.caller, in, take)
	})
}
