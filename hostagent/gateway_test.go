package hostagent

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

func post(handler http.Handler, path, from, instance, incarnation string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	r.Header = delivery.Sign([]byte("s"), "ev-1", time.Unix(1, 0), body)
	r.Header.Set(holdfast.HeaderInstance, instance)
	r.Header.Set(holdfast.HeaderIncarnation, incarnation)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Cookie", "not yours")
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// contract: B1, B5, B8
func TestTheGatewayPassesAGuestsPostOnUnchanged(t *testing.T) {
	status := http.StatusNoContent
	url, got := receiver(t, func(posted) int { return status })
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.config.Orchestrator.URL = url })
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	body := []byte(`{"type":"instance.ready","data":  {"odd":"spacing"}}`)
	for path, onward := range map[string]string{"/deliveries": "/deliveries/instances", "/telemetry": "/telemetry"} {
		for _, status = range []int{http.StatusNoContent, http.StatusUnauthorized, http.StatusServiceUnavailable} {
			w := post(b.GatewayHandler(), path, "10.0.0.9:1234", string(testInstance), "1", body)
			if w.Code != status {
				t.Errorf("%s: the guest got %d, the orchestrator said %d", path, w.Code, status)
			}
			p := b.next(got, onward)
			if _, err := delivery.Verify([]byte("s"), p.header, p.body); err != nil || !bytes.Equal(p.body, body) {
				t.Errorf("%s: changed on its way: %v, %s", path, err, p.body)
			}
			if p.header.Get(holdfast.HeaderInstance) != string(testInstance) || p.header.Get(holdfast.HeaderIncarnation) != "1" || p.header.Get("Cookie") != "" {
				t.Errorf("%s: header %v", path, p.header)
			}
		}
	}
}

func TestTheGatewayIsNoOtherDoor(t *testing.T) {
	url, got := receiver(t, func(posted) int { return http.StatusNoContent })
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.config.Orchestrator.URL = url })
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	for _, path := range []string{"/", "/deliveries/", "/deliveries/fleet", "/deliveries/instances", "/host/ensure", "/heartbeat", "//deliveries", "/telemetry/x"} {
		if w := post(b.GatewayHandler(), path, "10.0.0.9:1", string(testInstance), "1", nil); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	for name, c := range map[string]struct {
		from, instance, incarnation string
		size, want                  int
	}{
		"another's address":   {"10.0.0.8:1", string(testInstance), "1", 1, http.StatusForbidden},
		"an unknown instance": {"10.0.0.9:1", "in-00000000000000000000000009", "1", 1, http.StatusForbidden},
		"an unknown boot":     {"10.0.0.9:1", string(testInstance), "2", 1, http.StatusForbidden},
		"no boot":             {"10.0.0.9:1", string(testInstance), "", 1, http.StatusBadRequest},
		"too large":           {"10.0.0.9:1", string(testInstance), "1", maxPosted + 1, http.StatusRequestEntityTooLarge},
	} {
		w := post(b.GatewayHandler(), "/deliveries", c.from, c.instance, c.incarnation, make([]byte, c.size))
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", name, w.Code, c.want)
		}
	}
	if len(got) != 0 {
		t.Errorf("%d posts got through", len(got))
	}
	r := httptest.NewRequest(http.MethodGet, "/deliveries", nil)
	w := httptest.NewRecorder()
	b.GatewayHandler().ServeHTTP(w, r)
	if w.Code != http.StatusNotFound {
		t.Errorf("GET: %d", w.Code)
	}
}

// contract: B5: the guest retries what is 5xx.
func TestB5_AnUnreachableOrchestratorIs503(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.config.Orchestrator.URL = server.URL })
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	if w := post(b.GatewayHandler(), "/deliveries", "10.0.0.9:1", string(testInstance), "1", []byte("{}")); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d", w.Code)
	}
}

// contract: B6
func TestB6_TelemetryNeverDelaysADelivery(t *testing.T) {
	held := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/telemetry" {
			<-held
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.config.Orchestrator.URL = server.URL })
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	answers := make(chan int, guestAtOnce+1)
	for range guestAtOnce + 1 {
		go func() {
			answers <- post(b.GatewayHandler(), "/telemetry", "10.0.0.9:1", string(testInstance), "1", []byte("{}")).Code
		}()
	}
	if code := <-answers; code != http.StatusServiceUnavailable {
		t.Errorf("one too many got %d", code)
	}
	if w := post(b.GatewayHandler(), "/deliveries", "10.0.0.9:1", string(testInstance), "1", []byte("{}")); w.Code != http.StatusNoContent {
		t.Errorf("the delivery got %d", w.Code)
	}
	close(held)
	for range guestAtOnce {
		<-answers
	}
}

// contract: D1, B8. What the guest itself signed needs no question; what anybody
// may have said changes nothing.
func TestD1_AGuestsOwnReadyIsTakenAndNobodyElses(t *testing.T) {
	url, _ := receiver(t, func(posted) int { return http.StatusInternalServerError })
	w := newWorld()
	w.readyFrom = false // whoever asks is told: not yet
	b := start(t, w, t.TempDir(), newClock(), func(b *bench) { b.config.Orchestrator.URL = url })
	b.begin(b.level(1, 1, holdfast.DesiredRunning))
	body := []byte(`{"type":"instance.ready","data":null}`)
	say := func(secret []byte) {
		r := httptest.NewRequest(http.MethodPost, "/deliveries", bytes.NewReader(body))
		r.Header = delivery.Sign(secret, "dl-ready", time.Unix(1, 0), body)
		r.Header.Set(holdfast.HeaderInstance, string(testInstance))
		r.Header.Set(holdfast.HeaderIncarnation, "1")
		w := httptest.NewRecorder()
		b.GatewayHandler().ServeHTTP(w, r)
		if w.Code != http.StatusInternalServerError { // passed on, whatever it is: the orchestrator judges
			t.Errorf("passing it on answered %d", w.Code)
		}
	}
	m := b.find(testInstance)
	for _, forged := range [][]byte{[]byte("a neighbour's"), delivery.InstanceSecret(b.config.ClusterKey, string(testInstance), 2)} {
		say(forged)
		if len(m.word) != 0 {
			t.Error("a forged ready was taken for the guest's")
		}
	}
	b.becomes(testInstance, holdfast.InstanceBooting)
	say(delivery.InstanceSecret(b.config.ClusterKey, string(testInstance), 1))
	b.becomes(testInstance, holdfast.InstanceRunning)
}

func TestAddressesAreComparedWhateverTheirForm(t *testing.T) {
	want := netip.MustParseAddr("10.1.2.3")
	for _, s := range []string{"10.1.2.3", "10.1.2.3:80", "10.1.2.3/20", "[::ffff:10.1.2.3]:80"} {
		if got := addressOf(s); got != want {
			t.Errorf("%q is %v", s, got)
		}
	}
	for _, s := range []string{"", "pipe", "@"} {
		if addressOf(s).IsValid() {
			t.Errorf("%q is an address", s)
		}
	}
}
