package holdfast

import (
	"context"
	"time"
)

// SessionState is the last recorded fact about a session.
type SessionState string

// The states of a session: a sandbox's, with WAITING in front.
const (
	SessionWaiting   SessionState = "WAITING" // for its environment's build
	SessionCreating  SessionState = "CREATING"
	SessionReady     SessionState = "READY"
	SessionSuspended SessionState = "SUSPENDED"
	SessionFailed    SessionState = "FAILED"
	SessionDeleting  SessionState = "DELETING"
	SessionDeleted   SessionState = "DELETED"
)

// SessionTransitions lists, for each state, the states that may follow it.
func SessionTransitions() map[SessionState][]SessionState {
	return map[SessionState][]SessionState{
		SessionWaiting:   {SessionCreating, SessionFailed, SessionDeleting, SessionDeleted},
		SessionCreating:  {SessionReady, SessionFailed, SessionDeleting},
		SessionReady:     {SessionCreating, SessionSuspended, SessionFailed, SessionDeleting},
		SessionSuspended: {SessionCreating, SessionReady, SessionFailed, SessionDeleting},
		SessionFailed:    {SessionDeleting, SessionDeleted},
		SessionDeleting:  {SessionDeleted},
		SessionDeleted:   {},
	}
}

// Times of sessions.
const (
	DefaultIdle         = time.Hour
	MinIdle             = time.Second
	MaxIdle             = 7 * 24 * time.Hour
	SessionWaitingAfter = time.Minute     // before a sweep asks what became of its build
	ActivityLease       = 2 * time.Minute // of one exec, transfer or connection, renewed by its traffic
)

// Workspace is the directory that a session's repository is fetched into.
const Workspace = "/workspace"

// Session is durable work on a sandbox, which it owns (contract: E3).
type Session struct {
	ID          SessionID
	Name        string
	Project     ProjectID
	Creator     string
	Environment string // as the create named it
	Build       BuildID
	Source      CheckpointID // that it is a fork of; "": of none
	State       SessionState
	Operation   *Operation
	Failure     *Failure // why it is FAILED
	HookFailure *Failure // what went wrong with the hook of the last operation that had one; nil when nothing did
	Generation  int64
	Incarnation int64 // of its sandbox
	Sandbox     SandboxID
	Restart     Restart
	Env         map[string]string
	Labels      map[string]string
	Repository  *Repository
	Idle        time.Duration // without activity until it is suspended
	ActiveAt    time.Time     // of the last activity that is known
	SuspendedBy Reason        // why it is SUSPENDED where no caller asked for it: IDLE
	DoorClosed  bool          // no new task is taken: a suspend or delete waits for the running one
	Queued      int           // tasks
	Running     TaskID        // "" when none runs
	CreatedAt   time.Time
	UpdatedAt   time.Time
	DeletedAt   time.Time
}

// CreateSession is the input of a create (contract: A3); Source makes it a fork.
type CreateSession struct {
	RequestID   string
	Environment string       // name, name@version, or what a sandbox may be made of; "" with Source
	Source      CheckpointID // "": none
	Name        string
	Idle        time.Duration // zero: DefaultIdle
	Restart     Restart       // "": NONE
	Env         map[string]string
	Labels      map[string]string
	Resources   Resources
	Egress      Egress
	Repository  *Repository // nil: the environment's
}

// MutateSession addresses a suspend, resume or delete.
type MutateSession struct {
	ID           SessionID
	Force        bool  // of a suspend or delete: cancels the running task instead of waiting for it
	IfGeneration int64 // zero: unconditional
}

// RenameSession sets the name; a repeat is harmless.
type RenameSession struct {
	ID   SessionID
	Name string
}

// ListSessions filters and pages, newest first; DELETED ones are left out unless
// asked for.
type ListSessions struct {
	States    []SessionState
	Labels    map[string]string
	PageSize  int
	PageToken string
}

// SessionPage is one page; NextPageToken is "" on the last.
type SessionPage struct {
	Sessions      []Session
	NextPageToken string
}

// SessionService owns sessions. An operation that was issued to the runtime and is
// uncertain is finished before a conflicting one, which gets ABORTED (contract: A7).
type SessionService interface {
	CreateSession(ctx context.Context, caller Caller, in CreateSession) (Session, error)
	GetSession(ctx context.Context, caller Caller, id SessionID) (Session, error)
	ListSessions(ctx context.Context, caller Caller, in ListSessions) (SessionPage, error)
	SuspendSession(ctx context.Context, caller Caller, in MutateSession) (Session, error)
	ResumeSession(ctx context.Context, caller Caller, in MutateSession) (Session, error)
	DeleteSession(ctx context.Context, caller Caller, in MutateSession) (Session, error)
	RenameSession(ctx context.Context, caller Caller, in RenameSession) (Session, error)
}
