package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

func sandboxToWire(s holdfast.Sandbox) *v1.Sandbox {
	out := &v1.Sandbox{
		Id: string(s.ID), Name: text(s.Name), Project: string(s.Project), Creator: text(s.Creator),
		Environment: text(s.Environment), State: enum[v1.Sandbox_State](v1.Sandbox_State_value, s.State),
		Failure:    failureToWire(s.Failure),
		Generation: s.Generation, Incarnation: s.Incarnation, Instance: string(s.Instance),
		Resources: resourcesToWire(s.Resources), Egress: enum[v1.Sandbox_Egress](v1.Sandbox_Egress_value, s.Egress),
		Env: texts(s.Env), Labels: texts(s.Labels),
		Ttl: span(s.TTL), OnExpiry: enum[v1.Sandbox_Expiry](v1.Sandbox_Expiry_value, s.OnExpiry),
		Restart: enum[v1.Restart_Policy](v1.Restart_Policy_value, s.Restart),
		Ports: each(s.Ports, func(p holdfast.Port) *v1.Port {
			return &v1.Port{Guest: int32(p.Guest), Address: text(p.Address)}
		}),
		CreatedAt: stamp(s.CreatedAt), UpdatedAt: stamp(s.UpdatedAt), ReadyAt: stamp(s.ReadyAt),
		ExpiresAt: stamp(s.ExpiresAt), DeletedAt: stamp(s.DeletedAt), HostUnreachable: s.HostUnreachable, Owner: s.Owner, Source: sourceToWire(s.Source),
	}
	if s.Operation != nil {
		out.Operation = operationToWire(*s.Operation)
	}
	return out
}

func sandboxFromWire(s *v1.Sandbox) holdfast.Sandbox {
	out := holdfast.Sandbox{
		ID: holdfast.SandboxID(s.GetId()), Name: s.GetName(), Project: holdfast.ProjectID(s.GetProject()), Creator: s.GetCreator(),
		Environment: s.GetEnvironment(), State: word[holdfast.SandboxState](v1.Sandbox_State_name, s.GetState()),
		Failure:    failureFromWire(s.GetFailure()),
		Generation: s.GetGeneration(), Incarnation: s.GetIncarnation(), Instance: holdfast.InstanceID(s.GetInstance()),
		Resources: resourcesFromWire(s.GetResources()), Egress: word[holdfast.Egress](v1.Sandbox_Egress_name, s.GetEgress()),
		Env: filled(s.GetEnv()), Labels: filled(s.GetLabels()),
		TTL: s.GetTtl().AsDuration(), OnExpiry: word[holdfast.Expiry](v1.Sandbox_Expiry_name, s.GetOnExpiry()),
		Restart: word[holdfast.Restart](v1.Restart_Policy_name, s.GetRestart()),
		Ports: each(s.GetPorts(), func(p *v1.Port) holdfast.Port {
			return holdfast.Port{Guest: int(p.GetGuest()), Address: p.GetAddress()}
		}),
		CreatedAt: instant(s.GetCreatedAt()), UpdatedAt: instant(s.GetUpdatedAt()), ReadyAt: instant(s.GetReadyAt()),
		ExpiresAt: instant(s.GetExpiresAt()), DeletedAt: instant(s.GetDeletedAt()), HostUnreachable: s.GetHostUnreachable(), Owner: s.GetOwner(),
		Source: holdfast.CheckpointID(s.GetSource().GetCheckpoint()),
	}
	if op := s.GetOperation(); op != nil {
		o := operationFromWire(op)
		out.Operation = &o
	}
	return out
}

func failureToWire(f *holdfast.Failure) *v1.Failure {
	if f == nil {
		return nil
	}
	return &v1.Failure{Reason: text(string(f.Reason)), Message: text(f.Message), LogTail: text(f.LogTail)}
}

func failureFromWire(f *v1.Failure) *holdfast.Failure {
	if f == nil {
		return nil
	}
	return &holdfast.Failure{Reason: holdfast.Reason(f.GetReason()), Message: f.GetMessage(), LogTail: f.GetLogTail()}
}

func resourcesToWire(r holdfast.Resources) *v1.Resources {
	if r == (holdfast.Resources{}) {
		return nil
	}
	return &v1.Resources{CpuMillis: r.CPUMillis, MemoryBytes: r.MemoryBytes, Pids: r.PIDs}
}

func resourcesFromWire(r *v1.Resources) holdfast.Resources {
	return holdfast.Resources{CPUMillis: r.GetCpuMillis(), MemoryBytes: r.GetMemoryBytes(), PIDs: r.GetPids()}
}

func createToWire(in holdfast.CreateSandbox) *v1.CreateSandboxRequest {
	return &v1.CreateSandboxRequest{
		RequestId: in.RequestID, Environment: in.Environment, Name: in.Name,
		Ttl: span(in.TTL), OnExpiry: enum[v1.Sandbox_Expiry](v1.Sandbox_Expiry_value, in.OnExpiry),
		Env: filled(in.Env), Labels: filled(in.Labels), Resources: resourcesToWire(in.Resources),
		Egress:  enum[v1.Sandbox_Egress](v1.Sandbox_Egress_value, in.Egress),
		Restart: enum[v1.Restart_Policy](v1.Restart_Policy_value, in.Restart), Source: sourceToWire(in.Source),
	}
}

func createFromWire(in *v1.CreateSandboxRequest) (holdfast.CreateSandbox, error) {
	ttl, err := ttlFromWire(in.GetTtl())
	return holdfast.CreateSandbox{
		RequestID: in.GetRequestId(), Environment: in.GetEnvironment(), Name: in.GetName(),
		TTL: ttl, OnExpiry: word[holdfast.Expiry](v1.Sandbox_Expiry_name, in.GetOnExpiry()),
		Env: filled(in.GetEnv()), Labels: filled(in.GetLabels()), Resources: resourcesFromWire(in.GetResources()),
		Egress:  word[holdfast.Egress](v1.Sandbox_Egress_name, in.GetEgress()),
		Restart: word[holdfast.Restart](v1.Restart_Policy_name, in.GetRestart()), Source: holdfast.CheckpointID(in.GetSource().GetCheckpoint()),
	}, err
}

func sourceToWire(id holdfast.CheckpointID) *v1.Source {
	if id == "" {
		return nil
	}
	return &v1.Source{Checkpoint: string(id)}
}

// ttlFromWire tells an explicit zero, which is out of range, from none.
func ttlFromWire(ttl *durationpb.Duration) (time.Duration, error) {
	if ttl == nil {
		return 0, nil
	}
	d := ttl.AsDuration()
	if d == 0 || !ttl.IsValid() {
		return 0, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField,
			"ttl is %s; leave it out for what it is or %s, or give one between %s and %s", d, holdfast.DefaultTTL, holdfast.MinTTL, holdfast.MaxTTL).With("field", "ttl")
	}
	return d, nil
}

func extendToWire(in holdfast.ExtendSandbox) *v1.ExtendSandboxRequest {
	return &v1.ExtendSandboxRequest{Id: string(in.ID), Ttl: span(in.TTL), IfGeneration: in.IfGeneration}
}

func extendFromWire(in *v1.ExtendSandboxRequest) (holdfast.ExtendSandbox, error) {
	ttl, err := ttlFromWire(in.GetTtl())
	return holdfast.ExtendSandbox{ID: holdfast.SandboxID(in.GetId()), TTL: ttl, IfGeneration: in.GetIfGeneration()}, err
}

func lifetimeToWire(in holdfast.SetSandboxLifetime) *v1.SetSandboxLifetimeRequest {
	return &v1.SetSandboxLifetimeRequest{Id: string(in.ID), Ttl: span(in.TTL),
		OnExpiry: enum[v1.Sandbox_Expiry](v1.Sandbox_Expiry_value, in.OnExpiry), IfGeneration: in.IfGeneration}
}

func lifetimeFromWire(in *v1.SetSandboxLifetimeRequest) (holdfast.SetSandboxLifetime, error) {
	ttl, err := ttlFromWire(in.GetTtl())
	return holdfast.SetSandboxLifetime{ID: holdfast.SandboxID(in.GetId()), TTL: ttl,
		OnExpiry: word[holdfast.Expiry](v1.Sandbox_Expiry_name, in.GetOnExpiry()), IfGeneration: in.GetIfGeneration()}, err
}

// eventToWire leaves env out, as lists do.
func eventToWire(e holdfast.SandboxEvent) *v1.SandboxEvent {
	out := &v1.SandboxEvent{Version: e.Version}
	if e.Sandbox != nil {
		s := *e.Sandbox
		s.Env = nil
		out.Sandbox = sandboxToWire(s)
	}
	return out
}

func eventFromWire(e *v1.SandboxEvent) holdfast.SandboxEvent {
	out := holdfast.SandboxEvent{Version: e.GetVersion()}
	if s := e.GetSandbox(); s != nil {
		sandbox := sandboxFromWire(s)
		out.Sandbox = &sandbox
	}
	return out
}

func listToWire(in holdfast.ListSandboxes) *v1.ListSandboxesRequest {
	return &v1.ListSandboxesRequest{
		States: each(in.States, func(s holdfast.SandboxState) v1.Sandbox_State {
			return enum[v1.Sandbox_State](v1.Sandbox_State_value, s)
		}),
		Labels: filled(in.Labels), PageSize: pageSize(in.PageSize), PageToken: in.PageToken,
	}
}

func listFromWire(in *v1.ListSandboxesRequest) holdfast.ListSandboxes {
	return holdfast.ListSandboxes{
		States: each(in.GetStates(), func(s v1.Sandbox_State) holdfast.SandboxState {
			return word[holdfast.SandboxState](v1.Sandbox_State_name, s)
		}),
		Labels: filled(in.GetLabels()), PageSize: int(in.GetPageSize()), PageToken: in.GetPageToken(),
	}
}

func pageToWire(page holdfast.SandboxPage) *v1.ListSandboxesResponse {
	return &v1.ListSandboxesResponse{Sandboxes: each(page.Sandboxes, sandboxToWire), NextPageToken: page.NextPageToken}
}

func pageFromWire(page *v1.ListSandboxesResponse) holdfast.SandboxPage {
	return holdfast.SandboxPage{Sandboxes: each(page.GetSandboxes(), sandboxFromWire), NextPageToken: page.GetNextPageToken()}
}

// pageSize keeps a size that int32 cannot hold out of range instead of wrapping it.
func pageSize(n int) int32 {
	return int32(max(-1, min(n, holdfast.MaxPageSize+1)))
}
