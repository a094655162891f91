package orchestrator

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// methodCreateSandbox scopes request ids, with the project (contract: A3).
const methodCreateSandbox = "CreateSandbox"

// fingerprint is what a client sent: a hash per named field, under a version, so
// that a later release with more fields or other defaults still knows an old
// request for the same (contract: A3; traps T9, T10). A field that was not sent
// has no entry.
type fingerprint struct {
	Version int               `json:"v"`
	Fields  map[string]string `json:"f"`
}

// fingerprintVersion names the list of fields below and how each is hashed.
const fingerprintVersion = 1

// fingerprintOf hashes the explicit list of fields of a create, as sent: before
// any default is applied.
func fingerprintOf(in holdfast.CreateSandbox) (fingerprint, error) {
	return fingerprintOfFields(
		field{"environment", in.Environment != "", in.Environment},
		field{"name", in.Name != "", in.Name},
		field{"ttl", in.TTL != 0, int64(in.TTL)},
		field{"on_expiry", in.OnExpiry != "", in.OnExpiry},
		field{"env", len(in.Env) > 0, in.Env},
		field{"labels", len(in.Labels) > 0, in.Labels},
		field{"resources.cpu_millis", in.Resources.CPUMillis != 0, in.Resources.CPUMillis},
		field{"resources.memory_bytes", in.Resources.MemoryBytes != 0, in.Resources.MemoryBytes},
		field{"resources.pids", in.Resources.PIDs != 0, in.Resources.PIDs},
		field{"egress", in.Egress != "", in.Egress},
		field{"restart", in.Restart != "", in.Restart}, // since 00002; whoever did not send it has no entry
		field{"source.checkpoint", in.Source != "", in.Source},
	)
}

// field is one field of a request, and whether it was sent.
type field struct {
	name string
	sent bool
	v    any
}

// fingerprintOfFields hashes each field that was sent, by itself.
func fingerprintOfFields(fields ...field) (fingerprint, error) {
	f := fingerprint{Version: fingerprintVersion, Fields: map[string]string{}}
	for _, one := range fields {
		if !one.sent {
			continue
		}
		raw, err := json.Marshal(one.v) // maps are written in the order of their keys
		if err != nil {
			return fingerprint{}, fmt.Errorf("fingerprint of %s: %w", one.name, err)
		}
		sum := sha256.Sum256(raw)
		f.Fields[one.name] = hex.EncodeToString(sum[:12])
	}
	return f, nil
}

// differs names the fields in which two requests differ, sorted.
func (f fingerprint) differs(other fingerprint) []string {
	var names []string
	for name, hash := range f.Fields {
		if other.Fields[name] != hash {
			names = append(names, name)
		}
	}
	for name := range other.Fields {
		if _, ok := f.Fields[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// requestKey is one create's key: project, method, request id.
type requestKey struct {
	project holdfast.ProjectID
	method  string
	id      string
}

// reserve records the key for a resource, or returns the resource that it was
// recorded for. Another fingerprint is ALREADY_EXISTS (trap T2). The second look
// is a statement of its own, since the row that an insert runs into may have been
// committed after this transaction began (trap T8).
func reserve(ctx context.Context, tx store.Tx, now time.Time, key requestKey, f fingerprint, resource string) (existing string, err error) {
	raw, err := json.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("reserve request %s: %w", key.id, err)
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO request (project, method, request_id, fingerprint, resource, created_at)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
		string(key.project), key.method, key.id, string(raw), resource, store.Micros(now))
	if err != nil {
		return "", fmt.Errorf("reserve request %s: %w", key.id, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return "", fmt.Errorf("reserve request %s: %w", key.id, err)
	}
	if n == 1 {
		return "", nil
	}
	existing, found, err := lookUp(ctx, tx, key, f)
	if err == nil && !found {
		err = fmt.Errorf("reserve request %s: in conflict with a row that is not there", key.id)
	}
	return existing, err
}

// lookUp returns the resource that a key was recorded for.
func lookUp(ctx context.Context, tx store.Tx, key requestKey, f fingerprint) (resource string, found bool, err error) {
	var raw string
	err = tx.QueryRowContext(ctx, `SELECT fingerprint, resource FROM request WHERE project = $1 AND method = $2 AND request_id = $3`,
		string(key.project), key.method, key.id).Scan(&raw, &resource)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("look up request %s: %w", key.id, err)
	}
	var recorded fingerprint
	if err := json.Unmarshal([]byte(raw), &recorded); err != nil {
		return "", false, fmt.Errorf("look up request %s: %w", key.id, err)
	}
	if fields := recorded.differs(f); len(fields) > 0 {
		list := strings.Join(fields, ", ")
		return "", false, holdfast.E(holdfast.AlreadyExists, holdfast.ReasonRequestReused,
			"request id %q was used before with other input, different in: %s", key.id, list).
			On(resource).With("fields", list)
	}
	return resource, true, nil
}

// claimProcessRequest records on which boot a process's request id was first
// used, and refuses it on another (contract: A14).
func claimProcessRequest(ctx context.Context, tx store.Tx, now time.Time, r row, requestID string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO process_request (sandbox, request_id, incarnation, created_at)
		VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, string(r.ID), requestID, r.Incarnation, store.Micros(now))
	if err != nil {
		return fmt.Errorf("record process request %s: %w", requestID, err)
	}
	var first int64
	err = tx.QueryRowContext(ctx, `SELECT incarnation FROM process_request WHERE sandbox = $1 AND request_id = $2`,
		string(r.ID), requestID).Scan(&first)
	if err != nil {
		return fmt.Errorf("look up process request %s: %w", requestID, err)
	}
	if first != r.Incarnation {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonIncarnation,
			"request id %q was first used on incarnation %d of %s, which is gone; this is incarnation %d: look at what it did, then use a new request id",
			requestID, first, r.ID, r.Incarnation).On(string(r.ID))
	}
	return nil
}
