package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newCheckpointDeleteCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID",
		Short: "Delete a checkpoint; one that is not there is as wanted",
		Long:  "Delete a checkpoint. Nothing new is made from it; its forks keep what they are made of.",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.patiently()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			gone, err := c.DeleteCheckpoint(ctx, holdfast.MutateCheckpoint{ID: holdfast.CheckpointID(args[0])})
			if err != nil {
				return err
			}
			return a.checkpoint(gone)
		},
	}
}
