package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newHookDeleteCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "End a source of webhooks; one that is gone is done",
		Args:  exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckHookName("NAME", args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			return done(c.DeleteHook(cmd.Context(), args[0]))
		},
	}
}
