package injection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/transport"
)

// firstContacts are reporters that die before they were ever heard: who notices?
func firstContacts() []experiment {
	return []experiment{
		{message: "orchestrator sandbox", cell: FirstContact, does: "the guest dies as it is started, and so does the attempt that waits for it", run: func(l *lab) (string, error) {
			l.machine.fail(true, false)
			lost := l.wire.times(1, transport.LoseAnswer, about{path: "/fleet/ensure"})
			l.wire.always(transport.Drop, about{path: "/deliveries/fleet"})
			began := time.Now()
			id, err := l.abandoned("stillborn", lost)
			if err = errors.Join(err, l.fired(lost)); err != nil {
				return "", err
			}
			sb, err := l.becomes(id, holdfast.SandboxFailed)
			if err == nil && l.machine.deaths() == 0 {
				err = errNeverFired
			}
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("FAILED by a sweep after %s, %s: %s", since(began), sb.Failure.Reason, sb.Failure.Message), nil
		}},
		{message: "hostagent instance", cell: FirstContact, does: "the guest runs and never says a word, and does not answer", run: func(l *lab) (string, error) {
			l.machine.fail(false, true)
			began := time.Now()
			id, err := l.abandoned("mute", nil)
			if err != nil {
				return "", err
			}
			sb, err := l.becomes(id, holdfast.SandboxFailed)
			if err == nil && (l.machine.deaths() == 0 || sb.Failure.Reason != holdfast.ReasonBootTimeout) {
				err = fmt.Errorf("it failed for %s: %s", sb.Failure.Reason, sb.Failure.Message)
			}
			return seen(errors.Join(err, l.empty()), "FAILED after %s, BOOT_TIMEOUT (3 s here, instead of 2 min); nothing of it is left", since(began))
		}},
		{message: "fleet instance", cell: FirstContact, does: "a host is chosen and never told; 16 min pass, and its heartbeats go on", trustHosts: true, run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Drop, about{"/host/ensure", `"desired":"RUNNING"`})
			id, err := l.abandoned("untold", fault)
			if err = errors.Join(err, l.fired(fault)); err != nil {
				return "", err
			}
			l.clock.forward(16 * time.Minute)
			sb, err := l.becomes(id, holdfast.SandboxFailed)
			if err == nil && l.machine.bootsInAll() != 0 {
				err = errors.New("something booted")
			}
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("FAILED, %s: %s; nothing ever booted", sb.Failure.Reason, sb.Failure.Message), nil
		}},
		{message: "fleet host", cell: FirstContact, does: "a host that has something to boot falls silent before it says how that went", run: func(l *lab) (string, error) {
			held := make(chan struct{})
			defer close(held)
			stalled := l.machine.suffer(&trouble{call: "Prepare", held: held, most: 1})
			id, err := l.abandoned("silent", nil)
			if err == nil {
				err = l.until("the boot hangs", func() (bool, error) { return l.machine.count(stalled) > 0, nil })
			}
			if err != nil {
				return "", err
			}
			for _, path := range []string{"/heartbeat", "/host/", "/deliveries/hosts/"} {
				l.wire.always(transport.Drop, about{path: path})
			}
			l.clock.forward(20 * time.Second)
			if err := l.hostIs(holdfast.HostSuspect); err != nil {
				return "", err
			}
			l.clock.forward(6 * time.Minute)
			if err := l.hostIs(holdfast.HostLost); err != nil {
				return "", err
			}
			l.clock.forward(31 * time.Minute)
			sb, err := l.becomes(id, holdfast.SandboxFailed)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("SUSPECT, LOST; given up after 30 min: FAILED, %s", sb.Failure.Reason), nil
		}},
		{message: "orchestrator session", cell: FirstContact, does: "its sandbox's guest never says a word, an answer that would tell is lost, and the caller has given up", run: muteSession},
		{message: "orchestrator task", cell: FirstContact, does: "its boot is killed before anything was heard of its process, and the fleet's word of that is lost", run: unheardTask},
		{message: "orchestrator build", cell: FirstContact, does: "its builder's guest dies as it is started, and so does the attempt that waits for it", run: func(l *lab) (string, error) {
			l.machine.fail(true, false)
			lost := l.wire.times(1, transport.LoseAnswer, about{path: "/fleet/ensure"})
			l.wire.always(transport.Drop, about{path: "/deliveries/fleet"})
			began := time.Now()
			b, err := l.build("stillborn", longSetup)
			if err == nil {
				b, err = l.buildIs(b.ID, holdfast.BuildFailed)
			}
			if err == nil && (l.machine.deaths() == 0 || b.Process != "") {
				err = errNeverFired
			}
			if err = errors.Join(err, l.fired(lost), l.empty(), b.failedFor(holdfast.ReasonInstanceLost)); err != nil {
				return "", err
			}
			return fmt.Sprintf("FAILED with its builder after %s, %s: %s; nothing of it is left", since(began), b.Failure.Reason, b.why()), nil
		}},
	}
}

// muteSession has a session whose guest runs and is never heard.
func muteSession(l *lab) (string, error) {
	l.machine.fail(false, true)
	lost := l.wire.times(1, transport.LoseAnswer, about{path: "/fleet/ensure"})
	l.wire.always(transport.Drop, about{path: "/deliveries/fleet"})
	began := time.Now()
	err := l.givenUp(lost, func(ctx context.Context) error {
		_, err := l.client.CreateSession(ctx, holdfast.CreateSession{RequestID: "mute", Environment: "base"})
		return err
	})
	page, listing := l.client.ListSessions(l, holdfast.ListSessions{})
	if err = errors.Join(err, listing); err != nil || len(page.Sessions) != 1 {
		return "", errors.Join(err, fmt.Errorf("%d sessions are recorded", len(page.Sessions)))
	}
	se := page.Sessions[0]
	err = l.until("the session is FAILED", func() (bool, error) {
		se, err = l.client.GetSession(l, se.ID)
		return err == nil && se.State == holdfast.SessionFailed && se.Failure != nil, err
	})
	if err != nil {
		return "", fmt.Errorf("%w (it is %s)", err, se.State)
	}
	if l.machine.deaths() == 0 || se.Failure.Reason != holdfast.ReasonBootTimeout {
		return "", fmt.Errorf("it failed for %s: %s", se.Failure.Reason, se.Failure.Message)
	}
	return seen(l.empty(), "FAILED with its sandbox after %s, BOOT_TIMEOUT (3 s here, instead of 2 min); nothing of it is left", since(began))
}

// unheardTask has a task that was started, of which nobody has heard when its boot ends.
func unheardTask(l *lab) (string, error) {
	fault := l.wire.always(transport.LoseAnswer, about{path: "/processes/start"})
	l.wire.always(transport.Drop, about{path: "/deliveries/fleet"})
	se, err := l.session()
	if err != nil {
		return "", err
	}
	t, err := l.submit(se)
	if err == nil {
		err = l.until("its process runs, and the answer that says so is lost", func() (bool, error) {
			err := l.started(se, 1)
			return err == nil && fault.count() > 0, err
		})
	}
	if err != nil {
		return "", err
	}
	if t, err = l.client.GetTask(l, t.ID); err == nil && (t.State != holdfast.TaskRunning || t.Process != "") {
		err = fmt.Errorf("its process is known: it is %s, %s", t.State, t.Process)
	}
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := l.boots(se); err != nil {
		return "", err
	}
	l.wire.lift(fault)
	if t, err = l.taskIs(t.ID, holdfast.TaskFailed); err == nil && t.Failure.Reason != holdfast.ReasonInstanceLost {
		err = fmt.Errorf("it failed for %s: %s", t.Failure.Reason, t.Failure.Message)
	}
	return seen(errors.Join(err, l.started(se, 0)), "FAILED with its boot within %s, INSTANCE_LOST; it is not run again on incarnation 2", since(began))
}
