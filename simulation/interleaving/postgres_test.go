package interleaving

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
)

// shared is two orchestrators and two fleets over one PostgreSQL server. It is used
// for one order after the other: each has a sandbox, and a project, of its own.
type shared struct {
	world
	stmts *statements
	odb   store.DB
	fdb   store.DB
	n     int
	rid   string
	// project is this order's, where it has one of its own.
	project holdfast.ProjectID
	// pending is the operation that a sweep is to carry on.
	pending string
	told    map[string]answer
	ids     holdfast.IDs
}

// statementRace is a race of the first transactions of two actors.
type statementRace struct {
	name, traps string
	fleet       bool // the fleet's transactions are the ones that are held
	setup       func(ctx context.Context, w *shared) error
	actors      []actor
	check       func(ctx context.Context, w *shared) error
}

func openShared(t *testing.T) *shared {
	t.Helper()
	server := testenv.SharedPostgres(t)
	url := server.URL(server.Database(t))
	locks, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	w := &shared{stmts: &statements{locks: locks, open: true}}
	w.world.sched = &scheduler{open: true}
	w.world.hosts = [2]*keeper{newKeeper("ho-00000000000000000000000001", w.sched, false), newKeeper("ho-00000000000000000000000002", w.sched, false)}
	open := func(schema string, migrations ...store.Migrations) *postgres.DB {
		db, err := postgres.Open(t.Context(), postgres.Config{URL: url, Schema: schema}, migrations...)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	odb, fdb := open("orchestrator", orchestrator.Migrations()...), open("fleet", fleet.Migrations()...)
	w.odb, w.fdb = odb, fdb
	t.Cleanup(func() {
		for _, s := range w.orch {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if err := errors.Join(s.Drain(ctx), s.Close()); err != nil {
				t.Error(err)
			}
			cancel()
		}
		if err := errors.Join(odb.Close(), fdb.Close(), locks.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := w.serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *shared) serve(ctx context.Context) error {
	quiet := slog.New(slog.DiscardHandler)
	for i := range w.fleets {
		f, err := fleet.New(fleet.Config{
			DB: &onlyFor{w.stmts.wrap(w.fdb), w.fdb, "fleet"}, Cluster: "cl", Holder: "fleet/" + strconv.Itoa(i), Logger: quiet,
			Dial: func(url string) holdfast.HostService {
				if url == w.hosts[0].url() {
					return w.hosts[0]
				}
				return w.hosts[1]
			},
			SendUp: func(context.Context, outbox.Row) error { return errors.New("nothing is sent up here") }, Sweeping: reconcile.Config{},
		})
		if err != nil {
			return err
		}
		w.fleets[i] = f
	}
	if err := w.beat(ctx, 0, 1, 100_000); err != nil {
		return err
	}
	ids := newOneShard()
	for i := range w.orch {
		s, err := orchestrator.New(ctx, orchestrator.Config{
			IDs: ids.all(),
			DB:  &onlyFor{w.stmts.wrap(w.odb), w.odb, "orchestrator"}, Fleet: &hop{world: &w.world, next: w.fleets[i]}, Cluster: "cl", ClusterKey: clusterKey,
			FleetSecret: fleetSecret, Image: func(name string) (string, error) { return name, nil },
			Guest:    func(string, holdfast.InstanceRef) (g holdfast.Guest) { return g },
			ClaimTTL: claimTTL, HeldWait: time.Nanosecond, SweepEvery: time.Microsecond, Process: "orchestrator-" + strconv.Itoa(i), Logger: quiet,
		})
		if err != nil {
			return err
		}
		w.orch[i] = s
	}
	return nil
}

// oneShard makes ids that rise and that quotas count in one shard: which one a
// sandbox falls into would decide how its create goes on.
type oneShard struct {
	at time.Time
	mu sync.Mutex
	n  uint64
}

func newOneShard() *oneShard { return &oneShard{at: time.Now()} }

func (o *oneShard) all() holdfast.IDs {
	return holdfast.IDs{Now: func() time.Time { return o.at }, Rand: o}
}

// Read gives the bytes that follow an id's instant.
func (o *oneShard) Read(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(p) < 8 {
		return 0, io.ErrShortBuffer
	}
	for {
		o.n++
		clear(p)
		binary.BigEndian.PutUint64(p, o.n)
		id := holdfast.IDs{Now: func() time.Time { return o.at }, Rand: bytes.NewReader(p)}.New(holdfast.PrefixSandbox)
		h := fnv.New32a()
		if _, err := h.Write([]byte(id)); err != nil {
			return 0, err
		}
		if h.Sum32()%32 == 0 {
			return len(p), nil
		}
	}
}

// beat registers a host, or tells that it has other room.
func (w *shared) beat(ctx context.Context, host int, sequence, instances int64) error {
	h := w.hosts[host]
	return w.fleets[0].Heartbeat(ctx, holdfast.Heartbeat{Host: h.id, Life: "life", Name: string(h.id), URL: h.url(), Runtime: "keeper", BootID: "boot",
		Capacity: holdfast.Capacity{CPUMillis: 1 << 40, MemoryBytes: 1 << 60, Instances: instances}, Sequence: sequence, At: time.Now()})
}

// onlyFor holds the statements of one party; the other's go on.
type onlyFor struct {
	store.DB
	plain store.DB
	party string
}

// partyKey is where a context has the party whose statements are held.
type partyKey struct{}

// Update implements store.DB.
func (d *onlyFor) Update(ctx context.Context, fn func(store.Tx) error) error {
	if ctx.Value(partyKey{}) == d.party {
		return d.DB.Update(ctx, fn)
	}
	return d.plain.Update(ctx, fn)
}

// do lets an actor act; whose statements are held is the race's.
func (w *shared) do(ctx context.Context, a actor) (holdfast.Sandbox, error) {
	return a.do(ctx, &w.world)
}

// anew is a sandbox of this order's own.
func (w *shared) anew() {
	w.n++
	w.rid = fmt.Sprintf("request-%d", w.n)
	w.sandbox, w.instance = "", ""
}

func (w *shared) makeReady(ctx context.Context, restart holdfast.Restart) error {
	w.anew()
	sb, err := w.orch[0].CreateSandbox(ctx, alice, holdfast.CreateSandbox{RequestID: w.rid, Environment: "base", Restart: restart})
	w.sandbox, w.instance = sb.ID, sb.Instance
	return err
}

// half is a READY sandbox with an operation that is pending and unclaimed.
func (w *shared) half(ctx context.Context, verb holdfast.OperationKind) error {
	if err := w.makeReady(ctx, ""); err != nil {
		return err
	}
	w.sever(true)
	_, err := mutates(verb, 0).do(ctx, &w.world)
	w.sever(false)
	if holdfast.CodeOf(err) != holdfast.Unavailable {
		return fmt.Errorf("the %s that nobody hears: %w", verb, err)
	}
	return w.odb.Update(ctx, func(tx store.Tx) error {
		return tx.QueryRowContext(ctx, `UPDATE operation SET due_at = 1 WHERE resource_id = $1 AND state = 'PENDING' RETURNING id`,
			string(w.sandbox)).Scan(&w.pending)
	})
}

// answered holds that nobody was told what no caller should be.
func (w *shared) answered() error {
	var errs []error
	for who, a := range w.told {
		switch holdfast.CodeOf(a.err) {
		case "", holdfast.Aborted, holdfast.FailedPrecondition, holdfast.Unavailable, holdfast.ResourceExhausted:
		default:
			errs = append(errs, fmt.Errorf("%s was told %w", who, a.err))
		}
	}
	return errors.Join(errs...)
}

func (w *shared) number(ctx context.Context, db store.DB, query string, args ...any) (n int, err error) {
	err = db.View(ctx, func(tx store.Tx) error { return tx.QueryRowContext(ctx, query, args...).Scan(&n) })
	return n, err
}

// want fails unless a query's number is so.
func (w *shared) want(ctx context.Context, db store.DB, want int, query string, args ...any) error {
	n, err := w.number(ctx, db, query, args...)
	if err == nil && n != want {
		err = fmt.Errorf("%d instead of %d: %s", n, want, query)
	}
	return err
}

// held makes an actor's statements in a party's database the ones that are held.
func held(party string, a actor) actor {
	return actor{a.name, func(ctx context.Context, w *world) (holdfast.Sandbox, error) {
		return a.do(context.WithValue(ctx, partyKey{}, party), w)
	}}
}

func byStatement(actors ...actor) (out []actor) {
	for _, a := range actors {
		out = append(out, held("orchestrator", a))
	}
	return out
}

// onePending: at most one operation is pending, each has a generation of its own.
func onePending(ctx context.Context, w *shared) error {
	return errors.Join(
		w.want(ctx, w.odb, 0, `SELECT COUNT(*) FROM (SELECT generation FROM operation WHERE resource_id = $1 GROUP BY generation HAVING COUNT(*) > 1) d`, string(w.sandbox)),
		w.want(ctx, w.odb, 0, `SELECT COUNT(*) FROM (SELECT resource_id FROM operation WHERE state = 'PENDING' GROUP BY resource_id HAVING COUNT(*) > 1) d`))
}

func (w *shared) createNow(replica int) actor {
	return actor{fmt.Sprintf("create %d", replica), func(ctx context.Context, _ *world) (holdfast.Sandbox, error) {
		return w.orch[replica].CreateSandbox(ctx, alice, holdfast.CreateSandbox{RequestID: w.rid, Environment: "base"})
	}}
}

// level orders the fleet.
func (w *shared) level(name string, replica int, instance func() holdfast.InstanceID, generation int64, desired holdfast.Desired) actor {
	return held("fleet", plain(name, func(ctx context.Context, _ *world) error {
		_, err := w.fleets[replica].EnsureInstance(ctx, holdfast.Level{Cluster: "cl", Instance: instance(), Incarnation: 1, Generation: generation, Desired: desired,
			MintedAt: time.Now(), Spec: &holdfast.InstanceSpec{Owner: "sb", Image: "base"}})
		return err
	}))
}

func statementRaces(w *shared) []statementRace {
	ready := func(ctx context.Context, w *shared) error { return w.makeReady(ctx, "") }
	over := func(ctx context.Context, w *shared) error {
		err := w.makeReady(ctx, "")
		return errors.Join(err, w.odb.Update(ctx, func(tx store.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE sandbox SET expires_at = 1 WHERE id = $1`, string(w.sandbox))
			return err
		}))
	}
	mine := func() holdfast.InstanceID { return w.instance }
	fresh := func(_ context.Context, w *shared) error {
		w.anew()
		w.instance = holdfast.InstanceID(w.ids.New(holdfast.PrefixInstance))
		return nil
	}
	return []statementRace{
		{name: "create twice", traps: "T8", setup: func(_ context.Context, w *shared) error { w.anew(); return nil }, actors: byStatement(w.createNow(0), w.createNow(1)),
			check: func(ctx context.Context, w *shared) error {
				return errors.Join(w.want(ctx, w.odb, 1, `SELECT COUNT(*) FROM request WHERE request_id = $1`, w.rid),
					w.want(ctx, w.odb, 1, `SELECT COUNT(*) FROM sandbox s WHERE s.id IN (SELECT resource FROM request WHERE request_id = $1)`, w.rid),
					w.want(ctx, w.odb, 0, `SELECT COUNT(*) FROM sandbox s WHERE NOT EXISTS (SELECT 1 FROM request r WHERE r.resource = s.id)`))
			}},
		{name: "suspend against delete", setup: ready, actors: byStatement(suspends(0), deletes(1)), check: onePending},
		{name: "suspend against extend", traps: "T43", setup: ready, actors: byStatement(suspends(0), extends(1)), check: onePending},
		{name: "delete twice", setup: ready, actors: byStatement(deletes(0), deletes(1)), check: onePending},
		{name: "resume over a suspend against its sweep", traps: "T11", setup: func(ctx context.Context, w *shared) error { return w.half(ctx, suspend) },
			actors: byStatement(resumes(0), w.carryOnNow(1)), check: onePending},
		{name: "suspend again against its sweep", traps: "T28", setup: func(ctx context.Context, w *shared) error { return w.half(ctx, suspend) },
			actors: byStatement(suspends(0), w.carryOnNow(1)), check: onePending},
		{name: "expiry against extend", traps: "T41 T43", setup: over, actors: byStatement(w.sweepMine(orchestrator.SweepExpiry, 0), extends(1)), check: func(ctx context.Context, w *shared) error {
			if w.told["extend 1"].err != nil {
				return onePending(ctx, w)
			}
			return errors.Join(onePending(ctx, w), w.want(ctx, w.odb, 0, `SELECT COUNT(*) FROM sandbox WHERE id = $1 AND state IN ('DELETING', 'DELETED')`, string(w.sandbox)))
		}},
		{name: "expiry twice", traps: "T28", setup: over, actors: byStatement(w.sweepMine(orchestrator.SweepExpiry, 0), w.sweepMine(orchestrator.SweepExpiry, 1)), check: onePending},
		{name: "exited twice", traps: "T16", setup: ready, actors: byStatement(saysExited(0), named("again", saysExited(1))), check: func(ctx context.Context, w *shared) error {
			return errors.Join(onePending(ctx, w), w.want(ctx, w.odb, 1, `SELECT COUNT(*) FROM sandbox WHERE id = $1 AND state = 'FAILED'`, string(w.sandbox)))
		}},
		{name: "exited against delete", setup: ready, actors: byStatement(saysExited(0), deletes(1)), check: onePending},
		{name: "exited against suspend", setup: ready, actors: byStatement(saysExited(0), suspends(1)), check: func(ctx context.Context, w *shared) error {
			return errors.Join(onePending(ctx, w), w.want(ctx, w.odb, 1, `SELECT COUNT(*) FROM sandbox WHERE id = $1 AND state = 'FAILED'`, string(w.sandbox)))
		}},
		{name: "the quota's last sandbox", traps: "T53", setup: func(ctx context.Context, w *shared) error {
			w.anew()
			one := int64(1)
			p, err := w.orch[0].CreateProject(ctx, alice, holdfast.CreateProject{Name: fmt.Sprintf("project-%d", w.n), Quotas: holdfast.QuotaChange{Sandboxes: &one}})
			w.project = p.ID
			return err
		}, actors: byStatement(w.createsIn(0, "one"), w.createsIn(1, "another")), check: func(ctx context.Context, w *shared) error {
			return errors.Join(w.oneOfTwo(),
				w.want(ctx, w.odb, 1, `SELECT COUNT(*) FROM sandbox WHERE project = $1`, string(w.project)),
				w.want(ctx, w.odb, 1, `SELECT SUM(sandboxes) FROM quota_shard WHERE project = $1`, string(w.project)))
		}},
		{name: "two dispatchers", traps: "T24", setup: func(ctx context.Context, w *shared) error {
			w.anew()
			w.sent = 0
			return w.fdb.Update(ctx, func(tx store.Tx) error {
				return outbox.Enqueue(ctx, tx, outbox.Row{ID: w.rid, Destination: "orchestrator", Kind: "instance.exited", Body: []byte(`{}`)}, time.Now())
			})
		}, actors: []actor{w.dispatchesNow(0), w.dispatchesNow(1)}, check: func(ctx context.Context, w *shared) error {
			if w.sent != 1 {
				return fmt.Errorf("it was sent %d times", w.sent)
			}
			return w.want(ctx, w.fdb, 1, `SELECT COUNT(*) FROM outbox WHERE id = $1 AND state = 'SENT'`, w.rid)
		}},
		{name: "fleet: the first level twice", traps: "T8 T49", fleet: true, setup: fresh,
			actors: []actor{w.level("level", 0, mine, 1, holdfast.DesiredRunning), w.level("again", 1, mine, 1, holdfast.DesiredRunning)}, check: placedOnce},
		{name: "fleet: delete against a late create", traps: "T39", fleet: true, setup: fresh,
			actors: []actor{w.level("create", 0, mine, 1, holdfast.DesiredRunning), w.level("delete", 1, mine, 2, holdfast.DesiredAbsent)}, check: placedOnce},
		{name: "fleet: the last room", traps: "T53", fleet: true, setup: func(ctx context.Context, w *shared) error {
			if err := fresh(ctx, w); err != nil {
				return err
			}
			used, err := w.number(ctx, w.fdb, `SELECT used_instances FROM host WHERE id = $1`, string(w.hosts[0].id))
			return errors.Join(err, w.beat(ctx, 0, int64(w.n)*10, int64(used)+1))
		}, actors: []actor{w.level("one", 0, mine, 1, holdfast.DesiredRunning),
			w.level("another", 1, func() holdfast.InstanceID { return "in-" + holdfast.InstanceID(fmt.Sprintf("%026d", w.n)) }, 1, holdfast.DesiredRunning)},
			check: func(ctx context.Context, w *shared) error {
				ok := 0
				for _, a := range w.told {
					if a.err == nil {
						ok++
					}
				}
				if ok != 1 {
					return fmt.Errorf("%d were placed into the last room", ok)
				}
				return errors.Join(placedOnce(ctx, w), w.beat(ctx, 0, int64(w.n)*10+1, 100_000))
			}},
	}
}

func (w *shared) carryOnNow(replica int) actor {
	return w.sweepMine(orchestrator.SweepOperations, replica)
}

// oneOfTwo: one was taken, the other refused for the quota.
func (w *shared) oneOfTwo() error {
	refused := 0
	for _, a := range w.told {
		if holdfast.CodeOf(a.err) == holdfast.ResourceExhausted {
			refused++
		} else if a.err != nil {
			return a.err
		}
	}
	if refused != 1 {
		return fmt.Errorf("%d were refused", refused)
	}
	return nil
}

// createsIn creates in this order's project.
func (w *shared) createsIn(replica int, id string) actor {
	return actor{"create " + id, func(ctx context.Context, _ *world) (holdfast.Sandbox, error) {
		caller := holdfast.Caller{Project: w.project, Name: "alice"}
		_, err := w.orch[replica].CreateSandbox(ctx, caller, holdfast.CreateSandbox{RequestID: id, Environment: "base"})
		return holdfast.Sandbox{}, err
	}}
}

// dispatchesNow is one look of a replica's dispatcher, its claim held statement by statement.
func (w *shared) dispatchesNow(replica int) actor {
	return plain(fmt.Sprintf("dispatcher %d", replica), func(ctx context.Context, _ *world) error {
		db := w.stmts.wrap(w.fdb)
		d, err := outbox.New(outbox.Config{
			Update: func(ctx context.Context, fn func(outbox.Tx) error) error {
				return db.Update(ctx, func(tx store.Tx) error { return fn(tx) })
			},
			View: func(ctx context.Context, fn func(outbox.Tx) error) error {
				return db.View(ctx, func(tx store.Tx) error { return fn(tx) })
			},
			Send: func(context.Context, outbox.Row) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.sent++
				return nil
			},
			Holder: fmt.Sprintf("dispatcher/%d/%d", replica, w.n), Log: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			_, err = d.RunOnce(ctx)
		}
		return err
	})
}

// sweepMine runs what a sweep does about this order's sandbox alone.
func (w *shared) sweepMine(name string, replica int) actor {
	return plain(fmt.Sprintf("%s %d", name, replica), func(ctx context.Context, _ *world) error {
		for _, s := range w.orch[replica].Sweeps() {
			if s.Name != name {
				continue
			}
			for after := ""; ; {
				items, next, err := s.Page(ctx, after, 1000)
				if err != nil {
					return err
				}
				for _, item := range items {
					if item.Key != string(w.sandbox) && item.Key != w.pending {
						continue
					}
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
		return nil
	})
}

// placedOnce: what hosts count is what is placed there, nothing was booted twice.
func placedOnce(ctx context.Context, w *shared) error {
	return errors.Join(w.hosts[0].bootedTwice(), w.want(ctx, w.fdb, 0,
		`SELECT COUNT(*) FROM host h WHERE h.used_instances <> (SELECT COUNT(*) FROM instance i WHERE i.host = h.id AND i.held = 1)`))
}

// contract: A3, A6, B3, D3; traps T8, T16, T28, T39, T41, T43, T49, T53. The races that
// rest on row locks, at READ COMMITTED, in every order of their first transactions' statements.
func TestProveStatements_EveryOrderOnPostgresComesToTheSame(t *testing.T) {
	w := openShared(t)
	budget, whole := prove.Budget(t)
	began := time.Now()
	var orders, done, broken int64
	for i, sc := range statementRaces(w) {
		if !whole && i%prove.Slice(1, 8) != 0 {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			var until time.Time
			if whole {
				until = began.Add(budget)
			}
			n, err := w.stmts.explore(t, sc, w, until)
			orders += int64(n)
			switch {
			case errors.Is(err, errUnfinished):
				t.Logf("%d orders, and more: %v", n, err)
			case err != nil:
				broken++
				t.Errorf("%s %v", sc.traps, err)
			default:
				done++
				t.Logf("%d orders %s", n, sc.traps)
			}
		})
	}
	prove.Report(t, prove.Figure{Rung: 2, Name: "races on PostgreSQL, statement by statement", Value: done, Violations: broken, Note: fmt.Sprintf("%d orders", orders)})
}
