package hostagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

const (
	maxPosted      = 64 << 10 // bytes of one guest's post, and of its answer
	forwardsAtOnce = 64       // of each kind, over all guests
	guestAtOnce    = 4        // of each kind, from one address
)

// gateway is the only door of guests to the control plane: it passes their posts
// on, unchanged and unqueued. A guest that is not answered tries again itself
// (contract: B5).
type gateway struct {
	agent      *Agent
	deliveries *turnstile
	telemetry  *turnstile // its own: telemetry never delays a delivery (contract: B6)
}

func newGateway(a *Agent) gateway {
	return gateway{agent: a, deliveries: newTurnstile(), telemetry: newTurnstile()}
}

// GatewayHandler serves guests: POST /deliveries (H5) and POST /telemetry (H6);
// everything else is 404.
func (a *Agent) GatewayHandler() http.Handler {
	deliveries := a.gateway.pass(a.gateway.deliveries, "/deliveries/instances")
	telemetry := a.gateway.pass(a.gateway.telemetry, "/telemetry")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /deliveries":
			deliveries(w, r)
		case "POST /telemetry":
			telemetry(w, r)
		default:
			http.NotFound(w, r)
		}
	})
}

// pass forwards one post to the orchestrator's path. Who the guest is, its
// signature proves there; here it may at least not post from another's address.
func (g gateway) pass(turns *turnstile, path string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from := addressOf(r.RemoteAddr)
		if !turns.enter(from) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many posts at once; try again", http.StatusServiceUnavailable)
			return
		}
		defer turns.leave(from)
		body, err := delivery.Read(w, r, maxPosted)
		if err != nil {
			http.Error(w, err.Error(), delivery.StatusOf(err))
			return
		}
		m, status := g.poster(r, from)
		if status != 0 {
			http.Error(w, "a guest posts as itself: "+holdfast.HeaderInstance+" and "+holdfast.HeaderIncarnation+" name its own boot", status)
			return
		}
		m.heard(r.Header, body)
		g.forward(w, r, path, body)
	}
}

// poster finds whose post it claims to be, and refuses it where the address is
// known to be another's.
func (g gateway) poster(r *http.Request, from netip.Addr) (*machine, int) {
	incarnation, err := strconv.ParseInt(r.Header.Get(holdfast.HeaderIncarnation), 10, 64)
	if err != nil {
		return nil, http.StatusBadRequest
	}
	m := g.agent.find(holdfast.InstanceID(r.Header.Get(holdfast.HeaderInstance)))
	if m == nil {
		return nil, http.StatusForbidden
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known, ok := m.records[incarnation]
	if !ok {
		return nil, http.StatusForbidden
	}
	if known.Address != "" && from.IsValid() && addressOf(known.Address) != from {
		return nil, http.StatusForbidden
	}
	return m, 0
}

// heard takes a passing callback that says ready for the guest's own word, if
// its signature is that boot's: who waits for it need not ask.
func (m *machine) heard(h http.Header, body []byte) {
	if !saysReady(body) {
		return
	}
	incarnation, err := strconv.ParseInt(h.Get(holdfast.HeaderIncarnation), 10, 64)
	if err != nil {
		return
	}
	if _, err := delivery.Verify(m.secret(incarnation), h, body); err != nil {
		return // whoever said it, the orchestrator refuses it
	}
	select {
	case <-m.word: // an unheard one gives way
	default:
	}
	select {
	case m.word <- incarnation:
	default:
	}
}

// saysReady reports whether a callback's kind is ready. Our own guest's begins with
// it, so that it need not be read as JSON.
func saysReady(body []byte) bool {
	if bytes.HasPrefix(body, []byte(`{"type":"`+holdfast.DeliveryReady+`","data":`)) {
		return true
	}
	var envelope struct {
		Type holdfast.DeliveryKind `json:"type"`
	}
	return json.Unmarshal(body, &envelope) == nil && envelope.Type == holdfast.DeliveryReady
}

// secret is what a boot of the instance signs with (contract: B8).
func (m *machine) secret(incarnation int64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.secretOf != incarnation {
		m.secretOf, m.secretIs = incarnation, delivery.InstanceSecret(m.agent.config.ClusterKey, string(m.id), incarnation)
	}
	return m.secretIs
}

func (g gateway) forward(w http.ResponseWriter, r *http.Request, path string, body []byte) {
	to := g.agent.config.Orchestrator
	ctx, cancel := context.WithTimeout(r.Context(), g.agent.config.Timing.ForwardTimeout)
	defer cancel()
	onward, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL+path, bytes.NewReader(body))
	if err != nil {
		g.agent.log.Error("a guest's post cannot be passed on", "error", err)
		http.Error(w, "the orchestrator's address is wrong", http.StatusServiceUnavailable)
		return
	}
	for name, values := range r.Header {
		if passes(name) {
			onward.Header[name] = values
		}
	}
	res, err := delivery.Do(to.Client, onward)
	if err != nil {
		g.agent.log.Debug("a guest's post did not reach the orchestrator", "error", err)
		http.Error(w, "the orchestrator does not answer; try again", http.StatusServiceUnavailable)
		return
	}
	words, err := io.ReadAll(io.LimitReader(res.Body, maxPosted))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		g.agent.log.Debug("an answer to a guest was cut; its status stands", "error", err)
	}
	for _, name := range []string{"Content-Type", "Retry-After"} {
		if v := res.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(words) // a guest that hung up asks again
}

// passes lists what of a guest's header is its message; the rest is between the
// guest and its host.
func passes(name string) bool {
	lower := strings.ToLower(name)
	return lower == "content-type" || strings.HasPrefix(lower, "webhook-") || strings.HasPrefix(lower, "holdfast-")
}

// addressOf is the address of "host", "host:port" or "host/bits"; invalid where
// it is none, as in memory.
func addressOf(s string) netip.Addr {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	s, _, _ = strings.Cut(s, "/")
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap()
}

// turnstile bounds posts in progress: in all, and from one address, so that one
// guest cannot keep the others from calling home.
type turnstile struct {
	mu   sync.Mutex
	all  int
	from map[netip.Addr]int
}

func newTurnstile() *turnstile { return &turnstile{from: map[netip.Addr]int{}} }

func (t *turnstile) enter(from netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all >= forwardsAtOnce || from.IsValid() && t.from[from] >= guestAtOnce {
		return false
	}
	t.all++
	t.from[from]++
	return true
}

func (t *turnstile) leave(from netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.from[from]--; t.from[from] == 0 {
		delete(t.from, from)
	}
}
