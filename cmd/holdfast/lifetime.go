package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newLifetimeCommand(a *app) *cobra.Command {
	var in holdfast.SetSandboxLifetime
	var onExpiry string
	cmd := &cobra.Command{
		Use:   "lifetime ID",
		Short: "Set how long a sandbox lives and what the end brings; may shorten it",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("ttl") && in.TTL < holdfast.MinTTL {
				return usage("--ttl is %s; it must be at least %s", in.TTL, holdfast.MinTTL)
			}
			in.ID, in.OnExpiry = holdfast.SandboxID(args[0]), holdfast.Expiry(strings.ToUpper(onExpiry))
			c, err := a.patiently()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			s, err := c.SetSandboxLifetime(ctx, in)
			if err != nil {
				return err
			}
			return a.sandbox(s)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&in.TTL, "ttl", 0, "from now on, and from each resume on")
	flags.StringVar(&onExpiry, "on-expiry", "", "what the lifetime's end brings: delete or suspend")
	flags.Int64Var(&in.IfGeneration, "if-generation", 0, "act only when the sandbox's generation is this one")
	return cmd
}
