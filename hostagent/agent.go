package hostagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/spool"
)

// Agent is one host's agent. It implements holdfast.HostService.
type Agent struct {
	config       Config
	log          *slog.Logger
	who          identity     // but for whom it obeys
	obeys        atomic.Value // of allegiance
	lifeID       string       // of this process, unlike any other's
	bootID       string
	lock         *os.File
	places       places
	store        records
	copyStore    copyFiles
	capabilities runtime.Capabilities
	images       *preparations
	notifier     *spool.Notifier
	sender       *delivery.Sender // nil: facts are sent nowhere
	sweeps       *reconcile.Runner
	orphans      orphans
	gateway      gateway
	gatewayURL   string

	// life is what detached work runs on: no caller ends it, Close does.
	life      context.Context
	end       context.CancelFunc
	started   atomic.Bool
	recovered atomic.Bool // every record was read
	open      atomic.Bool // levels are taken

	swearing sync.Mutex // guards host.json

	mu       sync.Mutex // taken before a machine's
	machines map[holdfast.InstanceID]*machine
	copies   map[holdfast.CheckpointID]*copying

	door     sync.Mutex // taken after a machine's
	closing  bool
	working  sync.WaitGroup
	reports  chan struct{} // a token for each fact on its way
	closed   sync.Once
	closeErr error
}

// New makes an agent for a directory, which it locks, and gives the host its id
// at the first time. Nothing runs before Start.
func New(config Config) (*Agent, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(config.Directory, 0o700); err != nil {
		return nil, fmt.Errorf("hostagent: %w", err)
	}
	lock, err := lockDirectory(config.Directory)
	if err != nil {
		return nil, fmt.Errorf("hostagent: %w", err)
	}
	a, err := assemble(config, lock)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hostagent: %w", err), lock.Close())
	}
	return a, nil
}

func assemble(config Config, lock *os.File) (*Agent, error) {
	ids := config.IDs
	who, err := loadIdentity(config.Directory, func() string { return ids.New(holdfast.PrefixHost) })
	if err != nil {
		return nil, err
	}
	if who, err = who.join(config); err != nil {
		return nil, err
	}
	bootID, err := config.BootID()
	if err != nil {
		return nil, err
	}
	notifier, err := config.notifier()
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	a := &Agent{
		config: config, log: config.Logger.With("host", who.ID), who: who, lifeID: ids.New("hl"), bootID: bootID, lock: lock,
		places:       places{root: filepath.Join(config.Directory, "instances")},
		capabilities: config.Driver.Capabilities(),
		images:       &preparations{images: config.Images, base: life, running: map[wantedImage]*preparation{}},
		notifier:     notifier,
		life:         life, end: end,
		machines:  map[holdfast.InstanceID]*machine{},
		copies:    map[holdfast.CheckpointID]*copying{},
		copyStore: copyFiles{root: filepath.Join(config.Directory, "checkpoints"), hook: config.hook},
		reports:   make(chan struct{}, reportsAtOnce),
		orphans:   orphans{since: map[holdfast.InstanceRef]time.Time{}},
	}
	a.obeys.Store(allegiance{cluster: who.Cluster, epoch: who.Epoch})
	a.store = recordFiles{places: a.places, hook: config.hook, around: config.AroundRecord}
	if config.Volatile {
		a.places.root = filepath.Join(config.Directory, "volatile") // apart: it is emptied at every start
		a.store = memory{places: a.places, since: config.Clock(), hook: config.hook}
	}
	a.gateway = newGateway(a)
	if config.Fleet.URL != "" {
		a.sender = &delivery.Sender{
			Client: config.Fleet.Client, Secret: config.Fleet.Secret(who.ID), Clock: config.Clock, After: config.Fleet.After,
			URL: config.Fleet.URL + "/deliveries/hosts/" + string(who.ID), Jitter: config.Jitter,
		}
	}
	a.sweeps, err = reconcile.NewRunner(reconcile.Config{Clock: config.Clock, Jitter: config.Jitter, Logger: a.log}, a.Sweeps()...)
	if err != nil {
		return nil, errors.Join(err, closeNotifier(notifier))
	}
	return a, nil
}

// Identity says who answers here (H3).
func (a *Agent) Identity(context.Context) (holdfast.HostIdentity, error) {
	return holdfast.HostIdentity{Host: a.who.ID, Life: a.lifeID}, nil
}

// ID is the host's, the same over restarts.
func (a *Agent) ID() holdfast.HostID { return a.who.ID }

// Start readies the runtime, finds the instances of an earlier run again
// (contract: C6), and begins to take levels, serve guests and beat. It returns
// once levels are taken and the fleet has heard of it, or does not answer;
// everything runs until Close. It fails where another agent is this host already.
func (a *Agent) Start(ctx context.Context) error {
	if !a.started.CompareAndSwap(false, true) {
		return errors.New("hostagent: started before")
	}
	listener, url, err := a.config.Driver.Open(ctx)
	if err != nil {
		return fmt.Errorf("hostagent: open the runtime: %w", err)
	}
	a.gatewayURL = url
	if err := a.recover(ctx); err != nil {
		return errors.Join(fmt.Errorf("hostagent: recover: %w", err), closeListener(listener))
	}
	if err := a.serve(listener); err != nil {
		return err
	}
	a.open.Store(true)
	if err := a.introduce(ctx); err != nil {
		return fmt.Errorf("hostagent: %w", err)
	}
	a.spawn(func() { a.sweeps.Run(a.life) })
	a.spawn(a.beat)
	return nil
}

// Run is Start, then Close once ctx has ended.
func (a *Agent) Run(ctx context.Context) error {
	err := a.Start(ctx)
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, a.Close())
}

// Close stops what the agent does, leaving half-done steps to the next run, and
// releases the directory. Instances run on.
func (a *Agent) Close() error {
	a.closed.Do(func() {
		a.open.Store(false)
		a.door.Lock()
		a.closing = true
		a.door.Unlock()
		a.end()
		a.working.Wait()
		a.images.group.Wait()
		var driver error
		if a.started.Load() {
			driver = a.config.Driver.Close()
		}
		a.closeErr = errors.Join(driver, closeNotifier(a.notifier), a.lock.Close())
	})
	return a.closeErr
}

// enter counts a piece of detached work; false when the agent is closing.
func (a *Agent) enter() bool {
	a.door.Lock()
	defer a.door.Unlock()
	if a.closing {
		return false
	}
	a.working.Add(1)
	return true
}

func (a *Agent) leave() { a.working.Done() }

func (a *Agent) spawn(work func()) {
	if a.enter() {
		go func() {
			defer a.leave()
			work()
		}()
	}
}

// serve runs the gateway at the runtime's listener.
func (a *Agent) serve(listener net.Listener) error {
	if listener == nil {
		return nil
	}
	server := &http.Server{
		Handler: a.GatewayHandler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	if !a.enter() {
		return errors.Join(errors.New("hostagent: closed"), closeListener(listener))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("the gateway ended: guests cannot call home until the agent restarts", "error", err)
		}
	}()
	go func() {
		defer a.leave()
		<-a.life.Done()
		if err := server.Close(); err != nil {
			a.log.Warn("close the gateway", "error", err)
		}
		<-ended
	}()
	return nil
}

func closeListener(l net.Listener) error {
	if l == nil {
		return nil
	}
	return l.Close()
}

// recoverAtOnce bounds the looks at the runtime after a start.
const recoverAtOnce = 8

// recover reads what is recorded and looks at each in the runtime. It boots,
// stops and retries nothing; what ended meanwhile it records and reports.
func (a *Agent) recover(ctx context.Context) error {
	all, err := a.store.load(a.config.Clock(), a.bootID)
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.damaged != nil {
			a.log.Error("the record of an instance cannot be read: it is taken for started and never boots again",
				"instance", one.record.Ref.Instance, "incarnation", one.record.Ref.Incarnation,
				"kept", one.record.Quarantine, "error", one.damaged)
		}
		m := a.machine(one.record.Ref.Instance)
		m.records[one.record.Ref.Incarnation] = one.record
	}
	if err := a.recoverCopies(); err != nil {
		return err
	}
	a.recovered.Store(true)
	room := make(chan struct{}, recoverAtOnce)
	var group sync.WaitGroup
	for _, m := range a.all() {
		if m.idle() {
			continue
		}
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			m.glance(ctx, a.config.Timing.Ask)
		})
	}
	group.Wait()
	return nil
}

// recoverCopies reads the checkpoints of an earlier process. What it did not finish
// waits for a level, and goes with its deadline.
func (a *Agent) recoverCopies() error {
	all, damaged, err := a.copyStore.load(a.config.Clock())
	for _, one := range damaged {
		a.log.Error("a checkpoint's record cannot be read: it is taken for failed", "error", one)
	}
	for _, r := range all {
		c := a.copying(r.Checkpoint)
		c.mu.Lock()
		c.record = r
		c.mu.Unlock()
	}
	return err
}

// glance observes, for at most the given time: a start does not wait for a guest
// that does not answer. The look itself goes on.
func (m *machine) glance(ctx context.Context, most time.Duration) {
	at := m.observe()
	if at == nil {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-at.done:
	case <-t.C:
	case <-ctx.Done():
	}
}

// idle reports that no incarnation needs a look.
func (m *machine) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if !r.final() {
			return false
		}
	}
	return true
}

// machine finds or makes an instance's.
func (a *Agent) machine(id holdfast.InstanceID) *machine {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[id]
	if m == nil {
		m = newMachine(a, id)
		a.machines[id] = m
	}
	return m
}

func (a *Agent) find(id holdfast.InstanceID) *machine {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machines[id]
}

func (a *Agent) all() []*machine {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]*machine, 0, len(a.machines))
	for _, m := range a.machines {
		list = append(list, m)
	}
	return list
}

// drop forgets a machine of which nothing is recorded.
func (a *Agent) drop(m *machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.records) == 0 && m.attempt == nil && !m.dropped {
		m.dropped = true
		delete(a.machines, m.id)
	}
}
