package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
	rpcguest "github.com/holdfast-dev/holdfast/rpc/guest"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/simulated"
)

// newSimulated is the runtime without containers: the real guest agent, over a
// process table and a directory of its own, in this process. It calls home over
// memory, as the parties of one process do.
func newSimulated(memory http.RoundTripper) *simulated.Driver {
	var driver *simulated.Driver
	driver = simulated.New(simulated.Config{NewGuest: func(_ context.Context, b runtime.Bundle) (simulated.Guest, error) {
		return newSimulatedGuest(gatewayTripper{driver, b.Ref, memory}, b)
	}})
	return driver
}

// simulatedGuest is one boot's guest agent, with its HTTP server.
type simulatedGuest struct {
	agent *guestagent.Agent
	http  *http.Server
}

// gatewayTripper is a simulated guest's way to its host agent. While the instance
// is frozen nothing of it gets there, and no answer gets to it.
type gatewayTripper struct {
	driver *simulated.Driver
	ref    holdfast.InstanceRef
	memory http.RoundTripper
}

// RoundTrip sends one request.
func (g gatewayTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := g.driver.Reach(r.Context(), g.ref); err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, err
	}
	res, err := g.memory.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := g.driver.Reach(r.Context(), g.ref); err != nil {
		return nil, errors.Join(err, res.Body.Close())
	}
	return res, nil
}

func newSimulatedGuest(way gatewayTripper, b runtime.Bundle) (simulated.Guest, error) {
	home := &http.Client{Transport: way}
	agent, err := guestagent.New(guestagent.Config{
		Guest: b.Guest, Spool: b.Spool, Executor: guestagent.NewSimulatedExecutor(time.After), HTTP: home, Telemetry: home,
		Root: simulated.Files(b), Late: true,
	})
	if err != nil {
		return nil, fmt.Errorf("simulated guest: %w", err)
	}
	return &simulatedGuest{agent: agent, http: &http.Server{Handler: late(func() http.Handler { return rpcguest.Handler(agent.Guest()) })}}, nil
}

// late makes a handler with the first request: most simulated guests get none.
func late(handler func() http.Handler) http.Handler {
	once := sync.OnceValue(handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { once().ServeHTTP(w, r) })
}

// Serve answers the host until the listener closes.
func (g *simulatedGuest) Serve(l net.Listener) error { return ignoreClosed(g.http.Serve(l)) }

// Run boots and lives until it is killed.
func (g *simulatedGuest) Run(ctx context.Context) error { return g.agent.Run(ctx) }

// Close ends everything of the guest.
func (g *simulatedGuest) Close() error { return errors.Join(g.http.Close(), g.agent.Close()) }

// bare is the images of the simulated runtime: an empty directory for any known name.
type bare struct{ dir string }

// Ensure makes the directory.
func (b bare) Ensure(_ context.Context, ref, _ string, _ func(string)) (holdfast.BaseImage, error) {
	if _, err := imageOf(ref); err != nil {
		return holdfast.BaseImage{}, err
	}
	dir := filepath.Join(b.dir, "simulated")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return holdfast.BaseImage{}, fmt.Errorf("image %s: %w", ref, err)
	}
	return holdfast.BaseImage{RootFS: dir}, nil
}

var _ simulated.Guest = (*simulatedGuest)(nil)
