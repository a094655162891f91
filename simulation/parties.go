package simulation

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/rpc"
	rpcfleet "github.com/holdfast-dev/holdfast/rpc/fleet"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	rpchost "github.com/holdfast-dev/holdfast/rpc/host"
	"github.com/holdfast-dev/holdfast/simulation/step"
	"github.com/holdfast-dev/holdfast/store"
)

// environment is the one that sandboxes are made of.
const environment = "base"

func (w *World) db(l *life, next store.DB) store.DB {
	return &step.DB{Next: next, Party: l.party.Name, Hook: l, Clock: time.Now, Names: &w.config.Templates.names}
}

// client is a life's way to the other parties.
func (w *World) client(l *life) *http.Client {
	return &http.Client{Transport: &step.Transport{Next: &wire{world: w, life: l}, Party: l.party.Name, Hook: l}}
}

func (w *World) runOrchestrator(ctx context.Context, l *life) error {
	p, hops := l.party, w.client(l)
	toFleet := hop.Client{HTTP: hops, URL: "http://fleets.sim", Token: w.key.Token(hop.Orchestrator, hop.Fleet)}
	operators := rpcfleet.DialOperator(toFleet)
	s, err := orchestrator.New(ctx, orchestrator.Config{
		DB: w.db(l, w.orchestrator), Exclusive: w.config.Orchestrators == 1, ClusterKey: w.key, FleetSecret: w.key.Secret(hop.Fleet),
		Fleet: rpcfleet.Dial(toFleet), Operators: operators,
		Guest: func(url string, ref holdfast.InstanceRef) holdfast.Guest {
			return rpchost.DialGuest(hop.Client{HTTP: hops, URL: url, Token: w.key.Token(hop.Orchestrator, hop.HostAgent)}, ref)
		},
		Image: imageOf, Blobs: &step.Blobs{Store: w.blobs, Party: p.Name, Hook: l}, Process: fmt.Sprintf("%s/%d", p.Name, l.number), ClaimTTL: w.config.Timing.ClaimTTL,
		Retention: w.config.Timing.Retention, SweepEvery: w.config.Timing.Sweep, WatchPoll: w.config.Timing.WatchPoll,
		IDs: holdfast.IDs{Now: p.Clock, Rand: &chance{seed: w.config.Seed, who: p.Name}}, Clock: p.Clock, Jitter: p.jitter,
		Webhooks: outbox.Config{Poll: w.config.Timing.OutboxPoll, Clock: p.Clock, Jitter: p.jitter}, WebhookClient: hops,
		Logger: w.config.Logger.With("party", p.Name),
	})
	if err != nil {
		return err
	}
	l.onClose(s.Close)
	l.onClose(func() error { return drained(l, s) })
	deliveries := s.DeliveryHandler()
	mux := http.NewServeMux()
	mux.Handle("/", rpc.NewHandler(rpc.Services{Sandboxes: s, Operations: s, Processes: s, Files: s, Audit: s, Fleet: operators,
		Projects: s, Keys: s, Checkpoints: s, Sessions: s, Tasks: s, Environments: s, Events: s, Webhooks: s, Hooks: s}, rpc.Options{Authenticate: authenticate, Logger: w.config.Logger}))
	for _, path := range []string{"/deliveries/instances", "/deliveries/fleet", "/telemetry"} {
		mux.Handle(path, deliveries)
	}
	mux.Handle("/hooks/", s.HookHandler())
	l.serve(p.Name+".sim", mux)
	l.loops.Go(func() { _ = s.Run(l.ctx) }) // it ends with its context alone
	return nil
}

// drained waits for running attempts, as a stop in order does; a dead process's are over.
func drained(l *life, s *orchestrator.Service) error {
	if l.isDead() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.Drain(ctx)
}

// authenticate takes a project's name for its key.
func authenticate(_ context.Context, token string) (holdfast.Caller, error) {
	project, ok := strings.CutPrefix(token, "project:")
	if !ok {
		return holdfast.Caller{}, holdfast.E(holdfast.Unauthenticated, holdfast.ReasonUnknown, "no such key")
	}
	return holdfast.Caller{Project: holdfast.ProjectID(project), Name: "simulation", Role: holdfast.RoleAdmin}, nil
}

func imageOf(name string) (string, error) {
	if name != environment {
		return "", holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "there is no environment %q", name)
	}
	return name, nil
}

func (w *World) runFleet(ctx context.Context, l *life) error {
	p, t, hops := l.party, w.config.Timing, w.client(l)
	s, err := fleet.New(fleet.Config{
		DB: w.db(l, w.fleet), Holder: fmt.Sprintf("%s/%d", p.Name, l.number), Logger: w.config.Logger.With("party", p.Name),
		Dial: func(url string) holdfast.HostService {
			return rpchost.Dial(hop.Client{HTTP: hops, URL: url, Token: w.key.Token(hop.Fleet, hop.HostAgent)})
		},
		SendUp: fleet.Upward(hops, "http://orchestrators.sim/deliveries/fleet", w.key.Secret(hop.Fleet), p.Clock),
		Limits: fleet.Limits{SweepEvery: t.Sweep, HealthEvery: t.Health, SuspectAfter: t.Suspect, LostAfter: t.Lost, LossAfter: t.Loss,
			OrphanGrace: t.OrphanGrace},
		Outbox:   outbox.Config{Poll: t.OutboxPoll, Clock: p.Clock, Jitter: p.jitter},
		Sweeping: reconcile.Config{Clock: p.Clock, Jitter: p.jitter},
	})
	if err != nil {
		return err
	}
	if err := s.Join(ctx); err != nil {
		return err
	}
	l.serve(p.Name+".sim", rpcfleet.Handler(s, w.key, rpcfleet.Options{Clock: p.Clock, Log: w.config.Logger}))
	l.loops.Go(func() { s.Run(l.ctx) })
	return nil
}
