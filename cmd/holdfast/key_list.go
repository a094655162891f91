package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newKeyListCommand(a *app) *cobra.Command {
	in := holdfast.ListKeys{PageSize: holdfast.MaxPageSize}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the API keys that are valid",
		Long:  `List the API keys that are valid, by id. The admin key of a server's first start is in its data directory, not here.`,
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.KeyPage
			for {
				page, err := c.ListKeys(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Keys = append(out.Keys, page.Keys...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.keys(out)
				}
			}
		},
	}
	cmd.Flags().StringVar(&in.Project, "project", "", "only keys of this project, by id or name")
	cmd.Flags().BoolVar(&in.Revoked, "all", false, "revoked ones too")
	return cmd
}
