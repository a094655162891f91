package interleaving

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/orchestrator"
)

// scenario is one race.
type scenario struct {
	name  string
	traps string // of hazards.md, or what users reported
	deep  bool   // the fleet's and the hosts' steps, and reads, are apart as well
	// patient calls wait for another's attempt, and go on once it has ended.
	patient bool
	setup   func(ctx context.Context, w *world) error
	actors  []actor
	check   func(w *world) error // beyond what always holds; nil: nothing
	long    bool                 // make prove only
	wide    bool                 // with all steps apart it is long
	work    bool                 // it has sessions, tasks, builds or checkpoints, and what goes on without a caller takes its steps in order
	flat    bool                 // it holds its actors at the call to the fleet, which all steps apart is none
}

// actor is one side of a race.
type actor struct {
	name string
	do   func(ctx context.Context, w *world) (holdfast.Sandbox, error)
}

// explore runs the scenario in every order and returns how many there were.
func (sc scenario) explore(t *testing.T, tpl *templates, until time.Time) (count int, err error) {
	var o orders
	for {
		var trace []string
		synctest.Test(t, func(t *testing.T) {
			trace, err = sc.once(t.Context(), tpl, &o)
		})
		if err == nil {
			err = o.changed
		}
		if err != nil {
			return count, fmt.Errorf("%w\nin the order\n  %s", err, strings.Join(trace, "\n  "))
		}
		count++
		if !o.next() {
			return count, nil
		}
		if !until.IsZero() && time.Now().After(until) {
			return count, errUnfinished
		}
	}
}

// errUnfinished is a scenario whose time was over before its orders were.
var errUnfinished = errors.New("its time is over")

// once runs one order.
func (sc scenario) once(ctx context.Context, tpl *templates, o *orders) (trace []string, err error) {
	w, err := newWorld(ctx, tpl, sc)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := sc.setup(as(ctx, "setup"), w); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	w.sched.opened(false)
	var acts []func()
	for _, a := range sc.actors {
		acts = append(acts, func() {
			sb, err := a.do(as(ctx, a.name), w)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.answers[a.name] = answer{sb, err}
		})
	}
	if err := w.sched.run(o.pick, acts); err != nil {
		w.sched.opened(true)
		return w.sched.trace, err
	}
	trace = w.sched.trace
	if err := w.rest(ctx); err != nil {
		return trace, err
	}
	if err := w.check(); err != nil {
		return trace, err
	}
	if sc.work {
		if err := w.checkWork(ctx); err != nil {
			return trace, err
		}
	}
	if sc.check == nil {
		return trace, nil
	}
	return trace, sc.check(w)
}

// The sandbox as a race finds it.

const requestID = "the-request"

func (w *world) create(ctx context.Context, replica int, restart holdfast.Restart) (holdfast.Sandbox, error) {
	return w.orch[replica].CreateSandbox(ctx, alice, holdfast.CreateSandbox{RequestID: requestID, Environment: "base", TTL: time.Hour, Restart: restart})
}

func nothing(context.Context, *world) error { return nil }

// isReady is a sandbox that has been READY for a while.
func isReady(ctx context.Context, w *world) error { return w.made(ctx, "") }

// restarts is one that is replaced when its instance is lost.
func restarts(ctx context.Context, w *world) error { return w.made(ctx, holdfast.RestartFresh) }

func (w *world) made(ctx context.Context, restart holdfast.Restart) error {
	sb, err := w.create(ctx, 0, restart)
	w.sandbox, w.instance = sb.ID, sb.Instance
	time.Sleep(2 * time.Minute)
	return err
}

// isSuspended is one that is SUSPENDED.
func isSuspended(ctx context.Context, w *world) error {
	if err := isReady(ctx, w); err != nil {
		return err
	}
	_, err := w.orch[0].SuspendSandbox(ctx, alice, holdfast.MutateSandbox{ID: w.sandbox})
	return err
}

// abandoned is one whose create was recorded, and of which nothing has arrived.
func abandoned(ctx context.Context, w *world) error {
	w.sever(true)
	_, err := w.create(ctx, 0, "")
	w.sever(false)
	if holdfast.CodeOf(err) != holdfast.Unavailable {
		return fmt.Errorf("the create that nobody hears: %w", err)
	}
	w.sandbox = holdfast.SandboxID(holdfast.AsError(err).Resource)
	sb, err := w.orch[0].GetSandbox(ctx, alice, w.sandbox)
	w.instance = sb.Instance
	time.Sleep(2 * time.Minute)
	return err
}

// booted is one whose create arrived, and whose answer was lost.
func booted(ctx context.Context, w *world) error {
	if err := abandoned(ctx, w); err != nil {
		return err
	}
	_, err := w.fleets[0].EnsureInstance(ctx, w.lastLevel())
	return err
}

// isHalf is one on which a verb was recorded whose level never arrived.
func isHalf(setup func(context.Context, *world) error, verb holdfast.OperationKind) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		if err := setup(ctx, w); err != nil {
			return err
		}
		w.sever(true)
		_, err := mutates(verb, 0).do(ctx, w)
		w.sever(false)
		if holdfast.CodeOf(err) != holdfast.Unavailable {
			return fmt.Errorf("the %s that nobody hears: %w", verb, err)
		}
		time.Sleep(2 * time.Minute)
		return nil
	}
}

// isOver is one whose lifetime has ended, and that nobody has looked at since.
func isOver(setup func(context.Context, *world) error) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		err := setup(ctx, w)
		time.Sleep(61 * time.Minute)
		return err
	}
}

// hasEnded is one whose instance has ended, and nobody has said so.
func hasEnded(setup func(context.Context, *world) error) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		err := setup(ctx, w)
		if _, ended := w.host().end(w.instance); !ended && err == nil {
			err = errors.New("there is nothing that could end")
		}
		return err
	}
}

// The actors.

func creates(replica int) actor { return createsAs(replica, "") }

func createsAs(replica int, restart holdfast.Restart) actor {
	return actor{fmt.Sprintf("create %d", replica), func(ctx context.Context, w *world) (holdfast.Sandbox, error) {
		sb, err := w.create(ctx, replica, restart)
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.sandbox == "" {
				w.sandbox, w.instance = sb.ID, sb.Instance
			}
		}
		return sb, err
	}}
}

func mutates(verb holdfast.OperationKind, replica int) actor {
	return actor{fmt.Sprintf("%s %d", strings.ToLower(string(verb)), replica), func(ctx context.Context, w *world) (holdfast.Sandbox, error) {
		in := holdfast.MutateSandbox{ID: w.sandbox}
		switch verb {
		case holdfast.OperationSuspend:
			return w.orch[replica].SuspendSandbox(ctx, alice, in)
		case holdfast.OperationResume:
			return w.orch[replica].ResumeSandbox(ctx, alice, in)
		default:
			return w.orch[replica].DeleteSandbox(ctx, alice, in)
		}
	}}
}

func suspends(replica int) actor { return mutates(holdfast.OperationSuspend, replica) }
func resumes(replica int) actor  { return mutates(holdfast.OperationResume, replica) }
func deletes(replica int) actor  { return mutates(holdfast.OperationDelete, replica) }

func extends(replica int) actor {
	return actor{fmt.Sprintf("extend %d", replica), func(ctx context.Context, w *world) (holdfast.Sandbox, error) {
		return w.orch[replica].ExtendSandbox(ctx, alice, holdfast.ExtendSandbox{ID: w.sandbox, TTL: 3 * time.Hour})
	}}
}

// plain is an actor that gets no sandbox.
func plain(name string, do func(ctx context.Context, w *world) error) actor {
	return actor{name, func(ctx context.Context, w *world) (holdfast.Sandbox, error) { return holdfast.Sandbox{}, do(ctx, w) }}
}

func sweeps(name string, replica int) actor {
	return plain(fmt.Sprintf("%s %d", name, replica), func(ctx context.Context, w *world) error {
		err := w.sweep(ctx, replica, name)
		if holdfast.CodeOf(err) == holdfast.Unavailable || holdfast.CodeOf(err) == holdfast.Aborted {
			return nil // it comes again
		}
		return err
	})
}

func carriesOn(replica int) actor { return sweeps(orchestrator.SweepOperations, replica) }
func compares(replica int) actor  { return sweeps(orchestrator.SweepInstances, replica) }
func expires(replica int) actor   { return sweeps(orchestrator.SweepExpiry, replica) }

func saysReady(replica int) actor {
	return plain(fmt.Sprintf("ready %d", replica), func(ctx context.Context, w *world) error {
		return w.guestSays(ctx, replica, holdfast.DeliveryReady, 1)
	})
}

func saysFailed(replica int) actor {
	return plain(fmt.Sprintf("failed %d", replica), func(ctx context.Context, w *world) error {
		return w.guestSays(ctx, replica, holdfast.DeliveryFailed, 1)
	})
}

func saysExited(replica int) actor {
	return plain(fmt.Sprintf("exited %d", replica), func(ctx context.Context, w *world) error {
		return w.fleetSays(ctx, replica, 1)
	})
}

// late is the last level that was sent, arriving once more.
func late(replica int) actor {
	return plain("a late level", func(ctx context.Context, w *world) error {
		l := w.lastLevel()
		w.sched.step(ctx, "arrives")
		_, err := w.fleets[replica].EnsureInstance(ctx, l)
		if holdfast.CodeOf(err) == holdfast.Aborted || holdfast.CodeOf(err) == holdfast.FailedPrecondition {
			return nil // stale
		}
		return err
	})
}

// dies is the instance ending by itself.
func dies() actor {
	return plain("the instance", func(ctx context.Context, w *world) error {
		w.sched.step(ctx, "ends by itself")
		if h := w.host(); h != nil {
			h.end(w.instance)
		}
		return nil
	})
}

// passes is so much time that every claim runs out.
func passes() actor {
	return plain("time", func(ctx context.Context, w *world) error {
		w.sched.stepFor(ctx, "passes", 2*claimTTL)
		return nil
	})
}
