package postgres_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/store/postgres"
)

// fault is what a proxy does to a COMMIT.
type fault int

const (
	none      fault = iota
	cutBefore       // the connection breaks before the server has it
	cutAfter        // the connection breaks before the client has the answer
	hold            // the answer waits until let go
)

// proxy stands between a database and its clients and spoils their COMMITs.
type proxy struct {
	t      *testing.T
	server string

	mu    sync.Mutex
	fault fault
	seen  chan struct{} // a COMMIT was met, after which it is as none
	let   chan struct{}
}

// through is a config that leads through a new proxy.
func through(t *testing.T, cfg postgres.Config, server string) (*proxy, postgres.Config) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, server: server, seen: make(chan struct{}, 100), let: make(chan struct{})}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { // after the database's, which ends the connections
		_ = l.Close()
		conns.Wait()
	})
	cfg.URL = strings.Replace(cfg.URL, server, l.Addr().String(), 1) + "?sslmode=disable"
	return p, cfg
}

// next is what happens to the next COMMIT.
func (p *proxy) next(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

func (p *proxy) take() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fault
	p.fault = none
	p.seen <- struct{}{}
	return f
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	var closing sync.Once
	cut := func() {
		closing.Do(func() {
			_ = client.Close()
			_ = server.Close()
		})
	}
	defer cut()
	verdicts := make(chan fault, 100) // for the answer to the COMMIT that was sent last
	go func() {
		defer cut()
		for buf := make([]byte, 64<<10); ; {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			select {
			case f := <-verdicts:
				if f == cutAfter {
					return
				}
				<-p.let
			default:
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	for buf := make([]byte, 64<<10); ; {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if bytes.Contains(buf[:n], []byte("COMMIT\x00")) {
			switch f := p.take(); f {
			case cutBefore:
				return
			case cutAfter, hold:
				verdicts <- f
			}
		}
		if _, err := server.Write(buf[:n]); err == io.EOF || err != nil {
			return
		}
	}
}
