package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/hostagent"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// Server is one running process of some roles.
type Server struct {
	config   Config
	key      hop.ClusterKey
	cluster  string // whose the orchestrator's database is; "" where that role is elsewhere
	hops     *hops
	adminKey string
	freshKey bool

	orchestrator *orchestrator.Service
	fleet        *fleet.Service
	host         *hostagent.Agent
	services     rpc.Services

	listener net.Listener
	http     *http.Server
	serving  chan error // of the HTTP server, once
	draining atomic.Bool

	databases map[string]database // by party, for metrics
	blobs     blob.Store          // nil where neither a host nor the orchestrator is a role

	loops   sync.WaitGroup
	stop    context.CancelFunc
	closers []closer // in the order of opening
}

type closer struct {
	what  string
	close func() error
}

// Start starts every role, and returns once all of them take calls. What a
// failed start had opened is closed again: there is no half-started server.
func Start(ctx context.Context, config Config) (_ *Server, err error) {
	config, err = config.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{config: config, serving: make(chan error, 1), databases: map[string]database{}}
	loopCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for _, part := range []struct {
		role  Role
		start func(context.Context, context.Context, *http.ServeMux) error
	}{{Orchestrator, s.startOrchestrator}, {Fleet, s.startFleet}, {Host, s.startHost}} {
		if !config.has(part.role) {
			continue
		}
		if err := part.start(ctx, loopCtx, mux); err != nil {
			return nil, fmt.Errorf("start the %s: %w", part.role, err)
		}
	}
	return s, s.serve(mux)
}

// open takes the data directory and the address, and reads the keys.
func (s *Server) open(ctx context.Context) error {
	lock, err := sqlite.LockDir(s.config.DataDir)
	if err != nil {
		return err
	}
	s.onClose("data directory", lock.Unlock)
	if s.listener, err = net.Listen("tcp", s.config.Listen); err != nil {
		return fmt.Errorf("listen on %s: %w (is another server running? use --listen for another address)", s.config.Listen, err)
	}
	s.onClose("listener", func() error { return ignoreClosed(s.listener.Close()) })
	if s.key, err = s.config.clusterKey(); err != nil {
		return err
	}
	s.hops = newHops(s.config)
	s.onClose("connections between the parties", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return s.hops.close(ctx)
	})
	if s.config.has(Orchestrator) {
		if s.adminKey, s.freshKey, err = s.config.adminKey(); err != nil {
			return err
		}
	}
	return s.openBlobs(ctx)
}

// openBlobs opens the store of checkpoints, which hosts write and read, and
// orchestrators tidy up.
func (s *Server) openBlobs(ctx context.Context) (err error) {
	if !s.config.has(Orchestrator) && !s.config.has(Host) {
		return nil
	}
	if s.blobs, err = blob.Open(ctx, s.config.Blobs); err != nil {
		return fmt.Errorf("--blobs: %w", err)
	}
	return nil
}

func (s *Server) onClose(what string, close func() error) {
	s.closers = append(s.closers, closer{what, close})
}

// URL is where this process is reached.
func (s *Server) URL() string {
	if s.config.AdvertiseURL != "" {
		return trimURL(s.config.AdvertiseURL)
	}
	return "http://" + s.listener.Addr().String()
}

// Services are the API's, for callers in this process: what [rpc.Dial] gives,
// without the wire and its keys. They are empty where the orchestrator is not a
// role of this process.
func (s *Server) Services() rpc.Services { return s.services }

// AdminKey is the admin's API key; fresh says that this start made it. It is ""
// where the orchestrator is not a role of this process.
func (s *Server) AdminKey() (key string, fresh bool) { return s.adminKey, s.freshKey }

// startOrchestrator opens its database and serves the API and the deliveries.
func (s *Server) startOrchestrator(ctx, loopCtx context.Context, mux *http.ServeMux) error {
	db, err := s.openDatabase(ctx, Orchestrator, orchestrator.Migrations())
	if err != nil {
		return err
	}
	s.orchestrator, err = orchestrator.New(ctx, orchestrator.Config{
		DB: db, Joiner: db.joiner, Blobs: s.blobs, Exclusive: !s.config.shared(), ClusterKey: s.key, FleetSecret: s.key.Secret(hop.Fleet),
		Fleet: s.dialFleet(), Operators: s.dialOperator(), Guest: s.dialGuest, Image: imageOf, Pin: pinOf, Process: processName(),
		ClaimTTL: s.config.ClaimTTL, MaxTTL: s.config.MaxTTL, Retention: s.config.Retention, SweepEvery: s.config.SweepEvery, AllowPrivateWebhooks: s.config.AllowPrivateWebhooks, Logger: s.config.Logger.With("party", "orchestrator"), Clock: s.config.Clock,
	})
	if err != nil {
		return err
	}
	s.onClose("orchestrator", s.orchestrator.Close)
	s.cluster = s.orchestrator.Cluster()
	s.loops.Go(func() {
		if err := s.orchestrator.Run(loopCtx); err != nil {
			s.config.Logger.Error("the orchestrator's sweeps ended", "error", err)
		}
	})
	deliveries := s.orchestrator.DeliveryHandler()
	options := rpc.Options{Authenticate: authenticate(s.adminKey, s.orchestrator.Authenticate), Logger: s.config.Logger, Serving: func(context.Context) error { return s.ready() }}
	if s.config.InsecureNoAuth {
		options.Anonymous = &holdfast.Caller{Project: holdfast.ProjectDefault, Name: "anonymous", Role: holdfast.RoleAdmin}
	}
	s.services = rpc.Services{Sandboxes: s.orchestrator, Operations: s.orchestrator,
		Processes: s.orchestrator, Files: s.orchestrator, Audit: s.orchestrator, Fleet: s.dialOperator(),
		Projects: s.orchestrator, Keys: s.orchestrator, Checkpoints: s.orchestrator, Environments: s.orchestrator,
		Events: s.orchestrator, Webhooks: s.orchestrator, Hooks: s.orchestrator, Tasks: s.orchestrator, Sessions: s.orchestrator}
	api := rpc.NewHandler(s.services, options)
	mux.Handle("/", api)
	mux.Handle("/mcp", s.serveMCP(api, options))
	mux.Handle("/deliveries/instances", deliveries)
	mux.Handle("/deliveries/fleet", deliveries)
	mux.Handle("/telemetry", deliveries)
	mux.Handle("/hooks/", s.orchestrator.HookHandler())
	s.hops.serve("orchestrator"+memorySuffix, deliveries)
	return nil
}

// serve takes calls from the world.
func (s *Server) serve(mux *http.ServeMux) error {
	s.observe(mux)
	s.http = rpc.NewServer(mux)
	go func() { s.serving <- s.http.Serve(s.listener) }()
	return nil
}

func (s *Server) ready() error {
	if s.draining.Load() {
		return errors.New("draining")
	}
	return nil
}

// Wait returns when the server fails by itself, or when ctx ends.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case err := <-s.serving:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// Shutdown drains: new mutations get UNAVAILABLE, running attempts finish, and
// then everything is closed. When ctx ends first it closes at once; what was
// running is recorded and carried on by the next start.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	ctx, cancel := context.WithTimeout(ctx, s.config.DrainFor)
	defer cancel()
	var errs []error
	if s.orchestrator != nil {
		if err := s.orchestrator.Drain(ctx); err != nil {
			s.config.Logger.Warn("attempts were still running; the next start carries them on", "error", err)
		}
	}
	if s.http != nil {
		// Streams that follow something have no end of their own.
		short, cancel := context.WithTimeout(ctx, time.Second)
		err := s.http.Shutdown(short)
		cancel()
		if err != nil {
			err = s.http.Close()
		}
		errs = append(errs, ignoreClosed(err))
	}
	return errors.Join(append(errs, s.close())...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// close ends the loops, then closes what was opened, last first.
func (s *Server) close() error {
	s.stop()
	s.loops.Wait()
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		if err := c.close(); err != nil {
			errs = append(errs, fmt.Errorf("close the %s: %w", c.what, err))
		}
	}
	s.closers = nil
	return errors.Join(errs...)
}

func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}
