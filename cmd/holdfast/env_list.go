package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newEnvListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the environments that have a recipe; base and debian exist without",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			in := holdfast.ListEnvironments{PageSize: holdfast.MaxPageSize}
			var out holdfast.EnvironmentPage
			for {
				page, err := c.ListEnvironments(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Environments = append(out.Environments, page.Environments...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.environments(out)
				}
			}
		},
	}
}
