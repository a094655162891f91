package holdfast

import (
	"context"
	"time"
)

// Host is a machine that runs instances, as the fleet knows it.
type Host struct {
	ID         HostID     `json:"id"`
	Name       string     `json:"name"`
	URL        string     `json:"url"`
	Health     HostHealth `json:"health"`
	Duty       HostDuty   `json:"duty"`
	DutyReason string     `json:"duty_reason,omitempty"` // as the operator gave it
	DutyAt     time.Time  `json:"duty_at"`               // when the duty was last set; zero: never
	Runtime    string     `json:"runtime"`
	BootID     string     `json:"boot_id"`
	Images     []string   `json:"images,omitempty"` // that it holds, as it last said
	Capacity   Capacity   `json:"capacity"`
	Used       Capacity   `json:"used"`
	SeenAt     time.Time  `json:"seen_at"`
	GoneAt     time.Time  `json:"gone_at"` // when its instances were given up, by time or by its retirement; zero: they were not
	CreatedAt  time.Time  `json:"created_at"`
}

// Capacity is what a host can hold.
type Capacity struct {
	CPUMillis   int64 `json:"cpu_millis"`
	MemoryBytes int64 `json:"memory_bytes"`
	Instances   int64 `json:"instances"`
}

// Heartbeat is a host's telemetry to the fleet; the first one registers it (H7,
// contract: B6, D3).
type Heartbeat struct {
	Host     HostID    `json:"host"`
	Life     string    `json:"life,omitempty"` // of the agent's process, unlike any other's
	Cluster  string    `json:"cluster"`
	Name     string    `json:"name"`
	URL      string    `json:"url"`
	Runtime  string    `json:"runtime"`
	BootID   string    `json:"boot_id"`
	Capacity Capacity  `json:"capacity"`
	Images   []string  `json:"images,omitempty"` // that it holds, at most MaxHostImages
	Sequence int64     `json:"sequence"`         // rises over restarts; an older one changes nothing
	At       time.Time `json:"at"`
}

// HostIdentity is who answers at a host's URL.
type HostIdentity struct {
	Host HostID `json:"host"`
	Life string `json:"life"` // of the agent's process
}

// Limits of what is said of a host.
const (
	MaxHostImages = 256 // more are left out of a heartbeat
	MaxDutyReason = 256 // bytes
)

// SetHostDuty is the operators' word on a host. Saying it again is success, and
// nothing done.
type SetHostDuty struct {
	Host   HostID   `json:"host"`
	Duty   HostDuty `json:"duty"`
	Reason string   `json:"reason,omitempty"` // for other people; "" keeps the one there is while the duty stays
	// Force retires a host that answers and still has instances: they are ended.
	Force bool `json:"force,omitempty"`
}

// Validate checks the form of every field.
func (in SetHostDuty) Validate() error {
	return firstError(
		CheckID("id", PrefixHost, string(in.Host)),
		checkOneOf("duty", in.Duty, HostActive, HostCordoned, HostDraining, HostRetired),
		checkText("reason", in.Reason, MaxDutyReason),
	)
}

// FindInstances pages through some of the fleet's instances, by id; tombstones
// are left out.
type FindInstances struct {
	Host        HostID     `json:"host,omitempty"`        // only those placed there; "": on any
	Unreachable bool       `json:"unreachable,omitempty"` // only those whose host does not answer
	After       InstanceID `json:"after,omitempty"`       // the page behind this one
	Limit       int        `json:"limit,omitempty"`       // 0: 100; at most 1000
}

// Validate checks the form of every field.
func (in FindInstances) Validate() error {
	var host, after error
	if in.Host != "" {
		host = CheckID("host", PrefixHost, string(in.Host))
	}
	if in.After != "" {
		after = CheckID("page_token", PrefixInstance, string(in.After))
	}
	return firstError(host, after, checkPage(in.Limit, ""))
}

// OperatorService is what operators see of a fleet and want of its hosts. It is
// the API's FleetService; the fleet serves it to the orchestrator (H2), which
// knows who the caller is. An unknown host is NOT_FOUND; what its duty does not
// allow is FAILED_PRECONDITION, reason STATE.
type OperatorService interface {
	// ListHosts returns every host, by id, the retired ones too.
	ListHosts(ctx context.Context) ([]Host, error)
	// SetHostDuty says what a host is for, and returns it as it is then: one that
	// is drained and empty is CORDONED. RETIRED is for ever.
	SetHostDuty(ctx context.Context, in SetHostDuty) (Host, error)
	FindInstances(ctx context.Context, in FindInstances) (InstancePage, error)
}
