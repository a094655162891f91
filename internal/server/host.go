package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/hostagent"
	"github.com/holdfast-dev/holdfast/image"
	rpcguest "github.com/holdfast-dev/holdfast/rpc/guest"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	rpchost "github.com/holdfast-dev/holdfast/rpc/host"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/runtime/runc"
	"github.com/holdfast-dev/holdfast/runtime/simulated"
)

// imageOf is the image of an environment's name; until environments are built,
// an environment is named like its base image.
func imageOf(environment string) (string, error) { return environment, image.Known(environment) }

// pinOf gives an image the digest of what it names now.
func pinOf(ctx context.Context, ref string) (string, error) { return image.Pin(ctx, ref) }

// images is the image store as the host agent wants it.
type images struct{ store *image.Store }

// Ensure prepares an image.
func (i images) Ensure(ctx context.Context, ref, id string, progress func(string)) (holdfast.BaseImage, error) {
	img, err := i.store.EnsureSame(ctx, ref, id, progress)
	return img.Base(), err
}

// Held lists the references that are ready, each as environments may spell it.
func (i images) Held() ([]string, error) {
	list, err := i.store.List()
	if err != nil {
		return nil, err
	}
	var refs []string
	for _, img := range list {
		refs = append(refs, img.Ref)
		if img.Ref == image.RefDebian+":"+image.DebianDefault {
			refs = append(refs, image.RefDebian)
		}
	}
	return refs, nil
}

// startHost opens the runtime, finds running instances again, and serves the
// fleet's levels and the orchestrator's guest calls.
func (s *Server) startHost(ctx, _ context.Context, mux *http.ServeMux) error {
	driver, prepared, err := s.runtime()
	if err != nil {
		return err
	}
	if s.config.Driver != nil {
		driver = s.config.Driver(driver)
	}
	url := s.URL()
	if s.config.has(Fleet) && s.config.has(Orchestrator) && !s.config.shared() { // a name that other replicas do not know
		url = hostURL
	}
	layers, err := image.NewLayers(filepath.Join(s.config.DataDir, "layers"), image.LayersConfig{Blobs: s.blobs, Now: s.config.Clock})
	if err != nil {
		return err
	}
	s.onClose("layers", func() error {
		layers.Close()
		return nil
	})
	s.host, err = hostagent.New(hostagent.Config{
		Blobs: s.blobs, Layers: layers,
		Directory: filepath.Join(s.config.DataDir, "host"), Driver: driver, Images: prepared, Volatile: s.config.Runtime == "simulated",
		ClusterID: s.cluster, ClusterKey: s.key, URL: url, Capacity: s.config.Capacity,
		Fleet: hostagent.FleetLink{
			URL: s.at(Fleet, fleetURL, s.config.FleetURL), Client: s.hops.client, Token: s.key.Token(hop.HostAgent, hop.Fleet),
			Secret: func(id holdfast.HostID) []byte { return s.key.Secret("host:" + string(id)) },
		},
		Orchestrator: hostagent.OrchestratorLink{URL: s.at(Orchestrator, orchestratorURL, s.config.OrchestratorURL), Client: s.hops.client},
		DialGuest: func(dial func(context.Context) (net.Conn, error)) holdfast.Guest {
			return rpcguest.Dial(hop.Client{URL: "http://guest", HTTP: &http.Client{Transport: &http.Transport{
				DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
				DisableKeepAlives: true, // a connection kept would outlive the instance's suspension
			}}})
		},
		Logger: s.config.Logger.With("party", "host"),
		Clock:  s.config.Clock,
		Timing: hostagent.Timing{Sweep: s.config.SweepEvery, Boot: s.config.BootWithin},
	})
	if err != nil {
		return err
	}
	s.onClose("host agent", s.host.Close)
	handler := rpchost.Handler(s.host, s.host.Guest, s.key)
	mux.Handle("/host/", handler)
	name := strings.TrimPrefix(url, "http://")
	if !strings.HasSuffix(name, memorySuffix) {
		name = "host" + memorySuffix
	}
	s.hops.serve(name, handler)
	s.hops.gateway.Handle(strings.TrimPrefix(simulated.GatewayURL, "http://"), s.host.GatewayHandler())
	return s.host.Start(ctx)
}

// runtime makes the driver that the configuration names, and its images.
func (s *Server) runtime() (runtime.Driver, hostagent.Images, error) {
	switch s.config.Runtime {
	case "simulated":
		return newSimulated(s.hops.gateway.RoundTripper()), bare{dir: filepath.Join(s.config.DataDir, "images")}, nil
	case "runc":
	default:
		return nil, nil, fmt.Errorf("there is no runtime %q: use --runtime runc or simulated", s.config.Runtime)
	}
	guest, err := s.config.guestBinary()
	if err != nil {
		return nil, nil, err
	}
	store, err := image.NewStore(filepath.Join(s.config.DataDir, "images"), image.Config{Local: s.config.LocalImages})
	if err != nil {
		return nil, nil, err
	}
	s.onClose("images", func() error {
		store.Close()
		return nil
	})
	driver, err := runc.New(runc.Config{Directory: filepath.Join(s.config.DataDir, "runtime"), Binary: s.config.RuntimeBinary,
		Guest: guest, Logger: s.config.Logger.With("party", "runtime")})
	if err != nil {
		return nil, nil, err
	}
	s.onClose("network of the instances", func() error { return uninstall(driver) })
	return driver, images{store}, nil
}

// uninstallFor bounds the removal of a host's bridge and rules.
const uninstallFor = 10 * time.Second

// uninstall takes the bridge and the rules off the host at a stop, unless
// instances run on, which need them.
func uninstall(driver *runc.Driver) error {
	ctx, cancel := context.WithTimeout(context.Background(), uninstallFor)
	defer cancel()
	if err := driver.Uninstall(ctx); holdfast.CodeOf(err) != holdfast.FailedPrecondition {
		return err
	}
	return nil
}
