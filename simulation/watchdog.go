package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/simulation/step"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// What must never happen, not even for a moment, is watched where it would: triggers
// in the databases see every committed change of a row, and the hosts' records are
// read after each write. The parties know nothing of either.

const violations = `CREATE TABLE simulation_violation (text TEXT NOT NULL)`

// never is a trigger: when such a change of a table's row is committed, the words are
// a violation.
type never struct {
	table string
	event string // UPDATE, DELETE or INSERT
	when  string
	words string // SQL text expression
}

func (n never) sql(number int) string {
	return fmt.Sprintf(`CREATE TRIGGER simulation_never_%s_%d AFTER %s ON %s WHEN %s BEGIN INSERT INTO simulation_violation VALUES (%s); END`,
		n.table, number, n.event, n.table, n.when, n.words)
}

// unlisted is the condition that a column goes from one state to one that may not
// follow it.
func unlisted[S ~string](column string, transitions map[S][]S) string {
	var allowed []string
	for from, all := range transitions {
		for _, to := range all {
			allowed = append(allowed, fmt.Sprintf("'%s>%s'", from, to))
		}
	}
	slices.Sort(allowed)
	return fmt.Sprintf("NEW.%[1]s <> OLD.%[1]s AND OLD.%[1]s || '>' || NEW.%[1]s NOT IN (%[2]s)", column, strings.Join(allowed, ", "))
}

func (n never) shown() never {
	n.words = "'" + n.table + " ' || OLD.id || " + n.words
	return n
}

// ofOrchestrators is what never happens in their database.
func ofOrchestrators() []never {
	return []never{
		never{"sandbox", "UPDATE", unlisted("state", holdfast.SandboxTransitions()), "' went from ' || OLD.state || ' to ' || NEW.state"}.shown(),
		never{"sandbox", "UPDATE", "NEW.generation < OLD.generation", "' went back to generation ' || NEW.generation"}.shown(),
		never{"sandbox", "UPDATE", "NEW.incarnation < OLD.incarnation", "' went back to incarnation ' || NEW.incarnation"}.shown(),
		never{"sandbox", "UPDATE", "NEW.instance <> OLD.instance", "' changed its instance'"}.shown(),
		never{"sandbox", "DELETE", "OLD.state <> 'DELETED'", "' was removed while ' || OLD.state"}.shown(),
		never{"operation", "UPDATE", unlisted("state", holdfast.OperationTransitions()), "' went from ' || OLD.state || ' to ' || NEW.state"}.shown(),
		never{"operation", "UPDATE", "NEW.claim < OLD.claim", "' went back to claim ' || NEW.claim"}.shown(),
		never{"operation", "UPDATE", "NEW.claim = OLD.claim AND OLD.holder <> '' AND NEW.holder <> '' AND NEW.holder <> OLD.holder", "' has two holders of claim ' || NEW.claim"}.shown(),
		never{"session", "UPDATE", unlisted("state", holdfast.SessionTransitions()), "' went from ' || OLD.state || ' to ' || NEW.state"}.shown(),
		never{"session", "UPDATE", "NEW.generation < OLD.generation", "' went back to generation ' || NEW.generation"}.shown(),
		never{"session", "UPDATE", "NEW.incarnation < OLD.incarnation", "' went back to incarnation ' || NEW.incarnation"}.shown(),
		never{"session", "UPDATE", "OLD.sandbox <> '' AND NEW.sandbox <> OLD.sandbox", "' changed its sandbox'"}.shown(),
		never{"session", "DELETE", "OLD.state <> 'DELETED'", "' was removed while ' || OLD.state"}.shown(),
		never{"task", "UPDATE", unlisted("state", holdfast.TaskTransitions()), "' went from ' || OLD.state || ' to ' || NEW.state"}.shown(),
		never{"task", "UPDATE", "OLD.process <> '' AND NEW.process <> OLD.process", "' has two processes'"}.shown(),
		never{"task", "UPDATE", "OLD.incarnation > 0 AND NEW.incarnation <> OLD.incarnation", "' moved from incarnation ' || OLD.incarnation || ' to ' || NEW.incarnation"}.shown(),
		never{"task", "UPDATE", "NEW.position <> OLD.position", "' changed its place in the queue'"}.shown(),
		never{"task", "UPDATE", "OLD.finished_at > 0 AND NEW.finished_at <> OLD.finished_at", "' ended twice'"}.shown(),
		{"task", "INSERT", "NEW.system AND EXISTS (SELECT 1 FROM task t WHERE t.session = NEW.session AND t.system AND t.id <> NEW.id)", "'session ' || NEW.session || ' is prepared twice'"},
		{"task", "UPDATE", "NEW.state = 'RUNNING' AND OLD.state <> 'RUNNING' AND EXISTS (SELECT 1 FROM task t WHERE t.session = NEW.session AND t.state = 'QUEUED' AND t.position < NEW.position)",
			"'task ' || NEW.id || ' overtook another'"},
		never{"checkpoint", "UPDATE", unlisted("state", holdfast.CheckpointTransitions()), "' went from ' || OLD.state || ' to ' || NEW.state"}.shown(),
		never{"checkpoint", "UPDATE", "OLD.state = 'READY' AND (NEW.spec <> OLD.spec OR NEW.sha256 <> OLD.sha256 OR NEW.size <> OLD.size)", "' was READY and changed'"}.shown(),
		never{"checkpoint", "DELETE", "OLD.state <> 'DELETED'", "' was removed while ' || OLD.state"}.shown(),
		never{"environment_build", "UPDATE", unlisted("state", holdfast.BuildTransitions()), "' went from ' || OLD.state || ' to ' || NEW.state"}.shown(),
		never{"environment_build", "UPDATE", "OLD.sandbox <> '' AND NEW.sandbox <> OLD.sandbox", "' has two builders'"}.shown(),
		never{"environment_build", "UPDATE", "OLD.state = 'READY' AND NEW.layers <> OLD.layers", "' was READY and changed'"}.shown(),
		{"request", "UPDATE", "NEW.resource <> OLD.resource OR NEW.fingerprint <> OLD.fingerprint", "'request ' || OLD.request_id || ' changed'"},
		{"request", "DELETE", "TRUE", "'request ' || OLD.request_id || ' was forgotten'"},
	}
}

// ofFleets is what never happens in theirs.
func ofFleets() []never {
	same := "NEW.incarnation = OLD.incarnation AND "
	return []never{
		never{"instance", "UPDATE", same + unlisted("state", holdfast.InstanceTransitions()),
			"'/' || OLD.incarnation || ' went from ' || OLD.state || ' to ' || NEW.state"}.shown(),
		never{"instance", "UPDATE", "NEW.incarnation < OLD.incarnation", "' went back to incarnation ' || NEW.incarnation"}.shown(),
		never{"instance", "UPDATE", same + "NEW.generation < OLD.generation", "' went back to generation ' || NEW.generation"}.shown(),
		// Within the transaction that places it, a host that has no room gives way to another.
		never{"instance", "UPDATE", same + "OLD.host <> '' AND NEW.host <> OLD.host AND (OLD.state <> 'PLACED' OR NEW.placed_at <> OLD.placed_at)", "'/' || OLD.incarnation || ' moved from ' || OLD.host || ' to ' || NEW.host"}.shown(),
		never{"host", "UPDATE", "NEW.used_instances > NEW.instances AND NEW.used_instances > OLD.used_instances", "' has more instances than room'"}.shown(),
		never{"host", "UPDATE", "NEW.used_instances < 0 OR NEW.used_cpu_millis < 0 OR NEW.used_memory_bytes < 0", "' counts less than nothing'"}.shown(),
		never{"host", "UPDATE", unlisted("health", holdfast.HostHealthTransitions()), "' went from ' || OLD.health || ' to ' || NEW.health"}.shown(),
		never{"host", "UPDATE", unlisted("duty", holdfast.HostDutyTransitions()), "' went from ' || OLD.duty || ' to ' || NEW.duty"}.shown(),
		never{"outbox", "UPDATE", "OLD.state = 'SENT' AND NEW.state <> 'SENT'", "' was sent and is ' || NEW.state"}.shown(),
	}
}

// guard makes a template watch for what must never happen.
func guard(ctx context.Context, db *sqlite.DB, all []never) error {
	err := db.Update(ctx, func(tx store.Tx) error {
		if _, err := tx.ExecContext(ctx, violations); err != nil {
			return err
		}
		for i, n := range all {
			if _, err := tx.ExecContext(ctx, n.sql(i)); err != nil {
				return fmt.Errorf("watch %s: %w", n.table, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("simulation: %w", err)
	}
	return nil
}

// never: what the databases saw that must never be.
func (c *checking) never(ctx context.Context) {
	for _, db := range []store.DB{c.world.orchestrator, c.world.fleet} {
		err := db.View(ctx, func(tx store.Tx) error {
			return scan(ctx, tx, `SELECT DISTINCT text FROM simulation_violation ORDER BY text`, func(scan func(...any) error) error {
				var text string
				err := scan(&text)
				c.breaks("never: %s", text)
				return err
			})
		})
		if err != nil {
			c.breaks("what must never be cannot be read: %v", err)
		}
	}
	c.broken = append(c.broken, c.world.records.all()...)
}

// records is what hosts have recorded of boots, each as it was last written.
type records struct {
	mu     sync.Mutex
	last   map[string]recordSeen // by host, instance and incarnation
	broken []string
}

// recordSeen is the part of a host's record that never goes back.
type recordSeen struct {
	Generation int64                  `json:"generation"`
	Started    bool                   `json:"started"`
	Removing   bool                   `json:"removing"`
	State      holdfast.InstanceState `json:"state"`
}

// written looks at a record that a host has just written.
func (r *records) written(h *Host, s *step.Step) {
	raw, err := os.ReadFile(filepath.Join(h.directory, "instances", filepath.FromSlash(s.Key), "record.json"))
	var now recordSeen
	if err != nil || json.Unmarshal(raw, &now) != nil {
		return // what cannot be read is what a crash left, and the agent's to mend
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := h.Name + " " + s.Key
	before, known := r.last[key]
	r.last[key] = now
	if !known {
		return
	}
	for what, broken := range map[string]bool{
		"went back to generation":    now.Generation < before.Generation,
		"is no longer started":       before.Started && !now.Started,
		"is no longer being removed": before.Removing && !now.Removing,
		"came back from its end":     before.State == holdfast.InstanceAbsent && now.State != holdfast.InstanceAbsent,
	} {
		if text := fmt.Sprintf("never: %s %s (%d, %s after %d, %s)", key, what, now.Generation, now.State, before.Generation, before.State); broken && !slices.Contains(r.broken, text) {
			r.broken = append(r.broken, text)
		}
	}
}

// lostPower: what a host had not synced may be older now. That it started, that it is
// being removed and that it ended is synced.
func (r *records) lostPower(h *Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, one := range r.last {
		if strings.HasPrefix(key, h.Name+" ") {
			one.Generation = 0
			r.last[key] = one
		}
	}
}

func (r *records) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.broken)
	return slices.Clone(r.broken)
}
