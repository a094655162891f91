package holdfast

import (
	"context"
	"time"
)

// OperationKind is what an operation does to its resource.
type OperationKind string

// The kinds of operations.
const (
	OperationCreate  OperationKind = "CREATE"
	OperationSuspend OperationKind = "SUSPEND"
	OperationResume  OperationKind = "RESUME"
	OperationDelete  OperationKind = "DELETE"
	OperationReplace OperationKind = "REPLACE" // a new boot for a lost instance, under the next incarnation

	OperationCheckpoint OperationKind = "CHECKPOINT" // a copy of its disk; the sandbox stays what it is
	OperationBuild      OperationKind = "BUILD"      // of an environment
)

// Operation is one recorded intent: pending, or kept as the journal of its
// resource (contract: A5).
type Operation struct {
	ID         OperationID
	Resource   string // id of the resource
	Kind       OperationKind
	State      OperationState
	Generation int64
	Attempts   int
	Since      time.Time
	UpdatedAt  time.Time
	FinishedAt time.Time // zero while pending
	Cause      Reason    // why it began where no caller asked for it: EXPIRED, or how the instance was lost
	Claim      *Claim    // nil when no attempt is executing
	WaitsFor   string    // what a pending one waits for: "image", "host", …; "" for nothing named
	LastError  *Error
	Next       string // what is safe to do next, for a person
}

// Claim says who executes an operation, and until when at the latest.
type Claim struct {
	Holder    string
	Number    int64
	ExpiresAt time.Time
}

// ListOperations filters and pages the journal of one resource, newest first.
type ListOperations struct {
	Resource  string
	PageSize  int
	PageToken string
}

// OperationPage is one page; NextPageToken is "" on the last.
type OperationPage struct {
	Operations    []Operation
	NextPageToken string
}

// OperationService reads the journal.
type OperationService interface {
	ListOperations(ctx context.Context, caller Caller, in ListOperations) (OperationPage, error)
	GetOperation(ctx context.Context, caller Caller, id OperationID) (Operation, error)
}
