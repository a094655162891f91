package simulated

import (
	"context"
	"errors"
	"net"
	"sync"
)

// addr is the address of one end of a simulated connection.
type addr string

func (addr) Network() string  { return "simulated" }
func (a addr) String() string { return string(a) }

// listener accepts simulated connections.
type listener struct {
	address addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once

	mu    sync.Mutex
	asked bool   // somebody has called
	serve func() // begins to accept, with the first call; nil once it has
}

var _ net.Listener = (*listener)(nil)

func newListener(address addr) *listener {
	return &listener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// onCall begins to accept with the first call: most simulated guests get none, and
// a server that waits costs a goroutine.
func (l *listener) onCall(serve func()) {
	l.mu.Lock()
	l.serve = serve
	asked := l.asked
	l.mu.Unlock()
	if asked {
		l.call()
	}
}

func (l *listener) call() {
	if serve := l.idle(); serve != nil {
		go serve()
	}
}

// idle is what nobody has begun yet, and nobody will.
func (l *listener) idle() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	serve := l.serve
	l.asked, l.serve = true, nil
	return serve
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.address }
func (l *listener) Close() error   { l.shut(); return nil }
func (l *listener) shut()          { l.once.Do(func() { close(l.closed) }) }

// dial connects from the host to a guest.
func (l *listener) dial(ctx context.Context, from, to addr, g *gate) (net.Conn, error) {
	near, far := net.Pipe()
	guests := &conn{Conn: far, local: to, remote: from, gate: g}
	return l.hand(ctx, &conn{Conn: near, local: from, remote: to}, guests, guests)
}

// dialFrom connects from a guest.
func (l *listener) dialFrom(ctx context.Context, from addr, g *gate) (net.Conn, error) {
	near, far := net.Pipe()
	guests := &conn{Conn: near, local: from, remote: l.address, gate: g}
	return l.hand(ctx, guests, &conn{Conn: far, local: l.address, remote: from}, guests)
}

func (l *listener) hand(ctx context.Context, near, far net.Conn, guests *conn) (net.Conn, error) {
	err := error(&net.OpError{Op: "dial", Net: "simulated", Addr: l.address, Err: net.ErrClosed})
	if guests.gate.keep(guests) {
		l.call()
		select {
		case l.conns <- far:
			return near, nil
		case <-l.closed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	// Nobody has either end yet.
	return nil, errors.Join(err, near.Close(), far.Close())
}

// conn is one end of a connection.
type conn struct {
	net.Conn
	local, remote net.Addr
	gate          *gate // of a guest's end; nil: never stands still
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Read(b []byte) (int, error) {
	c.gate.wait()
	n, err := c.Conn.Read(b)
	c.gate.wait() // what came while it was frozen is seen when it is not
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	c.gate.wait()
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.gate.forget(c)
	return c.Conn.Close()
}

// gate is closed while an instance is frozen; it knows the guest's ends of
// connections, which end with the guest.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed: whoever waits may go
	last   bool          // never frozen again
	conns  map[*conn]struct{}
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{}), conns: map[*conn]struct{}{}}
	close(g.opened)
	return g
}

func (g *gate) set(frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isFrozen() == frozen || g.last {
		return
	}
	if frozen {
		g.opened = make(chan struct{})
	} else {
		close(g.opened)
	}
}

// thaw opens it for ever.
func (g *gate) thaw() {
	g.set(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = true
}

// end cuts every connection of the guest.
func (g *gate) end() {
	g.thaw()
	g.mu.Lock()
	conns := g.conns
	g.conns = nil
	g.mu.Unlock()
	for c := range conns {
		//nolint:errcheck // closing a pipe cannot fail
		c.Conn.Close()
	}
}

// keep notes a guest's end; false when the guest has ended.
func (g *gate) keep(c *conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		return false
	}
	g.conns[c] = struct{}{}
	return true
}

func (g *gate) forget(c *conn) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

func (g *gate) frozen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isFrozen()
}

func (g *gate) isFrozen() bool {
	select {
	case <-g.opened:
		return false
	default:
		return true
	}
}

// pass is wait for at most as long as ctx lasts, and an error once the guest has ended.
func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	opened, over := g.opened, g.conns == nil
	g.mu.Unlock()
	if over {
		return net.ErrClosed
	}
	select {
	case <-opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) wait() {
	if g == nil {
		return
	}
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	<-opened
}
