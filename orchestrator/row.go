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

// row is a sandbox as it is stored.
type row struct {
	holdfast.Sandbox
	Spec         holdfast.InstanceSpec
	MintedAt     time.Time // of the incarnation
	DeleteWanted bool      // a delete met a live claim; whoever ends the claim begins it
	GuestSaid    holdfast.DeliveryKind
	Retained     bool                  // ExpiresAt ends a retention, by deletion, and not a lifetime
	Version      int64                 // under which watchers see it as it is; 0: not numbered yet
	Shard        int64                 // of the project's quotas, in which it is counted; 0 when it is not
	was          holdfast.SandboxState // as it was read or saved last
	Workdir      string                // of processes that say none; "": the guest's default
	User         string                // of processes that say none; "": the guest's default
	// Unreadable is what is wrong with a column: the row is shown, so that it hides no
	// other, and nothing is decided on it (trap T19).
	Unreadable error
}

func (r row) resource() operation.Resource {
	return operation.Resource{Kind: kindSandbox, ID: string(r.ID)}
}

func (r row) ref() holdfast.InstanceRef {
	return holdfast.InstanceRef{Instance: r.Instance, Incarnation: r.Incarnation}
}

const rowColumns = `id, project, name, creator, environment, state, generation, incarnation, instance, spec, labels, ttl,
	on_expiry, delete_wanted, failure, ports, guest_said, minted_at, created_at, updated_at, ready_at, expires_at, deleted_at,
	restart, retained, version, quota_shard, owner, source`

func scanRow(scan func(...any) error) (row, error) {
	var r row
	var spec, labels, failure, ports, guestSaid string
	var ttl, minted, created, updated, ready, expires, deleted int64
	err := scan(&r.ID, &r.Project, &r.Name, &r.Creator, &r.Environment, &r.State, &r.Generation, &r.Incarnation, &r.Instance,
		&spec, &labels, &ttl, &r.OnExpiry, &r.DeleteWanted, &failure, &ports, &guestSaid, &minted, &created, &updated, &ready, &expires, &deleted,
		&r.Restart, &r.Retained, &r.Version, &r.Shard, &r.Owner, &r.Source)
	if err != nil {
		return row{}, err
	}
	var stored storedSpec
	r.was, r.GuestSaid = r.State, holdfast.DeliveryKind(guestSaid)
	r.TTL = time.Duration(ttl) * time.Microsecond
	r.MintedAt, r.CreatedAt, r.UpdatedAt = store.FromMicros(minted), store.FromMicros(created), store.FromMicros(updated)
	r.ReadyAt, r.ExpiresAt, r.DeletedAt = store.FromMicros(ready), store.FromMicros(expires), store.FromMicros(deleted)
	for _, column := range []struct {
		text string
		into any
	}{{spec, &stored}, {labels, &r.Labels}, {failure, &r.Failure}, {ports, &r.Ports}} {
		if column.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(column.text), column.into); err != nil {
			r.Unreadable = errors.Join(r.Unreadable, fmt.Errorf("sandbox %s: %w", r.ID, err))
		}
	}
	r.Spec, r.Workdir, r.User = stored.InstanceSpec, stored.Workdir, stored.User
	r.Resources, r.Egress, r.Env = r.Spec.Resources, r.Spec.Egress, r.Spec.Env
	return r, nil
}

// storedSpec is an instance's spec as it is stored: with what only the orchestrator
// needs of it.
type storedSpec struct {
	holdfast.InstanceSpec
	Workdir string `json:"workdir,omitempty"`
	User    string `json:"user,omitempty"`
}

func (r row) stored() storedSpec { return storedSpec{r.Spec, r.Workdir, r.User} }

// lockRow reads a sandbox for a decision; found is false when there is none. The
// decision's instant is the one that it returns, once the lock is held: a wait for
// it may have been long (trap T41).
func lockRow(ctx context.Context, tx store.Tx, id holdfast.SandboxID) (r row, found bool, now time.Time, err error) {
	return locked(ctx, tx, `WHERE id = $1`, string(id))
}

func lockByInstance(ctx context.Context, tx store.Tx, id holdfast.InstanceID) (r row, found bool, now time.Time, err error) {
	return locked(ctx, tx, `WHERE instance = $1`, string(id))
}

func locked(ctx context.Context, tx store.Tx, where, key string) (r row, found bool, now time.Time, err error) {
	if r, found, err = oneRow(ctx, tx, where+tx.ForUpdate(), key); err == nil {
		now, err = tx.Now(ctx)
	}
	return r, found, now, err
}

func oneRow(ctx context.Context, tx store.Tx, where string, args ...any) (row, bool, error) {
	r, err := scanRow(tx.QueryRowContext(ctx, `SELECT `+rowColumns+` FROM sandbox `+where, args...).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	if err != nil {
		return row{}, false, fmt.Errorf("read sandbox: %w", err)
	}
	if r.Unreadable != nil {
		return row{}, false, fmt.Errorf("read sandbox: %w", r.Unreadable)
	}
	return r, true, nil
}

// rows are those that a condition names, the unreadable ones too.
func rows(ctx context.Context, tx store.Tx, where string, args ...any) (list []row, err error) {
	rs, err := tx.QueryContext(ctx, `SELECT `+rowColumns+` FROM sandbox `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		r, err := scanRow(rs.Scan)
		if err != nil {
			return nil, fmt.Errorf("read sandboxes: %w", err)
		}
		list = append(list, r)
	}
	if err := rs.Err(); err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", err)
	}
	return list, nil
}

// freshColumns are those of a new sandbox, but the instants, which are all the same
// one; freshTypes are they for a joint statement.
const (
	freshColumns = `id, project, name, creator, environment, state, generation, incarnation, instance, spec, labels, ttl, on_expiry,
	restart, quota_shard, cpu_millis, memory_bytes, owner, source`
	freshTypes = `id text, project text, name text, creator text, environment text, state text, generation bigint, incarnation bigint,
	instance text, spec text, labels text, ttl bigint, on_expiry text, restart text, quota_shard bigint, cpu_millis bigint, memory_bytes bigint,
	owner text, source text`
)

// values are a new sandbox's freshColumns.
func (r row) values() ([]any, error) {
	spec, err1 := json.Marshal(r.stored())
	labels, err2 := json.Marshal(r.Labels)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("insert sandbox: %w", err)
	}
	return []any{string(r.ID), string(r.Project), r.Name, r.Creator, r.Environment, string(r.State), r.Generation, r.Incarnation,
		string(r.Instance), string(spec), string(labels), r.TTL.Microseconds(), string(r.OnExpiry),
		string(r.Restart), r.Shard, r.Resources.CPUMillis, r.Resources.MemoryBytes, r.Owner, string(r.Source)}, nil
}

// insert writes a new sandbox and its labels, and tells those who subscribed.
func (r row) insert(ctx context.Context, tx store.Tx) error {
	fresh, err := r.values()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO sandbox (`+freshColumns+`, minted_at, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $21)`,
		append(fresh, store.Micros(r.MintedAt), store.Micros(r.CreatedAt))...)
	if err != nil {
		return fmt.Errorf("insert sandbox: %w", err)
	}
	if err := r.insertLabels(ctx, tx); err != nil {
		return err
	}
	return r.tell(ctx, tx, r.CreatedAt, holdfast.EventSandboxCreated)
}

func (r row) insertLabels(ctx context.Context, tx store.Tx) error {
	if len(r.Labels) == 0 {
		return nil
	}
	args := []any{string(r.ID)}
	var values []string
	for k, v := range r.Labels {
		args = append(args, k, v)
		values = append(values, fmt.Sprintf("($1, $%d, $%d)", len(args)-1, len(args)))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO sandbox_label (sandbox, key, value) VALUES `+strings.Join(values, ", "), args...); err != nil {
		return fmt.Errorf("insert labels: %w", err)
	}
	return nil
}

// touch makes watchers see a sandbox again whose operation changed.
func (r row) touch(ctx context.Context, tx store.Tx) error {
	if _, err := tx.ExecContext(ctx, `UPDATE sandbox SET version = 0 WHERE id = $1`, string(r.ID)); err != nil {
		return fmt.Errorf("touch sandbox %s: %w", r.ID, err)
	}
	return nil
}

// save writes what may change of a locked sandbox, stamps it, and takes its number:
// it is another one to watchers. Whatever made it FAILED or DELETED, what it held of
// its project's quotas is given back here, once; whom it belongs to hears of it here,
// and so do those who subscribed to the project's events.
func (r *row) save(ctx context.Context, tx store.Tx, now time.Time) error {
	failure, err := optionalJSON(r.Failure, r.Failure == nil)
	if err != nil {
		return fmt.Errorf("save sandbox %s: %w", r.ID, err)
	}
	ports, err := optionalJSON(r.Ports, len(r.Ports) == 0)
	if err != nil {
		return fmt.Errorf("save sandbox %s: %w", r.ID, err)
	}
	r.UpdatedAt = now
	from := r.uncount()
	_, err = tx.ExecContext(ctx, `UPDATE sandbox SET state = $2, generation = $3, incarnation = $4, delete_wanted = $5, failure = $6,
		ports = $7, guest_said = $8, minted_at = $9, updated_at = $10, ready_at = $11, expires_at = $12, deleted_at = $13,
		ttl = $14, on_expiry = $15, retained = $16, version = 0, quota_shard = $17 WHERE id = $1`,
		string(r.ID), string(r.State), r.Generation, r.Incarnation, r.DeleteWanted, failure, ports, string(r.GuestSaid),
		store.Micros(r.MintedAt), store.Micros(now), store.Micros(r.ReadyAt), store.Micros(r.ExpiresAt), store.Micros(r.DeletedAt),
		r.TTL.Microseconds(), string(r.OnExpiry), r.Retained, r.Shard)
	if err != nil {
		return fmt.Errorf("save sandbox %s: %w", r.ID, err)
	}
	if err := r.giveBack(ctx, tx, from); err != nil {
		return err
	}
	if err := r.letGo(ctx, tx); err != nil {
		return err
	}
	if err := r.tellOwner(ctx, tx, now); err != nil {
		return err
	}
	was := r.was
	r.was = r.State
	return r.tell(ctx, tx, now, sandboxEvent(was, r.State))
}

// saveOver writes what the end of an operation changes of a sandbox, if it is as it
// was read; false when it is not, and nothing was written. It is for sandboxes that
// belong to nobody: an owner would hear nothing.
func (r *row) saveOver(ctx context.Context, tx store.Tx, now time.Time, read row) (bool, error) {
	ports, err := optionalJSON(r.Ports, len(r.Ports) == 0)
	if err != nil {
		return false, fmt.Errorf("save sandbox %s: %w", r.ID, err)
	}
	r.UpdatedAt = now
	from := r.uncount()
	args := []any{string(r.ID), string(r.State), ports, store.Micros(now), store.Micros(r.ReadyAt), store.Micros(r.ExpiresAt), store.Micros(r.DeletedAt),
		store.Micros(read.UpdatedAt), string(read.State), read.Generation, read.Incarnation,
		r.Retained, read.TTL.Microseconds(), store.Micros(read.ExpiresAt), read.Shard}
	n := int64(0)
	if read.Version == 0 && from == 0 { // mostly so: then two indexes are left alone
		n, err = affected(tx.ExecContext(ctx, arrived+asRead+` AND version = 0`, args...))
	}
	if err == nil && n == 0 {
		n, err = affected(tx.ExecContext(ctx, arrived+`, version = 0, quota_shard = $16`+asRead, append(args, r.Shard)...))
	}
	if err != nil {
		return false, fmt.Errorf("save sandbox %s: %w", r.ID, err)
	}
	if n == 0 {
		return false, nil
	}
	if err := r.letGo(ctx, tx); err != nil {
		return false, err
	}
	if err := r.giveBack(ctx, tx, from); err != nil {
		return false, err
	}
	r.was = r.State
	return true, r.tell(ctx, tx, now, sandboxEvent(read.State, r.State))
}

const (
	arrived = `UPDATE sandbox SET state = $2, ports = $3, updated_at = $4, ready_at = $5, expires_at = $6, deleted_at = $7, retained = $12`
	asRead  = ` WHERE id = $1 AND updated_at = $8 AND state = $9 AND generation = $10 AND incarnation = $11 AND delete_wanted = FALSE
		AND ttl = $13 AND expires_at = $14 AND quota_shard = $15`
)

// affected is how many rows a statement changed.
func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func optionalJSON(v any, empty bool) (string, error) {
	if empty {
		return "", nil
	}
	raw, err := json.Marshal(v)
	return string(raw), err
}
