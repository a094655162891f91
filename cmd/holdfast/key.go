package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

// newKeyCommand is `holdfast key`.
func newKeyCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Create, list and revoke API keys; it needs an admin's",
		Args:  cobra.ArbitraryArgs,
		RunE:  needSubcommand,
	}
	cmd.AddCommand(newKeyCreateCommand(a), newKeyListCommand(a), newKeyRevokeCommand(a))
	return cmd
}

// keys writes a list of keys.
func (a *app) keys(page holdfast.KeyPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Keys))
	for i, k := range page.Keys {
		rows[i] = []string{string(k.ID), string(k.Project), k.Name, string(k.Role), stamp(k.CreatedAt), stamp(k.RevokedAt)}
	}
	return a.table("ID PROJECT NAME ROLE CREATED REVOKED", rows)
}
