package client

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// WatchSandboxes yields every sandbox of the project, then every change, through
// broken connections, until ctx ends or yield fails, with that error. A server
// that stays away for ten attempts in a row, or refuses, ends it too: the Version
// of the last event goes into another call, which misses nothing (contract: A5).
//
// A server that no longer knows every change after a version says so: tombstones
// are kept for 7 days, and a restored database knows less. The watch then begins
// anew by itself. It yields an event that says Anew, then what there is, up to the
// next event without a sandbox: a sandbox that the caller knows and that is not
// among those is deleted.
func (c *Client) WatchSandboxes(ctx context.Context, in holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	w := watcher{yield: yield, after: in.After}
	for breaks := 1; ; breaks++ {
		err := c.services.Sandboxes.WatchSandboxes(ctx, c.caller, holdfast.WatchSandboxes{After: w.after}, func(e holdfast.SandboxEvent) error {
			breaks = 1
			return w.take(e)
		})
		switch {
		case w.refused != nil:
			return w.refused
		case ctx.Err() != nil:
			return holdfast.AsError(ctx.Err())
		case err == nil:
			err = holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "the watch ended")
		case holdfast.ReasonOf(err) == holdfast.ReasonBeginAnew && w.after != "":
			if refused := w.anew(); refused != nil {
				return refused
			}
		case !broken(err):
			return err
		}
		pause := wait(breaks, c.settings.random(), 0)
		c.settings.retry(Retry{Method: "WatchSandboxes", Attempt: breaks, Wait: pause, Cause: err})
		if breaks >= maxBreaks || !sleep(ctx, pause) {
			return err
		}
	}
}

// watcher is one watch over all of its connections.
type watcher struct {
	yield   func(holdfast.SandboxEvent) error
	after   string
	refused error // what yield returned
}

func (w *watcher) take(e holdfast.SandboxEvent) error {
	if w.refused = w.yield(e); w.refused == nil {
		w.after = e.Version
	}
	return w.refused
}

func (w *watcher) anew() error {
	w.after = ""
	return w.yield(holdfast.SandboxEvent{Anew: true})
}
