// Package runtime is the seam to what runs instances: an OCI runtime, a virtual
// machine monitor, or a simulation. A Driver is stupid on purpose: it decides
// nothing, keeps no intent, and every call of it can be repeated after an
// answer that was lost or a process that died half-way. The host agent decides.
package runtime

import (
	"context"
	"io"
	"net"

	"github.com/holdfast-dev/holdfast"
)

// Capabilities is what a driver can do.
type Capabilities struct {
	Name         string
	SuspendKind  string // "frozen": memory stays on the host; "saved": memory goes to disk
	SurvivesHost bool   // whether a suspended instance outlives a reboot of its host
	WholeLayers  bool   // whether a checkpoint has what the layers below it have, too: it needs none of them
}

// Bundle is everything an instance is prepared from.
type Bundle struct {
	Ref    holdfast.InstanceRef
	RootFS string // directory of the read-only base; shared by many
	Layers []string
	// Layers are directories above RootFS, the lowest first, shared too, as package
	// layer unpacks them for an overlay.
	Spec      holdfast.InstanceSpec
	Guest     holdfast.GuestConfig
	Directory string // of the instance, on the host, durable; the driver may keep files of its own under Directory/runtime
	Spool     string // directory that the guest's output goes to (package spool); survives Stop
}

// Phase is what a driver sees of an instance.
type Phase string

// The phases. PREPARED: set up, no guest code has run, Start would let it run.
const (
	PhaseAbsent    Phase = "ABSENT"
	PhasePrepared  Phase = "PREPARED"
	PhaseRunning   Phase = "RUNNING"
	PhaseSuspended Phase = "SUSPENDED"
	PhaseExited    Phase = "EXITED" // it ran and ended; something of it may be left until Stop
)

// Status is a driver's observation. An error instead of a Status means "not
// known", never "gone" (trap T27).
type Status struct {
	Ref     holdfast.InstanceRef
	Phase   Phase
	Address string          // of the guest on the host's network, "" where there is none
	Ports   []holdfast.Port // offered by the host for the guest
	Detail  string          // for a person
}

// Driver runs instances on one host. Refusals (what will fail the same way
// again) are *holdfast.Error with a non-transient code; every other error is
// taken as "try again". All methods are safe for concurrent use on different
// instances; the host agent serializes calls on one.
type Driver interface {
	Capabilities() Capabilities
	// Open readies the host (bridge, firewall, cgroup parents), adopts what a
	// previous process left, and returns the gateway: the listener at which
	// guests, and nobody else, reach the host agent, and its URL for them.
	// The URL stays the same over restarts with the same directory.
	Open(ctx context.Context) (gateway net.Listener, url string, err error)
	// Prepare sets up an instance so that Start lets it run. No guest code runs.
	// After a half-done Prepare it begins anew; when already prepared or running it does nothing.
	Prepare(ctx context.Context, b Bundle) error
	// Start lets a prepared instance run, once: on one already running it does
	// nothing; on one that exited or is absent it is an error and boots nothing.
	Start(ctx context.Context, ref holdfast.InstanceRef) error
	Suspend(ctx context.Context, ref holdfast.InstanceRef) error // at most once effective; suspended already: nothing
	Resume(ctx context.Context, ref holdfast.InstanceRef) error
	// Checkpoint writes the instance's writable layer to w, as package layer packs it,
	// as it is at one instant: what runs stands still meanwhile, of which Inspect and
	// List say nothing, and runs on when Checkpoint returns, whatever it returns; what
	// is suspended stays so. If the process dies meanwhile, the next Open lets it run
	// on. Nothing of this boot alone is in it: no secret, socket, name or address
	// (trap T50). What neither runs nor is suspended is refused, INSTANCE_LOST.
	Checkpoint(ctx context.Context, ref holdfast.InstanceRef, w io.Writer) error
	// Stop kills what runs and gives back everything but the spool: processes,
	// cgroup, network, mounts, writable layer. Absent: nothing to do, success.
	Stop(ctx context.Context, ref holdfast.InstanceRef) error
	Inspect(ctx context.Context, ref holdfast.InstanceRef) (Status, error)
	// List sees what the runtime itself has, whether or not anyone recorded it.
	// Remains of a Prepare that did not finish, which Inspect calls ABSENT since
	// nothing ran, are EXITED here, since something is left until Stop.
	List(ctx context.Context) ([]Status, error)
	// Wait returns nil once the instance no longer runs (exited or absent), or ctx's error.
	Wait(ctx context.Context, ref holdfast.InstanceRef) error
	// DialGuest connects to the guest agent's listener (H11): a Unix socket or a
	// channel of that one instance, on no network that a neighbour shares.
	DialGuest(ctx context.Context, ref holdfast.InstanceRef) (net.Conn, error)
	// Close releases the driver's own resources; instances run on.
	Close() error
}
