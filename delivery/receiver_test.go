package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
)

// receive serves deliveries of source "in" on loopback.
func receive(t *testing.T, limit int64, accept func(context.Context, delivery.Received) error) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(delivery.Handle(delivery.Options{
		Authenticate: func(r *http.Request) (delivery.Source, error) {
			switch r.URL.Path {
			case "/in":
				return delivery.Source{Name: "in", Secrets: [][]byte{[]byte("old"), secret}}, nil
			case "/third":
				return delivery.Source{Name: "third", Secrets: [][]byte{secret}, Tolerance: delivery.ThirdPartyTolerance}, nil
			case "/down":
				return delivery.Source{}, errors.New("the keys cannot be read")
			case "/keyless":
				return delivery.Source{Name: "keyless"}, nil
			}
			return delivery.Source{}, fmt.Errorf("%w: no such source", delivery.ErrUnauthenticated)
		},
		Limit: limit, Clock: func() time.Time { return noon }, Log: slog.New(slog.DiscardHandler),
	}, accept))
	t.Cleanup(s.Close)
	return s
}

func TestB3_WhatIsSentIsReceived(t *testing.T) {
	var got []delivery.Received
	s := receive(t, 0, func(_ context.Context, r delivery.Received) error { got = append(got, r); return nil })
	for _, body := range []string{`{"n": 1,  "html":"<&>"}`, ``, `null`, `[1]`} {
		m := delivery.Message{ID: "dl-1", Kind: "instance.ready", Body: []byte(body)}
		err := (&delivery.Sender{Secret: secret, URL: s.URL + "/in", Clock: func() time.Time { return noon.Add(-24 * time.Hour) }}).Send(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		r := got[len(got)-1]
		if r.Source != "in" || r.ID != "dl-1" || r.Kind != "instance.ready" || !r.ReceivedAt.Equal(noon) || !r.At.Equal(noon.Add(-24*time.Hour)) {
			t.Errorf("received %+v", r)
		}
		if want := strings.TrimPrefix(body, "null"); string(r.Body) != want {
			t.Errorf("body %q, want %q", r.Body, want)
		}
	}
}

// contract: B5, B7, T17
func TestT17_OnlyWhatCanNeverSucceedIsA4xx(t *testing.T) {
	valid := []byte(`{"type":"k","data":{}}`)
	cases := []struct {
		name, method, path string
		body               []byte
		header             http.Header
		result             error
		status             int
		retryAfter         string
		called             bool
	}{
		{name: "accepted", status: 204, called: true},
		{name: "not known yet", result: fmt.Errorf("sandbox: %w", delivery.ErrNotYet), status: 503, retryAfter: "1", called: true},
		{name: "a failure of ours", result: errors.New("disk full"), status: 500, called: true},
		{name: "cancelled", result: context.Canceled, status: 500, called: true},
		{name: "its content makes no sense", result: fmt.Errorf("%w: no instance", delivery.ErrMalformed), status: 400, called: true},
		{name: "not JSON", body: []byte("hello"), status: 400},
		{name: "no kind", body: []byte(`{"data":{}}`), status: 400},
		{name: "too large", body: bytes.Repeat([]byte("x"), 2000), status: 413},
		{name: "unsigned", header: http.Header{}, status: 401},
		{name: "wrongly signed", header: delivery.Sign([]byte("guess"), "dl-1", noon, valid), status: 401},
		{name: "old, from an instance", header: delivery.Sign(secret, "dl-1", noon.Add(-time.Hour), valid), status: 204, called: true},
		{name: "old, from a third party", path: "/third", header: delivery.Sign(secret, "dl-1", noon.Add(-time.Hour), valid), status: 401},
		{name: "fresh, from a third party", path: "/third", status: 204, called: true},
		{name: "unknown source", path: "/who", status: 401},
		{name: "a source without secrets", path: "/keyless", status: 401},
		{name: "secrets cannot be read", path: "/down", status: 500},
		{name: "not posted", method: http.MethodGet, status: 405},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			called := false
			s := receive(t, 1000, func(context.Context, delivery.Received) error { called = true; return tc.result })
			body, header, path, method := valid, tc.header, "/in", http.MethodPost
			if tc.body != nil {
				body = tc.body
			}
			if header == nil {
				header = delivery.Sign(secret, "dl-1", noon, body)
			}
			if tc.path != "" {
				path = tc.path
			}
			if tc.method != "" {
				method = tc.method
			}
			req, err := http.NewRequest(method, s.URL+path, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = header
			res, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != tc.status || res.Header.Get("Retry-After") != tc.retryAfter || called != tc.called {
				t.Errorf("status %d, Retry-After %q, called %v", res.StatusCode, res.Header.Get("Retry-After"), called)
			}
			if strings.Contains(string(text), "disk full") || strings.Contains(string(text), "keys") {
				t.Errorf("the answer tells of our inside: %s", text)
			}
		})
	}
}

func TestT17_ACutDeliveryIsNotRefused(t *testing.T) {
	s := receive(t, 0, func(context.Context, delivery.Received) error { t.Error("accepted"); return nil })
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST /in HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"typ\r\n")
	if err != nil {
		t.Fatal(err)
	}
	// Half of the connection ends: the body is cut, the answer can still be read.
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 500 ") {
		t.Errorf("%q, %v", answer, err)
	}
}

// contract: B5, B7: a receiver that does not know the subject yet costs one retry.
func TestB7_NotKnownYetIsRetriedAndThenTaken(t *testing.T) {
	calls := 0
	s := receive(t, 0, func(context.Context, delivery.Received) error {
		if calls++; calls == 1 {
			return delivery.ErrNotYet
		}
		return nil
	})
	soon := func(time.Duration) <-chan time.Time { c := make(chan time.Time, 1); c <- noon; return c }
	err := (&delivery.Sender{Secret: secret, URL: s.URL + "/in", After: soon}).Send(t.Context(), event)
	if err != nil || calls != 2 {
		t.Errorf("%v after %d calls", err, calls)
	}
}
