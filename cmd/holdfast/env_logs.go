package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newEnvLogsCommand(a *app) *cobra.Command {
	var in holdfast.BuildLog
	cmd := &cobra.Command{
		Use:   "logs BUILD|NAME",
		Short: "Show the log of a build, or of the newest one of an environment",
		Args:  exactly("BUILD|NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			if in.ID, err = buildID(ctx, c, args[0]); err != nil {
				return err
			}
			out := output{app: a}
			err = c.StreamBuildLog(ctx, in, out.take)
			if ctx.Err() != nil && in.Follow {
				return nil // who follows a log ends it so
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&in.Follow, "follow", "f", false, "go on until the setup has ended")
	cmd.Flags().Int64Var(&in.Offset, "offset", 0, "the first byte wanted")
	return cmd
}
