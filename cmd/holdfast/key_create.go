package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newKeyCreateCommand(a *app) *cobra.Command {
	var in holdfast.CreateKey
	var role string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an API key, and show its secret this once",
		Long: `Make an API key. NAME says who or what will use it, and is the creator that its sandboxes show.

The secret is shown this once and is not kept. Each run makes another key: if the answer is lost, holdfast key list shows
the key that nobody has, and holdfast key revoke ends it.`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Name, in.Role = args[0], holdfast.Role(strings.ToUpper(role))
			c, err := a.connect()
			if err != nil {
				return err
			}
			k, err := c.CreateKey(cmd.Context(), in)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(k)
			}
			if err := a.keys(holdfast.KeyPage{Keys: []holdfast.Key{k.Key}}); err != nil {
				return err
			}
			return write(a.out, []byte("secret, shown this once: "+k.Secret+"\n"))
		},
	}
	cmd.Flags().StringVar(&in.Project, "project", string(holdfast.ProjectDefault), "the project that it acts in, by id or name")
	cmd.Flags().StringVar(&role, "role", "member", "member: use the project's sandboxes; admin: and manage projects, keys and hosts")
	return cmd
}
