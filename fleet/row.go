package fleet

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// row is one instance as the fleet has recorded it: its newest incarnation.
type row struct {
	id          holdfast.InstanceID
	incarnation int64
	generation  int64
	revision    int64
	desired     holdfast.Desired
	spec        *holdfast.InstanceSpec
	specHash    string
	owner       string

	host   holdfast.HostID
	held   bool
	cpu    int64
	memory int64

	state    holdfast.InstanceState
	known    holdfast.InstanceState // state, or what it was before UNKNOWN
	observed int64                  // generation that the state answers
	settled  bool                   // ports and address are the host's word on this state
	failure  *holdfast.Failure
	progress string
	ports    []holdfast.Port
	address  string
	bootID   string

	mintedAt, placedAt, leveledAt, enteredAt, observedAt, dueAt, tombstoneAt time.Time

	// Of the host, read along, never written.
	hostURL    string
	hostHealth holdfast.HostHealth
	hostDuty   holdfast.HostDuty
	hostGone   bool // given up: by time, or by its retirement
	hostLife   string

	unreadable error // what is wrong with a JSON column: nothing is decided on such a row
}

// final reports whether nothing can follow but ABSENT.
func final(s holdfast.InstanceState) bool {
	return s == holdfast.InstanceExited || s == holdfast.InstanceAbsent
}

// ending reports whether the level asks for an end.
func ending(d holdfast.Desired) bool {
	return d == holdfast.DesiredExited || d == holdfast.DesiredAbsent
}

// observation is the row as others see it. It is stale when the host's silence
// makes it so (contract: D2).
func (r row) observation() holdfast.Observation {
	at := r.observedAt
	if at.IsZero() {
		at = r.leveledAt
	}
	stale := r.state == holdfast.InstanceUnknown ||
		!final(r.state) && r.hostHealth != "" && r.hostHealth != holdfast.HostReady
	// The highest level seen, unless it would make an older state look like its answer.
	generation := r.generation
	if r.observed < generation && string(r.state) == string(r.desired) {
		generation = r.observed
	}
	return holdfast.Observation{
		Instance: r.id, Incarnation: r.incarnation, Generation: max(generation, r.observed),
		State: r.state, Desired: r.desired, Failure: r.failure, Progress: r.progress,
		Ports: r.ports, Address: r.address,
		Host: r.host, HostURL: r.hostURL, HostHealth: r.hostHealth, HostDuty: r.hostDuty, BootID: r.bootID,
		At: at, Stale: stale, Owner: r.owner,
	}
}

// level is the recorded one, as it goes down to the host. A level that ends
// carries no spec, so that whoever repeats it sends the same content.
func (r row) level(wait time.Duration) holdfast.Level {
	l := holdfast.Level{
		Instance: r.id, Incarnation: r.incarnation, Generation: r.generation,
		Desired: r.desired, MintedAt: r.mintedAt, PlacedAt: r.placedAt, Wait: wait,
	}
	if !ending(r.desired) {
		l.Spec = r.spec
	}
	return l
}

func hashSpec(spec *holdfast.InstanceSpec) (string, error) {
	if spec == nil {
		return "", nil
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode the spec: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

const instanceColumns = `id, incarnation, generation, revision, desired, spec, spec_hash, owner,
	host, held, cpu_millis, memory_bytes, state, known, observed_generation, settled,
	failure, progress, ports, address, boot_id,
	minted_at, placed_at, leveled_at, entered_at, observed_at, due_at, tombstone_at`

// instanceTypes are the instanceColumns of a joint statement.
const instanceTypes = `id text, incarnation bigint, generation bigint, revision bigint, desired text, spec text, spec_hash text, owner text,
	host text, held bigint, cpu_millis bigint, memory_bytes bigint, state text, known text, observed_generation bigint, settled bigint,
	failure text, progress text, ports text, address text, boot_id text,
	minted_at bigint, placed_at bigint, leveled_at bigint, entered_at bigint, observed_at bigint, due_at bigint, tombstone_at bigint`

// The host's part is scalar queries, not a join: a locked row may not be on the
// nullable side of one.
const selectInstance = `SELECT ` + instanceColumns + `,
	COALESCE((SELECT h.url FROM host h WHERE h.id = instance.host), ''),
	COALESCE((SELECT h.health FROM host h WHERE h.id = instance.host), ''),
	COALESCE((SELECT h.duty FROM host h WHERE h.id = instance.host), ''),
	COALESCE((SELECT h.gone_at FROM host h WHERE h.id = instance.host), 0),
	COALESCE((SELECT h.life FROM host h WHERE h.id = instance.host), '') FROM instance `

func scanInstance(scan func(...any) error) (row, error) {
	var r row
	var spec, failure, ports string
	var held, settled, gone int64
	var at [7]int64
	err := scan(&r.id, &r.incarnation, &r.generation, &r.revision, &r.desired, &spec, &r.specHash, &r.owner,
		&r.host, &held, &r.cpu, &r.memory, &r.state, &r.known, &r.observed, &settled,
		&failure, &r.progress, &ports, &r.address, &r.bootID,
		&at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6], &r.hostURL, &r.hostHealth, &r.hostDuty, &gone, &r.hostLife)
	if err != nil {
		return row{}, err
	}
	r.held, r.settled, r.hostGone = held != 0, settled != 0, gone != 0
	for i, t := range []*time.Time{&r.mintedAt, &r.placedAt, &r.leveledAt, &r.enteredAt, &r.observedAt, &r.dueAt, &r.tombstoneAt} {
		*t = store.FromMicros(at[i])
	}
	err = errors.Join(decode(spec, &r.spec), decode(failure, &r.failure), decode(ports, &r.ports))
	if err != nil {
		r.unreadable = fmt.Errorf("instance %s: %w", r.id, err)
	}
	return r, nil
}

// values are the row's columns in the order of instanceColumns.
func (r row) values() ([]any, error) {
	spec, err1 := encode(r.spec, r.spec == nil)
	failure, err2 := encode(r.failure, r.failure == nil)
	ports, err3 := encode(r.ports, len(r.ports) == 0)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("instance %s: %w", r.id, err)
	}
	return []any{string(r.id), r.incarnation, r.generation, r.revision, string(r.desired), spec, r.specHash, r.owner,
		string(r.host), bit(r.held), r.cpu, r.memory, string(r.state), string(r.known), r.observed, bit(r.settled),
		failure, r.progress, ports, r.address, r.bootID,
		store.Micros(r.mintedAt), store.Micros(r.placedAt), store.Micros(r.leveledAt), store.Micros(r.enteredAt),
		store.Micros(r.observedAt), store.Micros(r.dueAt), store.Micros(r.tombstoneAt)}, nil
}

func encode(v any, empty bool) (string, error) {
	if empty {
		return "", nil
	}
	raw, err := json.Marshal(v)
	return string(raw), err
}

func decode(text string, v any) error {
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), v)
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// getInstance reads one row; lock is "" or the transaction's ForUpdate.
func getInstance(ctx context.Context, tx store.Tx, id holdfast.InstanceID, lock string) (row, bool, error) {
	r, err := scanInstance(tx.QueryRowContext(ctx, selectInstance+`WHERE id = $1`+lock, string(id)).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	if err != nil {
		return row{}, false, fmt.Errorf("read instance %s: %w", id, err)
	}
	if r.unreadable != nil {
		return row{}, false, fmt.Errorf("read instance: %w", r.unreadable)
	}
	return r, true, nil
}

// queryInstances are those that a condition names, the unreadable ones too.
func queryInstances(ctx context.Context, tx store.Tx, where string, args ...any) (out []row, err error) {
	rows, err := tx.QueryContext(ctx, selectInstance+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		r, err := scanInstance(rows.Scan)
		if err != nil {
			return nil, fmt.Errorf("read instances: %w", err)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// insertInstance reports false when another transaction has just inserted it:
// the caller reads again, in a new statement (T8).
func insertInstance(ctx context.Context, tx store.Tx, r row) (bool, error) {
	values, err := r.values()
	if err != nil {
		return false, err
	}
	n, err := affected(tx.ExecContext(ctx, `INSERT INTO instance (`+instanceColumns+`) VALUES
		($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28)
		ON CONFLICT (id) DO NOTHING`, values...))
	if err != nil {
		return false, fmt.Errorf("insert instance %s: %w", r.id, err)
	}
	return n == 1, nil
}

// updateInstance writes the whole row over the revision it was read at.
func updateInstance(ctx context.Context, tx store.Tx, r *row) error {
	read := r.revision
	r.revision++
	values, err := r.values()
	if err != nil {
		return err
	}
	n, err := affected(tx.ExecContext(ctx, `UPDATE instance SET incarnation = $2, generation = $3, revision = $4, desired = $5,
		spec = $6, spec_hash = $7, owner = $8, host = $9, held = $10, cpu_millis = $11, memory_bytes = $12, state = $13,
		known = $14, observed_generation = $15, settled = $16, failure = $17, progress = $18, ports = $19, address = $20,
		boot_id = $21, minted_at = $22, placed_at = $23, leveled_at = $24, entered_at = $25, observed_at = $26, due_at = $27,
		tombstone_at = $28 WHERE id = $1 AND revision = $29`, append(values, read)...))
	if err == nil && n != 1 {
		err = errOvertaken
	}
	if err != nil {
		return fmt.Errorf("update instance %s: %w", r.id, err)
	}
	return nil
}

// errOvertaken is a write that found another revision than was read: a bug when
// the row was locked.
var errOvertaken = errors.New("it has changed")

// updateFacts writes what an observation can change, over the revision that was
// read, and reports whether that still stood. It leaves alone what an index is
// kept on, as far as it can: most commits of a fleet are this one.
func updateFacts(ctx context.Context, tx store.Tx, r *row) (bool, error) {
	facts, err := r.facts()
	if err != nil {
		return false, err
	}
	n, err := affected(tx.ExecContext(ctx, `UPDATE instance SET revision = revision + 1, held = $3, state = $4, known = $5,
		observed_generation = $6, settled = $7, failure = $8, progress = $9, ports = $10, address = $11, boot_id = $12,
		entered_at = $13, observed_at = $14, due_at = $15, tombstone_at = $16 WHERE id = $1 AND revision = $2`, facts...))
	if err != nil {
		return false, fmt.Errorf("update instance %s: %w", r.id, err)
	}
	if n == 1 {
		r.revision++
	}
	return n == 1, nil
}

// factTypes are what facts returns, as columns of a joint statement.
const factTypes = `id text, revision bigint, held bigint, state text, known text, observed_generation bigint, settled bigint, failure text,
	progress text, ports text, address text, boot_id text, entered_at bigint, observed_at bigint, due_at bigint, tombstone_at bigint`

// facts are what an observation can change, after what they are the facts of.
func (r row) facts() ([]any, error) {
	failure, err1 := encode(r.failure, r.failure == nil)
	ports, err2 := encode(r.ports, len(r.ports) == 0)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("instance %s: %w", r.id, err)
	}
	return []any{string(r.id), r.revision, bit(r.held), string(r.state), string(r.known), r.observed, bit(r.settled), failure, r.progress,
		ports, r.address, r.bootID, store.Micros(r.enteredAt), store.Micros(r.observedAt), store.Micros(r.dueAt), store.Micros(r.tombstoneAt)}, nil
}

func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
