package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newHookListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the sources of webhooks; it needs an admin's key",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.HookPage
			for in := (holdfast.ListHooks{PageSize: holdfast.MaxPageSize}); ; {
				page, err := c.ListHooks(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Hooks = append(out.Hooks, page.Hooks...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.hooks(out)
				}
			}
		},
	}
}
