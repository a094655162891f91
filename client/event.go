package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// StreamEvents yields the project's events in order, through broken connections: with
// Follow until ctx ends, without it those there are; and until yield fails, with that
// error. A server that stays away for ten attempts in a row, or refuses, ends it too:
// the Cursor of the last event goes into another call, which misses nothing.
func (c *Client) StreamEvents(ctx context.Context, in holdfast.StreamEvents, yield func(holdfast.Event) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	for breaks := 1; ; breaks++ {
		var refused error // what yield returned
		err := c.services.Events.StreamEvents(ctx, c.caller, in, func(e holdfast.Event) error {
			if refused = yield(e); refused == nil {
				in.After, breaks = e.Cursor, 1
			}
			return refused
		})
		switch {
		case refused != nil:
			return refused
		case err == nil && !in.Follow:
			return nil
		case ctx.Err() != nil:
			return holdfast.AsError(ctx.Err())
		case err == nil:
			err = holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "the stream of events ended")
		case !broken(err):
			return err
		}
		pause := wait(breaks, c.settings.random(), 0)
		c.settings.retry(Retry{Method: "StreamEvents", Attempt: breaks, Wait: pause, Cause: err})
		if breaks >= maxBreaks || !sleep(ctx, pause) {
			return err
		}
	}
}

// ListDeliveries reads one page of what came in; it needs an admin's key.
func (c *Client) ListDeliveries(ctx context.Context, in holdfast.ListDeliveries) (holdfast.DeliveryPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.DeliveryPage, error) {
		return c.services.Events.ListDeliveries(ctx, c.caller, in)
	})
}
