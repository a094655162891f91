package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/simulation/step"
	"github.com/holdfast-dev/holdfast/store"
)

// sandboxRow is what the orchestrators' database says of a sandbox.
type sandboxRow struct {
	id, project, instance   string
	state                   holdfast.SandboxState
	generation, incarnation int64
	expires                 time.Time
	onExpiry                holdfast.Expiry
	cpu, memory, shard      int64
	owner                   string // the session or build that it is of
	layers                  []holdfast.Layer
}

// operationRow is one operation of the journal.
type operationRow struct {
	id, sandbox, kind, state, waits, input string
	entered                                time.Time
}

// instanceRow is what the fleets' database says of an instance.
type instanceRow struct {
	id, host, state, desired string
	incarnation              int64
	held                     bool
	cpu, memory              int64
}

// recorded is everything that the databases say, read at one instant.
type recorded struct {
	now        time.Time
	sandboxes  map[string]sandboxRow // by id
	byInstance map[string]sandboxRow
	operations []operationRow
	requests   map[string]string // by project, method and request id: the resource
	instances  map[string]instanceRow
	work
	hooked // where there are webhooks
}

// Check holds the databases and the machines against the invariants of rest, in
// docs/proof.md's order. While the world is not at rest, what is under way is
// among what it returns.
func (w *World) Check(ctx context.Context) []string {
	d, err := w.read(ctx)
	if err != nil {
		return []string{"the databases cannot be read: " + err.Error()}
	}
	c := &checking{world: w, recorded: d}
	c.never(ctx)
	c.boots()
	c.pending()
	c.runtimes()
	c.fleet(ctx)
	c.quotas(ctx)
	c.expired()
	c.files()
	c.spins()
	c.sessionsRest()
	c.tasksRest()
	c.layersRest()
	c.webhooks()
	return c.broken
}

// checking gathers what is broken.
type checking struct {
	*recorded
	world  *World
	broken []string
}

func (c *checking) breaks(format string, args ...any) {
	c.broken = append(c.broken, fmt.Sprintf(format, args...))
}

// scan reads all rows of a query.
func scan(ctx context.Context, tx store.Tx, query string, row func(scan func(...any) error) error) (err error) {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (w *World) read(ctx context.Context) (*recorded, error) {
	d := &recorded{now: time.Now(), sandboxes: map[string]sandboxRow{}, byInstance: map[string]sandboxRow{},
		requests: map[string]string{}, instances: map[string]instanceRow{}}
	err := w.orchestrator.View(ctx, func(tx store.Tx) error {
		err := d.readOrchestrator(ctx, tx)
		if err == nil && w.receiver != nil {
			err = d.readHooked(ctx, tx)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, w.fleet.View(ctx, func(tx store.Tx) error {
		return scan(ctx, tx, `SELECT id, host, state, desired, incarnation, held, cpu_millis, memory_bytes FROM instance`, func(scan func(...any) error) error {
			var i instanceRow
			err := scan(&i.id, &i.host, &i.state, &i.desired, &i.incarnation, &i.held, &i.cpu, &i.memory)
			d.instances[i.id] = i
			return err
		})
	})
}

func (d *recorded) readOrchestrator(ctx context.Context, tx store.Tx) error {
	err := scan(ctx, tx, `SELECT id, project, instance, state, generation, incarnation, expires_at, on_expiry, cpu_millis, memory_bytes, quota_shard, owner, spec
		FROM sandbox ORDER BY id`, func(scan func(...any) error) error {
		var s sandboxRow
		var expires int64
		var spec holdfast.InstanceSpec
		var text []byte
		err := scan(&s.id, &s.project, &s.instance, &s.state, &s.generation, &s.incarnation, &expires, &s.onExpiry, &s.cpu, &s.memory, &s.shard, &s.owner, &text)
		err = errors.Join(err, json.Unmarshal(text, &spec))
		s.layers = spec.Layers
		s.expires = store.FromMicros(expires)
		d.sandboxes[s.id], d.byInstance[s.instance] = s, s
		return err
	})
	if err == nil {
		err = d.readWork(ctx, tx)
	}
	if err != nil {
		return err
	}
	err = scan(ctx, tx, `SELECT id, resource_id, kind, state, waits_for, input, entered_at FROM operation ORDER BY id`, func(scan func(...any) error) error {
		var o operationRow
		var entered int64
		err := scan(&o.id, &o.sandbox, &o.kind, &o.state, &o.waits, &o.input, &entered)
		o.entered = store.FromMicros(entered)
		d.operations = append(d.operations, o)
		return err
	})
	if err != nil {
		return err
	}
	return scan(ctx, tx, `SELECT project, method, request_id, resource FROM request`, func(scan func(...any) error) error {
		var project, method, id, resource string
		err := scan(&project, &method, &id, &resource)
		d.requests[project+" "+method+" "+id] = resource
		return err
	})
}

// boots: one boot per incarnation, on one host, of an instance that somebody owns.
func (c *checking) boots() {
	c.world.boots.mu.Lock()
	defer c.world.boots.mu.Unlock()
	for ref, all := range c.world.boots.all {
		if len(all) > 1 {
			c.breaks("%s/%d booted %d times, on %s and %s", ref.Instance, ref.Incarnation, len(all), all[0].host, all[1].host)
		}
		s, known := c.byInstance[string(ref.Instance)]
		if !known {
			c.breaks("%s/%d booted and no sandbox has it", ref.Instance, ref.Incarnation)
		} else if ref.Incarnation > s.incarnation {
			c.breaks("%s/%d booted and %s is at incarnation %d", ref.Instance, ref.Incarnation, s.id, s.incarnation)
		}
	}
	slices.Sort(c.broken)
}

// pending: nothing is under way any more.
func (c *checking) pending() {
	created := map[string]int{}
	for _, o := range c.operations {
		if o.state == "PENDING" {
			c.breaks("%s of %s is pending since %s, waits for %q", o.kind, o.sandbox, o.entered.Format(time.TimeOnly), o.waits)
		}
		if o.kind == "CREATE" {
			created[o.sandbox]++
		}
	}
	for _, id := range c.ids() {
		s := c.sandboxes[id]
		if s.state == holdfast.SandboxCreating || s.state == holdfast.SandboxDeleting {
			c.breaks("%s is still %s", s.id, s.state)
		}
		if created[s.id] != 1 {
			c.breaks("%s has %d creates in its journal", s.id, created[s.id])
		}
	}
	c.asked()
}

// asked: every resource was asked for by one request id, and each of those has one.
func (c *checking) asked() {
	all := map[string]bool{}
	for id, s := range c.sandboxes {
		all[id] = s.owner == ""
	}
	for id := range c.sessions {
		all[id] = true
	}
	for _, t := range c.tasks {
		all[t.id] = !t.system
	}
	for id := range c.checkpoints {
		all[id] = true
	}
	for id := range c.builds {
		all[id] = true
	}
	owners := map[string]string{}
	for key, resource := range c.requests {
		if !all[resource] {
			c.breaks("request %s has %s, which is not there", key, resource)
		}
		if other, twice := owners[resource]; twice {
			c.breaks("%s is of two requests, %s and %s", resource, min(key, other), max(key, other))
		}
		owners[resource] = key
	}
	for id, wanted := range all {
		if wanted && owners[id] == "" {
			c.breaks("nobody asked for %s", id)
		}
	}
	slices.Sort(c.broken)
}

func (c *checking) ids() []string {
	ids := make([]string, 0, len(c.sandboxes))
	for id := range c.sandboxes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// runtimes: what machines have is what sandboxes say, and nothing else.
func (c *checking) runtimes() {
	live := map[holdfast.InstanceRef][]string{}
	for _, h := range c.world.Hosts {
		for _, one := range h.truth() {
			s, known := c.byInstance[string(one.Ref.Instance)]
			want := wanted(s)
			if !known || s.incarnation != one.Ref.Incarnation || one.Phase != want {
				c.breaks("%s has %s/%d %s; its sandbox %s is %s at incarnation %d", h.Name, one.Ref.Instance, one.Ref.Incarnation, one.Phase,
					s.id, s.state, s.incarnation)
				continue
			}
			live[one.Ref] = append(live[one.Ref], h.Name)
		}
	}
	for _, id := range c.ids() {
		s := c.sandboxes[id]
		ref := holdfast.InstanceRef{Instance: holdfast.InstanceID(s.instance), Incarnation: s.incarnation}
		if n := len(live[ref]); wanted(s) != runtime.PhaseAbsent && n != 1 {
			c.breaks("%s is %s, and %d machines have its instance %s/%d: %v", s.id, s.state, n, ref.Instance, ref.Incarnation, live[ref])
		}
	}
}

// wanted is the phase that a sandbox at rest has in the runtime.
func wanted(s sandboxRow) runtime.Phase {
	switch s.state {
	case holdfast.SandboxReady:
		return runtime.PhaseRunning
	case holdfast.SandboxSuspended:
		return runtime.PhaseSuspended
	}
	return runtime.PhaseAbsent
}

// fleet: the fleets' rows say what is, and capacity adds up.
func (c *checking) fleet(ctx context.Context) {
	for _, i := range c.instances {
		s, known := c.byInstance[i.id]
		state := map[runtime.Phase]string{runtime.PhaseRunning: "RUNNING", runtime.PhaseSuspended: "SUSPENDED"}[wanted(s)]
		ended := i.state == "ABSENT" || i.state == "EXITED"
		if !known && i.state != "ABSENT" {
			c.breaks("the fleet has %s, %s, and no sandbox does", i.id, i.state)
		}
		if known && (state != "" && i.state != state || state == "" && !ended) {
			c.breaks("the fleet says that %s is %s; %s is %s", i.id, i.state, s.id, s.state)
		}
	}
	slices.Sort(c.broken)
	err := c.world.fleet.View(ctx, func(tx store.Tx) error {
		return errors.Join(scan(ctx, tx, capacity, func(scan func(...any) error) error {
			var host string
			var n, cpu, memory, usedN, usedCPU, usedMemory int64
			if err := scan(&host, &usedN, &usedCPU, &usedMemory, &n, &cpu, &memory); err != nil {
				return err
			}
			if n != usedN || cpu != usedCPU || memory != usedMemory {
				c.breaks("%s counts %d instances, %d cpu and %d memory as used, and holds %d, %d and %d", host, usedN, usedCPU, usedMemory, n, cpu, memory)
			}
			return nil
		}), scan(ctx, tx, `SELECT instance, incarnation, host FROM leftover`, func(scan func(...any) error) error {
			var instance, host string
			var incarnation int64
			err := scan(&instance, &incarnation, &host)
			c.breaks("a leftover of %s/%d on %s is never cleared", instance, incarnation, host)
			return err
		}), scan(ctx, tx, `SELECT kind, state, last_error FROM outbox WHERE state <> 'SENT'`, func(scan func(...any) error) error {
			var kind, state, last string
			err := scan(&kind, &state, &last)
			c.breaks("an outbox row %s is %s: %s", kind, state, last)
			return err
		}))
	})
	if err != nil {
		c.breaks("the fleets' database cannot be read: %v", err)
	}
}

const capacity = `SELECT h.name, h.used_instances, h.used_cpu_millis, h.used_memory_bytes, COALESCE(SUM(i.n), 0), COALESCE(SUM(i.cpu), 0), COALESCE(SUM(i.memory), 0)
	FROM host h LEFT JOIN (SELECT host, 1 AS n, cpu_millis AS cpu, memory_bytes AS memory FROM instance WHERE held = 1
		UNION ALL SELECT host, 1, cpu_millis, memory_bytes FROM leftover) i ON i.host = h.id GROUP BY h.id`

// quotas: what projects are counted to hold is what their sandboxes hold.
func (c *checking) quotas(ctx context.Context) {
	want := map[string][3]int64{}
	for _, s := range c.sandboxes {
		if s.state != holdfast.SandboxFailed && s.state != holdfast.SandboxDeleted {
			u := want[s.project]
			want[s.project] = [3]int64{u[0] + 1, u[1] + s.cpu, u[2] + s.memory}
		}
	}
	err := c.world.orchestrator.View(ctx, func(tx store.Tx) error {
		return scan(ctx, tx, `SELECT project, SUM(sandboxes), SUM(cpu_millis), SUM(memory_bytes) FROM quota_shard GROUP BY project`,
			func(scan func(...any) error) error {
				var project string
				var u [3]int64
				err := scan(&project, &u[0], &u[1], &u[2])
				if err == nil && u != want[project] {
					c.breaks("project %s is counted with %v and holds %v", project, u, want[project])
				}
				return err
			})
	})
	if err != nil {
		c.breaks("the quotas cannot be read: %v", err)
	}
}

// expired: what is over has ended.
func (c *checking) expired() {
	late := c.now.Add(-2*c.world.config.Timing.Sweep - holdfast.ExpiryAfter)
	for _, id := range c.ids() {
		s := c.sandboxes[id]
		if !s.expires.IsZero() && s.expires.Before(late) && s.state != holdfast.SandboxDeleted {
			c.breaks("%s is %s and was over at %s", s.id, s.state, s.expires.Format(time.TimeOnly))
		}
	}
}

// mostAlike is how often a party may take steps that are all alike, on behalf of one
// call or one sweep's item: what is looked at several times a second is below that.
const mostAlike = 600

// numbering is a watch's step for the whole project: one for what each commit changed.
const numbering = "orchestrator.number"

// spins: nobody does the same again and again.
func (c *checking) spins() {
	changes := 0
	for _, p := range c.world.Parties() {
		p.mu.Lock()
		for what, n := range p.counts {
			if what.kind == step.Update && what.name != numbering {
				changes += n
			}
		}
		p.mu.Unlock()
	}
	for _, p := range c.world.Parties() {
		p.mu.Lock()
		for what, n := range p.counts {
			most := mostAlike
			if what.name == numbering {
				most += changes
			}
			if n > most && what.kind != step.View {
				c.breaks("%s did %s %s of %s %d times", p.Name, what.kind, what.name, what.key, n)
			}
		}
		p.mu.Unlock()
	}
	slices.Sort(c.broken)
}

// files: of what is deleted hosts keep a record and nothing else.
func (c *checking) files() {
	for _, h := range c.world.Hosts {
		root := filepath.Join(h.directory, "instances")
		instances, err := os.ReadDir(root)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			c.breaks("%s: %v", h.Name, err)
		}
		for _, instance := range instances {
			boots, err := os.ReadDir(filepath.Join(root, instance.Name()))
			if err != nil {
				c.breaks("%s: %v", h.Name, err)
			}
			for _, boot := range boots {
				c.filesOf(h, instance.Name(), boot.Name())
			}
		}
	}
}

func (c *checking) filesOf(h *Host, instance, boot string) {
	n, err := strconv.ParseInt(boot, 10, 64)
	s, known := c.byInstance[instance]
	if err == nil && known && s.state != holdfast.SandboxDeleted && s.incarnation == n {
		return // its output is kept as long as its record
	}
	entries, err := os.ReadDir(filepath.Join(h.directory, "instances", instance, boot))
	if err != nil {
		c.breaks("%s: %v", h.Name, err)
	}
	for _, e := range entries {
		if e.Name() != "record.json" {
			c.breaks("%s keeps %s of %s/%s, whose sandbox %s is %s at incarnation %d", h.Name, e.Name(), instance, boot, s.id, s.state, s.incarnation)
		}
	}
}
