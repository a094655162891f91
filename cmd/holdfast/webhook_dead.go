package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newWebhookDeadCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "dead [WEBHOOK]",
		Short: "List the events that a receiver refused, or did not take for 5 days",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var in holdfast.ListDeadLetters
			if len(args) > 1 {
				return usage("%q is one argument too many", args[1])
			}
			if len(args) > 0 {
				in.Webhook = holdfast.WebhookID(args[0])
			}
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			out, err := deadLetters(cmd.Context(), c, in)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(out)
			}
			rows := make([][]string, len(out.DeadLetters))
			for i, d := range out.DeadLetters {
				rows[i] = []string{string(d.Webhook), string(d.Event), string(d.Kind), d.Resource, strconv.Itoa(d.Attempts), stamp(d.DiedAt), d.LastError}
			}
			return a.table("WEBHOOK EVENT KIND RESOURCE ATTEMPTS DIED ERROR", rows)
		},
	}
}

// deadLetters reads every page.
func deadLetters(ctx context.Context, c *client.Client, in holdfast.ListDeadLetters) (out holdfast.DeadLetterPage, err error) {
	for in.PageSize = holdfast.MaxPageSize; ; {
		page, err := c.ListDeadLetters(ctx, in)
		if err != nil {
			return out, err
		}
		out.DeadLetters = append(out.DeadLetters, page.DeadLetters...)
		if in.PageToken = page.NextPageToken; in.PageToken == "" {
			return out, nil
		}
	}
}
