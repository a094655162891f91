package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

// newWebhookCommand is `holdfast webhook`.
func newWebhookCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Have the project's events posted to a URL: create, list, delete, dead letters, replay",
		Args:  cobra.ArbitraryArgs,
		RunE:  needSubcommand,
	}
	cmd.AddCommand(newWebhookCreateCommand(a), newWebhookListCommand(a), newWebhookDeleteCommand(a), newWebhookDeadCommand(a), newWebhookReplayCommand(a))
	return cmd
}

// webhooks writes a list of webhooks.
func (a *app) webhooks(page holdfast.WebhookPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Webhooks))
	for i, w := range page.Webhooks {
		rows[i] = []string{string(w.ID), w.URL, allOr(w.Kinds), dash(w.Creator), stamp(w.CreatedAt)}
	}
	return a.table("ID URL KINDS CREATOR CREATED", rows)
}

// allOr lists the kinds of a filter.
func allOr(kinds []string) string { return orWord(strings.Join(kinds, ","), "all") }
