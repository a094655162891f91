package orchestrator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// contract: C1; trap T29: what a sweep reads follows what is overdue, not what
// there is: no statement of one reads a table, or an index, from end to end.
func TestC1_SweepsReadByTheirIndexes(t *testing.T) {
	h := newHarness(t)
	h.populate(5_000)
	plans := &testenv.Plans{DB: h.db}
	s := newHarnessOn(t, plans, h.fleet)
	h.exec(`ANALYZE`)
	// Read whole, for a reason.
	allowed := map[string]map[string]string{
		SweepQuotas: {"sandbox": "counts what is held, by an index that holds nothing else", "quota_shard": "a few rows a project", "project": "one row a project"},
	}
	for _, sweep := range s.Sweeps() {
		plans.Scanned()
		after, items := "", 0
		for range 2 {
			page, next, err := sweep.Page(t.Context(), after, 20)
			if err != nil {
				t.Fatalf("%s: %v", sweep.Name, err)
			}
			for _, item := range page[:min(len(page), 2)] {
				if err := item.Act(t.Context()); err != nil {
					t.Logf("%s %s: %v", sweep.Name, item.Key, err)
				}
			}
			after, items = next, items+len(page)
		}
		if items == 0 && sweep.Name != SweepQuotas {
			t.Errorf("%s found nothing to do", sweep.Name)
		}
		for table, how := range plans.Scanned() {
			if allowed[sweep.Name][table] == "" && !tiny[table] && !bounded[table] {
				t.Errorf("%s reads all of %s: %s", sweep.Name, table, how)
			}
		}
	}
}

// tiny are tables of a row, or of some rows a project.
var tiny = map[string]bool{"lineage": true, "sandbox_version": true, "project": true, "event_project": true, "webhook": true}

// bounded are the results of subqueries: of one row, or of a batch.
var bounded = map[string]bool{"latest": true, "batch": true, "old": true}

// populate writes sandboxes in every state, of which one in a hundred is overdue
// for each sweep.
func (h *harness) populate(n int) {
	h.t.Helper()
	h.backlog(0, n)
	far := int64(1) << 60
	h.exec(fmt.Sprintf(`UPDATE sandbox SET expires_at = %d, minted_at = %d, updated_at = %d`, far, far, 1))
	some := func(k int) string {
		return fmt.Sprintf(`CAST(SUBSTR(id, 4) AS INTEGER) %% 100 = %d`, k)
	}
	h.exec(`UPDATE sandbox SET expires_at = 5 WHERE ` + some(1))
	h.exec(`UPDATE sandbox SET state = 'DELETED', expires_at = 0, deleted_at = 5 WHERE ` + some(2))
	h.exec(fmt.Sprintf(`UPDATE sandbox SET state = 'DELETED', expires_at = 0, deleted_at = %d WHERE `, far) + some(3))
	h.exec(`UPDATE sandbox SET incarnation = 3, minted_at = 5 WHERE ` + some(4))
	h.exec(`INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at)
		SELECT 'op-done-' || id, 'sandbox', id, 'CREATE', 1, 'DONE', 1, 1, 1, 1 FROM sandbox`)
	h.exec(`INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at)
		SELECT 'op-' || id, 'sandbox', id, 'SUSPEND', 1, 'PENDING', 1, 1, 1, 1 FROM sandbox WHERE ` + some(5))
	h.exec(`INSERT INTO sandbox_label (sandbox, key, value) SELECT id, 'k', id FROM sandbox`)
	h.exec(`INSERT INTO process_request (sandbox, request_id, incarnation, created_at) SELECT id, 'p', 1, 1 FROM sandbox`)
	h.exec(fmt.Sprintf(`INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome)
		SELECT 'instance/' || instance || '/1', 'ev', 'k', %d, '', '' FROM sandbox`, far))
	h.exec(fmt.Sprintf(`INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome)
		SELECT 'fleet', 'ev-' || id, 'k', %d, '', '' FROM sandbox`, far))
	h.exec(`UPDATE delivery SET received_at = 5 WHERE source = 'fleet' AND id LIKE '%01'`)
	h.populateCheckpoints(far)
	h.exec(`INSERT INTO event_project (project, recording, sequence, purged, asked_at) VALUES ('default', TRUE, 100, 0, 5)`)
	h.exec(fmt.Sprintf(`INSERT INTO event (id, project, kind, resource, at, sequence, object) SELECT 'ev-' || id, 'default', 'k', id, %d, 2, '{}' FROM sandbox`, far))
	h.exec(`UPDATE event SET at = 5, sequence = 1 WHERE id LIKE '%01'`)
	h.exec(fmt.Sprintf(`INSERT INTO outbox (destination, id, kind, ordering_key, position, body, state, enqueued_at, since, due_at, ended_at, attempts, claim, holder, last_error)
		SELECT 'wh-' || SUBSTR(id, 10), 'ev-' || id, 'k', id, 1, '{}', 'SENT', 1, 1, 1, %d, 1, 1, '', '' FROM sandbox`, far))
	h.exec(`INSERT INTO webhook (id, project, creator, url, kinds, created_at) SELECT DISTINCT destination, 'default', 'c', 'http://h', '', 1 FROM outbox WHERE destination <> 'wh-07'`)
	h.exec(fmt.Sprintf(`INSERT INTO hook_action (id, hook, delivery, rule, event, project, plan, state, failure, resources, attempts, claim, due_at, since, created_at, updated_at)
		SELECT 'ha-' || id, 'gh', id, 'r', 'e', 'default', '{}', 'DONE', '', '', 1, 1, 5, 5, 5, %d FROM sandbox`, far))
	h.exec(`UPDATE hook_action SET state = 'PENDING' WHERE id LIKE '%02'`)
	h.populateSessions(far)
	h.populateTasks()
	h.populateBuilds(far)
	for i := range 100 {
		id := holdfast.InstanceID(fmt.Sprint("in-", 10_000_000+i))
		h.fleet.seen[id] = holdfast.Observation{Instance: id, Incarnation: 1, Generation: 1, State: holdfast.InstanceRunning}
		if i%10 == 6 {
			h.fleet.set(id, holdfast.InstanceExited)
		}
	}
}

// populateCheckpoints writes one of each of 5,000 sandboxes, most of them READY.
func (h *harness) populateCheckpoints(far int64) {
	h.t.Helper()
	h.exec(`INSERT INTO checkpoint (id, project, creator, source, sandbox, instance, incarnation, generation, environment, spec, state, labels, created_at, updated_at)
		SELECT 'ck-000000000000000000' || SUBSTR(id, 4), project, '', id, id, instance, 1, 1, 'base', '{}', 'READY', '{}', 1, 1 FROM sandbox ORDER BY id LIMIT 5000`)
	h.exec(`INSERT INTO checkpoint_label (checkpoint, key, value) SELECT id, 'k', id FROM checkpoint`)
	some := func(k int) string { return fmt.Sprintf(`CAST(SUBSTR(sandbox, 4) AS INTEGER) %% 100 = %d`, k) }
	h.exec(`UPDATE checkpoint SET state = 'CREATING' WHERE ` + some(11))
	h.exec(`UPDATE checkpoint SET state = 'FAILED', copying = TRUE WHERE ` + some(12))
	h.exec(`UPDATE checkpoint SET state = 'DELETED', deleted_at = 5 WHERE ` + some(13))
	h.exec(fmt.Sprintf(`UPDATE checkpoint SET state = 'DELETED', deleted_at = %d WHERE `, far) + some(14))
	h.exec(`UPDATE checkpoint SET state = 'DELETING' WHERE ` + some(15))
	h.exec(`INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at)
		SELECT 'op-' || id, 'checkpoint', id, 'DELETE', 1, 'PENDING', 1, 1, 1, 1 FROM checkpoint WHERE state = 'DELETING'`)
	h.exec(`INSERT INTO layer_use (key, used_by) SELECT 'checkpoints/' || id || '/1', id FROM checkpoint`)
	for i := range 30 {
		key := fmt.Sprintf("checkpoints/ck-000000000000000000%d/2", 10_000_000+i)
		if _, err := h.fleet.blobs.Put(h.t.Context(), key, strings.NewReader("x")); err != nil {
			h.t.Fatal(err)
		}
	}
}

// populateSessions gives 5,000 of the sandboxes a session each, most of them READY.
func (h *harness) populateSessions(far int64) {
	h.t.Helper()
	h.exec(`INSERT INTO session (id, project, name, creator, environment, build, source, state, generation, incarnation, sandbox, shape, labels, idle,
		active_at, created_at, updated_at)
		SELECT 'se-000000000000000000' || SUBSTR(id, 4), project, '', '', 'base', '', '', 'READY', 1, 1, id, '{}', '{}', 1, 1, 1, 1 FROM sandbox ORDER BY id LIMIT 5000`)
	h.exec(`INSERT INTO session_label (session, key, value) SELECT id, 'k', id FROM session`)
	some := func(k int) string { return fmt.Sprintf(`CAST(SUBSTR(sandbox, 4) AS INTEGER) %% 100 = %d`, k) }
	h.exec(`UPDATE session SET state = 'DELETED', deleted_at = 5 WHERE ` + some(22))
	h.exec(fmt.Sprintf(`UPDATE session SET state = 'DELETED', deleted_at = %d WHERE `, far) + some(23))
	h.exec(`INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at)
		SELECT 'op-' || id, 'session', id, 'SUSPEND', 1, 'PENDING', 1, 1, 1, 1 FROM session WHERE ` + some(24))
	h.exec(`UPDATE session SET state = 'WAITING', build = 'bd-' || SUBSTR(id, 4), sandbox = '' WHERE ` + some(21))
}

// populateTasks gives each session a task, which most of them ended long ago.
func (h *harness) populateTasks() {
	h.t.Helper()
	h.exec(`INSERT INTO task (id, session, project, creator, system, position, state, command, task_limit, created_at, updated_at)
		SELECT 'tk-' || SUBSTR(id, 4), id, project, '', FALSE, 1, 'SUCCEEDED', '{}', 1, 1, 1 FROM session`)
	some := func(k int) string { return fmt.Sprintf(`CAST(SUBSTR(id, 4) AS INTEGER) %% 100 = %d`, k) }
	h.exec(`UPDATE task SET state = 'QUEUED', look_at = 5 WHERE ` + some(26))
	h.exec(`UPDATE task SET state = 'RUNNING', incarnation = 1, look_at = 5 WHERE ` + some(27))
	h.exec(`UPDATE task SET look_at = 5 WHERE ` + some(28)) // its output is not kept
}

// populateBuilds writes one for each of 5,000 sandboxes, most of them READY, long
// ended and kept.
func (h *harness) populateBuilds(far int64) {
	h.t.Helper()
	h.exec(fmt.Sprintf(`INSERT INTO environment_build (id, project, environment, name, version, state, sandbox, image, cleared, created_at, updated_at, deadline, finished_at)
		SELECT 'bd-' || SUBSTR(id, 4), project, 'en-1', 'tools', 1, 'READY', id, 'base', TRUE, 1, 1, %d, 5 FROM sandbox ORDER BY id LIMIT 5000`, far))
	h.exec(`INSERT INTO environment_version (environment, version, recipe, created_at)
		SELECT CASE WHEN id = 'sb-10000000' THEN 'en-1' ELSE id END, 1, '{"base":"base","setup":"x"}', 1 FROM sandbox`)
	some := func(k int) string { return fmt.Sprintf(`CAST(SUBSTR(id, 4) AS INTEGER) %% 100 = %d`, k) }
	h.exec(`UPDATE environment_build SET state = 'BUILDING', finished_at = 0, cleared = FALSE WHERE ` + some(21))
	h.exec(`UPDATE environment_build SET state = 'BUILDING', finished_at = 0, cleared = FALSE, deadline = 5 WHERE ` + some(22))
	h.exec(fmt.Sprintf(`UPDATE environment_build SET cleared = FALSE, finished_at = %d WHERE `, far) + some(23))
	h.exec(`UPDATE environment_build SET kept = FALSE WHERE ` + some(24))
	h.exec(fmt.Sprintf(`UPDATE environment_build SET kept = FALSE, finished_at = %d WHERE `, far) + some(25))
	h.exec(`INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, entered_at, deadline, due_at, updated_at)
		SELECT 'op-' || id, 'build', id, 'BUILD', 1, 'PENDING', 1, 1, 1, 1 FROM environment_build WHERE state = 'BUILDING'`)
}
