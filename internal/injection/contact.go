package injection

import (
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
	}
}
