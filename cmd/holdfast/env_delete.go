package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newEnvDeleteCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete an environment; what was made from it stays",
		Args:  exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.patiently()
			if err != nil {
				return err
			}
			e, err := c.DeleteEnvironment(cmd.Context(), args[0])
			if holdfast.CodeOf(err) == holdfast.NotFound { // as wanted (contract: A4)
				e, err = holdfast.Environment{Name: args[0]}, nil
			}
			if err != nil {
				return err
			}
			return a.environment(e)
		},
	}
}
