package guestagent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/stack"
	"github.com/holdfast-dev/holdfast/spool"
)

// Grace is how long processes have to end when the instance is asked to.
const Grace = 2 * time.Second

// Config is what an Agent is made from.
type Config struct {
	Guest    holdfast.GuestConfig
	Spool    string // directory for records and output; outside what checkpoints capture
	Limits   spool.Limits
	Executor Executor
	Root     string // of the files; "" is "/", the instance's own
	// Late makes the directories of Spool and Root when they are first needed, for
	// a simulation of many guests that mostly do nothing.
	Late     bool
	Notifier *spool.Notifier  // wakes those who follow output; nil: they poll
	Clock    func() time.Time // nil: time.Now
	// HTTP reaches the host agent's gateway for the call home, and Telemetry for
	// what must not delay it. Nil: a client of its own each.
	HTTP, Telemetry *http.Client
	// TelemetryEvery is between two reports; 0: 10 s, negative: none.
	TelemetryEvery time.Duration
	// Setup runs before the instance is ready; its error is what failed. Nil: nothing.
	Setup func(context.Context) error
	Log   *slog.Logger // nil: discarded
	// What a simulation replaces; zero values are at random.
	IDs    holdfast.IDs                         // of processes and of telemetry
	Jitter func(id string, attempt int) float64 // in [0, 1), of the pauses between calls home
}

// Agent is the guest agent of one boot.
type Agent struct {
	config    Config
	files     *fileSystem
	processes *processes

	mu     sync.Mutex
	status holdfast.GuestStatus

	life    context.Context // of reports that nobody waits for; ended by Close
	end     context.CancelFunc
	reports sync.WaitGroup
}

// New makes an Agent that answers, but is not ready before Run has set it up.
func New(c Config) (*Agent, error) {
	if c.Executor == nil {
		return nil, errors.New("guest agent: no executor")
	}
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.IDs.Now == nil {
		c.IDs.Now = c.Clock
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.TelemetryEvery == 0 {
		c.TelemetryEvery = 10 * time.Second
	}
	root, err := newFileSystem(c.Root, c.Late)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		config: c,
		files:  root,
		status: holdfast.GuestStatus{Instance: c.Guest.Instance, Incarnation: c.Guest.Incarnation},
	}
	a.life, a.end = context.WithCancel(context.Background())
	a.processes = &processes{
		report: a.reportEnd,
		boot:   c.Guest, executor: c.Executor, files: root, clock: c.Clock, ids: c.IDs, log: c.Log,
		ready: a.checkReady, closing: make(chan struct{}),
		reader:   spool.Open(c.Spool, spool.Options{Notifier: c.Notifier}),
		byID:     map[holdfast.ProcessID]*process{},
		requests: map[string]*request{},
	}
	return a, nil
}

// Guest is what the agent offers (H11). It has no Log: the console is the host's.
func (a *Agent) Guest() holdfast.Guest {
	return holdfast.Guest{Processes: a.processes, Files: files{a.files}, Status: a.Status}
}

// Status tells whoever asks whether the agent is ready; the call home is the
// same news, and neither waits for the other.
func (a *Agent) Status(context.Context) (holdfast.GuestStatus, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status, nil
}

func (a *Agent) checkReady() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status.Ready {
		return nil
	}
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "the guest is not ready").On(string(a.status.Instance))
}

// Run sets the instance up, calls home with how that went, and sends telemetry
// until ctx ends. An instance whose setup failed goes on answering Status: the
// host ends it. Run's error is only what kept it from calling home.
func (a *Agent) Run(ctx context.Context) error {
	failure := a.setUp(ctx)
	a.mu.Lock()
	a.status.Ready, a.status.Failure = failure == nil, failure
	a.mu.Unlock()
	// Apart, since what stays for the instance's life is to be small: one goroutine,
	// whose stack was never needed for a call.
	var home sync.WaitGroup
	var err error
	home.Go(func() {
		stack.Grow(0)
		err = a.callHome(ctx, failure)
		if err != nil {
			// The host asks too, so this costs a little time and nothing else.
			a.config.Log.Warn("the call home did not arrive", "error", err)
		}
	})
	if a.config.TelemetryEvery > 0 && a.config.Guest.CallbackURL != "" {
		a.sendTelemetry(ctx)
	}
	<-ctx.Done()
	home.Wait()
	return err
}

func (a *Agent) setUp(ctx context.Context) *holdfast.Failure {
	var err error
	if a.config.Late {
		a.processes.writer = spool.LateWriter(a.config.Spool, a.config.Limits)
	} else {
		a.processes.writer, err = spool.NewWriter(a.config.Spool, a.config.Limits)
	}
	if dir := a.config.Guest.Workdir; err == nil && dir != "" {
		if err := a.files.makeDirectories(dir, 0o755); err != nil { // a start in it says so, too
			a.config.Log.Warn("the working directory of the image cannot be made", "directory", dir, "error", err)
		}
	}
	if err == nil && a.config.Setup != nil {
		err = a.config.Setup(ctx)
	}
	if err == nil {
		return nil
	}
	a.config.Log.Error("setup failed", "error", err)
	return &holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: err.Error()}
}

// Close ends all processes, within about twice Grace, and records their ends.
func (a *Agent) Close() error {
	if !a.processes.shut() {
		return nil
	}
	a.end()
	err := a.config.Executor.Close(Grace)
	recorded := make(chan struct{})
	go func() { a.processes.awaiting.Wait(); close(recorded) }()
	timer := time.NewTimer(Grace)
	defer timer.Stop()
	select {
	case <-recorded:
	case <-timer.C:
		err = errors.Join(err, errors.New("guest agent: the ends of some processes are not recorded"))
	}
	a.reports.Wait()
	return errors.Join(err, a.files.close())
}
