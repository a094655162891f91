package kill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// account is one number that the rows of a party have to come to.
type account struct {
	party, what, query string
	want               func(*round) int64
}

func nothing(*round) int64  { return 0 }
func each(r *round) int64   { return int64(len(r.lives)) }
func works(r *round) int64  { return int64(len(r.works)) }
func builts(r *round) int64 { return int64(len(r.builds)) }

// overdueAfter is how long after its time an event may be sent. After many
// failures its time is minutes away, and it is not waited for.
const overdueAfter = 20 * time.Second

// accounts are what is left of a round once all is deleted: a tombstone and a request
// key each, of sandboxes one create and one delete in the journal; nothing held,
// nothing pending, nothing given up or overdue.
func accounts() []account {
	return []account{
		{"orchestrator", "sandboxes", "SELECT count(*) FROM sandbox WHERE owner = ''", each},
		{"orchestrator", "sessions", "SELECT count(*) FROM session", works},
		{"orchestrator", "sessions that are not deleted", "SELECT count(*) FROM session WHERE state <> 'DELETED'", nothing},
		{"orchestrator", "request keys of sessions", "SELECT count(*) FROM request WHERE method = 'CreateSession'", works},
		{"orchestrator", "sandboxes of sessions that have another", "SELECT count(*) FROM sandbox WHERE owner LIKE 'se-%' AND id NOT IN (SELECT sandbox FROM session)", nothing},
		{"orchestrator", "tasks that have not ended", "SELECT count(*) FROM task WHERE state = 'QUEUED' OR state = 'RUNNING'", nothing},
		{"orchestrator", "tasks whose output is still to be kept", "SELECT count(*) FROM task WHERE look_at > 0", nothing},
		{"orchestrator", "tasks beside their request keys", "SELECT (SELECT count(*) FROM request WHERE method = 'SubmitTask') - (SELECT count(*) FROM task)", nothing},
		{"orchestrator", "checkpoints that are not deleted", "SELECT count(*) FROM checkpoint WHERE state <> 'DELETED'", nothing},
		{"orchestrator", "checkpoints beside their request keys", "SELECT (SELECT count(*) FROM request WHERE method = 'CreateCheckpoint') - (SELECT count(*) FROM checkpoint)", nothing},
		{"orchestrator", "builds", "SELECT count(*) FROM environment_build", builts},
		{"orchestrator", "builds that have not ended or left a builder", "SELECT count(*) FROM environment_build WHERE finished_at = 0 OR cleared = FALSE", nothing},
		{"orchestrator", "layers that what is deleted needs", "SELECT count(*) FROM layer_use WHERE used_by NOT IN (SELECT id FROM environment_build WHERE state = 'READY')", nothing},
		{"orchestrator", "sandboxes that are not deleted", "SELECT count(*) FROM sandbox WHERE state <> 'DELETED'", nothing},
		{"orchestrator", "request keys", "SELECT count(*) FROM request WHERE method = 'CreateSandbox'", each},
		{"orchestrator", "resources of request keys", "SELECT count(DISTINCT resource) FROM request WHERE method = 'CreateSandbox'", each},
		{"orchestrator", "creates in the journal", "SELECT count(*) FROM operation WHERE kind = 'CREATE' AND resource_id IN (SELECT id FROM sandbox WHERE owner = '')", each},
		{"orchestrator", "deletes that were done", "SELECT count(*) FROM operation WHERE kind = 'DELETE' AND state = 'DONE' AND resource_id IN (SELECT id FROM sandbox WHERE owner = '')", each},
		{"orchestrator", "operations pending", "SELECT count(*) FROM operation WHERE state = 'PENDING'", nothing},
		{"orchestrator", "claims", "SELECT count(*) FROM operation WHERE claim_expires > 0 AND state = 'PENDING'", nothing},
		{"orchestrator", "sandboxes in the quotas", "SELECT CAST(coalesce(sum(sandboxes), 0) AS BIGINT) FROM quota_shard", nothing},
		{"fleet", "instances that are not absent", "SELECT count(*) FROM instance WHERE state <> 'ABSENT'", nothing},
		{"fleet", "instances that hold room", "SELECT count(*) FROM instance WHERE held <> 0", nothing},
		{"fleet", "room that is taken", "SELECT CAST(coalesce(sum(used_cpu_millis + used_memory_bytes + used_instances), 0) AS BIGINT) FROM host", nothing},
		{"fleet", "leftovers", "SELECT count(*) FROM leftover", nothing},
		{"fleet", "events given up", "SELECT count(*) FROM outbox WHERE state = 'DEAD'", nothing},
		{"fleet", "events overdue", fmt.Sprintf("SELECT count(*) FROM outbox WHERE state = 'PENDING' AND due_at < %d", time.Now().Add(-overdueAfter).UnixMicro()), nothing},
	}
}

// rows holds the databases against the accounts; what sweeps and outboxes are
// still at gets some time.
func (r *round) rows(ctx context.Context) {
	r.t.Helper()
	var wrong []string
	var err error
	right := testenv.Eventually(unhurried(30*time.Second), func() bool {
		wrong, err = r.count(ctx)
		if err == nil && len(wrong) == 0 {
			wrong, err = r.blobs(ctx)
		}
		return err == nil && len(wrong) == 0
	})
	if !right {
		r.violate("rows: %s %v", strings.Join(wrong, "; "), err)
	}
}

func (r *round) count(ctx context.Context) (wrong []string, err error) {
	for _, party := range []string{"orchestrator", "fleet"} {
		db, err := r.d.open(party)
		if err != nil {
			return nil, err
		}
		for _, a := range accounts() {
			if a.party != party {
				continue
			}
			var got int64
			if err := db.QueryRowContext(ctx, a.query).Scan(&got); err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", a.query, err), db.Close())
			}
			if want := a.want(r); got != want {
				wrong = append(wrong, fmt.Sprintf("%s: %d %s, want %d", party, got, a.what, want))
			}
		}
		if err := db.Close(); err != nil {
			return nil, err
		}
	}
	return wrong, nil
}

// open opens a party's database beside its server, to read it.
func (d *deployment) open(party string) (*sql.DB, error) {
	if d.database != "" {
		return sql.Open("pgx", d.database+"?search_path="+party)
	}
	for _, dir := range d.stores {
		found, err := filepath.Glob(filepath.Join(dir, party+".db"))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			return sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(5000)")
		}
	}
	return nil, fmt.Errorf("the %s has no database", party)
}
