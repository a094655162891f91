package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newLogsCommand(a *app) *cobra.Command {
	var in holdfast.SandboxLog
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show a sandbox's console, boot included",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.ID = holdfast.SandboxID(args[0])
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			out := output{app: a}
			err = c.StreamSandboxLog(ctx, in, out.take)
			if ctx.Err() != nil && in.Follow {
				return nil // who follows a log ends it so
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&in.Follow, "follow", "f", false, "go on until the instance ends")
	cmd.Flags().Int64Var(&in.Offset, "offset", 0, "the first byte wanted")
	return cmd
}
