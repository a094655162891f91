package simulated_test

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/runtimetest"
	"github.com/holdfast-dev/holdfast/runtime/runtimetest/probe"
	"github.com/holdfast-dev/holdfast/runtime/simulated"
)

// guest is the probe as a goroutine.
type guest struct {
	probe probe.Probe
	exit  context.CancelFunc
	ctx   context.Context
}

func (g *guest) Serve(l net.Listener) error { return g.probe.Serve(l) }

func (g *guest) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-g.ctx.Done():
	}
	return nil
}

func (g *guest) Close() error {
	g.probe.HTTP.CloseIdleConnections()
	return nil
}

func newDriver() *simulated.Driver {
	var d *simulated.Driver
	d = simulated.New(simulated.Config{NewGuest: func(_ context.Context, b runtime.Bundle) (simulated.Guest, error) {
		// Before anybody can ask it anything.
		if err := os.WriteFile(filepath.Join(b.Spool, "booted"), nil, 0o600); err != nil {
			return nil, err
		}
		ctx, exit := context.WithCancel(context.Background())
		return &guest{ctx: ctx, exit: exit, probe: probe.Probe{
			Nonce: rand.Text(), Exit: exit, Root: simulated.Files(b), Print: func(string) {},
			HTTP: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return d.DialGateway(ctx, b.Ref)
			}}},
		}}, nil
	}})
	return d
}

func TestConformance(t *testing.T) {
	runtimetest.Run(t, runtimetest.Harness{New: func(t *testing.T) runtimetest.Host {
		d := newDriver()
		current := d
		return runtimetest.Host{
			Driver: d,
			Restart: func(*testing.T) runtime.Driver {
				current = current.Restart()
				return current
			},
			Census: func(t *testing.T) []string {
				all, err := current.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var left []string
				for _, s := range all {
					left = append(left, string(s.Ref.Instance))
				}
				return left
			},
		}
	}})
}
