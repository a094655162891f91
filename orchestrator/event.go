package orchestrator

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// news is a change of a resource of a project, for whoever subscribed.
type news struct {
	project  holdfast.ProjectID
	kind     holdfast.EventKind
	resource string // id
	object   any    // what the change left, as JSON; no secrets, and no env, in which they are
}

// emit records news in the transaction of the change, after the change: the lock on
// the resource's row keeps its events in order. What is to be sent is enqueued with
// it (contract: B4, B9). Where nobody asked for the project's events it costs a look
// into a map (docs/adr/0008).
func (s *Service) emit(ctx context.Context, tx store.Tx, now time.Time, n news) error {
	wanted, err := s.recorded(ctx, tx, n.project)
	if err != nil || !wanted {
		return err
	}
	object, err := json.Marshal(n.object)
	if err != nil {
		return fmt.Errorf("event %s of %s: %w", n.kind, n.resource, err)
	}
	id := s.config.IDs.New(holdfast.PrefixEvent)
	var at int64 // above the resource's last, whatever the clock did
	err = tx.QueryRowContext(ctx, `INSERT INTO event (id, project, kind, resource, at, sequence, object)
		SELECT $1, $2, $3, $4, CASE WHEN last >= $5 THEN last + 1 ELSE $5 END, 0, $6
		FROM (SELECT COALESCE(MAX(at), 0) AS last FROM event WHERE resource = $4) AS latest RETURNING at`,
		id, string(n.project), string(n.kind), n.resource, store.Micros(now), string(object)).Scan(&at)
	if err != nil {
		return fmt.Errorf("record event %s of %s: %w", n.kind, n.resource, err)
	}
	return s.fanOut(ctx, tx, now, recordedEvent{Event: holdfast.Event{ID: holdfast.EventID(id), Project: n.project, Kind: n.kind,
		Resource: n.resource, At: store.FromMicros(at), Object: string(object)}})
}

// recordedEvent is an event as it is stored.
type recordedEvent struct {
	holdfast.Event
	sequence int64
}

const eventColumns = `id, project, kind, resource, at, sequence, object`

func scanEvent(scan func(...any) error) (recordedEvent, error) {
	var e recordedEvent
	var at int64
	err := scan(&e.ID, &e.Project, &e.Kind, &e.Resource, &at, &e.sequence, &e.Object)
	e.At = store.FromMicros(at)
	return e, err
}

// posted is the data of an event as webhooks are sent it.
type posted struct {
	Event    holdfast.EventID   `json:"event"`
	Project  holdfast.ProjectID `json:"project"`
	Resource string             `json:"resource"`
	At       time.Time          `json:"at"`
	Object   json.RawMessage    `json:"object"`
}

// outgoing is the event's row in the outbox, for one webhook. A resource's events go
// one after another, by their instants, so that a replay keeps the order too.
func (e recordedEvent) outgoing(to holdfast.WebhookID) (outbox.Row, error) {
	body, err := json.Marshal(posted{Event: e.ID, Project: e.Project, Resource: e.Resource, At: e.At, Object: json.RawMessage(e.Object)})
	if err != nil {
		return outbox.Row{}, fmt.Errorf("event %s: %w", e.ID, err)
	}
	return outbox.Row{ID: string(e.ID), Destination: string(to), Kind: string(e.Kind), Key: e.Resource, Position: store.Micros(e.At), Body: body}, nil
}

// fanOut enqueues an event for each webhook of its project that wants its kind.
func (s *Service) fanOut(ctx context.Context, tx store.Tx, now time.Time, e recordedEvent) error {
	hooks, err := gather(ctx, tx, scanWebhook, `SELECT `+webhookColumns+` FROM webhook WHERE project = $1 ORDER BY id`, string(e.Project))
	if err != nil {
		return err
	}
	queued := false
	for _, w := range hooks {
		if !holdfast.MatchKinds(w.Kinds, e.Kind) {
			continue
		}
		row, err := e.outgoing(w.ID)
		if err != nil {
			return err
		}
		if err := outbox.Enqueue(ctx, tx, row, now); err != nil {
			return err
		}
		queued = true
	}
	if u, ok := tx.(*unit); ok && queued {
		u.soon(s.outbox.wake)
	}
	return nil
}

// listeners remembers which projects record events, so that those that do not pay
// nothing. It is never older than listenersKept where replicas share the database:
// whoever asks for events waits that long before they count on them.
type listeners struct {
	mu    sync.Mutex
	known map[holdfast.ProjectID]bool // nil: not read yet
	until time.Time                   // zero: for good
	epoch int64                       // raised by each change that this process made
}

func (l *listeners) get(project holdfast.ProjectID, now time.Time) (wanted, fresh bool, epoch int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[project], l.known != nil && (l.until.IsZero() || now.Before(l.until)), l.epoch
}

// put keeps what was read from a time on, unless this process changed it since. A
// project is taken for recorded as soon as one read says so: that is harmless.
func (l *listeners) put(known map[holdfast.ProjectID]bool, until time.Time, epoch int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch == l.epoch {
		l.known, l.until = known, until
	}
}

func (l *listeners) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
	l.known = nil
}

// recorded reports whether a project records events: mostly from memory.
func (s *Service) recorded(ctx context.Context, tx store.Tx, project holdfast.ProjectID) (bool, error) {
	asked := s.config.Clock()
	wanted, fresh, epoch := s.listeners.get(project, asked)
	if fresh {
		return wanted, nil
	}
	known := map[holdfast.ProjectID]bool{}
	list, err := gather(ctx, tx, scanProjectID, `SELECT project FROM event_project WHERE recording`)
	if err != nil {
		return false, err
	}
	for _, id := range list {
		known[id] = true
	}
	var until time.Time
	if !s.config.Exclusive {
		until = asked.Add(s.config.ListenersKept)
	}
	s.listeners.put(known, until, epoch)
	return known[project], nil
}

func scanProjectID(scan func(...any) error) (id holdfast.ProjectID, err error) {
	return id, scan(&id)
}

// recordEvents makes a project record events from now on, and locks its row. After a
// time without, cursors from before it are over: what lies between was not recorded.
// It reports whether the project did not record.
func recordEvents(ctx context.Context, tx store.Tx, now time.Time, project holdfast.ProjectID) (begun bool, err error) {
	_, err = tx.ExecContext(ctx, `INSERT INTO event_project (project, recording, sequence, purged, asked_at) VALUES ($1, FALSE, 0, 0, 0)
		ON CONFLICT DO NOTHING`, string(project))
	if err != nil {
		return false, fmt.Errorf("record events of %s: %w", project, err)
	}
	p, err := lockEvents(ctx, tx, project)
	if err != nil {
		return false, err
	}
	if begun = !p.recording; begun && p.sequence > 0 {
		p.sequence++
		p.purged = p.sequence
	}
	_, err = tx.ExecContext(ctx, `UPDATE event_project SET recording = TRUE, sequence = $2, purged = $3, asked_at = $4 WHERE project = $1`,
		string(project), p.sequence, p.purged, store.Micros(now))
	if err != nil {
		return false, fmt.Errorf("record events of %s: %w", project, err)
	}
	return begun, nil
}

// listened follows a commit that made a project record: this process knows at once,
// the others by the time it returns.
func (s *Service) listened(ctx context.Context, begun bool) error {
	if !begun {
		return nil
	}
	s.listeners.forget()
	if s.config.Exclusive {
		return nil
	}
	wait := time.NewTimer(s.config.ListenersKept)
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until every replica records events: %w", ctx.Err())
	}
}

// sandboxObject is what an event says of a sandbox.
type sandboxObject struct {
	ID          holdfast.SandboxID    `json:"id"`
	Name        string                `json:"name,omitempty"`
	State       holdfast.SandboxState `json:"state"`
	Environment string                `json:"environment,omitempty"`
	Owner       string                `json:"owner,omitempty"`
	Incarnation int64                 `json:"incarnation"`
	Generation  int64                 `json:"generation"`
	Labels      map[string]string     `json:"labels,omitempty"`
	Failure     *holdfast.Failure     `json:"failure,omitempty"`
}

func (r row) object() sandboxObject {
	return sandboxObject{ID: r.ID, Name: r.Name, State: r.State, Environment: r.Environment, Owner: r.Owner, Incarnation: r.Incarnation,
		Generation: r.Generation, Labels: r.Labels, Failure: r.Failure}
}

// sandboxEvent is the kind of a change between two recorded states; "" when it is
// none. It is pure.
func sandboxEvent(from, to holdfast.SandboxState) holdfast.EventKind {
	if from == to {
		return ""
	}
	switch to {
	case holdfast.SandboxReady:
		if from == holdfast.SandboxSuspended {
			return holdfast.EventSandboxResumed
		}
		return holdfast.EventSandboxReady
	case holdfast.SandboxCreating:
		return holdfast.EventSandboxReplacing
	case holdfast.SandboxSuspended:
		return holdfast.EventSandboxSuspended
	case holdfast.SandboxFailed:
		return holdfast.EventSandboxFailed
	case holdfast.SandboxDeleting:
		return holdfast.EventSandboxDeleting
	case holdfast.SandboxDeleted:
		return holdfast.EventSandboxDeleted
	}
	return ""
}

// emitIn emits news in the transaction of the change, unless its kind is "": then it
// is none. A transaction that is no unit is a tool's, which nobody subscribed to.
func emitIn(ctx context.Context, tx store.Tx, now time.Time, n news) error {
	u, ok := tx.(*unit)
	if !ok || n.kind == "" {
		return nil
	}
	return u.service.emit(ctx, tx, now, n)
}

// tell emits a change of a sandbox.
func (r row) tell(ctx context.Context, tx store.Tx, now time.Time, kind holdfast.EventKind) error {
	return emitIn(ctx, tx, now, news{project: r.Project, kind: kind, resource: string(r.ID), object: r.object()})
}

// failedOperation is what an event says of an operation that failed for good.
type failedOperation struct {
	ID    string             `json:"id"`
	Kind  string             `json:"kind"`
	Error *operation.Failure `json:"error,omitempty"`
}

// tellFailed emits that an operation on a sandbox failed. The sandbox's row is locked.
func (s *Service) tellFailed(ctx context.Context, tx store.Tx, now time.Time, r row, op failedOperation) error {
	return s.emit(ctx, tx, now, news{project: r.Project, kind: holdfast.EventOperationFailed, resource: string(r.ID), object: op})
}
