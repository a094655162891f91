package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// Config is what a fleet is made of. DB, Dial, SendUp and Holder are required.
type Config struct {
	DB      store.DB     // with Migrations applied; shared with other replicas, with no other party
	Joiner  store.Joiner // of the same database; nil: every transaction is one of its own
	Cluster string       // id of the cluster that an empty database joins; "": the first order's. Orders and hosts of another are refused
	// Dial reaches the agent of the host at a URL. It is called for every call, and makes none itself.
	Dial func(hostURL string) holdfast.HostService
	// SendUp delivers one outbox row to the orchestrator (H8) with one attempt; see Upward.
	SendUp func(ctx context.Context, row outbox.Row) error
	// Holder names this process's life, unlike any other's.
	Holder string

	Limits Limits
	Logger *slog.Logger // nil: slog.Default
	// Outbox tunes the dispatcher: what it needs of the fleet is filled in.
	Outbox outbox.Config
	// Sweeping tunes the runner of the sweeps.
	Sweeping reconcile.Config
}

// Limits are the fleet's times. Each zero means the default that lifecycle.md gives.
type Limits struct {
	AskTimeout   time.Duration // a question to a host on behalf of a reader; 2 s
	CallTimeout  time.Duration // a call to a host beyond the wait that it was asked for; 10 s
	SweepEvery   time.Duration // between looks at what is overdue, and at each host's instances; 1 min
	HealthEvery  time.Duration // between looks at silent hosts; 5 s
	SuspectAfter time.Duration // a host's silence; holdfast.HostSuspectAfter
	LostAfter    time.Duration // a host's silence; holdfast.HostLostAfter
	LossAfter    time.Duration // a lost host's silence until its instances are given up; holdfast.HostLossAfter
	OrphanGrace  time.Duration // holdfast.OrphanGrace
	Kept         time.Duration // tombstones and inbox rows; holdfast.TombstoneKept
	TooOldAfter  time.Duration // of an unknown incarnation; holdfast.LevelTooOldAfter
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		at *time.Duration
		to time.Duration
	}{
		{&l.AskTimeout, 2 * time.Second},
		{&l.CallTimeout, 10 * time.Second},
		{&l.SweepEvery, time.Minute},
		{&l.HealthEvery, 5 * time.Second},
		{&l.SuspectAfter, holdfast.HostSuspectAfter},
		{&l.LostAfter, holdfast.HostLostAfter},
		{&l.LossAfter, holdfast.HostLossAfter},
		{&l.OrphanGrace, holdfast.OrphanGrace},
		{&l.Kept, holdfast.TombstoneKept},
		{&l.TooOldAfter, holdfast.LevelTooOldAfter},
	} {
		if *d.at <= 0 {
			*d.at = d.to
		}
	}
	return l
}

// Orchestrator is the destination of the fleet's outbox rows.
const Orchestrator = "orchestrator"

// Service is one replica of the fleet. It implements holdfast.FleetService and
// holdfast.OperatorService.
type Service struct {
	db      store.DB
	joiner  store.Joiner
	joint   joint
	skew    atomic.Pointer[time.Duration]   // of the database's clock before this process's; nil: not known yet
	cluster string                          // as configured
	lineage atomic.Pointer[lineage.Lineage] // nil: not read yet
	holder  string
	dial    func(string) holdfast.HostService
	limits  Limits
	log     *slog.Logger
	outbox  *outbox.Dispatcher
	sweeps  *reconcile.Runner
	repair  *reconcile.Repair[holdfast.InstanceID, seen]

	roster   roster
	mu       sync.Mutex // guards unwanted
	unwanted map[holdfast.HostID]sightings
}

var (
	_ holdfast.FleetService    = (*Service)(nil)
	_ holdfast.OperatorService = (*Service)(nil)
)

// New makes a fleet; its loops begin with Run.
func New(c Config) (*Service, error) {
	if c.DB == nil || c.Dial == nil || c.SendUp == nil || c.Holder == "" {
		return nil, errors.New("fleet: DB, Dial, SendUp and Holder are needed")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Service{
		db: c.DB, joiner: c.Joiner, joint: newJoint(), cluster: c.Cluster, holder: c.Holder, limits: c.Limits.withDefaults(), log: c.Logger,
		unwanted: map[holdfast.HostID]sightings{},
	}
	hung := &hung{long: s.limits.CallTimeout / 2}
	s.dial = func(url string) holdfast.HostService { return hung.guard(url, c.Dial(url)) }
	s.repair = s.newRepair()
	c.Outbox.Update = func(ctx context.Context, fn func(outbox.Tx) error) error {
		return s.db.Update(ctx, func(tx store.Tx) error { return fn(tx) })
	}
	c.Outbox.View = func(ctx context.Context, fn func(outbox.Tx) error) error {
		return s.db.View(ctx, func(tx store.Tx) error { return fn(tx) })
	}
	c.Outbox.Send, c.Outbox.Holder, c.Outbox.Log = c.SendUp, c.Holder, c.Logger
	var err error
	if s.outbox, err = outbox.New(c.Outbox); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	c.Sweeping.Logger = c.Logger
	if s.sweeps, err = reconcile.NewRunner(c.Sweeping, s.Sweeps()...); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	return s, nil
}

// Run sends what the outbox holds and sweeps, until ctx ends and what is under way has ended.
func (s *Service) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { s.outbox.Run(ctx) })
	loops.Go(func() { s.sweeps.Run(ctx) })
	loops.Wait()
}

// Sweep runs one sweep now, by its name, and waits for it.
func (s *Service) Sweep(ctx context.Context, name string) (reconcile.Report, error) {
	return s.sweeps.RunOnce(ctx, name)
}

// storage is err of a transaction as a caller sees it: our own errors and a
// context's end as they are, anything else as a database that did not take it.
func storage(what string, err error) error {
	var own *holdfast.Error
	if errors.As(err, &own) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "%s: the fleet's database did not take it", what).Because(err)
}
