package holdfast

import (
	"context"
	"time"
)

// Desired is what a level says shall be.
type Desired string

// The levels. EXITED ends the instance and gives everything back but its
// output; ABSENT removes that too.
const (
	DesiredRunning   Desired = "RUNNING"
	DesiredSuspended Desired = "SUSPENDED"
	DesiredExited    Desired = "EXITED"
	DesiredAbsent    Desired = "ABSENT"
)

// MaxLevelWait bounds how long EnsureInstance waits for a change.
const MaxLevelWait = 10 * time.Second

// Level is a command downward (H2, H3): "incarnation 2 of this instance shall
// be RUNNING, generation 7". It can be sent any number of times, in any order.
type Level struct {
	Cluster     string        `json:"cluster"`         // hosts refuse orders of another
	Epoch       int64         `json:"epoch,omitempty"` // of the cluster's databases; hosts refuse orders of an older one (trap T52)
	Instance    InstanceID    `json:"instance"`
	Incarnation int64         `json:"incarnation"`
	Generation  int64         `json:"generation"`
	Desired     Desired       `json:"desired"`
	Spec        *InstanceSpec `json:"spec,omitempty"` // needed for an incarnation not seen before
	MintedAt    time.Time     `json:"minted_at"`      // of the incarnation, by the orchestrator
	PlacedAt    time.Time     `json:"placed_at"`      // of the incarnation, by the fleet
	Wait        time.Duration `json:"wait"`           // no content: how long the answer may be awaited, at most 10 s
}

// InstanceSpec is what an instance is made of; resolved once, stored with the
// operation.
type InstanceSpec struct {
	Owner     string            `json:"owner"`            // id of the resource it belongs to
	Image     string            `json:"image"`            // "base", "debian:bookworm", …
	Layers    []Layer           `json:"layers,omitempty"` // above the image, the lowest first
	Env       map[string]string `json:"env,omitempty"`
	Resources Resources         `json:"resources"`
	Egress    Egress            `json:"egress"`
}

// Layer is what one file system has that those below it have not, as package layer
// packs it, in the blob store that the hosts share. It never changes.
type Layer struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // in hex
	// Base is the id of the image that is below the lowest layer (BaseImage): it fits
	// no other one. "": its host did not know.
	Base string `json:"base,omitempty"`
}

// BaseOf is the id of the image that layers belong on; "": any that their reference names.
func BaseOf(layers []Layer) string {
	if len(layers) == 0 {
		return ""
	}
	return layers[len(layers)-1].Base
}

// BaseImage is a prepared image, as a host has it.
type BaseImage struct {
	// ID names its contents for ever: "oci:REPOSITORY@sha256:…" for a registry's, else
	// the digest of what it was made from.
	ID       string
	RootFS   string // directory of its read-only root file system
	Defaults ProcessDefaults
}

// ProcessDefaults is what holds for processes that do not say it themselves.
type ProcessDefaults struct {
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty"`
}

// MaxLayers bounds a chain of layers; a longer one is refused, FAILED_PRECONDITION.
const MaxLayers = 64

// Port is a port of the guest and where its host offers it.
type Port struct {
	Guest   int    `json:"guest"`
	Address string `json:"address"` // host:port, reachable from the host only
}

// Observation is what is seen of an instance, at the host or as last stored.
type Observation struct {
	Instance    InstanceID    `json:"instance"`
	Incarnation int64         `json:"incarnation"`
	Generation  int64         `json:"generation"` // the highest level seen
	State       InstanceState `json:"state"`
	Desired     Desired       `json:"desired,omitempty"`
	Failure     *Failure      `json:"failure,omitempty"`  // why it EXITED
	Progress    string        `json:"progress,omitempty"` // while PREPARING, for a person
	Ports       []Port        `json:"ports,omitempty"`
	Address     string        `json:"address,omitempty"` // of the guest on its host's network
	Host        HostID        `json:"host,omitempty"`
	HostURL     string        `json:"host_url,omitempty"`
	HostHealth  HostHealth    `json:"host_health,omitempty"` // the fleet's word; "" from a host
	HostDuty    HostDuty      `json:"host_duty,omitempty"`   // the operators' word; DRAINING: it should move, where its owner can be made anew
	BootID      string        `json:"boot_id,omitempty"`     // of the host
	Life        string        `json:"life,omitempty"`        // of the agent that says so; "" from the fleet
	At          time.Time     `json:"at"`                    // when it was seen
	Stale       bool          `json:"stale,omitempty"`       // the authority could not be asked (contract: D2)
	Owner       string        `json:"owner,omitempty"`
}

// Reached reports whether the observation answers the level.
func (o Observation) Reached(l Level) bool {
	if o.Incarnation != l.Incarnation || o.Generation < l.Generation {
		return false
	}
	switch l.Desired {
	case DesiredRunning:
		return o.State == InstanceRunning
	case DesiredSuspended:
		return o.State == InstanceSuspended
	case DesiredExited:
		return o.State == InstanceExited || o.State == InstanceAbsent
	case DesiredAbsent:
		return o.State == InstanceAbsent
	}
	return false
}

// InstancePage is one page of the fleet's instances, by id; Next is "" on the last.
type InstancePage struct {
	Instances []Observation `json:"instances"`
	Next      string        `json:"next,omitempty"`
}

// FleetService places instances on hosts (H2). Its errors, to be told apart by
// their reason: STALE_GENERATION (ABORTED; FAILED_PRECONDITION where the host is
// the one that saw more), LEVEL_CONFLICT (FAILED_PRECONDITION), TOO_OLD, NO_CAPACITY and
// HOST_UNREACHABLE (UNAVAILABLE), and what the host answers.
type FleetService interface {
	EnsureInstance(ctx context.Context, level Level) (Observation, error)
	// EnsureCheckpoint passes the level on to the instance's host, and records nothing.
	// PRESENT of what has ended or is unknown is FAILED_PRECONDITION or NOT_FOUND;
	// ABSENT is answered by the fleet itself only where nobody is left to make the copy.
	EnsureCheckpoint(ctx context.Context, level CheckpointLevel) (CheckpointObservation, error)
	// GetInstance reads; what the fleet lacks it asks the host (contract: D1).
	GetInstance(ctx context.Context, id InstanceID) (Observation, error)
	ListInstances(ctx context.Context, after string, limit int) (InstancePage, error)
	ListHosts(ctx context.Context) ([]Host, error)
	// Audit is the fleet's own part of the audit and that of each of its hosts,
	// asked at once; one that does not answer is in it as not reachable (contract: F1).
	Audit(ctx context.Context) ([]PartyAudit, error)
}

// HostService is one host's agent (H3).
type HostService interface {
	EnsureInstance(ctx context.Context, level Level) (Observation, error)
	// EnsureCheckpoint copies the disk of one boot into the blob store, or ends that.
	EnsureCheckpoint(ctx context.Context, level CheckpointLevel) (CheckpointObservation, error)
	// GetInstance answers NOT_FOUND for what was never seen, ABSENT for a tombstone.
	GetInstance(ctx context.Context, id InstanceID) (Observation, error)
	ListInstances(ctx context.Context) ([]Observation, error)
	// Identity says who answers.
	Identity(ctx context.Context) (HostIdentity, error)
	// Audit is this host's part of the audit (contract: F1).
	Audit(ctx context.Context) (PartyAudit, error)
}

// InstanceRef addresses one boot.
type InstanceRef struct {
	Instance    InstanceID `json:"instance"`
	Incarnation int64      `json:"incarnation"`
}

// GuestConfig is what a host agent hands to the guest it boots.
type GuestConfig struct {
	Instance    InstanceID `json:"instance"`
	Incarnation int64      `json:"incarnation"`
	Secret      []byte     `json:"secret"`       // signs this boot's deliveries (contract: B8)
	CallbackURL string     `json:"callback_url"` // the host agent's gateway
	ProcessDefaults
}
