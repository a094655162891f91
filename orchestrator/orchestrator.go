// Package orchestrator owns intent: sandboxes, what is to become of them, and
// the journal of what was tried. It records every intent before the first call
// to the fleet, holds a claim while an attempt is at it, and hears from guests
// and the fleet through deliveries that it counts once (contract: A, B, C).
package orchestrator

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// kindSandbox is the kind under which sandboxes' operations are recorded.
const kindSandbox = "sandbox"

// Config is what an orchestrator needs. Fields without a default are required.
type Config struct {
	DB     store.DB
	Joiner store.Joiner // of the same database; nil: every transaction is one of its own
	Fleet  holdfast.FleetService
	// Operators is the fleet as its operators see it: which hosts do not answer. nil:
	// that is not shown.
	Operators holdfast.OperatorService
	// Guest reaches the guest of one boot through the agent of its host (H11).
	Guest func(hostURL string, ref holdfast.InstanceRef) holdfast.Guest
	// Image gives the image reference of an environment's name, or an error that
	// says which there are. It must not block: it is asked inside the request.
	Image func(environment string) (string, error)
	// Pin gives an image reference the digest of what it names now, so that a build
	// means the same for ever; it may ask a registry. nil: references stay as they are.
	Pin func(ctx context.Context, image string) (string, error)
	// Blobs is the store that the hosts put checkpoints into. nil: none are taken.
	Blobs       blob.Store
	Cluster     string // id that an empty database gets; "": a new one
	ClusterKey  []byte // instances' delivery secrets derive from it
	FleetSecret []byte // signs the fleet's deliveries
	Process     string // names this process in claims; default "orchestrator"
	// Exclusive says that the database belongs to this process alone (SQLite with
	// its directory's lock), so that every claim found at the start is a dead one's.
	Exclusive bool
	ClaimTTL  time.Duration // of an attempt; default and most: 2 minutes
	HeldWait  time.Duration // how long a call waits for another's attempt; default 5 s
	// What callers may ask of a lifetime (contract: A11). Zero: 24 h for a lifetime,
	// 7 days for a suspended one's retention, 30 days for an extension of that.
	MaxTTL, Retention, MaxRetention time.Duration
	WatchPoll                       time.Duration // how soon a watch sees what other processes changed; default 1 s
	WatchPatience                   time.Duration // for a watcher that does not take an event; default 30 s
	// ListenersKept is how long a server may not know that a project's events are
	// asked for, where it shares the database; default 2 s.
	ListenersKept time.Duration
	// AllowPrivateWebhooks lets webhooks reach addresses that are not public.
	AllowPrivateWebhooks bool
	// WebhookClient sends them; nil: one that reaches public addresses alone, or all of
	// them with AllowPrivateWebhooks.
	WebhookClient *http.Client
	// Webhooks is how patiently they are sent. Its calls to the database and to the
	// receivers are the service's own.
	Webhooks outbox.Config
	// Sessions and Tasks are what hooks' rules may ask for; nil: the service's own.
	Sessions holdfast.SessionService
	Tasks    holdfast.TaskService
	IDs      holdfast.IDs
	Clock    func() time.Time // default time.Now
	Logger   *slog.Logger
	// SweepEvery is the period of the sweeps. Default: 10 s for pending
	// operations, a minute for the rest.
	SweepEvery time.Duration
	// Jitter spreads the sweeps' runs, see reconcile.Config. nil: at random.
	Jitter func(sweep string, run int) float64
}

func (c Config) withDefaults() Config {
	if c.Process == "" {
		c.Process = "orchestrator"
	}
	if c.ClaimTTL <= 0 || c.ClaimTTL > operation.MaxClaim {
		c.ClaimTTL = operation.MaxClaim
	}
	if c.HeldWait <= 0 {
		c.HeldWait = 5 * time.Second
	}
	for _, d := range []struct {
		set *time.Duration
		to  time.Duration
	}{
		{&c.MaxTTL, holdfast.MaxTTL}, {&c.Retention, holdfast.Retention}, {&c.MaxRetention, holdfast.MaxRetention},
		{&c.WatchPoll, time.Second}, {&c.WatchPatience, 30 * time.Second}, {&c.ListenersKept, 2 * time.Second},
	} {
		if *d.set <= 0 {
			*d.set = d.to
		}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Service is an orchestrator. It implements holdfast.SandboxService,
// OperationService, ProcessService, FileService, ProjectService, KeyService,
// EventService, WebhookService and HookService.
type Service struct {
	config  Config
	runner  *operation.Runner
	sweeps  *reconcile.Runner
	hosts   *hostCache
	reach   reach
	done    *bell
	changes *gong // rung after every transaction
	joint   joint
	lineage atomic.Pointer[lineage.Lineage]
	missing missing       // instances that the fleet did not know
	skew    atomic.Int64  // of the database's clock before this process's, in nanoseconds
	room    chan struct{} // bounds what expiry carries out at once
	keys    *keyCache
	heard   *inbox.Recent // deliveries that this process knows to be recorded

	listeners listeners
	outbox    *sending
	webhooks  *http.Client  // to their receivers
	acting    chan struct{} // bounds what hooks' actions carry out at once
	activity  *activities
	started   sync.Map // by task id, the processes that are being recorded

	background sync.WaitGroup
	ctx        context.Context // of what goes on without a caller; ended by Close
	cancel     context.CancelFunc
}

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrations are the orchestrator's tables and those of the packages it uses.
func Migrations() []store.Migrations {
	own, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the path is a constant of this file, and valid
	}
	return []store.Migrations{
		{Name: "operation", FS: operation.Migrations()},
		{Name: "inbox", FS: inbox.Migrations()},
		{Name: "outbox", FS: outbox.Migrations()},
		{Name: "orchestrator", FS: own},
		lineage.Migrations(),
	}
}

// New returns a service over an open, migrated database. With Exclusive it
// releases the claims of dead holders first (contract: A6).
func New(ctx context.Context, config Config) (*Service, error) {
	config = config.withDefaults()
	s := &Service{
		config: config,
		hosts:  newHostCache(),
		reach:  reach{clock: config.Clock, log: config.Logger},
		done:   newBell(), keys: newKeyCache(), activity: newActivities(), changes: new(gong), room: make(chan struct{}, expiryRoom),
		webhooks: cmp.Or(config.WebhookClient, newWebhookClient(config.AllowPrivateWebhooks)), acting: make(chan struct{}, actingRoom),
		joint: newJoint(), heard: inbox.NewRecent(),
	}
	if config.Operators != nil {
		s.reach.ask = config.Operators.FindInstances
	}
	s.runner = operation.NewRunner(operation.RunnerConfig{Clock: s.databaseClock, Logger: config.Logger})
	err := s.descend(ctx)
	if err != nil {
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	if s.sweeps, err = reconcile.NewRunner(reconcile.Config{Clock: config.Clock, Jitter: config.Jitter, Logger: config.Logger}, s.Sweeps()...); err != nil {
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	if config.Sessions == nil {
		s.config.Sessions = s
	}
	if config.Tasks == nil {
		s.config.Tasks = s
	}
	if s.outbox, err = s.newSending(); err != nil {
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.ensureDefault(ctx); err != nil {
		s.cancel()
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	if !config.Exclusive {
		return s, nil
	}
	released := 0
	err = config.DB.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		released, err = operation.ReleaseHolders(ctx, tx, now)
		return err
	})
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("orchestrator: %w", err)
	}
	if released > 0 {
		config.Logger.Info("released the claims of an earlier process", "claims", released)
	}
	return s, nil
}

// Run sweeps, and sends what is queued for webhooks, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.outbox.run(ctx) })
	s.sweeps.Run(ctx)
	loops.Wait()
	return nil
}

// Drain refuses new attempts and waits for the running ones, until ctx ends.
func (s *Service) Drain(ctx context.Context) error { return s.runner.Drain(ctx) }

// Close ends what goes on without a caller and waits for it.
func (s *Service) Close() error {
	s.cancel()
	s.background.Wait()
	s.webhooks.CloseIdleConnections()
	return nil
}

// update runs fn in a transaction with the database's clock. A commit of unknown
// outcome is run again: everything in fn is keyed or fenced (trap T46).
func (s *Service) update(ctx context.Context, what string, fn func(tx store.Tx, now time.Time) error) error {
	var err error
	var last *unit
	for range 3 {
		err = s.config.DB.Update(ctx, func(tx store.Tx) error {
			last = &unit{Tx: tx, service: s}
			now, err := s.now(ctx, tx)
			if err != nil {
				return err
			}
			return fn(last, now)
		})
		if !errors.Is(err, store.ErrUnknownOutcome) {
			break
		}
	}
	if err == nil {
		s.changes.ring()
		last.committed()
	}
	return s.storageError(what, err)
}

// now is the database's, by which claims are judged. How far this process's own
// clock is off is remembered for what is judged outside of transactions.
func (s *Service) now(ctx context.Context, tx store.Tx) (time.Time, error) {
	now, err := tx.Now(ctx)
	if err == nil {
		s.skew.Store(int64(now.Sub(s.config.Clock())))
	}
	return now, err
}

// databaseClock is about the database's, as it was last seen: a process whose own
// is an hour ahead must not take every claim for over (trap T42).
func (s *Service) databaseClock() time.Time {
	return s.config.Clock().Add(time.Duration(s.skew.Load()))
}

func (s *Service) view(ctx context.Context, what string, fn func(tx store.Tx, now time.Time) error) error {
	err := s.config.DB.View(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		return fn(tx, now)
	})
	return s.storageError(what, err)
}

// storageError keeps domain errors and those the callers here decide on, and
// makes everything else, which is the database's, UNAVAILABLE.
func (s *Service) storageError(what string, err error) error {
	var domain *holdfast.Error
	var held *heldError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &domain), errors.As(err, &held), errors.Is(err, operation.ErrFenced), errors.Is(err, operation.ErrHeld),
		errors.Is(err, operation.ErrEnded), errors.Is(err, errNotKnownYet), errors.Is(err, errShardFull),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	s.config.Logger.Error("database", "what", what, "error", err)
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "%s: the database did not take it; see the server's log", what).
		Retry(time.Second).Because(err)
}

// Attempts is how many attempts run in this process.
func (s *Service) Attempts() int { return s.runner.Len() }
