package injection

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/transport"
)

// calls are what callers ask of the orchestrator (H1).
func calls() []experiment {
	create := about{path: "/CreateSandbox"}
	return []experiment{
		{hop: "H1", message: "CreateSandbox", cell: Twice, does: "the request arrives twice at the same time", run: func(l *lab) (string, error) {
			fault := overlap(l.front, create)
			sb, err := l.create("one")
			if err = errors.Join(err, l.fired(fault)); err != nil {
				return "", err
			}
			return seen(l.once(sb), "one sandbox, one boot")
		}},
		{hop: "H1", message: "CreateSandbox", cell: Late, does: "the request arrives again after its sandbox was deleted", run: func(l *lab) (string, error) {
			kept := l.front.tape(create)
			sb, err := l.create("late")
			if err != nil {
				return "", err
			}
			if _, err := l.client.DeleteSandbox(l, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
				return "", err
			}
			boots := l.machine.bootsInAll()
			status, _, err := l.front.again(l, kept, 0)
			if err != nil || status != 200 {
				return "", fmt.Errorf("answered %d: %w", status, err)
			}
			is, err := l.client.GetSandbox(l, sb.ID)
			if err != nil {
				return "", err
			}
			if is.State != holdfast.SandboxDeleted || l.machine.bootsInAll() != boots {
				return "", fmt.Errorf("it is %s, and %d more booted", is.State, l.machine.bootsInAll()-boots)
			}
			return "answered with the tombstone, nothing booted", nil
		}},
		{hop: "H1", message: "CreateSandbox", cell: Never, does: "the request is lost three times, then its caller repeats it", run: func(l *lab) (string, error) {
			fault := l.front.times(3, transport.Drop, create)
			sb, err := l.create("lost")
			if err = errors.Join(err, l.fired(fault)); err != nil {
				return "", err
			}
			return seen(l.once(sb), "one sandbox, one boot, after %d losses", fault.count())
		}},
	}
}

// levels are the orders downward, to the fleet (H2) and to the host (H3).
func levels() []experiment {
	var all []experiment
	for _, hop := range []struct{ name, path, to string }{{"H2", "/fleet/ensure", "fleet"}, {"H3", "/host/ensure", "host"}} {
		at := about{path: hop.path}
		all = append(all,
			experiment{hop: hop.name, message: "EnsureInstance", cell: Twice, does: "each level arrives at the " + hop.to + " twice at the same time", run: func(l *lab) (string, error) {
				fault := l.wire.always(transport.Overlap, at)
				sb, err := l.create("twice")
				if err == nil {
					_, err = l.client.SuspendSandbox(l, holdfast.MutateSandbox{ID: sb.ID})
				}
				if err = errors.Join(err, l.fired(fault)); err != nil {
					return "", err
				}
				return seen(l.once(sb), "%d levels doubled: one boot, then SUSPENDED", fault.count())
			}},
			experiment{hop: hop.name, message: "EnsureInstance", cell: Late,
				does: "the level RUNNING arrives at the " + hop.to + " again once the sandbox is suspended, and again once it is deleted", run: lateLevel(at)},
			experiment{hop: hop.name, message: "EnsureInstance", cell: Never, does: "every level to the " + hop.to + " is lost, and the caller never comes back", run: func(l *lab) (string, error) {
				fault := l.wire.always(transport.Drop, at)
				id, err := l.abandoned("never", fault)
				if err = errors.Join(err, l.fired(fault)); err != nil {
					return "", err
				}
				l.wire.lift(fault)
				began := time.Now()
				sb, err := l.becomes(id, holdfast.SandboxReady)
				if err != nil {
					return "", err
				}
				_, attempts, err := l.journal(id, holdfast.OperationCreate)
				return seen(errors.Join(err, l.once(sb)), "READY %s after the hop was back, by a sweep, at attempt %d; one boot", since(began), attempts)
			}},
		)
	}
	return all
}

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }

func lateLevel(at about) func(*lab) (string, error) {
	at.body = `"desired":"RUNNING"`
	return func(l *lab) (string, error) {
		kept := l.wire.tape(at)
		sb, err := l.create("late")
		if err != nil {
			return "", err
		}
		suspended, err := l.client.SuspendSandbox(l, holdfast.MutateSandbox{ID: sb.ID})
		if err != nil {
			return "", err
		}
		refused, answer, err := l.wire.again(l, kept, 0)
		if err != nil {
			return "", err
		}
		if refused < 400 || !strings.Contains(answer, string(holdfast.ReasonStaleGeneration)) {
			return "", fmt.Errorf("a level that was overtaken was answered %d %s", refused, answer)
		}
		if err := l.stays(suspended); err != nil {
			return "", err
		}
		if _, err := l.client.DeleteSandbox(l, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			return "", err
		}
		if _, _, err := l.wire.again(l, kept, 0); err != nil {
			return "", err
		}
		list, err := l.machine.List(l)
		if err != nil {
			return "", err
		}
		if len(list) != 0 || l.machine.booted(ref(sb)) != 1 {
			return "", fmt.Errorf("after the delete the runtime has %d instances, and it booted %d times", len(list), l.machine.booted(ref(sb)))
		}
		return "refused with STALE_GENERATION while SUSPENDED; nothing booted after the delete", nil
	}
}

// runtimes are the host's calls to its runtime (H4).
func runtimes() []experiment {
	return []experiment{
		{hop: "H4", message: "prepare, start, suspend, resume, stop", cell: Twice, does: "the answers of Prepare, Start, Suspend and Stop are lost once each, and the calls made again", run: func(l *lab) (string, error) {
			var all []*trouble
			for _, call := range []string{"Prepare", "Start", "Suspend", "Stop"} {
				all = append(all, l.machine.suffer(&trouble{call: call, after: true, most: 1, broken: errLost}))
			}
			sb, err := l.create("lost-answers")
			if err != nil {
				return "", err
			}
			if err := l.once(sb); err != nil {
				return "", err
			}
			if _, err := l.client.SuspendSandbox(l, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
				return "", err
			}
			if _, err := l.client.DeleteSandbox(l, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
				return "", err
			}
			for _, t := range all {
				if l.machine.count(t) == 0 {
					return "", fmt.Errorf("%s: %w", t.call, errNeverFired)
				}
			}
			return seen(l.empty(), "one boot, one end, and nothing is left")
		}},
		{hop: "H4", message: "prepare, start, suspend, resume, stop", cell: Late, does: "Suspend hangs while the sandbox is deleted, and then goes on", run: func(l *lab) (string, error) {
			sb, err := l.create("stalled")
			if err != nil {
				return "", err
			}
			held := make(chan struct{})
			stalled := l.machine.suffer(&trouble{call: "Suspend", held: held, most: 1})
			suspended := make(chan error, 1)
			go func() {
				_, err := l.client.SuspendSandbox(l, holdfast.MutateSandbox{ID: sb.ID})
				suspended <- err
			}()
			if err := l.until("the suspension hangs", func() (bool, error) { return l.machine.count(stalled) == 1, nil }); err != nil {
				close(held)
				return "", errors.Join(err, <-suspended)
			}
			deleted := make(chan error, 1)
			go func() {
				_, err := l.client.DeleteSandbox(l, holdfast.MutateSandbox{ID: sb.ID})
				deleted <- err
			}()
			err = l.until("the delete is recorded as wanted", func() (bool, error) {
				is, err := l.client.GetSandbox(l, sb.ID)
				return err == nil && (is.State == holdfast.SandboxDeleting || is.Operation != nil && is.Operation.Kind == holdfast.OperationSuspend), err
			})
			close(held)
			gaveWay := <-suspended // or it was done: either is right
			if err := errors.Join(err, <-deleted); err != nil {
				return "", err
			}
			return seen(l.empty(), "DELETED, and nothing is left; the suspension %s", map[bool]string{true: "was done before", false: "gave way"}[gaveWay == nil])
		}},
		{hop: "H4", message: "prepare, start, suspend, resume, stop", cell: Never, does: "Prepare fails three times before it has any effect", run: func(l *lab) (string, error) {
			t := l.machine.suffer(&trouble{call: "Prepare", most: 3, broken: errors.New("the runtime is not there")})
			sb, err := l.create("failing")
			if err != nil {
				return "", err
			}
			if l.machine.count(t) < 3 {
				return "", errNeverFired
			}
			return seen(l.once(sb), "READY at the fourth Prepare, one boot")
		}},
	}
}

// empty holds that the runtime has nothing left.
func (l *lab) empty() error {
	return l.until("the runtime has nothing left", func() (bool, error) {
		list, err := l.machine.List(l)
		return err == nil && len(list) == 0, err
	})
}

// guestCalls go to the guest through its host (H11).
func guestCalls() []experiment {
	start := about{path: "/processes/start"}
	run := holdfast.StartProcess{RequestID: "once", Command: "sleep", Args: []string{"60"}}
	return []experiment{
		{hop: "H11", message: "process and file calls", cell: Twice, does: "the start of a process with a request id arrives twice at the same time", run: func(l *lab) (string, error) {
			fault := overlap(l.wire, start)
			sb, err := l.create("exec")
			if err != nil {
				return "", err
			}
			if _, err := l.client.StartProcess(l, sb.ID, run); err != nil {
				return "", err
			}
			list, err := l.client.ListProcesses(l, sb.ID)
			if err == nil && len(list) != 1 {
				err = fmt.Errorf("%d processes run", len(list))
			}
			return seen(errors.Join(err, l.fired(fault)), "one process")
		}},
		{hop: "H11", message: "process and file calls", cell: Late, does: "the start of a process arrives again when its instance was replaced", run: func(l *lab) (string, error) {
			kept := l.wire.tape(start)
			sb, err := l.create("exec", replaced)
			if err != nil {
				return "", err
			}
			if _, err := l.client.StartProcess(l, sb.ID, run); err != nil {
				return "", err
			}
			if err := l.machine.kill(l, ref(sb)); err != nil {
				return "", err
			}
			if sb, err = l.lives(sb.ID, 2); err != nil {
				return "", err
			}
			status, answer, err := l.wire.again(l, kept, 0)
			if err != nil {
				return "", err
			}
			list, err := l.client.ListProcesses(l, sb.ID)
			if err == nil && (status < 400 || len(list) != 0) {
				err = fmt.Errorf("answered %d %s, and %d processes run", status, answer, len(list))
			}
			return seen(err, "refused; nothing runs on incarnation 2")
		}},
		{hop: "H11", message: "process and file calls", cell: Never, does: "the start of a process is lost", run: func(l *lab) (string, error) {
			fault := l.wire.times(1, transport.Drop, start)
			sb, err := l.create("exec")
			if err != nil {
				return "", err
			}
			_, startErr := l.client.StartProcess(l, sb.ID, run)
			if holdfast.CodeOf(startErr) != holdfast.Unavailable {
				return "", fmt.Errorf("the caller hears other than UNAVAILABLE: %w", startErr)
			}
			if _, err := l.client.StartProcess(l, sb.ID, run); err != nil {
				return "", err
			}
			list, err := l.client.ListProcesses(l, sb.ID)
			if err == nil && len(list) != 1 {
				err = fmt.Errorf("%d processes run", len(list))
			}
			return seen(errors.Join(err, l.fired(fault)), "UNAVAILABLE to the caller, whose repeat started one process")
		}},
	}
}
