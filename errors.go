package holdfast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// Code is what a client's decision depends on (contract: A8). Package rpc alone
// translates it to a wire status.
type Code string

// The codes, with what a client does on each.
const (
	InvalidArgument    Code = "INVALID_ARGUMENT"    // correct the input
	Unauthenticated    Code = "UNAUTHENTICATED"     // correct the credentials
	PermissionDenied   Code = "PERMISSION_DENIED"   // correct the credentials
	NotFound           Code = "NOT_FOUND"           // on delete: done
	AlreadyExists      Code = "ALREADY_EXISTS"      // the request id was used with other input
	FailedPrecondition Code = "FAILED_PRECONDITION" // correct the state first
	Aborted            Code = "ABORTED"             // another attempt or a conflicting operation: look, then retry
	ResourceExhausted  Code = "RESOURCE_EXHAUSTED"  // a quota; nothing was recorded
	Unavailable        Code = "UNAVAILABLE"         // retry the same request
	DeadlineExceeded   Code = "DEADLINE_EXCEEDED"   // retry the same request
	Cancelled          Code = "CANCELLED"           // stop, or go on later with the same identity
	OutOfRange         Code = "OUT_OF_RANGE"        // an offset beyond what there is
	Unimplemented      Code = "UNIMPLEMENTED"       // this installation cannot do it
	Internal           Code = "INTERNAL"            // surface it
)

// Reason says, in one upper-case word for programs, why a code was returned.
type Reason string

// The reasons that the parties return. A reason is part of the public surface.
const (
	ReasonBadField         Reason = "BAD_FIELD"          // a field of the request has a wrong form; see detail "field"
	ReasonUnknown          Reason = "UNKNOWN"            // no such resource, or not this project's
	ReasonCredentials      Reason = "CREDENTIALS"        // no API key, or none that is valid
	ReasonNotAdmin         Reason = "NOT_ADMIN"          // the API key is a member's, and the call needs an admin's
	ReasonNameTaken        Reason = "NAME_TAKEN"         // the name was used with other input; see detail "fields"
	ReasonQuota            Reason = "QUOTA"              // the project holds what it may; see details "quota", "limit" and "used"
	ReasonRequestReused    Reason = "REQUEST_ID_REUSED"  // same request id, other input; see detail "fields"
	ReasonClaimed          Reason = "CLAIMED"            // an attempt is executing; see detail "claim_expires_at"
	ReasonConflict         Reason = "CONFLICT"           // another operation is pending
	ReasonSuperseded       Reason = "SUPERSEDED"         // this operation gave way to a newer intent
	ReasonGeneration       Reason = "GENERATION"         // if_generation did not match
	ReasonState            Reason = "STATE"              // the verb does not fit the resource's state
	ReasonCreateFailed     Reason = "CREATE_FAILED"      // the create was refused for good; the resource is FAILED
	ReasonExpired          Reason = "EXPIRED"            // the lifetime ended
	ReasonSlow             Reason = "SLOW_CONSUMER"      // what was yielded was not taken in time; go on after the version in detail "after"
	ReasonBeginAnew        Reason = "BEGIN_ANEW"         // a watch cannot go on from there: it begins without a version
	ReasonNoCapacity       Reason = "NO_CAPACITY"        // no host has room; the operation stays pending
	ReasonPreparing        Reason = "PREPARING"          // the image is being prepared; the operation stays pending
	ReasonHostUnreachable  Reason = "HOST_UNREACHABLE"   // the host does not answer; its state is not known
	ReasonHostDraining     Reason = "HOST_DRAINING"      // its host is being drained; it is made anew elsewhere
	ReasonHostTwin         Reason = "HOST_TWIN"          // another agent serves under this host's id
	ReasonUnreachable      Reason = "UNREACHABLE"        // a party did not answer
	ReasonDraining         Reason = "DRAINING"           // this server is shutting down
	ReasonStaleGeneration  Reason = "STALE_GENERATION"   // a level lower than one seen; see detail "seen"
	ReasonStaleIncarnation Reason = "STALE_INCARNATION"  // an older boot than the current one
	ReasonLevelConflict    Reason = "LEVEL_CONFLICT"     // the same generation with other content
	ReasonTooOld           Reason = "TOO_OLD"            // an unknown incarnation minted longer ago than tombstones live
	ReasonCluster          Reason = "CLUSTER"            // an order of another cluster
	ReasonStaleEpoch       Reason = "STALE_EPOCH"        // an order from before a recovery; see detail "seen"
	ReasonBehind           Reason = "DATABASE_BEHIND"    // the database knows less than those it orders: it was restored, and holdfast recover was not run
	ReasonNoSuchImage      Reason = "NO_SUCH_IMAGE"      // the environment names no image there is
	ReasonImageFailed      Reason = "IMAGE_FAILED"       // the image cannot be prepared
	ReasonPrepareFailed    Reason = "PREPARE_FAILED"     // the instance cannot be set up
	ReasonBootFailed       Reason = "BOOT_FAILED"        // the guest died, or never called, before it was ready
	ReasonBootTimeout      Reason = "BOOT_TIMEOUT"       // the guest did not become ready in time
	ReasonSetupFailed      Reason = "SETUP_FAILED"       // the guest reported that its setup failed
	ReasonExited           Reason = "EXITED"             // the instance ended by itself
	ReasonInstanceLost     Reason = "INSTANCE_LOST"      // the instance is gone
	ReasonHostRebooted     Reason = "HOST_REBOOTED"      // the host booted anew and took the instance with it
	ReasonSavedStateGone   Reason = "SAVED_STATE_GONE"   // a suspended instance's saved state is gone
	ReasonGaveUp           Reason = "GAVE_UP"            // the reconciler stopped trying
	ReasonIncarnation      Reason = "OTHER_INCARNATION"  // the request id was first used on another incarnation
	ReasonNoSuchCommand    Reason = "NO_SUCH_COMMAND"    // the command does not exist or cannot be executed
	ReasonNoSuchFile       Reason = "NO_SUCH_FILE"       // no file at that path
	ReasonNotAFile         Reason = "NOT_A_REGULAR_FILE" // a directory, device, socket or pipe where a file is needed
	ReasonNotADirectory    Reason = "NOT_A_DIRECTORY"    // a file where a directory is needed
	ReasonFileExists       Reason = "FILE_EXISTS"        // something is at the destination already
	ReasonNotEmpty         Reason = "NOT_EMPTY"          // a directory with entries, removed without recursive
	ReasonNoSpace          Reason = "NO_SPACE"           // the disk is full
	ReasonInterrupted      Reason = "INTERRUPTED"        // a stream broke; see detail "written"
	ReasonTooLarge         Reason = "TOO_LARGE"          // over a limit that the message names
	ReasonEnded            Reason = "ENDED"              // the process has ended
	ReasonNotCapable       Reason = "NOT_CAPABLE"        // the runtime cannot do it
	ReasonOwned            Reason = "OWNED"              // it belongs to a resource, in detail "owner", which alone drives it
	ReasonIdle             Reason = "IDLE"               // nothing was done with it for its idle time
	ReasonDoorClosed       Reason = "DOOR_CLOSED"        // a suspend or delete waits for the running task: no new one is taken
	ReasonBuildFailed      Reason = "BUILD_FAILED"       // the environment's build failed
	ReasonPreparation      Reason = "PREPARATION_FAILED" // the session's preparation failed
	ReasonCancelled        Reason = "CANCELLED"          // by a caller
	ReasonTimeLimit        Reason = "TIME_LIMIT"         // it still ran at its limit
	ReasonExitCode         Reason = "EXIT_CODE"          // the command ended with another code than 0
	ReasonCheckpointFailed Reason = "CHECKPOINT_FAILED"  // the copy cannot be made
	ReasonBlobGone         Reason = "BLOB_GONE"          // what it is made of is missing or damaged in the blob store
	ReasonStorage          Reason = "STORAGE"            // the database did not take it
	ReasonRuntime          Reason = "RUNTIME"            // the host's runtime did not do it; the message says what it said
	ReasonBug              Reason = "BUG"                // this should not happen; report it
)

// Error is the one error type that crosses a hop. Its zero fields are left out
// on the wire.
type Error struct {
	Code       Code              `json:"code"`
	Reason     Reason            `json:"reason"`
	Message    string            `json:"message"`
	Resource   string            `json:"resource,omitempty"`    // id of the resource concerned
	Operation  string            `json:"operation,omitempty"`   // id of the operation concerned
	RetryAfter time.Duration     `json:"retry_after,omitempty"` // nanoseconds; when a retry can help
	Details    map[string]string `json:"details,omitempty"`

	cause error
}

// E makes an error.
func E(code Code, reason Reason, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Error returns the message, and the cause where there is one.
func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %v", e.Message, e.cause)
	}
	return e.Message
}

// Unwrap returns the cause, which never crosses a hop.
func (e *Error) Unwrap() error { return e.cause }

// On returns a copy that names the resource.
func (e *Error) On(resource string) *Error { c := e.clone(); c.Resource = resource; return c }

// During returns a copy that names the operation.
func (e *Error) During(operation string) *Error { c := e.clone(); c.Operation = operation; return c }

// Retry returns a copy that tells the client when a retry can help.
func (e *Error) Retry(after time.Duration) *Error { c := e.clone(); c.RetryAfter = after; return c }

// With returns a copy with one more detail.
func (e *Error) With(key, value string) *Error {
	c := e.clone()
	if c.Details == nil {
		c.Details = map[string]string{}
	}
	c.Details[key] = value
	return c
}

// Because returns a copy with a cause.
func (e *Error) Because(cause error) *Error { c := e.clone(); c.cause = cause; return c }

func (e *Error) clone() *Error {
	c := *e
	c.Details = maps.Clone(e.Details)
	return &c
}

// AsError finds the Error in err's chain, or makes one: a context's end becomes
// CANCELLED or DEADLINE_EXCEEDED, anything else INTERNAL. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return E(DeadlineExceeded, ReasonUnreachable, "the deadline passed; the work may have happened").Because(err)
	case errors.Is(err, context.Canceled):
		return E(Cancelled, ReasonUnreachable, "the call was cancelled; the work may have happened").Because(err)
	}
	return E(Internal, ReasonBug, "internal error").Because(err)
}

// CodeOf returns err's code, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}

// ReasonOf returns err's reason, "" for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	return AsError(err).Reason
}

// Transient reports whether the same request may succeed later without anyone
// changing anything: such an error never makes a resource FAILED.
func Transient(err error) bool {
	switch CodeOf(err) {
	case Unavailable, DeadlineExceeded, Cancelled, Aborted, Internal, ResourceExhausted:
		return true
	}
	return false
}
