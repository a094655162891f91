package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newWebhookCreateCommand(a *app) *cobra.Command {
	var in holdfast.CreateWebhook
	cmd := &cobra.Command{
		Use:   "create URL",
		Short: "Have the project's events posted to a URL, and show the secret that signs them, this once",
		Long: `Have the project's events posted to a URL, from now on, in order for each resource. They are signed as Standard Webhooks
say, with a secret that is shown this once. What is answered 2xx is done; 408, 429, 3xx, 5xx and no answer are tried again for
5 days; another 4xx makes it a dead letter at once. Each run makes another webhook.

The kinds:` + kindsHelp(),
		Args: exactly("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.URL = args[0]
			c, err := a.connect()
			if err != nil {
				return err
			}
			w, err := c.CreateWebhook(cmd.Context(), in)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(w)
			}
			if err := a.webhooks(holdfast.WebhookPage{Webhooks: []holdfast.Webhook{w.Webhook}}); err != nil {
				return err
			}
			return write(a.out, []byte("secret, shown this once: "+w.Secret+"\n"))
		},
	}
	cmd.Flags().StringSliceVar(&in.Kinds, "kind", nil, "only these kinds of events, such as task.succeeded or session.*; may be given more than once")
	return cmd
}
