package fleet

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// joint are the statements that do a hot transaction's usual case for all who are
// at it at that time, where the database can (adr/0009-joint-statements.md). Each
// does what its transaction does, or nothing, and then the transaction is run.
//
// Their rows are made with an estimate of the database's clock, which each says as
// judged_at: the statement moves every instant that was counted from it to its own.
type joint struct{ place, answer *store.Joint }

func newJoint() joint {
	return joint{
		place:  &store.Joint{Columns: instanceTypes + `, judged_at bigint, too_old bigint`, Query: jointPlace},
		answer: &store.Joint{Columns: factTypes + `, judged_at bigint`, Query: jointAnswer},
	}
}

// atOnce runs one of them; false is that nothing was done, or that it is not known:
// the transaction meets whatever was in the way, and is conditional on what it reads.
func (s *Service) atOnce(ctx context.Context, j *store.Joint, row ...any) (time.Time, bool) {
	told, err := s.joiner.Join(ctx, j, row...)
	if err != nil || told.Did == 0 {
		return time.Time{}, false
	}
	s.saw(told.At)
	return told.At, true
}

// saw notes how far this process's clock is off the database's.
func (s *Service) saw(now time.Time) {
	skew := time.Until(now)
	s.skew.Store(&skew)
}

// estimate is about the database's clock; false: nothing is known of it yet, or
// nobody may need it.
func (s *Service) estimate() (time.Time, bool) {
	skew := s.skew.Load()
	if skew == nil || s.joiner == nil {
		return time.Time{}, false
	}
	return time.Now().Add(*skew).UTC().Truncate(time.Microsecond), true
}

// What jointPlace adds is what recordFirst does: the instance, then its host
// (contract: D3). A host without room is left to place, and one that fills up
// meanwhile fails the statement (T53).
const jointPlace = `, recorded AS (
	INSERT INTO instance (` + instanceColumns + `)
	SELECT id, incarnation, generation, revision, desired, spec, spec_hash, owner, host, held, cpu_millis, memory_bytes, state, known,
		observed_generation, settled, failure, progress, ports, address, boot_id, minted_at,
		placed_at + now - judged_at, leveled_at + now - judged_at, entered_at + now - judged_at, observed_at,
		CASE WHEN due_at > 0 THEN due_at + now - judged_at ELSE 0 END, tombstone_at FROM given g, clock
	WHERE now - g.minted_at <= g.too_old AND EXISTS (SELECT 1 FROM host h WHERE h.id = g.host AND h.health = 'READY' AND h.duty = 'ACTIVE'
		AND h.cpu_millis - h.used_cpu_millis >= g.cpu_millis AND h.memory_bytes - h.used_memory_bytes >= g.memory_bytes
		AND h.used_instances < h.instances)
	ON CONFLICT (id) DO NOTHING RETURNING id, host, cpu_millis, memory_bytes
), wanted AS MATERIALIZED (
	SELECT host, COUNT(*) AS n, SUM(cpu_millis)::bigint AS cpu, SUM(memory_bytes)::bigint AS memory FROM recorded GROUP BY host
), locked AS MATERIALIZED (SELECT h.id FROM host h JOIN wanted w ON w.host = h.id ORDER BY h.id FOR UPDATE OF h
), reserved AS (
	UPDATE host h SET used_cpu_millis = h.used_cpu_millis + w.cpu, used_memory_bytes = h.used_memory_bytes + w.memory,
		used_instances = h.used_instances + w.n FROM wanted w JOIN locked l ON l.id = w.host
	WHERE h.id = w.host AND h.health = 'READY' AND h.duty = 'ACTIVE' AND h.cpu_millis - h.used_cpu_millis >= w.cpu
		AND h.memory_bytes - h.used_memory_bytes >= w.memory AND h.instances - h.used_instances >= w.n RETURNING w.n
) SELECT g.position, 1 / CASE WHEN (SELECT COALESCE(SUM(n), 0) FROM reserved) = (SELECT COUNT(*) FROM recorded) THEN 1 ELSE 0 END::bigint, now
FROM given g JOIN recorded r ON r.id = g.id, clock`

// recordAtOnce is recordFirst in one statement, where the roster is fresh enough.
func (s *Service) recordAtOnce(ctx context.Context, level holdfast.Level, hash string) (ruling, bool) {
	now, known := s.estimate()
	if !known || level.Incarnation != 1 || level.Generation != 1 || s.limits.lost(*s.lineage.Load(), level, now) != nil {
		return ruling{}, false
	}
	at := clock{now: now, tooOld: s.limits.TooOldAfter}
	r, err := judge(nil, level, hash, at)
	if err != nil || !r.write || !r.place {
		return ruling{}, false
	}
	hosts := roomy(s.roster.recent(now), r.next)
	if len(hosts) == 0 {
		return ruling{}, false
	}
	host := choose(hosts, r.next)
	r.next.placeOn(*host)
	values, err := r.next.values()
	if err != nil {
		return ruling{}, false
	}
	at.now, known = s.atOnce(ctx, s.joint.place, append(values, store.Micros(now), s.limits.TooOldAfter.Microseconds())...)
	if !known {
		return ruling{}, false
	}
	r, err = judge(nil, level, hash, at)
	r.next.placeOn(*host)
	return r, err == nil
}

// What jointAnswer adds is what updateFacts does.
const jointAnswer = `, stored AS (
	UPDATE instance i SET revision = i.revision + 1, held = g.held, state = g.state, known = g.known,
		observed_generation = g.observed_generation, settled = g.settled, failure = g.failure, progress = g.progress, ports = g.ports,
		address = g.address, boot_id = g.boot_id, observed_at = g.observed_at, tombstone_at = g.tombstone_at,
		entered_at = CASE WHEN g.entered_at = g.judged_at THEN now ELSE g.entered_at END,
		due_at = CASE WHEN g.entered_at = g.judged_at AND g.due_at > 0 THEN g.due_at + now - g.judged_at ELSE g.due_at END
	FROM given g, clock WHERE i.id = g.id AND i.revision = g.revision RETURNING g.position
) SELECT position, 1::bigint, now FROM stored, clock`

// answerAtOnce is storeAnswer where nothing has happened since the level was
// recorded, and the answer is no end and to none.
func (s *Service) answerAtOnce(ctx context.Context, told row, seen holdfast.Observation) (row, bool) {
	now, known := s.estimate()
	if !known || ending(told.desired) {
		return row{}, false
	}
	c := fold(told, seen, answered, now)
	if !c.changed || final(c.next.state) {
		return row{}, false
	}
	facts, err := c.next.facts()
	if err != nil {
		return row{}, false
	}
	now, known = s.atOnce(ctx, s.joint.answer, append(facts, store.Micros(now))...)
	if !known {
		return row{}, false
	}
	c = fold(told, seen, answered, now)
	c.next.revision++
	return c.next, true
}
