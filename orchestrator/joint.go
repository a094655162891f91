package orchestrator

import (
	"context"
	"encoding/json"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// joint are the statements that do a hot transaction's usual case for all who are
// at it at that time, where the database can (adr/0009-joint-statements.md). Each
// does what its transaction does, or nothing, and then the transaction is run.
type joint struct{ create, finish, ready *store.Joint }

func newJoint() joint {
	return joint{
		create: &store.Joint{Columns: `request_id text, fingerprint text, ` + freshTypes + `, ` + operation.JointColumns, Query: jointCreate},
		finish: &store.Joint{Columns: finishTypes, Query: jointFinish},
		ready: &store.Joint{Columns: inbox.JointColumns + `, instance text, incarnation bigint`,
			Query: inbox.JointRecord(hears("g.instance", "g.incarnation", "now"))},
	}
}

// atOnce runs one of them; false is that nothing was done, or that it is not known:
// the transaction meets whatever was in the way, and is keyed or fenced.
func (s *Service) atOnce(ctx context.Context, j *store.Joint, row ...any) (store.Told, bool) {
	if s.config.Joiner == nil {
		return store.Told{}, false
	}
	told, err := s.config.Joiner.Join(ctx, j, row...)
	if err != nil || told.Did == 0 {
		return store.Told{}, false
	}
	s.skew.Store(int64(told.At.Sub(s.config.Clock())))
	return told, true
}

// quiet reports that a joint statement may do, as far as is known: there is a joiner,
// and nobody asked for the project's events, which are recorded with each change.
func (s *Service) quiet(project holdfast.ProjectID) bool {
	wanted, fresh, _ := s.listeners.get(project, s.config.Clock())
	return s.config.Joiner != nil && !(fresh && wanted)
}

// What jointCreate adds is what tryCreate does, in its order (contract: D3): the key,
// the sandbox, its operation, and the quota last. A shard that is full is left to
// takeFromAll, and one that fills up meanwhile fails the statement.
const jointCreate = `, keyed AS (
	INSERT INTO request (project, method, request_id, fingerprint, resource, created_at)
	SELECT g.project, '` + methodCreateSandbox + `', g.request_id, g.fingerprint, g.id, now FROM given g, clock
	WHERE EXISTS (SELECT 1 FROM quota_shard q WHERE q.project = g.project AND q.shard = g.quota_shard AND q.sandboxes < q.sandboxes_cap
		AND q.cpu_millis_cap - q.cpu_millis >= g.cpu_millis AND q.memory_bytes_cap - q.memory_bytes >= g.memory_bytes)
	AND NOT EXISTS (SELECT 1 FROM event_project e WHERE e.project = g.project AND e.recording)
	ON CONFLICT DO NOTHING RETURNING resource
), made AS MATERIALIZED (SELECT g.* FROM given g JOIN keyed k ON k.resource = g.id
), sandboxes AS (
	INSERT INTO sandbox (` + freshColumns + `, minted_at, created_at, updated_at) SELECT ` + freshColumns + `, now, now, now FROM made, clock
), labels AS (
	INSERT INTO sandbox_label (sandbox, key, value) SELECT g.id, l.key, l.value FROM made g, jsonb_each_text(NULLIF(g.labels, 'null')::jsonb) l
), operations AS (` + operation.JointRecord + `
), wanted AS MATERIALIZED (
	SELECT project, quota_shard, COUNT(*) AS n, SUM(cpu_millis)::bigint AS cpu, SUM(memory_bytes)::bigint AS memory FROM made GROUP BY project, quota_shard
), locked AS MATERIALIZED (
	SELECT q.project, q.shard FROM quota_shard q JOIN wanted w ON w.project = q.project AND w.quota_shard = q.shard
	ORDER BY q.project, q.shard FOR UPDATE OF q
), counted AS (
	UPDATE quota_shard q SET sandboxes = q.sandboxes + w.n, cpu_millis = q.cpu_millis + w.cpu, memory_bytes = q.memory_bytes + w.memory
	FROM wanted w JOIN locked l ON l.project = w.project AND l.shard = w.quota_shard WHERE q.project = w.project AND q.shard = w.quota_shard
	AND q.sandboxes_cap - q.sandboxes >= w.n AND q.cpu_millis_cap - q.cpu_millis >= w.cpu AND q.memory_bytes_cap - q.memory_bytes >= w.memory
	RETURNING w.n
) SELECT g.position, 1 / CASE WHEN (SELECT COALESCE(SUM(n), 0) FROM counted) = (SELECT COUNT(*) FROM keyed) THEN 1 ELSE 0 END::bigint, now FROM made g, clock`

// createAtOnce is tryCreate in the usual case: the key is new, the sandbox's shard
// has room, it is no fork and of no build, and nobody asked for the project's events.
func (s *Service) createAtOnce(ctx context.Context, in holdfast.CreateSandbox, f fingerprint, fresh row) (begun, bool) {
	if !s.quiet(fresh.Project) || fresh.Spec.Image == "" || s.checkTTL(in.TTL) != nil {
		return begun{}, false
	}
	fresh.Generation = 1
	attempt := s.newAttempt()
	now := s.databaseClock()
	intended := s.intent(holdfast.OperationCreate)
	key, err1 := json.Marshal(f)
	values, err2 := fresh.values()
	op, err3 := operation.JointValues(now, intended.on(fresh, now), attempt)
	if err1 != nil || err2 != nil || err3 != nil {
		return begun{}, false
	}
	told, done := s.atOnce(ctx, s.joint.create, append(append([]any{in.RequestID, string(key)}, values...), op...)...)
	if !done {
		return begun{}, false
	}
	s.changes.ring()
	fresh.CreatedAt, fresh.MintedAt, fresh.UpdatedAt = told.At, told.At, told.At
	b := begun{row: fresh}
	recorded, claim, err := operation.JointTaken(told.At, intended.on(fresh, told.At), attempt)
	b.op, b.claim = &recorded, &claim
	return b, err == nil
}

const finishTypes = `id text, state text, ports text, updated_at bigint, generation bigint, incarnation bigint, ttl bigint, quota_shard bigint,
	operation text, claim bigint, holder text`

// What jointFinish adds is what finishUnchanged does to a create: see row.saveOver
// and arrive. (What is not quite a column fits no partial index: see operation.JointFinish.)
const jointFinish = `, made AS (
	UPDATE sandbox s SET state = g.state, ports = g.ports, updated_at = now, ready_at = now, expires_at = now + g.ttl, version = 0
	FROM given g, clock WHERE s.id = g.id AND s.updated_at = g.updated_at AND s.state || '' = 'CREATING' AND s.generation = g.generation
	AND s.incarnation = g.incarnation AND s.delete_wanted = FALSE AND s.ttl = g.ttl AND s.ready_at = 0 AND s.expires_at = 0 AND s.retained = FALSE
	AND s.quota_shard = g.quota_shard AND s.owner = ''
	AND NOT EXISTS (SELECT 1 FROM event_project e WHERE e.project = s.project AND e.recording) RETURNING g.*
), ended AS (` + operation.JointFinish + `
) SELECT g.position, 1 / CASE WHEN (SELECT COUNT(*) FROM ended) = (SELECT COUNT(*) FROM made) THEN 1 ELSE 0 END::bigint, now FROM made g, clock`

// finishAtOnce is finishUnchanged for a create that was not finished before.
func (s *Service) finishAtOnce(ctx context.Context, b begun, seen holdfast.Observation) (row, bool) {
	r := b.row
	verb := holdfast.OperationKind(b.op.Kind)
	if !s.quiet(r.Project) || r.Owner != "" || verb != holdfast.OperationCreate || !r.ReadyAt.IsZero() || !r.ExpiresAt.IsZero() || r.Retained {
		return row{}, false
	}
	s.arrive(&r, verb, seen, time.Time{})
	ports, err := optionalJSON(r.Ports, len(r.Ports) == 0)
	if err != nil {
		return row{}, false
	}
	told, done := s.atOnce(ctx, s.joint.finish, string(r.ID), string(r.State), ports, store.Micros(b.row.UpdatedAt), r.Generation, r.Incarnation,
		r.TTL.Microseconds(), r.Shard, b.op.ID, b.claim.Number, b.claim.Holder)
	if !done {
		return row{}, false
	}
	s.changes.ring()
	r = b.row
	s.arrive(&r, verb, seen, told.At)
	r.UpdatedAt, r.was = told.At, r.State
	return r, true
}

// hears says, in SQL, that a live attempt is at the create of an instance's boot, and
// so hears by itself what its guest says. It is two look-ups by key, in this order.
func hears(instance, incarnation, now string) string {
	return `(SELECT o.claim_expires FROM operation o WHERE o.resource_kind = '` + kindSandbox + `' AND o.state || '' = 'PENDING' AND o.resource_id =
		(SELECT s.id FROM sandbox s WHERE s.instance = ` + instance + ` AND s.incarnation = ` + incarnation + ` AND s.state || '' = 'CREATING')) > ` + now
}

// readyAtOnce is guestReported where a live attempt hears the guest's word, or where
// the delivery is a repeat.
func (s *Service) readyAtOnce(ctx context.Context, d delivery.Received, boot holdfast.InstanceRef) bool {
	if s.config.Joiner == nil {
		return false
	}
	values, err := inbox.JointValues(inbox.Delivery{Source: d.Source, ID: d.ID, Kind: d.Kind, Body: d.Body, Outcome: didNote})
	if err != nil {
		return false
	}
	_, done := s.atOnce(ctx, s.joint.ready, append(values, string(boot.Instance), boot.Incarnation)...)
	return done
}
