package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newKeyRevokeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "Make an API key worthless; one that is revoked stays so",
		Long: `Make an API key worthless: at once at the server that is called, and within 5 s at its replicas. Calls that the key
began and that last, such as following output, are ended in that time too.`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixKey, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			k, err := c.RevokeKey(cmd.Context(), holdfast.KeyID(args[0]))
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(k)
			}
			return a.keys(holdfast.KeyPage{Keys: []holdfast.Key{k}})
		},
	}
}
