package fleet

import (
	"context"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
)

// Upward makes the Config.SendUp of a fleet that reaches its orchestrator over
// HTTP: one signed attempt a call, to URL, which is the orchestrator's
// /deliveries/fleet. The outbox retries. A nil clock means time.Now.
func Upward(client *http.Client, url string, secret []byte, clock func() time.Time) func(context.Context, outbox.Row) error {
	sender := &delivery.Sender{Client: client, Secret: secret, URL: url, Clock: clock}
	return func(ctx context.Context, row outbox.Row) error {
		return sender.Attempt(ctx, delivery.Message{ID: row.ID, Kind: row.Kind, Body: row.Body})
	}
}
