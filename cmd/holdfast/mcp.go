package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/mcp"
)

func newMCPCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "mcp",
		Short: "Serve sandboxes to an agent as MCP tools, over standard input and output",
		Long: `Serve the Model Context Protocol over standard input and output, for an agent that starts this program.

The server and the API key are found as for every other command. A server offers the same tools over HTTP at /mcp, to
whoever sends an API key.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			if err := mcp.Serve(ctx, c, readVersion().Version); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		},
	}
}
