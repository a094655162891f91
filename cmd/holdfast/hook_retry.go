package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newHookRetryCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "retry ACTION",
		Short: "Try a failed action again; what it made already is not made twice",
		Args:  exactly("ACTION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ACTION", holdfast.PrefixHookAction, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			x, err := c.RetryHookAction(cmd.Context(), holdfast.HookActionID(args[0]))
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(x)
			}
			return a.actions(holdfast.HookActionPage{Actions: []holdfast.HookAction{x}})
		},
	}
}
