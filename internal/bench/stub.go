package main

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/server"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/store"
)

// stubFleet stands for a fleet that answers at once that what should be is, or,
// while it is held, not before that ends.
type stubFleet struct{ held chan struct{} } // nil: not held

// EnsureInstance answers that the level is reached.
func (f stubFleet) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	if f.held != nil {
		select {
		case <-f.held:
		case <-ctx.Done():
			return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "held").Because(ctx.Err())
		}
	}
	return reached(l), nil
}

func reached(l holdfast.Level) holdfast.Observation {
	return holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, Desired: l.Desired,
		State: holdfast.InstanceState(l.Desired), At: time.Now()}
}

// EnsureCheckpoint makes none.
func (stubFleet) EnsureCheckpoint(context.Context, holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable, "a stub has no disk")
}

// GetInstance knows none.
func (stubFleet) GetInstance(context.Context, holdfast.InstanceID) (holdfast.Observation, error) {
	return holdfast.Observation{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "unknown")
}

// ListInstances has none.
func (stubFleet) ListInstances(context.Context, string, int) (holdfast.InstancePage, error) {
	return holdfast.InstancePage{}, nil
}

// ListHosts has none.
func (stubFleet) ListHosts(context.Context) ([]holdfast.Host, error) { return nil, nil }

// Audit has none.
func (stubFleet) Audit(context.Context) ([]holdfast.PartyAudit, error) { return nil, nil }

func clusterKey() []byte { return []byte("a key for measurements alone") }

// newOrchestrator is one over a database and a fleet, whose loops do not run.
func newOrchestrator(ctx context.Context, db store.DB, fleet holdfast.FleetService) (*orchestrator.Service, error) {
	server.SpareProcessor() // as holdfast serve does
	joiner, _ := db.(store.Joiner)
	return orchestrator.New(ctx, orchestrator.Config{
		DB: db, Joiner: joiner, Fleet: fleet, Cluster: "bench", ClusterKey: clusterKey(), FleetSecret: clusterKey(), Logger: silent(),
		Image:      func(name string) (string, error) { return name, nil },
		SweepEvery: time.Microsecond, // what is idle is due at once
	})
}

// stubHost stands for a host agent whose every instance is as it should be.
type stubHost struct {
	id        holdfast.HostID
	suspended []holdfast.InstanceID // that it lists
}

// newStubHost is always the same one.
func newStubHost() stubHost { return stubHost{id: holdfast.HostID(numbered(holdfast.PrefixHost, 1))} }

func (h stubHost) heartbeat() holdfast.Heartbeat {
	return holdfast.Heartbeat{Host: h.id, Cluster: "bench", Name: "stub", URL: "http://stub.internal", Runtime: "stub", BootID: "boot",
		Capacity: endless(), Sequence: time.Now().UnixNano(), At: time.Now()}
}

// EnsureInstance answers that the level is reached.
func (h stubHost) EnsureInstance(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
	o := reached(l)
	o.Host, o.BootID = h.id, "boot"
	return o, nil
}

// EnsureCheckpoint makes none.
func (h stubHost) EnsureCheckpoint(context.Context, holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable, "a stub has no disk")
}

// GetInstance says that it runs.
func (h stubHost) GetInstance(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	return h.EnsureInstance(ctx, holdfast.Level{Instance: id, Incarnation: 1, Generation: 1, Desired: holdfast.DesiredRunning})
}

// ListInstances has what is suspended, which was its second level.
func (h stubHost) ListInstances(ctx context.Context) ([]holdfast.Observation, error) {
	all := make([]holdfast.Observation, len(h.suspended))
	for i, id := range h.suspended {
		o, err := h.EnsureInstance(ctx, holdfast.Level{Instance: id, Incarnation: 1, Generation: 2, Desired: holdfast.DesiredSuspended})
		if err != nil {
			return nil, err
		}
		all[i] = o
	}
	return all, nil
}

// Identity says who answers.
func (h stubHost) Identity(context.Context) (holdfast.HostIdentity, error) {
	return holdfast.HostIdentity{Host: h.id}, nil
}

// Audit has none.
func (h stubHost) Audit(context.Context) (holdfast.PartyAudit, error) {
	return holdfast.PartyAudit{}, nil
}
