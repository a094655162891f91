package cluster

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// Client calls one of the orchestrators, as the admin.
func (c *Cluster) Client(i int, more ...client.Option) (*client.Client, error) {
	return client.New(c.Orchestrators[i].URL(), append([]client.Option{client.WithAPIKey(c.Key), client.WithOverallTimeout(time.Minute)}, more...)...)
}

// Revive starts again whatever was stopped, killed or frozen.
func (c *Cluster) Revive() error {
	var dead []*Process
	for _, p := range c.All() {
		if err := p.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		select {
		case <-p.Done():
			dead = append(dead, p)
		default:
		}
	}
	return startAll(dead)
}

// Empty deletes every sandbox of the admin's project, so that nothing of them is
// left on the machine. What was killed meanwhile is started again for it.
func (c *Cluster) Empty(ctx context.Context) error {
	if err := c.Revive(); err != nil {
		return err
	}
	api, err := c.Client(0)
	if err != nil {
		return err
	}
	var errs []error
	for in := (holdfast.ListSandboxes{PageSize: holdfast.MaxPageSize}); ; {
		page, err := api.ListSandboxes(ctx, in)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list what is to be deleted: %w", err))...)
		}
		for _, sb := range page.Sandboxes {
			if _, err := api.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
				errs = append(errs, fmt.Errorf("delete %s: %w", sb.ID, err))
			}
		}
		if page.NextPageToken == "" {
			return errors.Join(errs...)
		}
		in.PageToken = page.NextPageToken
	}
}
