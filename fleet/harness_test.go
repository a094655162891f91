package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

const cluster = "cl-test"

// manual is a clock that the test moves.
type manual struct {
	mu  sync.Mutex
	now time.Time
}

func (c *manual) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manual) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// machine is a host agent that keeps its levels like a real one: hooks make it
// silent, slow or wrong.
type machine struct {
	id holdfast.HostID

	mu        sync.Mutex
	down      bool
	slow      bool // answers ABSENT with STOPPING
	seen      map[holdfast.InstanceID]holdfast.Observation
	boots     map[holdfast.InstanceRef]int
	levels    []holdfast.Level
	life      string // "": it says none
	gets      int
	lists     int
	copies    []holdfast.CheckpointLevel
	elsewhere bool                 // it answers about another checkpoint
	onEnsure  func(holdfast.Level) // before it is taken, without the lock
	onGet     func()
	onList    func()
}

func newMachine(id holdfast.HostID) *machine {
	return &machine{id: id, seen: map[holdfast.InstanceID]holdfast.Observation{}, boots: map[holdfast.InstanceRef]int{}}
}

var errSilent = errors.New("connection refused")

func (m *machine) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	m.mu.Lock()
	hook := m.onEnsure
	m.mu.Unlock()
	if hook != nil {
		hook(l)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return holdfast.Observation{}, errSilent
	}
	m.levels = append(m.levels, l)
	was, known := m.seen[l.Instance]
	if known && l.Incarnation < was.Incarnation {
		return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "older incarnation")
	}
	if known && l.Incarnation == was.Incarnation {
		if l.Generation < was.Generation {
			return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "lower generation")
		}
		if l.Generation == was.Generation && l.Desired != was.Desired {
			return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonLevelConflict, "other content")
		}
	}
	o := m.reach(l, was, known && l.Incarnation == was.Incarnation)
	if m.slow && l.Desired == holdfast.DesiredAbsent {
		o.State = holdfast.InstanceStopping
	}
	m.seen[l.Instance] = o
	return o, nil
}

func (m *machine) reach(l holdfast.Level, was holdfast.Observation, known bool) holdfast.Observation {
	o := holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Host: m.id, BootID: "boot-1", At: time.Unix(1, 0).UTC()}
	if known {
		o = was
	}
	o.Generation, o.Desired = l.Generation, l.Desired
	if final(o.State) && l.Desired != holdfast.DesiredAbsent {
		return o
	}
	o.State = holdfast.InstanceState(l.Desired)
	switch l.Desired {
	case holdfast.DesiredRunning:
		if !known {
			m.boots[holdfast.InstanceRef{Instance: l.Instance, Incarnation: l.Incarnation}]++
		}
		o.Address, o.Ports = "10.0.0.2", []holdfast.Port{{Guest: 80, Address: "127.0.0.1:4000"}}
	case holdfast.DesiredExited, holdfast.DesiredAbsent:
		o.Address, o.Ports = "", nil
	}
	return o
}

func (m *machine) EnsureCheckpoint(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return holdfast.CheckpointObservation{}, errSilent
	}
	m.copies = append(m.copies, l)
	o := holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, Instance: l.Instance, State: holdfast.CopyState(l.Desired)}
	if m.elsewhere {
		o.Checkpoint = "ck-other"
	}
	return o, nil
}

func (m *machine) GetInstance(_ context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	m.mu.Lock()
	hook := m.onGet
	m.mu.Unlock()
	if hook != nil {
		hook()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	if m.down {
		return holdfast.Observation{}, errSilent
	}
	o, ok := m.seen[id]
	if !ok {
		return holdfast.Observation{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "never seen")
	}
	return o, nil
}

func (m *machine) ListInstances(context.Context) ([]holdfast.Observation, error) {
	m.mu.Lock()
	hook := m.onList
	m.mu.Unlock()
	if hook != nil {
		hook()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lists++
	if m.down {
		return nil, errSilent
	}
	var out []holdfast.Observation
	for _, o := range m.seen {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b holdfast.Observation) int { return cmp.Compare(a.Instance, b.Instance) })
	return out, nil
}

func (m *machine) Identity(context.Context) (holdfast.HostIdentity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return holdfast.HostIdentity{}, errSilent
	}
	return holdfast.HostIdentity{Host: m.id, Life: m.life}, nil
}

func (m *machine) do(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn()
}

func (m *machine) calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.levels) + m.gets + m.lists
}

// TestOnPostgres runs every test of this package on PostgreSQL as well.
func TestOnPostgres(t *testing.T) { testenv.OnPostgres(t) }

// counted is a database that counts its updates.
type counted struct {
	store.DB
	store.Joiner // nil: it has none
	updates      atomic.Int64
}

// joiner is the database as one, which counts what is done as an update.
func (c *counted) joiner() store.Joiner {
	if c.Joiner == nil {
		return nil
	}
	return c
}

func (c *counted) Join(ctx context.Context, j *store.Joint, row ...any) (store.Told, error) {
	told, err := c.Joiner.Join(ctx, j, row...)
	if told.Did != 0 {
		c.updates.Add(1)
	}
	return told, err
}

func (c *counted) Update(ctx context.Context, fn func(store.Tx) error) error {
	c.updates.Add(1)
	return c.DB.Update(ctx, fn)
}

// world is a fleet on a real database, with hosts.
type world struct {
	t     *testing.T
	dial  func() (store.DB, error) // opens the database, again after a Close
	clock *manual
	db    *counted
	fleet *Service
	ids   holdfast.IDs

	mu   sync.Mutex
	urls map[string]*machine
	sent []outbox.Row
	fail error // what the orchestrator answers
}

var migrated testenv.Template

func newWorld(t *testing.T) *world {
	w := &world{t: t, urls: map[string]*machine{}, clock: &manual{now: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)}}
	if url, schema, ok := testenv.PostgresSchema(t); ok {
		w.dial = func() (store.DB, error) {
			return postgres.Open(t.Context(), postgres.Config{URL: url, Schema: schema, Clock: w.clock.Now}, Migrations()...)
		}
	} else {
		path := filepath.Join(t.TempDir(), "fleet.db")
		migrated.Copy(t, path, func(path string) error {
			db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}, Migrations()...)
			if err != nil {
				return err
			}
			return db.Close()
		})
		w.dial = func() (store.DB, error) {
			return sqlite.Open(t.Context(), sqlite.Config{Path: path, Clock: w.clock.Now}, Migrations()...)
		}
	}
	w.ids = holdfast.IDs{Now: w.clock.Now}
	w.open()
	t.Cleanup(func() { check(t, w.db.Close()) })
	return w
}

// open starts a fleet on the world's database, as after a restart.
func (w *world) open() {
	w.t.Helper()
	db, err := w.dial()
	check(w.t, err)
	w.db = &counted{DB: db}
	w.db.Joiner, _ = db.(store.Joiner)
	w.fleet, err = New(Config{
		DB: w.db, Joiner: w.db.joiner(), Cluster: cluster, Holder: w.ids.New("fl"),
		Dial: func(url string) holdfast.HostService {
			w.mu.Lock()
			defer w.mu.Unlock()
			if m, ok := w.urls[url]; ok {
				return m
			}
			return &machine{down: true}
		},
		SendUp: func(_ context.Context, row outbox.Row) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.fail == nil {
				w.sent = append(w.sent, row)
			}
			return w.fail
		},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	check(w.t, err)
	check(w.t, w.fleet.Join(w.t.Context()))
}

func (w *world) restart() {
	w.t.Helper()
	check(w.t, w.db.Close())
	w.open()
}

func small(n int64) holdfast.Capacity {
	return holdfast.Capacity{CPUMillis: 1000 * n, MemoryBytes: n << 29, Instances: n}
}

// host registers a host with room for n instances of the default size.
func (w *world) host(n int64) *machine {
	w.t.Helper()
	m := newMachine(holdfast.HostID(w.ids.New(holdfast.PrefixHost)))
	w.urls["http://"+string(m.id)] = m
	w.beat(m, 1, n)
	return m
}

func (w *world) beat(m *machine, sequence, n int64) {
	w.t.Helper()
	check(w.t, w.fleet.Heartbeat(w.t.Context(), w.heartbeat(m, sequence, n)))
}

func (w *world) heartbeat(m *machine, sequence, n int64) holdfast.Heartbeat {
	return holdfast.Heartbeat{Host: m.id, Life: m.life, Cluster: cluster, Name: "h", URL: "http://" + string(m.id), Runtime: "simulated",
		BootID: "boot-1", Capacity: small(n), Sequence: sequence, At: w.clock.Now()}
}

func (w *world) level(id holdfast.InstanceID, generation int64, desired holdfast.Desired) holdfast.Level {
	return holdfast.Level{Cluster: cluster, Instance: id, Incarnation: 1, Generation: generation, Desired: desired,
		Spec: &holdfast.InstanceSpec{Owner: "sb-1", Image: "base"}, MintedAt: w.clock.Now()}
}

func (w *world) ensure(l holdfast.Level) holdfast.Observation {
	w.t.Helper()
	o, err := w.fleet.EnsureInstance(w.t.Context(), l)
	check(w.t, err)
	return o
}

// running creates an instance that runs.
func (w *world) running() holdfast.InstanceID {
	w.t.Helper()
	id := w.instance()
	if o := w.ensure(w.level(id, 1, holdfast.DesiredRunning)); o.State != holdfast.InstanceRunning {
		w.t.Fatalf("state %s, want RUNNING", o.State)
	}
	return id
}

func (w *world) instance() holdfast.InstanceID {
	return holdfast.InstanceID(w.ids.New(holdfast.PrefixInstance))
}

// placed records an incarnation whose host never got the order.
func (w *world) placed(m *machine) holdfast.InstanceID {
	w.t.Helper()
	id := w.instance()
	m.do(func() { m.down = true })
	_, err := w.fleet.EnsureInstance(w.t.Context(), w.level(id, 1, holdfast.DesiredRunning))
	wantReason(w.t, err, holdfast.ReasonHostUnreachable)
	m.do(func() { m.down = false })
	return id
}

func (w *world) row(id holdfast.InstanceID) row {
	w.t.Helper()
	r, err := w.fleet.load(w.t.Context(), id)
	check(w.t, err)
	return r
}

func (w *world) sweep(name string) error {
	w.t.Helper()
	report, err := w.fleet.Sweep(w.t.Context(), name)
	check(w.t, err)
	return report.Err()
}

// fact is a host's delivery about an instance.
func (w *world) fact(deliveryID string, o holdfast.Observation) error {
	w.t.Helper()
	body, err := json.Marshal(o)
	check(w.t, err)
	return w.fleet.Observed(w.t.Context(), o.Host, delivery.Received{Source: HostSource(o.Host),
		Signed: delivery.Signed{ID: deliveryID}, Kind: string(holdfast.DeliveryObserved), Body: body})
}

// outbox lists what is to be told to the orchestrator, sent or not.
func (w *world) outbox() (rows []outbox.Row) {
	w.t.Helper()
	check(w.t, w.db.View(w.t.Context(), func(tx store.Tx) (err error) {
		rows, err = outbox.List(w.t.Context(), tx, outbox.Filter{})
		return err
	}))
	return rows
}

// sound checks what always holds: a host's counters are the sum of what is held
// there, what has ended holds nothing, and no host is over its capacity.
func (w *world) sound() {
	w.t.Helper()
	ctx := w.t.Context()
	check(w.t, w.db.View(ctx, func(tx store.Tx) error {
		rows, err := queryInstances(ctx, tx, `ORDER BY id`)
		if err != nil {
			return err
		}
		held := map[holdfast.HostID]holdfast.Capacity{}
		for _, r := range rows {
			if r.held && final(r.state) {
				w.t.Errorf("%s is %s and holds capacity", r.id, r.state)
			}
			if r.held {
				c := held[r.host]
				held[r.host] = holdfast.Capacity{CPUMillis: c.CPUMillis + r.cpu, MemoryBytes: c.MemoryBytes + r.memory, Instances: c.Instances + 1}
			}
		}
		lefts, err := tx.QueryContext(ctx, `SELECT host, cpu_millis, memory_bytes FROM leftover`)
		if err != nil {
			return err
		}
		for lefts.Next() {
			var host holdfast.HostID
			var cpu, memory int64
			if err := lefts.Scan(&host, &cpu, &memory); err != nil {
				return errors.Join(err, lefts.Close())
			}
			c := held[host]
			held[host] = holdfast.Capacity{CPUMillis: c.CPUMillis + cpu, MemoryBytes: c.MemoryBytes + memory, Instances: c.Instances + 1}
		}
		if err := errors.Join(lefts.Err(), lefts.Close()); err != nil {
			return err
		}
		hosts, err := queryHosts(ctx, tx, `ORDER BY id`)
		for _, h := range hosts {
			if h.Used != held[h.ID] {
				w.t.Errorf("host %s counts %+v, held is %+v", h.ID, h.Used, held[h.ID])
			}
			if h.Used.Instances > h.Capacity.Instances || h.Used.CPUMillis > h.Capacity.CPUMillis || h.Used.MemoryBytes > h.Capacity.MemoryBytes {
				w.t.Errorf("host %s is overcommitted: %+v of %+v", h.ID, h.Used, h.Capacity)
			}
		}
		return err
	}))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantReason(t *testing.T, err error, want holdfast.Reason) {
	t.Helper()
	if holdfast.ReasonOf(err) != want {
		t.Fatalf("error %v (reason %s), want reason %s", err, holdfast.ReasonOf(err), want)
	}
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	check(w.t, w.db.Update(w.t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(w.t.Context(), query, args...)
		return err
	}))
}

func (w *world) hosts() []holdfast.Host {
	w.t.Helper()
	hosts, err := w.fleet.ListHosts(w.t.Context())
	check(w.t, err)
	return hosts
}
