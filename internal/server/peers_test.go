package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// A replica that is down costs nothing, whichever it is: the call goes to
// another, and to one only.
func TestT22_AnotherReplicaIsTriedOnlyBeforeAnythingWasSent(t *testing.T) {
	var calls atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(w, r.Body)
	}))
	defer up.Close()
	h := newHops(Config{})
	base := h.peers.name(Fleet, "http://"+testenv.FreeAddress(t)+", "+up.URL+"/")
	for range 4 { // each begins with another
		res, err := h.client.Post(base+"/x", "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || string(body) != "hello" {
			t.Fatalf("%q %v", body, err)
		}
		if err := res.Body.Close(); err != nil {
			t.Fatal(err)
		}
		h.network.CloseIdleConnections()
	}
	if calls.Load() != 4 {
		t.Errorf("%d calls arrived, want 4", calls.Load())
	}
}

// A replica that takes the call and dies leaves it open what happened: nobody
// else is asked the same.
func TestT22_ACallThatMayHaveHappenedIsNotRepeatedAtAnotherReplica(t *testing.T) {
	var calls atomic.Int64
	die := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			err = c.Close()
		}
		if err != nil {
			t.Error(err)
		}
	})
	a, b := httptest.NewServer(die), httptest.NewServer(die)
	defer a.Close()
	defer b.Close()
	h := newHops(Config{})
	res, err := h.client.Post(h.peers.name(Fleet, a.URL+","+b.URL)+"/x", "text/plain", strings.NewReader("hello"))
	if err == nil {
		t.Error("it was answered", res.Status, res.Body.Close())
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls arrived, want 1", calls.Load())
	}
}

func TestReplicasThatAreAllDownAreNamed(t *testing.T) {
	p := newPeers()
	a, b := testenv.FreeAddress(t), testenv.FreeAddress(t)
	p.name(Fleet, "http://"+a+",http://"+b)
	c, err := p.DialContext(context.Background(), "tcp", net.JoinHostPort("fleet"+peersSuffix, "80"))
	if err == nil {
		t.Fatal("connected", c.Close())
	}
	if !strings.Contains(err.Error(), a) || !strings.Contains(err.Error(), b) {
		t.Errorf("both are down, and it says %v", err)
	}
}

func TestSeveralURLsAreCheckedEach(t *testing.T) {
	for list, want := range map[string]string{
		"":                                   "",
		"http://10.0.0.5:7420":               "",
		"https://fleet.example/holdfast":     "",
		"http://10.0.0.5:7420, http://b":     "",
		"http://10.0.0.5:7420,10.0.0.6:7420": "not a URL",
		"http://10.0.0.5:7420,https://b":     "balancer",
		"http://a/x,http://b":                "balancer",
	} {
		err := checkURLs("--fleet-url", list)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
}
