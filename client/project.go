package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// CreateProject makes a project, or returns the one of that name, as it is now.
// It is one attempt: a repeat of the same call is the same project.
func (c *Client) CreateProject(ctx context.Context, in holdfast.CreateProject) (holdfast.Project, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Project{}, err
	}
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Project, error) {
		return c.services.Projects.CreateProject(ctx, c.caller, in)
	})
}

// GetProject reads a project by its id or name, with its quotas and what it holds.
func (c *Client) GetProject(ctx context.Context, project string) (holdfast.Project, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Project, error) {
		return c.services.Projects.GetProject(ctx, c.caller, project)
	})
}

// ListProjects reads one page, by name.
func (c *Client) ListProjects(ctx context.Context, in holdfast.ListProjects) (holdfast.ProjectPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.ProjectPage, error) {
		return c.services.Projects.ListProjects(ctx, c.caller, in)
	})
}

// SetQuotas sets quotas of a project. It is one attempt: a repeat changes nothing.
func (c *Client) SetQuotas(ctx context.Context, in holdfast.SetQuotas) (holdfast.Project, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Project{}, err
	}
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Project, error) {
		return c.services.Projects.SetQuotas(ctx, c.caller, in)
	})
}
