package host

import (
	"context"
	"net/http"
	"strconv"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/guest"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// The paths of H3 and H11.
const (
	pathEnsure = "/host/ensure"
	pathCopy   = "/host/checkpoint"
	pathGet    = "/host/get"
	pathList   = "/host/list"
	pathAudit  = "/host/audit"
	pathWho    = "/host/identity"
	pathGuest  = "/host/guest/" // INSTANCE/INCARNATION, then as package rpc/guest has it
)

// FindGuest gives one boot's guest, as its host agent offers it.
type FindGuest func(ctx context.Context, ref holdfast.InstanceRef) (holdfast.Guest, error)

type getRequest struct {
	Instance holdfast.InstanceID `json:"instance"`
}

type nothing struct{}

// Handler serves a host agent: levels and its audit to the fleet, reads to the
// fleet and the orchestrator, guests to the orchestrator; each by the cluster
// key's tokens.
func Handler(agent holdfast.HostService, find FindGuest, key hop.ClusterKey) http.Handler {
	levels := http.NewServeMux() // what the fleet alone calls
	hop.Handle(levels, pathEnsure, agent.EnsureInstance)
	hop.Handle(levels, pathCopy, agent.EnsureCheckpoint)
	hop.Handle(levels, pathWho, func(ctx context.Context, _ nothing) (holdfast.HostIdentity, error) {
		return agent.Identity(ctx)
	})
	hop.Handle(levels, pathAudit, func(ctx context.Context, _ nothing) (holdfast.PartyAudit, error) {
		return agent.Audit(ctx)
	})
	reads := http.NewServeMux()
	hop.Handle(reads, pathGet, func(ctx context.Context, in getRequest) (holdfast.Observation, error) {
		return agent.GetInstance(ctx, in.Instance)
	})
	hop.Handle(reads, pathList, func(ctx context.Context, _ nothing) ([]holdfast.Observation, error) {
		return agent.ListInstances(ctx)
	})
	guests := http.NewServeMux()
	guests.HandleFunc(pathGuest+"{instance}/{incarnation}/", func(w http.ResponseWriter, r *http.Request) { serveGuest(w, r, find) })

	mux := http.NewServeMux()
	for _, path := range []string{pathEnsure, pathCopy, pathAudit, pathWho} {
		mux.Handle(path, key.Require(hop.HostAgent, []string{hop.Fleet}, levels))
	}
	for _, path := range []string{pathGet, pathList} {
		mux.Handle(path, key.Require(hop.HostAgent, []string{hop.Fleet, hop.Orchestrator}, reads))
	}
	mux.Handle(pathGuest, key.Require(hop.HostAgent, []string{hop.Orchestrator}, guests))
	return mux
}

func serveGuest(w http.ResponseWriter, r *http.Request, find FindGuest) {
	ref, err := refOf(r.PathValue("instance"), r.PathValue("incarnation"))
	if err != nil {
		hop.Fail(w, err)
		return
	}
	g, err := find(r.Context(), ref)
	if err != nil {
		hop.Fail(w, err)
		return
	}
	http.StripPrefix(prefix(ref), guest.Handler(g)).ServeHTTP(w, r)
}

// refOf reads the form that prefix writes, and no other: what is stripped is
// what was read.
func refOf(instance, incarnation string) (holdfast.InstanceRef, error) {
	ref := holdfast.InstanceRef{Instance: holdfast.InstanceID(instance)}
	if err := holdfast.CheckID("instance", holdfast.PrefixInstance, instance); err != nil {
		return ref, err
	}
	n, err := strconv.ParseInt(incarnation, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != incarnation {
		return ref, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "incarnation %.20q is no number from 1", incarnation).
			With("field", "incarnation")
	}
	ref.Incarnation = n
	return ref, nil
}

func prefix(ref holdfast.InstanceRef) string {
	return pathGuest + string(ref.Instance) + "/" + strconv.FormatInt(ref.Incarnation, 10)
}

// Dial reaches the host agent at c's URL (H3).
func Dial(c hop.Client) holdfast.HostService { return client{c} }

// DialGuest reaches one boot's guest through its host agent (H11).
func DialGuest(c hop.Client, ref holdfast.InstanceRef) holdfast.Guest {
	c.URL += prefix(ref)
	return guest.Dial(c)
}

type client struct{ hop hop.Client }

func (c client) EnsureInstance(ctx context.Context, level holdfast.Level) (holdfast.Observation, error) {
	return hop.Call[holdfast.Level, holdfast.Observation](ctx, c.hop, pathEnsure, level)
}

func (c client) EnsureCheckpoint(ctx context.Context, level holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	return hop.Call[holdfast.CheckpointLevel, holdfast.CheckpointObservation](ctx, c.hop, pathCopy, level)
}

func (c client) GetInstance(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	return hop.Call[getRequest, holdfast.Observation](ctx, c.hop, pathGet, getRequest{id})
}

func (c client) ListInstances(ctx context.Context) ([]holdfast.Observation, error) {
	return hop.Call[nothing, []holdfast.Observation](ctx, c.hop, pathList, nothing{})
}

func (c client) Identity(ctx context.Context) (holdfast.HostIdentity, error) {
	return hop.Call[nothing, holdfast.HostIdentity](ctx, c.hop, pathWho, nothing{})
}

func (c client) Audit(ctx context.Context) (holdfast.PartyAudit, error) {
	return hop.Call[nothing, holdfast.PartyAudit](ctx, c.hop, pathAudit, nothing{})
}
