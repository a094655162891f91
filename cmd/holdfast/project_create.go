package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newProjectCreateCommand(a *app) *cobra.Command {
	var in holdfast.CreateProject
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a project, or show the one of that name",
		Long: `Create a project. Its name keys it: the same command again is the same project, as it is now.

Without a quota's flag there is no limit. It needs an admin's key; sandboxes are created in the project by the keys of
holdfast key create --project NAME.`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Name = args[0]
			c, err := a.connect()
			if err != nil {
				return err
			}
			p, err := c.CreateProject(cmd.Context(), in)
			if err != nil {
				return err
			}
			return a.project(p)
		},
	}
	quotaFlags(cmd.Flags(), &in.Quotas)
	return cmd
}
