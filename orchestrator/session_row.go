package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// kindSession is the kind under which sessions' operations are recorded.
const kindSession = "session"

// shape is what a session's sandbox is to be, as the create sent it, and what its
// environment adds once that is known. It is stored as JSON.
type shape struct {
	Restart    holdfast.Restart     `json:"restart,omitempty"`
	Env        map[string]string    `json:"env,omitempty"`
	Resources  holdfast.Resources   `json:"resources"`
	Egress     holdfast.Egress      `json:"egress,omitempty"`
	Repository *holdfast.Repository `json:"repository,omitempty"`
	Hooks      holdfast.Hooks       `json:"hooks"`
}

// sessionRow is a session as it is stored.
type sessionRow struct {
	holdfast.Session
	Shape        shape
	Forced       bool
	DeleteWanted bool
	HookAt       time.Time
	Hooked       string                // id of the operation whose hook has ended
	Unreadable   error                 // see row.Unreadable
	was          holdfast.SessionState // as it was read or saved last
}

func (r sessionRow) resource() operation.Resource {
	return operation.Resource{Kind: kindSession, ID: string(r.ID)}
}

const sessionColumns = `id, project, name, creator, environment, build, source, state, generation, incarnation, sandbox, shape, labels,
	idle, active_at, suspended_by, door_closed, forced, delete_wanted, hook_at, hooked, hook_failure, failure, created_at, updated_at, deleted_at`

func scanSession(scan func(...any) error) (sessionRow, error) {
	var r sessionRow
	var made, labels, hookFailure, failure, suspendedBy string
	var idle, active, hooked, created, updated, deleted int64
	err := scan(&r.ID, &r.Project, &r.Name, &r.Creator, &r.Environment, &r.Build, &r.Source, &r.State, &r.Generation, &r.Incarnation, &r.Sandbox,
		&made, &labels, &idle, &active, &suspendedBy, &r.DoorClosed, &r.Forced, &r.DeleteWanted, &hooked, &r.Hooked, &hookFailure, &failure,
		&created, &updated, &deleted)
	if err != nil {
		return sessionRow{}, err
	}
	r.was = r.State
	r.Idle, r.SuspendedBy = time.Duration(idle)*time.Microsecond, holdfast.Reason(suspendedBy)
	r.ActiveAt, r.HookAt = store.FromMicros(active), store.FromMicros(hooked)
	r.CreatedAt, r.UpdatedAt, r.DeletedAt = store.FromMicros(created), store.FromMicros(updated), store.FromMicros(deleted)
	for _, column := range []struct {
		text string
		into any
	}{{made, &r.Shape}, {labels, &r.Labels}, {hookFailure, &r.HookFailure}, {failure, &r.Failure}} {
		if column.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(column.text), column.into); err != nil {
			r.Unreadable = errors.Join(r.Unreadable, fmt.Errorf("session %s: %w", r.ID, err))
		}
	}
	r.Restart, r.Env, r.Repository = r.Shape.Restart, r.Shape.Env, r.Shape.Repository
	return r, nil
}

func oneSession(ctx context.Context, tx store.Tx, where string, args ...any) (sessionRow, bool, error) {
	r, err := scanSession(tx.QueryRowContext(ctx, `SELECT `+sessionColumns+` FROM session `+where, args...).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return sessionRow{}, false, nil
	}
	if err == nil {
		err = r.Unreadable
	}
	if err != nil {
		return sessionRow{}, false, fmt.Errorf("read session: %w", err)
	}
	return r, true, nil
}

// sessions are those that a condition names, the unreadable ones too.
func sessions(ctx context.Context, tx store.Tx, where string, args ...any) (list []sessionRow, err error) {
	rs, err := tx.QueryContext(ctx, `SELECT `+sessionColumns+` FROM session `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		r, err := scanSession(rs.Scan)
		if err != nil {
			return nil, fmt.Errorf("read sessions: %w", err)
		}
		list = append(list, r)
	}
	if err := rs.Err(); err != nil {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	return list, nil
}

// held is a session that is locked for a decision, with its sandbox, which is
// locked before it, and what is pending on both (contract: D3).
type held struct {
	sessionRow
	box     *row                 // nil while it has none
	pending *operation.Operation // on the session
	boxed   *operation.Operation // pending on the sandbox
}

// lockSession locks a session for a decision, its sandbox first. The sandbox is
// read without a lock before: should it be another one by then, all begins anew.
// The decision's instant is read when the locks are held (trap T41).
func lockSession(ctx context.Context, tx store.Tx, id holdfast.SessionID) (h held, found bool, now time.Time, err error) {
	for range 3 {
		var sandbox holdfast.SandboxID
		err = tx.QueryRowContext(ctx, `SELECT sandbox FROM session WHERE id = $1`, string(id)).Scan(&sandbox)
		if errors.Is(err, sql.ErrNoRows) {
			return held{}, false, time.Time{}, nil
		}
		if err != nil {
			return held{}, false, now, fmt.Errorf("read session %s: %w", id, err)
		}
		h = held{}
		if h.box, h.boxed, err = lockBox(ctx, tx, sandbox); err != nil {
			return held{}, false, now, err
		}
		if h.sessionRow, found, err = oneSession(ctx, tx, `WHERE id = $1`+tx.ForUpdate(), string(id)); err != nil || !found {
			return held{}, false, now, err
		}
		if h.Sandbox != sandbox { // it was given one meanwhile
			continue
		}
		if h.pending, err = pendingOn(ctx, tx, h.sessionRow.resource()); err == nil {
			now, err = tx.Now(ctx)
		}
		return h, true, now, err
	}
	return held{}, false, now, fmt.Errorf("lock session %s: its sandbox changed again and again", id)
}

// lockBox locks a session's sandbox, where it has one that is not purged.
func lockBox(ctx context.Context, tx store.Tx, id holdfast.SandboxID) (*row, *operation.Operation, error) {
	if id == "" {
		return nil, nil, nil
	}
	r, found, _, err := lockRow(ctx, tx, id)
	if err != nil || !found {
		return nil, nil, err
	}
	pending, err := pendingOn(ctx, tx, r.resource())
	return &r, pending, err
}

func pendingOn(ctx context.Context, tx store.Tx, of operation.Resource) (*operation.Operation, error) {
	op, has, err := operation.Pending(ctx, tx, of)
	if err != nil || !has {
		return nil, err
	}
	return &op, nil
}

// insert writes a new session and its labels, and tells those who subscribed.
func (r *sessionRow) insert(ctx context.Context, tx store.Tx) error {
	made, err := json.Marshal(r.Shape)
	if err != nil {
		return fmt.Errorf("insert session: %w", err)
	}
	labels, err := json.Marshal(r.Labels)
	if err != nil {
		return fmt.Errorf("insert session: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO session (id, project, name, creator, environment, build, source, state, generation, incarnation,
		sandbox, shape, labels, idle, active_at, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15, $15)`,
		string(r.ID), string(r.Project), r.Name, r.Creator, r.Environment, string(r.Build), string(r.Source), string(r.State), r.Generation,
		r.Incarnation, string(r.Sandbox), string(made), string(labels), r.Idle.Microseconds(), store.Micros(r.CreatedAt))
	if err != nil {
		return fmt.Errorf("insert session: %w", err)
	}
	if err := r.insertLabels(ctx, tx); err != nil {
		return err
	}
	r.was = "" // also where the transaction is tried again
	return r.tell(ctx, tx, r.CreatedAt)
}

func (r *sessionRow) insertLabels(ctx context.Context, tx store.Tx) error {
	if len(r.Labels) == 0 {
		return nil
	}
	args := []any{string(r.ID)}
	var values []string
	for k, v := range r.Labels {
		args = append(args, k, v)
		values = append(values, fmt.Sprintf("($1, $%d, $%d)", len(args)-1, len(args)))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO session_label (session, key, value) VALUES `+strings.Join(values, ", "), args...); err != nil {
		return fmt.Errorf("insert labels: %w", err)
	}
	return nil
}

// save writes what may change of a locked session, stamps it, and tells those who
// subscribed.
func (r *sessionRow) save(ctx context.Context, tx store.Tx, now time.Time) error {
	made, err := json.Marshal(r.Shape)
	if err != nil {
		return fmt.Errorf("save session %s: %w", r.ID, err)
	}
	failure, err := optionalJSON(r.Failure, r.Failure == nil)
	if err != nil {
		return fmt.Errorf("save session %s: %w", r.ID, err)
	}
	hookFailure, err := optionalJSON(r.HookFailure, r.HookFailure == nil)
	if err != nil {
		return fmt.Errorf("save session %s: %w", r.ID, err)
	}
	r.UpdatedAt = now
	_, err = tx.ExecContext(ctx, `UPDATE session SET name = $2, build = $3, state = $4, generation = $5, incarnation = $6, sandbox = $7, shape = $8,
		active_at = $9, suspended_by = $10, door_closed = $11, forced = $12, delete_wanted = $13, hook_at = $14, hooked = $15, hook_failure = $16,
		failure = $17, updated_at = $18, deleted_at = $19 WHERE id = $1`,
		string(r.ID), r.Name, string(r.Build), string(r.State), r.Generation, r.Incarnation, string(r.Sandbox), string(made),
		store.Micros(r.ActiveAt), string(r.SuspendedBy), r.DoorClosed, r.Forced, r.DeleteWanted, store.Micros(r.HookAt), r.Hooked, hookFailure,
		failure, store.Micros(now), store.Micros(r.DeletedAt))
	if err != nil {
		return fmt.Errorf("save session %s: %w", r.ID, err)
	}
	return r.tell(ctx, tx, now)
}
