package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newForkCommand(a *app) *cobra.Command {
	var in creation
	cmd := &cobra.Command{
		Use:   "fork ID",
		Short: "Create a sandbox that begins with what another has on its disk",
		Long: `Create a sandbox that begins with what another has on its disk, and wait until it is READY. The other goes on as it
is. Resources and egress that are not given are those of the other, and so is the environment where no --env is given.

A fork is named by its request id, as a create is: the same command with that id is the same fork.`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return in.run(cmd, a, func(ctx context.Context, c *client.Client, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
				return c.ForkSandbox(ctx, holdfast.SandboxID(args[0]), in)
			})
		},
	}
	in.flags(cmd)
	return cmd
}
