package rpc

import (
	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

func hostsToWire(hosts []holdfast.Host) *v1.ListHostsResponse {
	return &v1.ListHostsResponse{Hosts: each(hosts, hostToWire)}
}

func hostsFromWire(r *v1.ListHostsResponse) []holdfast.Host {
	return each(r.GetHosts(), hostFromWire)
}

func hostToWire(h holdfast.Host) *v1.Host {
	return &v1.Host{
		Id: string(h.ID), Name: text(h.Name), Url: text(h.URL),
		Health: enum[v1.Host_Health](v1.Host_Health_value, h.Health),
		Duty:   enum[v1.Host_Duty](v1.Host_Duty_value, h.Duty), DutyReason: text(h.DutyReason), DutyAt: stamp(h.DutyAt),
		Runtime: text(h.Runtime), BootId: text(h.BootID), Images: each(h.Images, text),
		Capacity: capacityToWire(h.Capacity), Used: capacityToWire(h.Used),
		SeenAt: stamp(h.SeenAt), GoneAt: stamp(h.GoneAt), CreatedAt: stamp(h.CreatedAt),
	}
}

func hostFromWire(h *v1.Host) holdfast.Host {
	return holdfast.Host{
		ID: holdfast.HostID(h.GetId()), Name: h.GetName(), URL: h.GetUrl(),
		Health: word[holdfast.HostHealth](v1.Host_Health_name, h.GetHealth()),
		Duty:   word[holdfast.HostDuty](v1.Host_Duty_name, h.GetDuty()), DutyReason: h.GetDutyReason(), DutyAt: instant(h.GetDutyAt()),
		Runtime: h.GetRuntime(), BootID: h.GetBootId(), Images: each(h.GetImages(), func(s string) string { return s }),
		Capacity: capacityFromWire(h.GetCapacity()), Used: capacityFromWire(h.GetUsed()),
		SeenAt: instant(h.GetSeenAt()), GoneAt: instant(h.GetGoneAt()), CreatedAt: instant(h.GetCreatedAt()),
	}
}

func capacityToWire(c holdfast.Capacity) *v1.Capacity {
	return &v1.Capacity{CpuMillis: c.CPUMillis, MemoryBytes: c.MemoryBytes, Instances: c.Instances}
}

func capacityFromWire(c *v1.Capacity) holdfast.Capacity {
	return holdfast.Capacity{CPUMillis: c.GetCpuMillis(), MemoryBytes: c.GetMemoryBytes(), Instances: c.GetInstances()}
}

func instancesToWire(page holdfast.InstancePage) *v1.ListInstancesResponse {
	return &v1.ListInstancesResponse{Instances: each(page.Instances, instanceToWire), NextPageToken: page.Next}
}

func instancesFromWire(page *v1.ListInstancesResponse) holdfast.InstancePage {
	return holdfast.InstancePage{Instances: each(page.GetInstances(), instanceFromWire), Next: page.GetNextPageToken()}
}

// instanceToWire leaves out what is for the parties alone: addresses, ports, and
// what is known of the host, which ListHosts says.
func instanceToWire(o holdfast.Observation) *v1.Instance {
	return &v1.Instance{
		Id: string(o.Instance), Incarnation: o.Incarnation, Generation: o.Generation,
		State: enum[v1.Instance_State](v1.Instance_State_value, o.State), Desired: text(string(o.Desired)),
		Failure: failureToWire(o.Failure), Progress: text(o.Progress), Host: string(o.Host), Owner: text(o.Owner),
		SeenAt: stamp(o.At), Stale: o.Stale,
	}
}

func instanceFromWire(i *v1.Instance) holdfast.Observation {
	return holdfast.Observation{
		Instance: holdfast.InstanceID(i.GetId()), Incarnation: i.GetIncarnation(), Generation: i.GetGeneration(),
		State: word[holdfast.InstanceState](v1.Instance_State_name, i.GetState()), Desired: holdfast.Desired(i.GetDesired()),
		Failure: failureFromWire(i.GetFailure()), Progress: i.GetProgress(), Host: holdfast.HostID(i.GetHost()), Owner: i.GetOwner(),
		At: instant(i.GetSeenAt()), Stale: i.GetStale(),
	}
}
