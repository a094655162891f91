package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"syscall"

	"github.com/holdfast-dev/holdfast/transport"
)

// The answer of the first call is lost after the handler has run: the client sees a
// broken connection, the server sees two calls.
func Example() {
	network := &transport.Network{}
	calls := 0
	network.Handle("fleet", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		fmt.Fprintf(w, "call %d", calls)
	}))
	faulty := &transport.Faulty{Next: network.RoundTripper(), Plan: func(r *http.Request) transport.Fault {
		if r.Header.Get("Attempt") == "1" {
			return transport.Fault{Kind: transport.LoseAnswer}
		}
		return transport.Fault{}
	}}
	client := &http.Client{Transport: faulty}
	for attempt := 1; ; attempt++ {
		req, err := http.NewRequest(http.MethodPost, "http://fleet/instances", nil)
		if err != nil {
			log.Fatal(err)
		}
		req.Header.Set("Attempt", fmt.Sprint(attempt))
		res, err := client.Do(req)
		if errors.Is(err, syscall.ECONNRESET) {
			fmt.Println("connection reset")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(body))
		break
	}
	if err := network.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// connection reset
	// call 2
}
