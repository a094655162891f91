package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newWebhookListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the project's webhooks",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.WebhookPage
			for in := (holdfast.ListWebhooks{PageSize: holdfast.MaxPageSize}); ; {
				page, err := c.ListWebhooks(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Webhooks = append(out.Webhooks, page.Webhooks...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.webhooks(out)
				}
			}
		},
	}
}
