package holdfast

import (
	"context"
	"time"
)

// Limits of a sandbox's settings (contract: A11).
const (
	MinTTL          = time.Second
	MaxTTL          = 24 * time.Hour       // of a lifetime, where a server is not configured otherwise
	LongestTTL      = 366 * 24 * time.Hour // no server allows more
	DefaultTTL      = time.Hour
	Retention       = 7 * 24 * time.Hour  // how long a suspended sandbox is kept
	MaxRetention    = 30 * 24 * time.Hour // as far as a retention can be extended, where a server is not configured otherwise
	FailedKept      = time.Hour           // how long a failed sandbox's record and output are kept
	MaxRequestID    = 128
	MaxName         = 128
	MaxLabels       = 64
	MaxLabelLength  = 256
	MaxEnv          = 256
	MaxEnvBytes     = 64 << 10
	DefaultPageSize = 50
	MaxPageSize     = 1000
)

// ProjectDefault is the project that exists from the first start.
const ProjectDefault ProjectID = "default"

// Expiry says what the end of a lifetime brings.
type Expiry string

// The ends of a lifetime.
const (
	ExpiryDelete  Expiry = "DELETE"
	ExpirySuspend Expiry = "SUSPEND"
)

// Restart says what becomes of a sandbox whose instance is lost.
type Restart string

// The restart policies. Whichever it is, a caller can tell: a replaced instance
// has another incarnation, and what was in memory is gone.
const (
	RestartNone           Restart = "NONE"            // the sandbox is FAILED; the default
	RestartFresh          Restart = "FRESH"           // a new boot from what it was made from, files and all
	RestartFromCheckpoint Restart = "FROM_CHECKPOINT" // a new boot from the newest READY checkpoint of it; while it has none, from what it was made from
)

// Egress says what an instance may reach besides its own callbacks.
type Egress string

// The egress policies. Under neither does an instance reach its neighbours, its
// host or the control plane.
const (
	EgressInternet Egress = "INTERNET" // public addresses, through the host; the default
	EgressNone     Egress = "NONE"
)

// Resources are the limits of an instance. Zero means the default.
type Resources struct {
	CPUMillis   int64 `json:"cpu_millis,omitempty"`   // thousandths of a processor; default 1000
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // default 512 MiB
	PIDs        int64 `json:"pids,omitempty"`         // default 512
}

// Defaults and limits of Resources.
const (
	DefaultCPUMillis         = 1000
	DefaultMemoryBytes int64 = 512 << 20
	DefaultPIDs              = 512
	MaxCPUMillis             = 256_000
	MinMemoryBytes     int64 = 16 << 20
	MaxMemoryBytes     int64 = 1 << 40
	MinPIDs                  = 16
	MaxPIDs                  = 1 << 20
)

// WithDefaults returns r with every zero replaced.
func (r Resources) WithDefaults() Resources {
	if r.CPUMillis == 0 {
		r.CPUMillis = DefaultCPUMillis
	}
	if r.MemoryBytes == 0 {
		r.MemoryBytes = DefaultMemoryBytes
	}
	if r.PIDs == 0 {
		r.PIDs = DefaultPIDs
	}
	return r
}

// Sandbox is an isolated place to run, as last recorded.
type Sandbox struct {
	ID          SandboxID
	Name        string
	Project     ProjectID
	Creator     string // the API key's name
	Owner       string // id of the session or build that it belongs to, which alone drives it; "": none
	Environment string
	Source      CheckpointID // that it is a fork of; "": of none
	State       SandboxState
	Operation   *Operation // pending; nil when nothing is
	Failure     *Failure   // why it is FAILED
	Generation  int64      // raised by every recorded intent
	Incarnation int64      // raised by every boot that replaces another
	Instance    InstanceID
	Resources   Resources
	Egress      Egress
	Env         map[string]string
	Labels      map[string]string
	TTL         time.Duration
	OnExpiry    Expiry
	Restart     Restart
	Ports       []Port
	CreatedAt   time.Time
	UpdatedAt   time.Time
	ReadyAt     time.Time // zero until it first became ready
	ExpiresAt   time.Time // end of the lifetime; SUSPENDED: of the retention; FAILED: of the record; zero until it first became ready
	DeletedAt   time.Time // zero unless DELETED

	// HostUnreachable: its host does not answer, so its state is what was last
	// known (contract: C5). It is no recorded fact, and changes nothing else.
	HostUnreachable bool
}

// Failure says why a resource failed, for a person and for a program.
type Failure struct {
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
	LogTail string `json:"log_tail,omitempty"` // the last lines of the instance's console, at most 4 KiB
}

// CreateSandbox is the input of a create. What a client sent is fingerprinted
// field by field, before defaults are applied (contract: A3).
type CreateSandbox struct {
	RequestID   string // 1 to 128 visible ASCII characters
	Environment string // "base", "debian", or a base reference such as "debian:bookworm"; "" with Source, or the same as its
	// Source makes it a fork: it begins with what the checkpoint's source had on its disk,
	// and with the resources, egress and (where none is given) env of that.
	Source    CheckpointID
	Name      string
	TTL       time.Duration // zero: one hour
	OnExpiry  Expiry        // "": DELETE
	Restart   Restart       // "": NONE
	Env       map[string]string
	Labels    map[string]string
	Resources Resources
	Egress    Egress // "": INTERNET
}

// MutateSandbox addresses a suspend, resume or delete.
type MutateSandbox struct {
	ID           SandboxID
	IfGeneration int64 // zero: unconditional
}

// ExtendSandbox asks for at least so much more time. It never shortens, so a
// repeat is harmless (contract: A11).
type ExtendSandbox struct {
	ID           SandboxID
	TTL          time.Duration // from now on; of the lifetime to come while CREATING
	IfGeneration int64         // zero: unconditional
}

// SetSandboxLifetime sets how a lifetime is; it may shorten the present one.
type SetSandboxLifetime struct {
	ID           SandboxID
	TTL          time.Duration // from now on, and again from each resume on; zero: as it is
	OnExpiry     Expiry        // "": as it is
	IfGeneration int64         // zero: unconditional
}

// WatchSandboxes asks for every sandbox of the project, then for every change.
type WatchSandboxes struct {
	// After is the Version of the last event that was seen: only what changed
	// since then comes. "" begins with every sandbox that is not deleted. A version
	// behind which tombstones are purged (7 days after the deletion), or that is ahead
	// of a restored database, is refused: OUT_OF_RANGE, reason BEGIN_ANEW.
	After string
}

// SandboxEvent is one sandbox as it is now, because it changed. Several changes
// in a row may be one event; the last one never goes missing. An event without a
// sandbox only says how far the watch has come: everything up to its Version was
// yielded.
type SandboxEvent struct {
	Version string // goes into WatchSandboxes.After; opaque
	Sandbox *Sandbox
	// Anew is the Go client's word that it had to begin anew, alone in its event: the
	// events from here to the next without a sandbox are all that there is.
	Anew bool
}

// ListSandboxes filters and pages.
type ListSandboxes struct {
	States    []SandboxState
	Labels    map[string]string
	PageSize  int    // zero: 50; at most 1000
	PageToken string // opaque
}

// SandboxPage is one page of a list; NextPageToken is "" on the last.
type SandboxPage struct {
	Sandboxes     []Sandbox
	NextPageToken string
}

// Caller is who makes a call, after authentication.
type Caller struct {
	Project ProjectID
	Name    string // of the key
	Role    Role   // "" counts as MEMBER
	Key     KeyID  // "" for the admin key of the first start, and for nobody's
}

// SandboxService is the lifecycle of sandboxes (contract: A1–A6, A8). Every
// method's caller is authenticated; what belongs to another project is
// NOT_FOUND.
type SandboxService interface {
	LifetimeService
	CreateSandbox(ctx context.Context, caller Caller, in CreateSandbox) (Sandbox, error)
	GetSandbox(ctx context.Context, caller Caller, id SandboxID) (Sandbox, error)
	ListSandboxes(ctx context.Context, caller Caller, in ListSandboxes) (SandboxPage, error)
	SuspendSandbox(ctx context.Context, caller Caller, in MutateSandbox) (Sandbox, error)
	ResumeSandbox(ctx context.Context, caller Caller, in MutateSandbox) (Sandbox, error)
	DeleteSandbox(ctx context.Context, caller Caller, in MutateSandbox) (Sandbox, error)
	// WatchSandboxes yields until ctx ends, yield fails or the watch is broken off
	// with an error; UNAVAILABLE is gone on after by the last Version (contract: A5).
	WatchSandboxes(ctx context.Context, caller Caller, in WatchSandboxes, yield func(SandboxEvent) error) error
	// StreamSandboxLog yields the console (boot included) from offset on. With
	// follow it goes on until the instance ends or ctx does.
	StreamSandboxLog(ctx context.Context, caller Caller, in SandboxLog, yield func(OutputChunk) error) error
}

// LifetimeService changes how long a sandbox lives. No call waits for a live
// attempt. What is beyond extending is FAILED_PRECONDITION, reason EXPIRED where
// the lifetime's end is being carried out (contract: A11).
type LifetimeService interface {
	ExtendSandbox(ctx context.Context, caller Caller, in ExtendSandbox) (Sandbox, error)
	SetSandboxLifetime(ctx context.Context, caller Caller, in SetSandboxLifetime) (Sandbox, error)
}

// SandboxLog addresses a part of a sandbox's console.
type SandboxLog struct {
	ID     SandboxID
	Offset int64 // bytes
	Follow bool
}
