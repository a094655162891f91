package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// The paths of H2.
const (
	pathEnsure = "/fleet/ensure"
	pathCopy   = "/fleet/checkpoint"
	pathGet    = "/fleet/get"
	pathList   = "/fleet/list"
	pathHosts  = "/fleet/hosts"
	pathAudit  = "/fleet/audit"
	pathDuty   = "/fleet/duty"
	pathFind   = "/fleet/find"
)

// deliveryLimit bounds an H7 delivery, in bytes: an observation with a failure's
// log tail fits many times over.
const deliveryLimit = 256 << 10

// Service is what a fleet serves.
type Service interface {
	holdfast.FleetService
	holdfast.OperatorService
	Heartbeat(ctx context.Context, beat holdfast.Heartbeat) error
	// Observed takes an authenticated host's delivery; its errors choose the
	// answer as package delivery says.
	Observed(ctx context.Context, host holdfast.HostID, d delivery.Received) error
}

// Options configure Handler. The zero value works.
type Options struct {
	Clock func() time.Time // stamps deliveries; nil: time.Now
	Log   *slog.Logger     // nil: slog.Default
}

type getRequest struct {
	Instance holdfast.InstanceID `json:"instance"`
}

type listRequest struct {
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

type empty struct{}

// Handler serves a fleet: POST /fleet/… to the orchestrator, /heartbeat to hosts
// (both by the cluster key's tokens), and /deliveries/hosts/{host}, whose
// signature is that host's own (contract: B8).
func Handler(svc Service, key hop.ClusterKey, o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	calls := http.NewServeMux()
	hop.Handle(calls, pathEnsure, svc.EnsureInstance)
	hop.Handle(calls, pathCopy, svc.EnsureCheckpoint)
	hop.Handle(calls, pathGet, func(ctx context.Context, in getRequest) (holdfast.Observation, error) {
		return svc.GetInstance(ctx, in.Instance)
	})
	hop.Handle(calls, pathList, func(ctx context.Context, in listRequest) (holdfast.InstancePage, error) {
		return svc.ListInstances(ctx, in.After, in.Limit)
	})
	hop.Handle(calls, pathHosts, func(ctx context.Context, _ empty) ([]holdfast.Host, error) {
		return svc.ListHosts(ctx)
	})
	hop.Handle(calls, pathAudit, func(ctx context.Context, _ empty) ([]holdfast.PartyAudit, error) {
		return svc.Audit(ctx)
	})
	hop.Handle(calls, pathDuty, svc.SetHostDuty)
	hop.Handle(calls, pathFind, svc.FindInstances)
	beats := http.NewServeMux()
	hop.Handle(beats, "/heartbeat", func(ctx context.Context, in holdfast.Heartbeat) (empty, error) {
		return empty{}, svc.Heartbeat(ctx, in)
	})
	mux := http.NewServeMux()
	mux.Handle("/fleet/", key.Require(hop.Fleet, []string{hop.Orchestrator}, calls))
	mux.Handle("/heartbeat", key.Require(hop.Fleet, []string{hop.HostAgent}, beats))
	mux.Handle("/deliveries/hosts/{host}", deliveries(svc, key, o))
	return mux
}

// deliveries has no tolerance for a timestamp: a host whose clock is wrong is
// honest, and a 4xx would lose its facts for good. The id and the levels'
// numbers stop replays (contract: B7, B8).
func deliveries(svc Service, key hop.ClusterKey, o Options) http.Handler {
	return delivery.Handle(delivery.Options{
		Authenticate: func(r *http.Request) (delivery.Source, error) {
			host := r.PathValue("host")
			if err := holdfast.CheckID("host", holdfast.PrefixHost, host); err != nil {
				return delivery.Source{}, fmt.Errorf("%w: %w", delivery.ErrUnauthenticated, err)
			}
			name := hostSource(host)
			return delivery.Source{Name: name, Secrets: [][]byte{key.Secret(name)}}, nil
		},
		Limit: deliveryLimit, Clock: o.Clock, Log: o.Log,
	}, func(ctx context.Context, d delivery.Received) error {
		host, ok := strings.CutPrefix(d.Source, hostSource(""))
		if !ok {
			return errors.New("a delivery's source names no host")
		}
		return svc.Observed(ctx, holdfast.HostID(host), d)
	})
}

// hostSource names a host as the source of deliveries and of its secret.
func hostSource(host string) string { return "host:" + host }

// HostSecret signs one host's deliveries.
func HostSecret(key hop.ClusterKey, host holdfast.HostID) []byte {
	return key.Secret(hostSource(string(host)))
}

// Dial reaches a fleet (H2). Nothing is sent before the first call, and no call
// is retried (T22).
func Dial(c hop.Client) holdfast.FleetService { return dialed{c} }

// DialOperator reaches a fleet on behalf of operators (H2), whom the orchestrator
// has let in.
func DialOperator(c hop.Client) holdfast.OperatorService { return dialed{c} }

type dialed struct{ client hop.Client }

func (d dialed) EnsureInstance(ctx context.Context, level holdfast.Level) (holdfast.Observation, error) {
	return hop.Call[holdfast.Level, holdfast.Observation](ctx, d.client, pathEnsure, level)
}

func (d dialed) EnsureCheckpoint(ctx context.Context, level holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	return hop.Call[holdfast.CheckpointLevel, holdfast.CheckpointObservation](ctx, d.client, pathCopy, level)
}

func (d dialed) GetInstance(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	return hop.Call[getRequest, holdfast.Observation](ctx, d.client, pathGet, getRequest{id})
}

func (d dialed) ListInstances(ctx context.Context, after string, limit int) (holdfast.InstancePage, error) {
	return hop.Call[listRequest, holdfast.InstancePage](ctx, d.client, pathList, listRequest{after, limit})
}

func (d dialed) SetHostDuty(ctx context.Context, in holdfast.SetHostDuty) (holdfast.Host, error) {
	return hop.Call[holdfast.SetHostDuty, holdfast.Host](ctx, d.client, pathDuty, in)
}

func (d dialed) FindInstances(ctx context.Context, in holdfast.FindInstances) (holdfast.InstancePage, error) {
	return hop.Call[holdfast.FindInstances, holdfast.InstancePage](ctx, d.client, pathFind, in)
}

func (d dialed) ListHosts(ctx context.Context) ([]holdfast.Host, error) {
	return hop.Call[empty, []holdfast.Host](ctx, d.client, pathHosts, empty{})
}

func (d dialed) Audit(ctx context.Context) ([]holdfast.PartyAudit, error) {
	return hop.Call[empty, []holdfast.PartyAudit](ctx, d.client, pathAudit, empty{})
}
