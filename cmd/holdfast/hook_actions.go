package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newHookActionsCommand(a *app) *cobra.Command {
	var in holdfast.ListHookActions
	var states []string
	cmd := &cobra.Command{
		Use:   "actions",
		Short: "List what webhooks asked for, newest first, and what became of it",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, s := range states {
				in.States = append(in.States, holdfast.HookActionState(strings.ToUpper(s)))
			}
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.HookActionPage
			for in.PageSize = holdfast.MaxPageSize; ; {
				page, err := c.ListHookActions(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Actions = append(out.Actions, page.Actions...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.actions(out)
				}
			}
		},
	}
	cmd.Flags().StringVar(&in.Hook, "hook", "", "only of this hook")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only in this state: pending, done or failed; may be given more than once")
	return cmd
}
