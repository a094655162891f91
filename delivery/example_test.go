package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
)

// A receiver that does not know the subject yet answers 503, and the sender comes
// again; what it refuses is never sent again.
func ExampleSender_Send() {
	secret := delivery.InstanceSecret([]byte("the cluster's key"), "in-1", 1)
	attempts := 0
	server := httptest.NewServer(delivery.Handle(delivery.Options{
		Authenticate: func(*http.Request) (delivery.Source, error) {
			return delivery.Source{Name: delivery.InstanceSource("in-1", 1), Secrets: [][]byte{secret}}, nil
		},
	}, func(_ context.Context, r delivery.Received) error {
		attempts++
		switch {
		case r.Kind != "instance.ready":
			return fmt.Errorf("%w: no such kind", delivery.ErrMalformed)
		case attempts == 1:
			return delivery.ErrNotYet
		}
		fmt.Println(r.Source, "is ready, attempt", attempts)
		return nil
	}))
	defer server.Close()

	sender := delivery.Sender{Secret: secret, URL: server.URL,
		// The pauses of 1 s and 5 s are shortened for the example.
		After: func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) }}
	for _, kind := range []string{"instance.ready", "instance.dancing"} {
		err := sender.Send(context.Background(), delivery.Message{
			ID: delivery.DeriveID(kind, "in-1", 1, "boot"), Kind: kind,
		})
		var refused *delivery.RefusedError
		if errors.As(err, &refused) {
			fmt.Println("refused:", refused.Status)
		}
	}
	// Output:
	// instance/in-1/1 is ready, attempt 2
	// refused: 400
}
