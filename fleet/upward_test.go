package fleet

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
)

// contract: B5, B8. T22: one signed attempt a call; the outbox retries.
func TestUpwardSendsOneSignedAttempt(t *testing.T) {
	secret := []byte("the fleet's")
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		requests++
		body, err := delivery.Read(rw, r, delivery.DefaultLimit)
		if err == nil {
			_, err = delivery.Verify(secret, r.Header, body)
		}
		if err != nil {
			t.Error(err)
		}
		rw.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	send := Upward(srv.Client(), srv.URL, secret, nil)
	if err := send(t.Context(), outbox.Row{ID: "ev-1", Kind: "instance.exited", Body: []byte("{}")}); err == nil || requests != 1 {
		t.Errorf("%d requests, %v", requests, err)
	}
}
