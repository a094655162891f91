package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newExtendCommand(a *app) *cobra.Command {
	var in holdfast.ExtendSandbox
	cmd := &cobra.Command{
		Use:   "extend ID --ttl DURATION",
		Short: "Let a sandbox live at least so much longer from now on",
		Long: `Let a sandbox live at least so much longer from now on. It never shortens a lifetime, so it can be repeated.

While it is CREATING this is the lifetime to come; while it is SUSPENDED, how long it is kept so.`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("ttl") {
				return usage("--ttl is missing: say how long it shall live from now on, such as --ttl 2h")
			}
			in.ID = holdfast.SandboxID(args[0])
			c, err := a.patiently()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			s, err := c.ExtendSandbox(ctx, in)
			if err != nil {
				return err
			}
			return a.sandbox(s)
		},
	}
	cmd.Flags().DurationVar(&in.TTL, "ttl", 0, "from now on, 1s to 24h, or what the server is configured for")
	cmd.Flags().Int64Var(&in.IfGeneration, "if-generation", 0, "act only when the sandbox's generation is this one")
	return cmd
}
