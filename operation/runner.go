package operation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// What Do and an attempt's context can say.
var (
	// ErrNotStarted means that the attempt was not called, so the caller still has its claim to release.
	ErrNotStarted = errors.New("the attempt was not started")
	// ErrDraining comes with ErrNotStarted: the process is about to stop.
	ErrDraining = errors.New("no new attempts: the process is stopping")
	// ErrStillRunning comes with ErrNotStarted: an earlier attempt on the operation has not returned in this process.
	ErrStillRunning = errors.New("an earlier attempt is still running here")
	// ErrDetached means that the caller left and the attempt goes on. It comes with the caller's own error.
	ErrDetached = errors.New("the attempt goes on without its caller")
	// ErrStopRequested is the cause of an attempt's cancelled context after Stop.
	ErrStopRequested = errors.New("the attempt was asked to stop")
	// ErrClaimOver is the cause of an attempt's context that ended with its claim.
	ErrClaimOver = errors.New("the attempt's claim is running out")
)

// maxMargin bounds the default margin.
const maxMargin = 10 * time.Second

// RunnerConfig configures a Runner. Its zero value is usable.
type RunnerConfig struct {
	// Clock is the database's clock as this process knows it: the one that claims are judged by. nil: time.Now.
	Clock func() time.Time
	// Margin is how long before its claim's end an attempt's context ends, so that it can still record what it did. 0: a
	// tenth of the claim, at most 10 s.
	Margin time.Duration
	// Logger hears about panics and about attempts that outlive their claims. nil: slog.Default.
	Logger *slog.Logger
}

// Runner runs attempts apart from their callers (contract: A2). It is safe for concurrent use.
type Runner struct {
	config RunnerConfig

	mu       sync.Mutex
	live     map[string]*attempt // by operation id
	draining bool
	idle     chan struct{} // closed when draining and nothing runs
}

type attempt struct {
	claim  Claim
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the attempt has returned and err is set
	err    error
}

// NewRunner returns a Runner with nothing running.
func NewRunner(config RunnerConfig) *Runner {
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	return &Runner{config: config, live: map[string]*attempt{}, idle: make(chan struct{})}
}

// Do runs an attempt under its claim and returns its error. If ctx ends first, Do returns at once with ErrDetached and
// ctx's error, and the attempt runs on: its context carries ctx's values, not its cancellation, and ends only a margin
// before the claim does (cause ErrClaimOver) or by Stop (cause ErrStopRequested). Once that has ended, use Closing to
// record what was done.
//
// One process never runs two attempts on one operation. If an earlier one has outlived its claim, it is asked to stop
// and Do answers ErrNotStarted, as it does when draining or when the claim leaves no time: release the claim then. A
// panic of the attempt is logged with its stack and returned as a *PanicError.
func (r *Runner) Do(ctx context.Context, claim Claim, run func(ctx context.Context) error) error {
	a, attemptCtx, err := r.start(ctx, claim)
	if err != nil {
		return fmt.Errorf("attempt on operation %s: %w: %w", claim.Operation, ErrNotStarted, err)
	}
	go r.run(attemptCtx, a, run)
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
	}
	select {
	case <-a.done: // both at once: what happened says more than that nobody waited
		return a.err
	default:
		return fmt.Errorf("operation %s: %w: %w", claim.Operation, ErrDetached, ctx.Err())
	}
}

func (r *Runner) start(ctx context.Context, claim Claim) (*attempt, context.Context, error) {
	left := r.left(claim)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return nil, nil, ErrDraining
	}
	if earlier := r.live[claim.Operation]; earlier != nil {
		if earlier.claim.Number < claim.Number {
			earlier.cancel(ErrClaimOver)
		}
		return nil, nil, ErrStillRunning
	}
	if left <= 0 {
		return nil, nil, ErrClaimOver
	}
	attemptCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	attemptCtx, release := context.WithTimeoutCause(attemptCtx, left, ErrClaimOver)
	a := &attempt{claim: claim, done: make(chan struct{})}
	a.cancel = func(cause error) {
		cancel(cause)
		release()
	}
	r.live[claim.Operation] = a
	return a, attemptCtx, nil
}

// left is how long an attempt may run. The claim's own length bounds it, so that a clock that lags behind the
// database's gives no attempt more time than its claim had (trap T42).
func (r *Runner) left(claim Claim) time.Duration {
	left, whole := claim.Expires.Sub(r.config.Clock()), MaxClaim
	if !claim.Taken.IsZero() {
		whole = claim.Expires.Sub(claim.Taken)
	}
	margin := r.config.Margin
	if margin == 0 {
		margin = min(whole/10, maxMargin)
	}
	return min(left, whole) - margin
}

func (r *Runner) run(ctx context.Context, a *attempt, run func(ctx context.Context) error) {
	returned := false
	defer func() {
		switch p := recover(); {
		case p != nil:
			a.err = &PanicError{Operation: a.claim.Operation, Value: p, Stack: debug.Stack()}
			r.config.Logger.Error("attempt panicked", "operation", a.claim.Operation, "claim", a.claim.Number,
				"panic", p, "stack", string(debug.Stack()))
		case !returned:
			a.err = fmt.Errorf("attempt on operation %s ended its goroutine", a.claim.Operation)
		}
		if over := r.config.Clock().Sub(a.claim.Expires); over > 0 {
			r.config.Logger.Warn("attempt outlived its claim", "operation", a.claim.Operation,
				"claim", a.claim.Number, "by", over)
		}
		r.ended(a)
	}()
	a.err = run(ctx)
	returned = true
}

func (r *Runner) ended(a *attempt) {
	a.cancel(context.Canceled)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, a.claim.Operation)
	close(a.done)
	if r.draining && len(r.live) == 0 {
		close(r.idle)
	}
}

// Running returns the claim of the attempt that runs here on an operation. While there is one, taking another claim in
// this process makes no sense: its holder would meet ErrStillRunning.
func (r *Runner) Running(operation string) (Claim, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.live[operation]
	if !ok {
		return Claim{}, false
	}
	return a.claim, true
}

// Len is how many attempts run here.
func (r *Runner) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live)
}

// Stop asks the attempt that runs here on an operation to stop, and reports whether there was one. The attempt ends
// when it heeds its context.
func (r *Runner) Stop(operation string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.live[operation]
	if ok {
		a.cancel(ErrStopRequested)
	}
	return ok
}

// Wait returns when no attempt runs here on an operation, or with ctx's error.
func (r *Runner) Wait(ctx context.Context, operation string) error {
	r.mu.Lock()
	a, ok := r.live[operation]
	r.mu.Unlock()
	if !ok {
		return nil
	}
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for operation %s: %w", operation, ctx.Err())
	}
}

// Drain refuses new attempts from now on, and returns when the running ones have. If ctx ends first, it names those
// that still run: their claims end by themselves.
func (r *Runner) Drain(ctx context.Context) error {
	r.mu.Lock()
	if !r.draining {
		r.draining = true
		if len(r.live) == 0 {
			close(r.idle)
		}
	}
	r.mu.Unlock()
	select {
	case <-r.idle:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.live) == 0 {
		return nil
	}
	ids := make([]string, 0, len(r.live))
	for id := range r.live {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return fmt.Errorf("drain: %d attempts still run (%s): %w", len(ids), strings.Join(ids, ", "), ctx.Err())
}

// Closing returns a context for writing down what an attempt did, when the attempt's own context may have ended: it has
// that context's values and a deadline of its own (trap T46).
func Closing(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), within)
}

// PanicError is an attempt's panic.
type PanicError struct {
	Operation string // id
	Value     any
	Stack     []byte
}

// Error names the operation and the panic's value; the stack is in the log.
func (e *PanicError) Error() string {
	return fmt.Sprintf("attempt on operation %s panicked: %v", e.Operation, e.Value)
}
