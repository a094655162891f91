package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newWebhookReplayCommand(a *app) *cobra.Command {
	var after string
	var events []string
	var dead, all bool
	cmd := &cobra.Command{
		Use:   "replay WEBHOOK (--after CURSOR | --all | --event ID… | --dead)",
		Short: "Send events again, under their ids and in their order",
		Long: `Send events again, under their ids and in their order, so that a receiver knows those it took before: what is behind a
cursor that holdfast events showed, all that are kept, single ones, or the webhook's dead letters.`,
		Args: exactly("WEBHOOK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := holdfast.ReplayWebhook{ID: holdfast.WebhookID(args[0]), After: after}
			given := 0
			for _, is := range []bool{after != "", len(events) > 0, dead, all} {
				if is {
					given++
				}
			}
			if given != 1 {
				return usage("say what to send again: one of --after, --all, --event and --dead")
			}
			for _, id := range events {
				in.Events = append(in.Events, holdfast.EventID(id))
			}
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			if dead {
				page, err := deadLetters(cmd.Context(), c, holdfast.ListDeadLetters{Webhook: in.ID})
				if err != nil {
					return err
				}
				for _, d := range page.DeadLetters {
					in.Events = append(in.Events, d.Event)
				}
			}
			out := holdfast.Replayed{}
			if !dead || len(in.Events) > 0 {
				if out, err = replay(cmd.Context(), c, in); err != nil {
					return err
				}
			}
			if a.output == "json" {
				return a.json(out)
			}
			return write(a.out, fmt.Appendf(nil, "%d queued\n", out.Queued))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&after, "after", "", "what is behind this cursor")
	flags.BoolVar(&all, "all", false, "all that are kept")
	flags.StringSliceVar(&events, "event", nil, "the event of this id; may be given more than once")
	flags.BoolVar(&dead, "dead", false, "the webhook's dead letters")
	return cmd
}

// replay queues page by page.
func replay(ctx context.Context, c *client.Client, in holdfast.ReplayWebhook) (out holdfast.Replayed, err error) {
	if len(in.Events) > 0 {
		for chunk := range slices.Chunk(in.Events, holdfast.MaxPageSize) {
			page, err := c.ReplayWebhook(ctx, holdfast.ReplayWebhook{ID: in.ID, Events: chunk})
			if err != nil {
				return out, err
			}
			out.Queued += page.Queued
		}
		return out, nil
	}
	for {
		page, err := c.ReplayWebhook(ctx, in)
		if err != nil {
			return out, err
		}
		out.Queued += page.Queued
		if in.After = page.Next; in.After == "" {
			return out, nil
		}
	}
}
