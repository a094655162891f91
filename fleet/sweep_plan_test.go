package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// contract: C1; trap T29: what a sweep reads follows what is overdue, or what lives
// on a host, not what there is: no statement of one reads a table, or an index, from
// end to end. The hosts themselves are few.
func TestC1_SweepsReadByTheirIndexes(t *testing.T) {
	w := newWorld(t)
	hosts := []*machine{w.host(4), w.host(4), w.host(4), w.host(4)}
	w.populate(hosts[0], 20_000)
	w.exec(`UPDATE host SET duty = 'DRAINING' WHERE id = $1`, string(hosts[2].id))
	w.exec(`UPDATE host SET health = 'LOST', seen_at = 1, gone_at = 1, used_instances = 1 WHERE id = $1`, string(hosts[3].id))
	plans := &testenv.Plans{DB: w.db.DB}
	w.fleet.db = plans
	w.exec(`ANALYZE`)
	w.clock.pass(time.Minute)
	hosts[1].do(func() { hosts[1].down = true })
	few := []string{"host", "h", "lineage", "leftover"}
	for _, sweep := range w.fleet.Sweeps() {
		plans.Scanned()
		after, items := "", 0
		for range 2 {
			page, next, err := sweep.Page(t.Context(), after, 20)
			check(t, err)
			for _, item := range page[:min(len(page), 3)] {
				if err := item.Act(t.Context()); err != nil {
					t.Logf("%s %s: %v", sweep.Name, item.Key, err)
				}
			}
			after, items = next, items+len(page)
		}
		if items == 0 && sweep.Name != SweepReturns {
			t.Errorf("%s found nothing to do", sweep.Name)
		}
		for table, how := range plans.Scanned() {
			unknown := sweep.Name == SweepReturns && strings.Contains(how, "using instance_unknown_host on") // holds nothing but what it looks for
			if !slices.Contains(few, table) && !unknown {
				t.Errorf("%s reads all of %s: %s", sweep.Name, table, how)
			}
		}
	}
}

// populate writes instances, nearly all of them tombstones of a host, and old ones
// among them; and deliveries and outbox rows.
func (w *world) populate(m *machine, n int) {
	w.t.Helper()
	for range 3 {
		w.running()
	}
	far, old := w.clock.Now().Add(-time.Hour).UnixMicro(), w.clock.Now().Add(-2*holdfast.TombstoneKept).UnixMicro()
	columns := `generation, revision, desired, spec, spec_hash, owner, host, held, cpu_millis, memory_bytes, state, known, observed_generation,
		settled, failure, progress, ports, address, boot_id, minted_at, placed_at, leveled_at, entered_at, observed_at`
	values := fmt.Sprintf(`1, 1, 'ABSENT', '', '', '', '%s', 0, 1, 1, 'ABSENT', 'ABSENT', 1, 1, '', '', '', '', '', 1, 1, 1, 1, 1`, m.id)
	numbers := fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) `, n)
	w.exec(fmt.Sprintf(`INSERT INTO instance (id, incarnation, %s, due_at, tombstone_at) `+numbers+
		`SELECT 'in-' || CAST(10000000 + i AS TEXT), 1, %s, 0, %d FROM n`, columns, values, far))
	w.exec(`UPDATE instance SET tombstone_at = $1 WHERE id LIKE 'in-1____001'`, old)
	w.exec(`UPDATE instance SET due_at = 5, state = 'STOPPING', tombstone_at = 0 WHERE id LIKE 'in-1____002'`)
	w.exec(fmt.Sprintf(`INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome) `+numbers+
		`SELECT '%s', 'ev-' || CAST(i AS TEXT), 'k', CASE WHEN i %% 1000 = 0 THEN %d ELSE %d END, '', '' FROM n`, HostSource(m.id), old, far))
	w.exec(fmt.Sprintf(`INSERT INTO outbox (destination, id, kind, ordering_key, position, body, state, enqueued_at, since, due_at, ended_at,
		attempts, claim, holder, last_error) `+numbers+
		`SELECT 'orchestrator', 'ev-' || CAST(i AS TEXT), 'k', '', i, '{}', 'SENT', 1, 1, 1, CASE WHEN i %% 1000 = 0 THEN %d ELSE %d END, 1, 1, '', '' FROM n`, old, far))
}
