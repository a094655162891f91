package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newProjectListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List projects with what they hold of their quotas; a member's key sees its own",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			in := holdfast.ListProjects{PageSize: holdfast.MaxPageSize}
			var out holdfast.ProjectPage
			for {
				page, err := c.ListProjects(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Projects = append(out.Projects, page.Projects...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.projects(out)
				}
			}
		},
	}
}
