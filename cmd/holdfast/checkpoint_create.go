package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newCheckpointCreateCommand(a *app) *cobra.Command {
	var in holdfast.CreateCheckpoint
	var labels []string
	cmd := &cobra.Command{
		Use:   "create ID",
		Short: "Take a checkpoint of a sandbox or session, or carry on that of a request id",
		Long: `Take a checkpoint of a sandbox or session, READY or SUSPENDED, and wait until it is READY.

It is named by its request id. Without --request-id one is made and printed on standard error before the first call. The
same command with that id is the same checkpoint; without it, it is another.`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if in.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
			if cmd.Flags().Changed("request-id") {
				if err := holdfast.CheckRequestID("--request-id", in.RequestID); err != nil {
					return err
				}
			}
			in.Source = args[0]
			c, err := a.patiently(client.WithMintedRequestID(a.showRequestID))
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			taken, err := c.CreateCheckpoint(ctx, in)
			if err != nil {
				return err
			}
			if err := a.checkpoint(taken); err != nil {
				return err
			}
			if taken.State == holdfast.CheckpointFailed {
				return failed(taken)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&in.RequestID, "request-id", "", "names this create; 1 to 128 visible ASCII characters")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "a label, KEY=VALUE; may be repeated")
	return cmd
}
