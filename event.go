package holdfast

import (
	"context"
	"slices"
	"strings"
	"time"
)

// EventKind says what happened to a resource of a project: its type, a dot, and a word.
type EventKind string

// The kinds of events.
const (
	EventSandboxCreated     EventKind = "sandbox.created"   // recorded; not ready yet
	EventSandboxReady       EventKind = "sandbox.ready"     // also after a replacement: see its incarnation
	EventSandboxReplacing   EventKind = "sandbox.replacing" // its instance was lost; another incarnation is under way
	EventSandboxSuspended   EventKind = "sandbox.suspended"
	EventSandboxResumed     EventKind = "sandbox.resumed"
	EventSandboxFailed      EventKind = "sandbox.failed"
	EventSandboxDeleting    EventKind = "sandbox.deleting" // will be deleted, whatever happens
	EventSandboxDeleted     EventKind = "sandbox.deleted"
	EventCheckpointCreated  EventKind = "checkpoint.created" // its copy is under way
	EventCheckpointReady    EventKind = "checkpoint.ready"
	EventCheckpointFailed   EventKind = "checkpoint.failed"
	EventCheckpointDeleting EventKind = "checkpoint.deleting"
	EventCheckpointDeleted  EventKind = "checkpoint.deleted"
	EventOperationFailed    EventKind = "operation.failed" // its resource is what it was about
	EventSessionCreated     EventKind = "session.created"  // recorded: CREATING, or WAITING for its environment's build
	EventSessionCreating    EventKind = "session.creating" // the build that it waited for is ready
	EventSessionReady       EventKind = "session.ready"    // also after a replacement: see its incarnation
	EventSessionReplacing   EventKind = "session.replacing"
	EventSessionSuspended   EventKind = "session.suspended" // why, where no caller asked for it, is in suspended_by
	EventSessionResumed     EventKind = "session.resumed"
	EventSessionFailed      EventKind = "session.failed"
	EventSessionDeleting    EventKind = "session.deleting"
	EventSessionDeleted     EventKind = "session.deleted"
	EventTaskQueued         EventKind = "task.queued"
	EventTaskRunning        EventKind = "task.running"
	EventTaskSucceeded      EventKind = "task.succeeded"
	EventTaskFailed         EventKind = "task.failed"
	EventTaskCancelled      EventKind = "task.cancelled"
	EventTaskTimedOut       EventKind = "task.timed_out"
	EventBuildBuilding      EventKind = "build.building"
	EventBuildReady         EventKind = "build.ready" // also at once, of a recipe that needs no builder
	EventBuildFailed        EventKind = "build.failed"
	EventBuildSuperseded    EventKind = "build.superseded"
)

// EventKinds lists every kind there is.
func EventKinds() []EventKind {
	return []EventKind{
		EventSandboxCreated, EventSandboxReady, EventSandboxReplacing, EventSandboxSuspended, EventSandboxResumed,
		EventSandboxFailed, EventSandboxDeleting, EventSandboxDeleted, EventOperationFailed,
		EventCheckpointCreated, EventCheckpointReady, EventCheckpointFailed, EventCheckpointDeleting, EventCheckpointDeleted,
		EventSessionCreated, EventSessionCreating, EventSessionReady, EventSessionReplacing, EventSessionSuspended, EventSessionResumed,
		EventSessionFailed, EventSessionDeleting, EventSessionDeleted,
		EventTaskQueued, EventTaskRunning, EventTaskSucceeded, EventTaskFailed, EventTaskCancelled, EventTaskTimedOut,
		EventBuildBuilding, EventBuildReady, EventBuildFailed, EventBuildSuperseded,
	}
}

// MatchKinds reports whether a kind is among those that a filter names: kinds, or
// "sandbox.*" for all of a type. An empty filter names all.
func MatchKinds(filter []string, kind EventKind) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(pattern string) bool {
		prefix, all := strings.CutSuffix(pattern, "*")
		return all && strings.HasPrefix(string(kind), prefix) || pattern == string(kind)
	})
}

// Times and limits of events.
const (
	EventsKept    = 7 * 24 * time.Hour // and how long a project's are recorded after the last that asked for them
	MaxEventKinds = 32                 // patterns in a filter
)

// Event is one change of a resource, recorded in the transaction of the change.
// Projects that have a webhook, or that were asked for events lately, record them.
type Event struct {
	ID       EventID
	Cursor   string // a place in the project's order of events: behind this one
	Project  ProjectID
	Kind     EventKind
	Resource string // id of the resource that it happened to; its events come in order
	At       time.Time
	Object   string // JSON object: the resource as the change left it, abridged
}

// StreamEvents asks for a project's events in order, those that are kept and, with
// Follow, those to come.
type StreamEvents struct {
	After  string   // a Cursor: only what is behind it; "": from the oldest that is kept
	Kinds  []string // see MatchKinds
	Follow bool
}

// ListDeliveries pages what came in, by source and id: from guests, the fleet and
// hooks, each once.
type ListDeliveries struct {
	Source    string // "": all
	PageSize  int    // zero: 50; at most 1000
	PageToken string
}

// DeliveryRecord is what a delivery came to.
type DeliveryRecord struct {
	Source     string // who sent it, as authenticated
	ID         string // of the delivery, unique for its source
	Kind       string
	ReceivedAt time.Time
	BodySHA256 string // hexadecimal
	Outcome    string // what it led to, for people
}

// DeliveryPage is one page; NextPageToken is "" on the last.
type DeliveryPage struct {
	Deliveries    []DeliveryRecord
	NextPageToken string
}

// EventService tells what happened, and what came in.
type EventService interface {
	// StreamEvents yields events of the caller's project in the order of their
	// cursors, and misses none that was recorded. A cursor behind which events are
	// purged already, or that the database does not know, is OUT_OF_RANGE, BEGIN_ANEW.
	StreamEvents(ctx context.Context, caller Caller, in StreamEvents, yield func(Event) error) error
	// ListDeliveries needs an ADMIN's key.
	ListDeliveries(ctx context.Context, caller Caller, in ListDeliveries) (DeliveryPage, error)
}

// Validate checks the cursor and the filter.
func (in StreamEvents) Validate() error {
	if len(in.After) > MaxPageToken || strings.ContainsFunc(in.After, invisible) {
		return bad("after", "is no cursor that an event carried")
	}
	return checkKinds("kinds", in.Kinds)
}

// Validate checks the filter and the page.
func (in ListDeliveries) Validate() error {
	return firstError(checkText("source", in.Source, MaxName), checkPage(in.PageSize, in.PageToken))
}

// checkKinds refuses a pattern that fits no kind there is: it is a misspelt one.
func checkKinds(field string, kinds []string) error {
	if len(kinds) > MaxEventKinds {
		return bad(field, "has %d patterns; at most %d are allowed", len(kinds), MaxEventKinds)
	}
	for _, pattern := range kinds {
		if strings.Contains(strings.TrimSuffix(pattern, "*"), "*") ||
			!slices.ContainsFunc(EventKinds(), func(kind EventKind) bool { return MatchKinds([]string{pattern}, kind) }) {
			return bad(field, "has %q, which fits no kind of event; there are %s, and sandbox.* for all of a type", shown(pattern), kindNames())
		}
	}
	return nil
}

func kindNames() string {
	var names []string
	for _, kind := range EventKinds() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}
