package transport_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/transport"
)

// counter is a handler that knows how often it began and ended with a whole body.
type counter struct{ begun, whole atomic.Int64 }

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.begun.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "cut", http.StatusBadRequest)
		return
	}
	if string(body) == "payload" {
		c.whole.Add(1)
	}
	_, _ = io.WriteString(w, "0123456789")
}

// servers are what a Faulty can stand before: the in-memory network and real HTTP.
func servers(t *testing.T, h http.Handler) map[string]struct {
	url  string
	next http.RoundTripper
} {
	n, _ := network(t)
	n.Handle("h", h)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return map[string]struct {
		url  string
		next http.RoundTripper
	}{"memory": {"http://h/", n.RoundTripper()}, "loopback": {s.URL, s.Client().Transport}}
}

func TestEachFaultDoesWhatItSaysAndIsCounted(t *testing.T) {
	cases := []struct {
		fault        transport.Fault
		begun, whole int64
		status       int   // 0: an error
		err          error // of Do or of reading the body
		body         string
	}{
		{fault: transport.Fault{Kind: transport.None}, begun: 1, whole: 1, status: 200, body: "0123456789"},
		{fault: transport.Fault{Kind: transport.Drop}, err: syscall.ECONNRESET},
		{fault: transport.Fault{Kind: transport.LoseAnswer}, begun: 1, whole: 1, err: syscall.ECONNRESET},
		{fault: transport.Fault{Kind: transport.Duplicate}, begun: 2, whole: 2, status: 200, body: "0123456789"},
		{fault: transport.Fault{Kind: transport.Overlap}, begun: 2, whole: 2, status: 200, body: "0123456789"},
		{fault: transport.Fault{Kind: transport.CutRequest, Bytes: 3}, begun: 1, whole: 0, err: syscall.ECONNRESET},
		{fault: transport.Fault{Kind: transport.CutResponse, Bytes: 4}, begun: 1, whole: 1, status: 200, err: syscall.ECONNRESET, body: "0123"},
		{fault: transport.Fault{Kind: transport.CutResponse, Bytes: 0}, begun: 1, whole: 1, status: 200, err: syscall.ECONNRESET},
		{fault: transport.Fault{Kind: transport.Refuse, Status: 502}, status: 502},
		{fault: transport.Fault{Kind: transport.Replace}, begun: 1, whole: 1, status: 503},
	}
	for _, tc := range cases {
		h := &counter{}
		for name, server := range servers(t, h) {
			t.Run(tc.fault.Kind.String()+" "+name, func(t *testing.T) {
				h.begun.Store(0)
				h.whole.Store(0)
				f := &transport.Faulty{Next: server.next, Plan: func(*http.Request) transport.Fault { return tc.fault }}
				res, err := post(t, t.Context(), &http.Client{Transport: f}, server.url, strings.NewReader("payload"))
				var body []byte
				if err == nil {
					if res.StatusCode != tc.status {
						t.Errorf("status %d, want %d", res.StatusCode, tc.status)
					}
					body, err = io.ReadAll(res.Body)
					_ = res.Body.Close()
				}
				if !errors.Is(err, tc.err) || string(body) != tc.body {
					t.Errorf("got %q, %v; want %q, %v", body, err, tc.body, tc.err)
				}
				// A server may not have seen the first bytes of a request that was cut.
				if b := h.begun.Load(); b != tc.begun && tc.fault.Kind != transport.CutRequest || h.whole.Load() != tc.whole {
					t.Errorf("handler began %d times and had the whole body %d times, want %d and %d", b, h.whole.Load(), tc.begun, tc.whole)
				}
				if f.Fired(tc.fault.Kind) != 1 {
					t.Errorf("fired %d times", f.Fired(tc.fault.Kind))
				}
			})
		}
	}
}

func TestCutsBeyondTheEndDoNothing(t *testing.T) {
	for _, kind := range []transport.Kind{transport.CutRequest, transport.CutResponse} {
		h := &counter{}
		for name, server := range servers(t, h) {
			f := &transport.Faulty{Next: server.next, Plan: func(*http.Request) transport.Fault {
				return transport.Fault{Kind: kind, Bytes: int64(map[transport.Kind]int{transport.CutRequest: 7, transport.CutResponse: 10}[kind])}
			}}
			res, err := post(t, t.Context(), &http.Client{Transport: f}, server.url, strings.NewReader("payload"))
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(res.Body); err != nil || string(body) != "0123456789" || f.Fired(kind) != 0 {
				t.Errorf("%v on %s: %q, %v, fired %d", kind, name, body, err, f.Fired(kind))
			}
			_ = res.Body.Close()
		}
	}
}

func TestHangAndDelayEndWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := network(t)
		h := &counter{}
		n.Handle("h", h)
		for _, fault := range []transport.Fault{{Kind: transport.Hang}, {Delay: time.Hour}} {
			f := &transport.Faulty{Next: n.RoundTripper(), Plan: func(*http.Request) transport.Fault { return fault }}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			start := time.Now()
			_, err := post(t, ctx, &http.Client{Transport: f}, "http://h/", strings.NewReader("payload"))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute || h.begun.Load() != 0 {
				t.Errorf("%v after %v, handler began %d times", err, time.Since(start), h.begun.Load())
			}
			if f.Delayed() != 0 {
				t.Error("an unfinished delay was counted")
			}
		}
	})
}

func TestDelaysReorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := network(t)
		order := make(chan string, 2)
		n.Handle("h", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { order <- r.URL.Path }))
		f := &transport.Faulty{Next: n.RoundTripper(), Plan: func(r *http.Request) transport.Fault {
			if r.URL.Path == "/first" {
				return transport.Fault{Delay: time.Second}
			}
			return transport.Fault{}
		}}
		c := &http.Client{Transport: f}
		done := make(chan error, 2)
		for _, path := range []string{"/first", "/second"} {
			go func() {
				res, err := c.Get("http://h" + path)
				if err == nil {
					err = res.Body.Close()
				}
				done <- err
			}()
			synctest.Wait()
		}
		if err := errors.Join(<-done, <-done); err != nil {
			t.Fatal(err)
		}
		if a, b := <-order, <-order; a != "/second" || b != "/first" || f.Delayed() != 1 {
			t.Errorf("arrived %s, %s; %d delayed", a, b, f.Delayed())
		}
	})
}
