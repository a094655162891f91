package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newEnvBuildsCommand(a *app) *cobra.Command {
	in := holdfast.ListBuilds{PageSize: holdfast.DefaultPageSize}
	cmd := &cobra.Command{
		Use:   "builds [NAME]",
		Short: "List builds, of one environment or of all, newest first",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				in.Environment = args[0]
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			page, err := c.ListBuilds(cmd.Context(), in)
			if err != nil {
				return err
			}
			return a.builds(page)
		},
	}
	cmd.Flags().IntVar(&in.PageSize, "page-size", holdfast.DefaultPageSize, "how many at most, up to 1000")
	cmd.Flags().StringVar(&in.PageToken, "page-token", "", "nextPageToken of the page before")
	return cmd
}
