package server

import (
	"context"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/operation"
	rpcfleet "github.com/holdfast-dev/holdfast/rpc/fleet"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	rpchost "github.com/holdfast-dev/holdfast/rpc/host"
)

// startFleet opens its database and serves the orchestrator's levels and the
// hosts' facts.
func (s *Server) startFleet(ctx, loopCtx context.Context, mux *http.ServeMux) error {
	db, err := s.openDatabase(ctx, Fleet, fleet.Migrations())
	if err != nil {
		return err
	}
	toHosts := s.key.Token(hop.Fleet, hop.HostAgent)
	up := s.at(Orchestrator, orchestratorURL, s.config.OrchestratorURL) + "/deliveries/fleet"
	s.fleet, err = fleet.New(fleet.Config{
		DB: db, Joiner: db.joiner, Cluster: s.cluster, Holder: operation.NewHolder(processName()), Logger: s.config.Logger.With("party", "fleet"),
		Dial: func(url string) holdfast.HostService {
			return rpchost.Dial(hop.Client{HTTP: s.hops.client, URL: trimURL(url), Token: toHosts})
		},
		SendUp: fleet.Upward(s.hops.client, up, s.key.Secret(hop.Fleet), nil),
		Limits: fleet.Limits{SweepEvery: s.config.SweepEvery, HealthEvery: s.config.healthEvery(), SuspectAfter: s.config.HostSuspectAfter,
			LostAfter: s.config.HostLostAfter, LossAfter: s.config.HostLossAfter},
	})
	if err != nil {
		return err
	}
	if err := s.fleet.Join(ctx); err != nil {
		return err
	}
	s.loops.Go(func() { s.fleet.Run(loopCtx) })
	handler := rpcfleet.Handler(s.fleet, s.key, rpcfleet.Options{Log: s.config.Logger})
	for _, path := range []string{"/fleet/", "/deliveries/hosts/", "/heartbeat"} {
		mux.Handle(path, handler)
	}
	s.hops.serve("fleet"+memorySuffix, handler)
	return nil
}

// healthEvery is how often the fleet looks for silent hosts and those that are
// back: its own period, unless all sweeps have a shorter one. Zero: its own.
func (c Config) healthEvery() time.Duration {
	if c.SweepEvery > 0 {
		return min(c.SweepEvery, 5*time.Second)
	}
	return 0
}

func (s *Server) dialFleet() holdfast.FleetService {
	return rpcfleet.Dial(hop.Client{HTTP: s.hops.client, URL: s.at(Fleet, fleetURL, s.config.FleetURL),
		Token: s.key.Token(hop.Orchestrator, hop.Fleet)})
}

func (s *Server) dialOperator() holdfast.OperatorService {
	return rpcfleet.DialOperator(hop.Client{HTTP: s.hops.client, URL: s.at(Fleet, fleetURL, s.config.FleetURL),
		Token: s.key.Token(hop.Orchestrator, hop.Fleet)})
}

func (s *Server) dialGuest(url string, ref holdfast.InstanceRef) holdfast.Guest {
	return rpchost.DialGuest(hop.Client{HTTP: s.hops.client, URL: trimURL(url), Token: s.key.Token(hop.Orchestrator, hop.HostAgent)}, ref)
}
