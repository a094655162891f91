package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/transport"
)

// Names at which the parties of one process find each other, in memory.
const (
	memorySuffix    = ".internal"
	orchestratorURL = "http://orchestrator" + memorySuffix
	fleetURL        = "http://fleet" + memorySuffix
	hostURL         = "http://host" + memorySuffix
)

// hops is the transport between the parties: memory for those of this process,
// the network for the rest, and faults over both where a test wants them.
type hops struct {
	memory  *transport.Network
	shared  bool               // memory is other servers' too
	names   []string           // in it, of this server
	gateway *transport.Network // of simulated guests, who reach their own host's agent alone
	network *http.Transport
	peers   *peers
	client  *http.Client
	faulty  *transport.Faulty // nil without faults
}

func newHops(c Config) *hops {
	plan, shared := c.Faults, c.Network
	peers := newPeers()
	h := &hops{memory: shared, shared: shared != nil, gateway: &transport.Network{}, peers: peers, network: &http.Transport{
		DialContext:           peers.DialContext,
		ResponseHeaderTimeout: 2 * time.Minute,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
	}}
	if !h.shared {
		h.memory = &transport.Network{}
	}
	var over http.RoundTripper = h
	if plan != nil {
		h.faulty = &transport.Faulty{Next: h, Plan: plan}
		over = h.faulty
	}
	if c.Hops != nil {
		over = c.Hops(over)
	}
	h.client = &http.Client{Transport: over}
	return h
}

// serve takes calls to a name in memory.
func (h *hops) serve(name string, handler http.Handler) {
	h.names = append(h.names, name)
	h.memory.Handle(name, handler)
}

// close breaks what is under way. Of a shared network it leaves the others their part.
func (h *hops) close(ctx context.Context) error {
	h.network.CloseIdleConnections()
	err := h.gateway.Close(ctx)
	if h.shared {
		for _, name := range h.names {
			h.memory.Remove(name)
		}
		return err
	}
	return errors.Join(err, h.memory.Close(ctx))
}

// RoundTrip picks memory or network by the name.
func (h *hops) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Host, memorySuffix) {
		return h.memory.RoundTripper().RoundTrip(r)
	}
	return h.network.RoundTrip(r)
}

// at is where a party is: here in memory, or elsewhere, at one of its replicas.
func (s *Server) at(role Role, memory, elsewhere string) string {
	if s.config.has(role) {
		return memory
	}
	return s.hops.peers.name(role, elsewhere)
}
