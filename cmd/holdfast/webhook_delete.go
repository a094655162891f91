package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newWebhookDeleteCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID",
		Short: "End a webhook, and what it was still to be sent; one that is gone is done",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixWebhook, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			return done(c.DeleteWebhook(cmd.Context(), holdfast.WebhookID(args[0])))
		},
	}
}

// done takes what is gone already for deleted (contract: A4).
func done(err error) error {
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return nil
	}
	return err
}
