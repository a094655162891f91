package holdfast

import "time"

// SandboxState is the last recorded fact about a sandbox; what is under way is
// its operation (contract: A5).
type SandboxState string

// The states of a sandbox.
const (
	SandboxCreating  SandboxState = "CREATING" // not ready yet, or not again since its instance was lost
	SandboxReady     SandboxState = "READY"
	SandboxSuspended SandboxState = "SUSPENDED"
	SandboxFailed    SandboxState = "FAILED"
	SandboxDeleting  SandboxState = "DELETING"
	SandboxDeleted   SandboxState = "DELETED"
)

// InstanceState is what is known of an instance: by the host that runs it, and
// by the fleet that placed it.
type InstanceState string

// The states of an instance. RUNNING means that its guest agent is ready.
const (
	InstancePlaced    InstanceState = "PLACED"    // a host is chosen, nothing was begun
	InstancePreparing InstanceState = "PREPARING" // image, root file system, network
	InstanceBooting   InstanceState = "BOOTING"   // guest code may run, the guest is not ready
	InstanceRunning   InstanceState = "RUNNING"
	InstanceSuspended InstanceState = "SUSPENDED"
	InstanceStopping  InstanceState = "STOPPING"
	InstanceExited    InstanceState = "EXITED"  // for ever; output kept, everything else given back
	InstanceUnknown   InstanceState = "UNKNOWN" // its host does not answer
	InstanceAbsent    InstanceState = "ABSENT"  // nothing of it is left but a tombstone
)

// OperationState is how far an operation is.
type OperationState string

// The states of an operation.
const (
	OperationPending    OperationState = "PENDING"
	OperationDone       OperationState = "DONE"
	OperationFailed     OperationState = "FAILED"
	OperationSuperseded OperationState = "SUPERSEDED"
)

// HostHealth is observed; HostDuty is the operators' word.
type HostHealth string

// The healths of a host.
const (
	HostReady   HostHealth = "READY"
	HostSuspect HostHealth = "SUSPECT" // silent for 15 s
	HostLost    HostHealth = "LOST"    // silent for 5 min, or heard again and not yet rid of what is no longer its own
)

// HostDuty is what operators want of a host.
type HostDuty string

// The duties of a host. Only an ACTIVE one gets new instances; what runs on one
// that is not runs on, and can be suspended, resumed and deleted.
const (
	HostActive   HostDuty = "ACTIVE"
	HostCordoned HostDuty = "CORDONED"
	HostDraining HostDuty = "DRAINING" // what can be made anew elsewhere is; CORDONED once nothing is left
	HostRetired  HostDuty = "RETIRED"  // for ever; what it had is lost, by the operators' word
)

// Deadlines after which something stuck is looked at (lifecycle.md). They are
// the defaults of the registry that the C3 test holds against these tables.
const (
	OperationUnclaimedAfter = 30 * time.Second
	ExpiryAfter             = 10 * time.Second // an overdue lifetime or retention
	InstancePrepareAfter    = 15 * time.Minute
	InstanceBootAfter       = 2 * time.Minute
	InstanceStoppingAfter   = time.Minute
	InstanceUnknownAfter    = time.Minute
	OrphanGrace             = 5 * time.Minute
	HostSuspectAfter        = 15 * time.Second
	HostLostAfter           = 5 * time.Minute
	HostLossAfter           = 30 * time.Minute // host_loss_after: a lost host's instances are given up
	HostDrainingAfter       = time.Minute
	TombstoneKept           = 7 * 24 * time.Hour
	LevelTooOldAfter        = 6 * 24 * time.Hour
)

// SandboxTransitions lists, for each state, the states that may follow it.
func SandboxTransitions() map[SandboxState][]SandboxState {
	return map[SandboxState][]SandboxState{
		SandboxCreating:  {SandboxReady, SandboxFailed, SandboxDeleting},
		SandboxReady:     {SandboxCreating, SandboxSuspended, SandboxFailed, SandboxDeleting},
		SandboxSuspended: {SandboxCreating, SandboxReady, SandboxFailed, SandboxDeleting},
		SandboxFailed:    {SandboxDeleting},
		SandboxDeleting:  {SandboxDeleted},
		SandboxDeleted:   {},
	}
}

// InstanceTransitions lists, for each state of one incarnation, the states that
// may follow it. UNKNOWN is the fleet's word for a host that does not answer:
// whatever the host reports follows it.
func InstanceTransitions() map[InstanceState][]InstanceState {
	return map[InstanceState][]InstanceState{
		InstancePlaced:    {InstancePreparing, InstanceBooting, InstanceRunning, InstanceSuspended, InstanceStopping, InstanceExited, InstanceUnknown, InstanceAbsent},
		InstancePreparing: {InstanceBooting, InstanceRunning, InstanceSuspended, InstanceStopping, InstanceExited, InstanceUnknown, InstanceAbsent},
		InstanceBooting:   {InstanceRunning, InstanceSuspended, InstanceStopping, InstanceExited, InstanceUnknown, InstanceAbsent},
		InstanceRunning:   {InstanceSuspended, InstanceStopping, InstanceExited, InstanceUnknown, InstanceAbsent},
		InstanceSuspended: {InstanceRunning, InstanceBooting, InstanceStopping, InstanceExited, InstanceUnknown, InstanceAbsent},
		InstanceStopping:  {InstanceExited, InstanceUnknown, InstanceAbsent},
		InstanceUnknown:   {InstancePlaced, InstancePreparing, InstanceBooting, InstanceRunning, InstanceSuspended, InstanceStopping, InstanceExited, InstanceAbsent},
		InstanceExited:    {InstanceAbsent},
		InstanceAbsent:    {},
	}
}

// OperationTransitions lists, for each state of an operation, what may follow.
func OperationTransitions() map[OperationState][]OperationState {
	return map[OperationState][]OperationState{
		OperationPending:    {OperationDone, OperationFailed, OperationSuperseded},
		OperationDone:       {},
		OperationFailed:     {},
		OperationSuperseded: {},
	}
}

// HostHealthTransitions lists, for each health of a host, what may follow.
func HostHealthTransitions() map[HostHealth][]HostHealth {
	return map[HostHealth][]HostHealth{
		HostReady:   {HostSuspect, HostLost},
		HostSuspect: {HostReady, HostLost},
		HostLost:    {HostReady},
	}
}

// HostDutyTransitions lists, for each duty of a host, what may follow. All of it
// is the operators' word, but for one: DRAINING becomes CORDONED by itself.
func HostDutyTransitions() map[HostDuty][]HostDuty {
	return map[HostDuty][]HostDuty{
		HostActive:   {HostCordoned, HostDraining, HostRetired},
		HostCordoned: {HostActive, HostDraining, HostRetired},
		HostDraining: {HostActive, HostCordoned, HostRetired},
		HostRetired:  {},
	}
}
