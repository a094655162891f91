package transport

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// Network is a set of hosts that exist in this process alone. The zero value is
// ready to use; it must not be copied.
type Network struct {
	// Log gets the panics of handlers; nil means [slog.Default].
	Log *slog.Logger

	mu     sync.Mutex
	hosts  map[string]*host
	closed bool
	active sync.WaitGroup // handlers that run
}

type host struct {
	handler   http.Handler
	exchanges map[*exchange]struct{}
}

// address names a host in errors.
type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }

// Handle serves requests to http://name/… with h. Name is what stands in the URL,
// with the port if it has one. A second call replaces the handler for requests that
// come after it.
func (n *Network) Handle(name string, h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts == nil {
		n.hosts = map[string]*host{}
	}
	if known, ok := n.hosts[name]; ok {
		known.handler = h
		return
	}
	n.hosts[name] = &host{handler: h, exchanges: map[*exchange]struct{}{}}
}

// Remove makes name unknown and breaks its requests in progress, as the death of its
// process would: their clients see a reset connection, their handlers a cancelled
// context.
func (n *Network) Remove(name string) {
	n.mu.Lock()
	gone := n.hosts[name]
	delete(n.hosts, name)
	n.mu.Unlock()
	n.cut(gone)
}

func (n *Network) cut(h *host) {
	if h == nil {
		return
	}
	n.mu.Lock()
	exchanges := make([]*exchange, 0, len(h.exchanges))
	for x := range h.exchanges {
		exchanges = append(exchanges, x)
	}
	n.mu.Unlock()
	for _, x := range exchanges {
		x.abort(reset(x.name))
	}
}

// Close removes every host and waits until all handlers have returned or ctx ends.
// Requests after it fail.
func (n *Network) Close(ctx context.Context) error {
	n.mu.Lock()
	hosts := n.hosts
	n.hosts, n.closed = nil, true
	n.mu.Unlock()
	for _, h := range hosts {
		n.cut(h)
	}
	done := make(chan struct{})
	go func() {
		n.active.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("transport: handlers still run"), context.Cause(ctx))
	}
}

// RoundTripper sends requests into the network. Requests to a host that is not there
// fail as a refused connection would, with a [*net.OpError] of Op "dial".
func (n *Network) RoundTripper() http.RoundTripper { return roundTripper{n} }

type roundTripper struct{ network *Network }

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, errors.Join(err, closeBody(req))
	}
	x, err := t.network.connect(req)
	if err != nil {
		return nil, errors.Join(err, closeBody(req))
	}
	return x.run(req)
}

// connect finds the host and registers the exchange with it, so that Remove finds
// either no request or one that it can break.
func (n *Network) connect(req *http.Request) (*exchange, error) {
	name := req.URL.Host
	n.mu.Lock()
	defer n.mu.Unlock()
	h, ok := n.hosts[name]
	if !ok || n.closed {
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: address(name), Err: syscall.ECONNREFUSED}
	}
	x := newExchange(req, name, h.handler)
	x.log = n.Log
	x.leave = func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(h.exchanges, x)
		n.active.Done()
	}
	h.exchanges[x] = struct{}{}
	n.active.Add(1)
	return x, nil
}

func reset(name string) error {
	return &net.OpError{Op: "read", Net: "memory", Addr: address(name), Err: syscall.ECONNRESET}
}

func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}
