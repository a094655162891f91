package transport_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/transport"
)

// BenchmarkUnary compares one small call in memory with one over loopback.
func BenchmarkUnary(b *testing.B) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			b.Error(err)
		}
		_, _ = w.Write(body)
	})
	n := &transport.Network{}
	n.Handle("h", h)
	s := httptest.NewServer(h)
	defer s.Close()
	for name, to := range map[string]struct {
		url    string
		client *http.Client
	}{"memory": {"http://h/", &http.Client{Transport: n.RoundTripper()}}, "loopback": {s.URL, s.Client()}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				res, err := to.client.Post(to.url, "text/plain", strings.NewReader("hello"))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, res.Body); err != nil {
					b.Fatal(err)
				}
				_ = res.Body.Close()
			}
		})
	}
	if err := n.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}
