package main

import "github.com/spf13/cobra"

func newEnvOperationsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "operations ID|NAME",
		Short: "Show the journal of a build, or of an environment's newest one",
		Args:  exactly("ID|NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			id, err := buildID(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return a.operationsOf(cmd.Context(), c, string(id))
		},
	}
}
