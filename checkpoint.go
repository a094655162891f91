package holdfast

import (
	"context"
	"time"
)

// CheckpointState is the last recorded fact about a checkpoint.
type CheckpointState string

// The states of a checkpoint.
const (
	CheckpointCreating CheckpointState = "CREATING"
	CheckpointReady    CheckpointState = "READY" // whole, durable, and the same for ever
	CheckpointFailed   CheckpointState = "FAILED"
	CheckpointDeleting CheckpointState = "DELETING" // no new fork; its parts are being removed
	CheckpointDeleted  CheckpointState = "DELETED"
)

// CheckpointTransitions lists, for each state, the states that may follow it.
func CheckpointTransitions() map[CheckpointState][]CheckpointState {
	return map[CheckpointState][]CheckpointState{
		CheckpointCreating: {CheckpointReady, CheckpointFailed, CheckpointDeleting},
		CheckpointReady:    {CheckpointDeleting},
		CheckpointFailed:   {CheckpointDeleting},
		CheckpointDeleting: {CheckpointDeleted},
		CheckpointDeleted:  {},
	}
}

// CheckpointAfter is how long a checkpoint may be CREATING or DELETING before a
// sweep looks at it.
const CheckpointAfter = 10 * time.Minute

// Checkpoint is what the disk of a sandbox held at one instant (contract: E4). What
// is created from it is a fork: a new instance with an identity of its own, that
// shares nothing with the source but what was on its disk.
type Checkpoint struct {
	ID          CheckpointID
	Project     ProjectID
	Creator     string // the API key's name
	Source      string // id of the sandbox, or session, that it was taken of
	Sandbox     SandboxID
	Environment string // of the source
	State       CheckpointState
	Operation   *Operation // pending; nil when nothing is
	Failure     *Failure   // why it is FAILED
	Labels      map[string]string
	Size        int64 // bytes that it added to what its source was made from; 0 until READY
	SHA256      string
	CreatedAt   time.Time
	UpdatedAt   time.Time
	DeletedAt   time.Time // zero unless DELETED
}

// CreateCheckpoint is the input of a checkpoint's create (contract: A3).
type CreateCheckpoint struct {
	RequestID string
	Source    string // id of a sandbox or a session, READY or SUSPENDED
	Labels    map[string]string
}

// MutateCheckpoint addresses a delete.
type MutateCheckpoint struct{ ID CheckpointID }

// ListCheckpoints filters and pages, newest first; DELETED ones are left out unless
// asked for.
type ListCheckpoints struct {
	Source    string // "": of any
	States    []CheckpointState
	Labels    map[string]string
	PageSize  int
	PageToken string
}

// CheckpointPage is one page; NextPageToken is "" on the last.
type CheckpointPage struct {
	Checkpoints   []Checkpoint
	NextPageToken string
}

// CheckpointService takes checkpoints. Deleting one makes it unusable for new forks
// at once; what forks and later checkpoints still need of it stays until they are
// gone.
type CheckpointService interface {
	CreateCheckpoint(ctx context.Context, caller Caller, in CreateCheckpoint) (Checkpoint, error)
	GetCheckpoint(ctx context.Context, caller Caller, id CheckpointID) (Checkpoint, error)
	ListCheckpoints(ctx context.Context, caller Caller, in ListCheckpoints) (CheckpointPage, error)
	DeleteCheckpoint(ctx context.Context, caller Caller, in MutateCheckpoint) (Checkpoint, error)
}

// CheckpointDesired is what a CheckpointLevel says shall be.
type CheckpointDesired string

// The levels of a checkpoint.
const (
	CheckpointPresent CheckpointDesired = "PRESENT"
	CheckpointAbsent  CheckpointDesired = "ABSENT"
)

// CheckpointLevel is a command downward (H2, H3): "of this boot, this checkpoint
// shall be PRESENT". It can be sent any number of times, in any order; Claim and Wait
// are no content.
type CheckpointLevel struct {
	Cluster     string            `json:"cluster"`
	Epoch       int64             `json:"epoch,omitempty"`
	Checkpoint  CheckpointID      `json:"checkpoint"`
	Instance    InstanceID        `json:"instance"`
	Incarnation int64             `json:"incarnation"`
	Generation  int64             `json:"generation"` // of the instance: a lower one than was seen is refused
	Claim       int64             `json:"claim"`      // of the attempt that asks; the key of a copy that it begins ends in it
	Desired     CheckpointDesired `json:"desired"`
	MintedAt    time.Time         `json:"minted_at"` // of the checkpoint: one unknown for longer than tombstones live is refused, TOO_OLD
	Wait        time.Duration     `json:"wait"`      // at most MaxLevelWait
}

// CopyState is how far a host is with a checkpoint.
type CopyState string

// The states of a checkpoint at its host.
const (
	CopyCopying CopyState = "COPYING"
	CopyPresent CopyState = "PRESENT" // in the blob store, durable
	CopyFailed  CopyState = "FAILED"  // for ever: another checkpoint is needed
	CopyAbsent  CopyState = "ABSENT"  // a tombstone: it will not be made any more
)

// CopyTransitions lists, for each state of a checkpoint at its host, what may follow.
func CopyTransitions() map[CopyState][]CopyState {
	return map[CopyState][]CopyState{
		CopyCopying: {CopyPresent, CopyFailed, CopyAbsent},
		CopyPresent: {CopyAbsent},
		CopyFailed:  {CopyAbsent},
		CopyAbsent:  {},
	}
}

// CheckpointObservation is what a host says of a checkpoint.
type CheckpointObservation struct {
	Checkpoint CheckpointID `json:"checkpoint"`
	Instance   InstanceID   `json:"instance"`
	State      CopyState    `json:"state"`
	Layers     []Layer      `json:"layers,omitempty"` // PRESENT: everything above the image, the lowest first; the last is mostly what was copied
	Added      int64        `json:"added,omitempty"`  // bytes that this copy put into the blob store
	Claim      int64        `json:"claim,omitempty"`  // that began the copy, as its key says
	Failure    *Failure     `json:"failure,omitempty"`
	Progress   string       `json:"progress,omitempty"` // for a person
	At         time.Time    `json:"at"`
}

// Validate checks the form of every field.
func (in CreateCheckpoint) Validate() error {
	source := CheckID("source", PrefixSandbox, in.Source)
	if CheckID("source", PrefixSession, in.Source) == nil {
		source = nil
	}
	return firstError(CheckRequestID("request_id", in.RequestID), source, checkLabels(in.Labels))
}

// Validate checks the form of the id.
func (in MutateCheckpoint) Validate() error { return CheckID("id", PrefixCheckpoint, string(in.ID)) }

// Validate checks the filters and the page.
func (in ListCheckpoints) Validate() error {
	for _, state := range in.States {
		if _, known := CheckpointTransitions()[state]; !known {
			return bad("states", "has %q, which is no state of a checkpoint", shown(string(state)))
		}
	}
	return firstError(checkLabels(in.Labels), checkPage(in.PageSize, in.PageToken))
}
