package server

import (
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
	network *http.Transport
	peers   *peers
	client  *http.Client
	faulty  *transport.Faulty // nil without faults
}

func newHops(plan transport.Plan) *hops {
	peers := newPeers()
	h := &hops{memory: &transport.Network{}, peers: peers, network: &http.Transport{
		DialContext:           peers.DialContext,
		ResponseHeaderTimeout: 2 * time.Minute,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
	}}
	var over http.RoundTripper = h
	if plan != nil {
		h.faulty = &transport.Faulty{Next: h, Plan: plan}
		over = h.faulty
	}
	h.client = &http.Client{Transport: over}
	return h
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
