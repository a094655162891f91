package interleaving

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/simulation/step"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// templates are migrated databases that every world begins as a copy of.
type templates struct {
	orchestrator, fleet *sqlite.DB
	names               step.Names
}

func newTemplates(t *testing.T) *templates {
	t.Helper()
	o, err := sqlite.Open(t.Context(), sqlite.Config{Memory: true}, orchestrator.Migrations()...)
	if err != nil {
		t.Fatal(err)
	}
	f, err := sqlite.Open(t.Context(), sqlite.Config{Memory: true}, fleet.Migrations()...)
	if err != nil {
		t.Fatal(errors.Join(err, o.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(o.Close(), f.Close()); err != nil {
			t.Error(err)
		}
	})
	return &templates{orchestrator: o, fleet: f}
}

var (
	clusterKey  = []byte("cluster key")
	fleetSecret = []byte("fleet secret")
	alice       = holdfast.Caller{Project: holdfast.ProjectDefault, Name: "alice", Role: holdfast.RoleAdmin}
)

const claimTTL = time.Minute

// world is two orchestrators over one database, two fleets over another, and two hosts.
type world struct {
	sched  *scheduler
	odb    *sqlite.DB
	fdb    *sqlite.DB
	orch   [2]*orchestrator.Service
	fleets [2]*fleet.Service
	hosts  [2]*keeper

	mu       sync.Mutex
	levels   []holdfast.Level // what orchestrators sent to the fleet
	cut      bool             // nothing that they send arrives
	answers  map[string]answer
	claims   map[string]claim   // by operation, as they were after the last transaction
	broken   error              // what a transaction did that none may
	sent     int                // events that a dispatcher sent
	sandbox  holdfast.SandboxID // that the scenario is about
	instance holdfast.InstanceID
	work     *work // sessions, tasks, builds and checkpoints; nil: the race has none
}

// claim is an operation's, with whose it is.
type claim struct {
	number int64
	holder string
	actor  string
}

// watchClaims sees whether the transaction that has just ended released another
// one's claim (T15), or ended an operation under a number that was not its own (T11).
func (w *world) watchClaims(ctx context.Context) {
	actor, _ := ctx.Value(actorKey{}).(string)
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.odb.View(context.WithoutCancel(ctx), func(tx store.Tx) (err error) {
		rows, err := tx.QueryContext(context.Background(), `SELECT id, claim, holder FROM operation`)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var id string
			var c claim
			if err := rows.Scan(&id, &c.number, &c.holder); err != nil {
				return err
			}
			c.actor = actor
			if was, known := w.claims[id]; known && was.number == c.number {
				c.actor = was.actor
				if was.holder != "" && c.holder == "" && was.actor != actor && !w.sched.isOpen() {
					w.broken = errors.Join(w.broken, fmt.Errorf("%q ended claim %d, which is %q's", actor, c.number, was.actor))
				}
			}
			w.claims[id] = c
		}
		return rows.Err()
	})
	w.broken = errors.Join(w.broken, err)
}

// answer is what an actor was told.
type answer struct {
	sandbox holdfast.Sandbox
	err     error
}

// newWorld makes one inside a bubble; nothing is held yet.
func newWorld(ctx context.Context, tpl *templates, sc scenario) (*world, error) {
	w := &world{sched: &scheduler{open: true}, answers: map[string]answer{}, claims: map[string]claim{}}
	var err error
	if w.odb, err = sqlite.Open(ctx, sqlite.Config{Memory: true, From: tpl.orchestrator, MaxGroup: 1}); err != nil {
		return nil, err
	}
	if w.fdb, err = sqlite.Open(ctx, sqlite.Config{Memory: true, From: tpl.fleet, MaxGroup: 1}); err != nil {
		return nil, errors.Join(err, w.odb.Close())
	}
	w.hosts = [2]*keeper{newKeeper("ho-00000000000000000000000001", w.sched, sc.deep), newKeeper("ho-00000000000000000000000002", w.sched, sc.deep)}
	if sc.work {
		if err := w.employ(ctx); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	if err := w.start(ctx, tpl, sc); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// gated is a party's database whose transactions are steps: those that write, or the
// reading ones too.
func (w *world) gated(tpl *templates, db store.DB, party string, kinds ...step.Kind) store.DB {
	hook := step.Hooks{OnBefore: func(ctx context.Context, s *step.Step) error {
		if slices.Contains(kinds, s.Kind) && !slices.Contains(aside, s.Name) {
			w.sched.step(ctx, w.labelled(party, s))
		}
		return nil
	}, OnAfter: func(ctx context.Context, s *step.Step, err error) error {
		if party == "orchestrator" && s.Kind == step.Update && err == nil {
			w.watchClaims(ctx)
		}
		return err
	}}
	return &step.DB{Next: db, Party: party, Hook: hook, Clock: time.Now, Names: &tpl.names}
}

// aside are transactions that are no steps: what a task's output is kept by meets nothing else.
var aside = []string{"orchestrator.beginLog", "orchestrator.logKept"}

// labelled is what a step is called; with sessions and their like there are several at
// once that differ in whom they are about alone.
func (w *world) labelled(party string, s *step.Step) string {
	if w.work == nil {
		return party + " " + s.Name
	}
	return s.Name + " " + step.Short(s.Key)
}

func (w *world) start(ctx context.Context, tpl *templates, sc scenario) error {
	quiet := slog.New(slog.DiscardHandler)
	none := func(string, int) float64 { return 0 }
	above, below := []step.Kind{step.Update}, []step.Kind{}
	patience := time.Nanosecond
	if sc.patient {
		patience = 5 * time.Second
	}
	if sc.deep {
		above, below = []step.Kind{step.Update, step.View}, []step.Kind{step.Update}
	}
	for i := range w.fleets {
		f, err := fleet.New(fleet.Config{
			DB: w.gated(tpl, w.fdb, "fleet", below...), Cluster: "cl", Holder: "fleet/" + strconv.Itoa(i), Logger: quiet,
			Dial: func(url string) holdfast.HostService {
				if url == w.hosts[0].url() {
					return w.hosts[0]
				}
				return w.hosts[1]
			},
			SendUp:   func(context.Context, outbox.Row) error { return errors.New("nothing is sent up here") },
			Sweeping: reconcile.Config{Jitter: none},
		})
		if err != nil {
			return err
		}
		w.fleets[i] = f
	}
	for i, h := range w.hosts {
		err := w.fleets[0].Heartbeat(ctx, holdfast.Heartbeat{Host: h.id, Life: "life", Name: string(h.id), URL: h.url(), Runtime: "keeper", BootID: "boot",
			Capacity: holdfast.Capacity{CPUMillis: 8000, MemoryBytes: 8 << 30, Instances: 8}, Sequence: 1, At: time.Now()})
		if err != nil {
			return fmt.Errorf("host %d: %w", i, err)
		}
	}
	for i := range w.orch {
		config := orchestrator.Config{
			DB: w.gated(tpl, w.odb, "orchestrator", above...), Fleet: &hop{world: w, next: w.fleets[i], held: !sc.deep}, Cluster: "cl", ClusterKey: clusterKey, FleetSecret: fleetSecret,
			Image:    func(name string) (string, error) { return name, nil },
			Guest:    func(string, holdfast.InstanceRef) (g holdfast.Guest) { return g },
			ClaimTTL: claimTTL, HeldWait: patience, SweepEvery: time.Microsecond, Jitter: none, IDs: holdfast.IDs{Now: time.Now, Rand: &counting{first: byte(i)}},
			Process: "orchestrator-" + strconv.Itoa(i), Logger: quiet,
		}
		as := ctx
		if w.work != nil {
			as = w.work.into(ctx, &config, i)
		}
		s, err := orchestrator.New(as, config)
		if err != nil {
			return err
		}
		w.orch[i] = s
	}
	return nil
}

func (w *world) close() error {
	w.sched.opened(true)
	var errs []error
	for _, s := range w.orch {
		if s != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			errs = append(errs, s.Drain(ctx), s.Close())
			cancel()
		}
	}
	return errors.Join(append(errs, w.odb.Close(), w.fdb.Close())...)
}

// counting are the bytes that ids are made of: the same in every run.
type counting struct {
	first byte
	n     byte
}

func (c *counting) Read(p []byte) (int, error) {
	c.n++
	for i := range p {
		p[i] = [2]byte{c.first, c.n}[i%2]
	}
	return len(p), nil
}

// hop is an orchestrator's way to its fleet.
type hop struct {
	world *world
	next  holdfast.FleetService
	held  bool
}

func (h *hop) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	w := h.world
	w.mu.Lock()
	w.levels = append(w.levels, l)
	cut := w.cut
	w.mu.Unlock()
	if h.held {
		w.sched.step(ctx, "level "+string(l.Desired))
	}
	if cut {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "the fleet does not answer")
	}
	return h.next.EnsureInstance(ctx, l)
}

func (h *hop) EnsureCheckpoint(ctx context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	w := h.world
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if h.held {
		w.sched.step(ctx, "checkpoint "+string(l.Desired))
	}
	if cut {
		return holdfast.CheckpointObservation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "the fleet does not answer")
	}
	return h.next.EnsureCheckpoint(ctx, l)
}

func (h *hop) GetInstance(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	h.world.sched.step(ctx, "look at the instance")
	return h.next.GetInstance(ctx, id)
}

func (h *hop) ListInstances(ctx context.Context, after string, limit int) (holdfast.InstancePage, error) {
	h.world.sched.step(ctx, "list instances")
	return h.next.ListInstances(ctx, after, limit)
}

func (h *hop) ListHosts(ctx context.Context) ([]holdfast.Host, error) { return h.next.ListHosts(ctx) }

func (h *hop) Audit(ctx context.Context) ([]holdfast.PartyAudit, error) { return h.next.Audit(ctx) }

// lastLevel is what was last sent to the fleet, to come again late.
func (w *world) lastLevel() holdfast.Level {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.levels[len(w.levels)-1]
}

func (w *world) sever(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

// host is the keeper that has the instance; nil for none.
func (w *world) host() *keeper {
	for _, h := range w.hosts {
		h.mu.Lock()
		n := h.newest(w.instance)
		h.mu.Unlock()
		if n != 0 {
			return h
		}
	}
	return nil
}

// post delivers to an orchestrator as the source that secret and header make it.
func (w *world) post(ctx context.Context, replica int, path string, m delivery.Message, as source) error {
	body := fmt.Appendf(nil, `{"type":%q,"data":%s}`, m.Kind, m.Body)
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://orchestrator.sim"+path, bytes.NewReader(body))
	for k, v := range as.header {
		req.Header[k] = v
	}
	for k, v := range delivery.Sign(as.secret, m.ID, time.Now(), body) {
		req.Header[k] = v
	}
	rec := httptest.NewRecorder()
	w.orch[replica].DeliveryHandler().ServeHTTP(rec, req)
	if rec.Code >= 300 {
		return fmt.Errorf("%s: %d %s", m.Kind, rec.Code, rec.Body)
	}
	return nil
}

type source struct {
	secret []byte
	header http.Header
}

// guestSays is H5: the guest of a boot reports.
func (w *world) guestSays(ctx context.Context, replica int, kind holdfast.DeliveryKind, incarnation int64) error {
	body, err := json.Marshal(holdfast.GuestReport{Instance: w.instance, Incarnation: incarnation})
	if err != nil {
		return err
	}
	id := string(w.instance)
	return w.post(ctx, replica, "/deliveries/instances", delivery.Message{ID: delivery.DeriveID(string(kind), id, incarnation, "test"), Kind: string(kind), Body: body},
		source{delivery.InstanceSecret(clusterKey, id, incarnation), http.Header{
			holdfast.HeaderInstance: {id}, holdfast.HeaderIncarnation: {strconv.FormatInt(incarnation, 10)}}})
}

// fleetSays is H8: an instance ended.
func (w *world) fleetSays(ctx context.Context, replica int, incarnation int64) error {
	body, err := json.Marshal(holdfast.Observation{Instance: w.instance, Incarnation: incarnation, State: holdfast.InstanceExited,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "it ended"}})
	if err != nil {
		return err
	}
	return w.post(ctx, replica, "/deliveries/fleet", delivery.Message{
		ID: delivery.DeriveID(string(holdfast.DeliveryExited), string(w.instance), incarnation, "exited"), Kind: string(holdfast.DeliveryExited), Body: body},
		source{secret: fleetSecret})
}

// hostSays is H7: a host reports what it has of an instance.
func (w *world) hostSays(ctx context.Context, replica int, h *keeper, o holdfast.Observation) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	d := delivery.Received{Source: fleet.HostSource(h.id), Kind: string(holdfast.DeliveryObserved), Body: body, ReceivedAt: time.Now()}
	d.ID = delivery.DeriveID(d.Kind, string(o.Instance), o.Incarnation, string(o.State)+strconv.FormatInt(o.Generation, 10))
	return w.fleets[replica].Observed(ctx, h.id, d)
}

// sweep runs one of an orchestrator's sweeps to its end.
func (w *world) sweep(ctx context.Context, replica int, name string) error {
	for _, s := range w.orch[replica].Sweeps() {
		if s.Name != name {
			continue
		}
		for after := ""; ; {
			items, next, err := s.Page(ctx, after, 100)
			if err != nil {
				return err
			}
			for _, item := range items {
				if err := item.Act(ctx); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
					return err
				}
			}
			if next == "" {
				return nil
			}
			after = next
		}
	}
	return fmt.Errorf("no sweep %s", name)
}

// fleetSweep runs one of a fleet's.
func (w *world) fleetSweep(ctx context.Context, replica int, name string) error {
	_, err := w.fleets[replica].Sweep(ctx, name)
	return err
}

// count is one number of a database.
func (w *world) count(db store.DB, query string, args ...any) (n int, err error) {
	err = db.View(context.Background(), func(tx store.Tx) error {
		return tx.QueryRowContext(context.Background(), query, args...).Scan(&n)
	})
	return n, err
}
