package injection

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/transport"
)

// reported is what guests report of a kind.
func reported(kind holdfast.DeliveryKind) about {
	return about{"/deliveries/instances", string(kind)}
}

func ready() about { return reported(holdfast.DeliveryReady) }

// guestDeliveries are what guests report (H5).
func guestDeliveries() []experiment {
	return []experiment{
		{hop: "H5", message: "instance.ready", cell: Twice, does: "the report arrives twice at the same time", run: func(l *lab) (string, error) {
			fault := overlap(l.wire, ready())
			sb, err := l.create("ready")
			if err == nil {
				err = l.until("the report came", func() (bool, error) { return fault.count() > 0, nil })
			}
			if err != nil {
				return "", err
			}
			n, _, err := l.journal(sb.ID, holdfast.OperationCreate)
			if err == nil && n != 1 {
				err = fmt.Errorf("%d creates are in the journal", n)
			}
			return seen(errors.Join(err, l.stays(sb)), "READY once, one operation")
		}},
		{hop: "H5", message: "instance.ready", cell: Late, does: "the first boot's report arrives again when the second runs and is suspended", run: func(l *lab) (string, error) {
			kept := l.wire.tape(ready())
			sb, err := l.create("ready", replaced)
			if err == nil {
				err = l.until("the report came", func() (bool, error) { return kept.count() > 0, nil })
			}
			if err = errors.Join(err, l.machine.kill(l, ref(sb))); err != nil {
				return "", err
			}
			if sb, err = l.lives(sb.ID, 2); err != nil {
				return "", err
			}
			if sb, err = l.client.SuspendSandbox(l, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
				return "", err
			}
			status, _, err := l.wire.again(l, kept, 0)
			if err == nil && (status < 200 || status > 299) {
				err = fmt.Errorf("answered %d", status)
			}
			return seen(errors.Join(err, l.stays(sb)), "answered %d and ignored: SUSPENDED, incarnation 2", status)
		}},
		{hop: "H5", message: "instance.ready", cell: Never, does: "every report is lost, and the caller never comes back", run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Drop, ready())
			answers := l.wire.always(transport.LoseAnswer, about{path: "/fleet/ensure"})
			id, err := l.abandoned("ready", answers)
			if err != nil {
				return "", err
			}
			l.wire.lift(answers)
			began := time.Now()
			sb, err := l.becomes(id, holdfast.SandboxReady)
			if err == nil {
				err = l.until("a report was lost", func() (bool, error) { return fault.count() > 0, nil })
			}
			return seen(errors.Join(err, l.once(sb)), "READY %s later, by asking downward; one boot", since(began))
		}},
		{hop: "H5", message: "instance.failed", cell: Twice, does: "the report arrives twice", run: failedTwice},
		{hop: "H5", message: "instance.failed", cell: Late, does: "a report of the first boot arrives when the second runs", run: func(l *lab) (string, error) {
			sb, err := l.create("failed", replaced)
			if err != nil {
				return "", err
			}
			first := ref(sb)
			if err := l.machine.kill(l, first); err != nil {
				return "", err
			}
			if sb, err = l.lives(sb.ID, 2); err != nil {
				return "", err
			}
			return seen(errors.Join(l.reportFailed(first), l.stays(sb)), "answered 2xx and ignored: READY, incarnation 2")
		}},
		{hop: "H5", message: "instance.failed", cell: Never, does: "the guest dies before it can say so", run: func(l *lab) (string, error) {
			l.machine.fail(true, false)
			began := time.Now()
			id, err := l.abandoned("failed", nil)
			if err != nil {
				return "", err
			}
			sb, err := l.becomes(id, holdfast.SandboxFailed)
			if err == nil && l.machine.deaths() == 0 {
				err = errNeverFired
			}
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("FAILED after %s, %s: %s", since(began), sb.Failure.Reason, sb.Failure.Message), nil
		}},
	}
}

// measurements are guests' telemetry (H6).
func measurements() []experiment {
	return []experiment{
		{hop: "H6", message: "guest.telemetry", cell: Twice, does: "a measurement arrives twice", run: telemetry(func(l *lab, sb holdfast.Sandbox) error {
			return errors.Join(l.measured(sb, "same"), l.measured(sb, "same"))
		})},
		{hop: "H6", message: "guest.telemetry", cell: Late, does: "a measurement arrives when its sandbox is suspended", run: func(l *lab) (string, error) {
			sb, err := l.create("telemetry")
			if err != nil {
				return "", err
			}
			if sb, err = l.client.SuspendSandbox(l, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
				return "", err
			}
			return seen(errors.Join(l.measured(sb, "late"), l.stays(sb)), "taken, and nothing changed")
		}},
		{hop: "H6", message: "guest.telemetry", cell: Never, does: "no measurement ever arrives", run: telemetry(func(l *lab, sb holdfast.Sandbox) error { return nil })},
	}
}

func (l *lab) reportFailed(r holdfast.InstanceRef) error {
	body, err := json.Marshal(holdfast.GuestReport{Instance: r.Instance, Incarnation: r.Incarnation,
		Failure: &holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: "said by an experiment"}})
	if err != nil {
		return err
	}
	id := delivery.DeriveID(string(holdfast.DeliveryFailed), string(r.Instance), r.Incarnation, "boot")
	return l.asGuest(r, "/deliveries/instances", delivery.Message{ID: id, Kind: string(holdfast.DeliveryFailed), Body: body})
}

// failedTwice reports a failure while the boot's own report and the host's answers
// are kept back, so that this one decides.
func failedTwice(l *lab) (string, error) {
	l.wire.always(transport.Drop, ready())
	kept := l.wire.tape(about{path: "/host/ensure"})
	fault := l.wire.always(transport.LoseAnswer, about{path: "/fleet/ensure"})
	l.machine.fail(false, true) // the host does not hear that the guest is ready
	id, err := l.abandoned("failed", nil)
	if err == nil {
		err = l.until("its instance is ordered", func() (bool, error) { return kept.count() > 0, nil })
	}
	if err != nil {
		return "", err
	}
	sb, err := l.client.GetSandbox(l, id)
	if err != nil {
		return "", err
	}
	instance, err := l.instanceOf(kept)
	if err != nil {
		return "", err
	}
	for range 2 {
		if err := l.reportFailed(instance); err != nil {
			return "", err
		}
	}
	l.wire.lift(fault)
	if sb, err = l.becomes(sb.ID, holdfast.SandboxFailed); err != nil {
		return "", err
	}
	n, _, err := l.journal(id, holdfast.OperationCreate)
	if err == nil && (n != 1 || sb.Failure.Reason != holdfast.ReasonSetupFailed) {
		err = fmt.Errorf("%d creates are in the journal, and the reason is %s", n, sb.Failure.Reason)
	}
	return seen(err, "FAILED once, for the reason that the guest gave")
}

// instanceOf reads from a level on the wire whose it is.
func (l *lab) instanceOf(r *rule) (holdfast.InstanceRef, error) {
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	if len(r.taped) == 0 {
		return holdfast.InstanceRef{}, errNeverFired
	}
	var level holdfast.Level
	err := json.Unmarshal(r.taped[0].body, &level)
	return holdfast.InstanceRef{Instance: level.Instance, Incarnation: level.Incarnation}, err
}

func (l *lab) measured(sb holdfast.Sandbox, id string) error {
	return l.asGuest(ref(sb), "/telemetry", delivery.Message{ID: "msg_" + id, Kind: string(holdfast.TelemetryGuest), Body: []byte(`{"processes":1}`)})
}

func telemetry(do func(*lab, holdfast.Sandbox) error) func(*lab) (string, error) {
	return func(l *lab) (string, error) {
		l.wire.always(transport.Drop, about{path: "/telemetry"}) // the guest's own
		sb, err := l.create("telemetry")
		if err != nil {
			return "", err
		}
		return seen(errors.Join(do(l, sb), l.stays(sb)), "READY all the same, and nothing changed")
	}
}

// facts are what hosts tell the fleet (H7).
func facts() []experiment {
	observed := about{"/deliveries/hosts/", string(holdfast.DeliveryObserved)}
	beats := about{path: "/heartbeat"}
	return []experiment{
		{hop: "H7", message: "instance.observed", cell: Twice, does: "the host's word of an end arrives twice at the same time", run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Overlap, observed)
			saw, err := l.ends()
			return saw, errors.Join(err, l.fired(fault))
		}},
		{hop: "H7", message: "instance.observed", cell: Late, does: "the host's word of the first boot's end arrives again when the second runs", run: func(l *lab) (string, error) {
			kept := l.wire.tape(observed)
			sb, err := l.replacedOnce()
			if err == nil {
				err = l.until("the host has said so", func() (bool, error) { return kept.count() > 0, nil })
			}
			if err != nil {
				return "", err
			}
			status, _, err := l.wire.again(l, kept, 0)
			return seen(errors.Join(err, l.stays(sb)), "answered %d and ignored: READY, incarnation 2", status)
		}},
		{hop: "H7", message: "instance.observed", cell: Never, does: "the host's word of an end is lost, each time", run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Drop, observed)
			saw, err := l.ends()
			return saw, errors.Join(err, l.fired(fault))
		}},
		{hop: "H7", message: "heartbeat", cell: Twice, does: "each heartbeat arrives twice at the same time", run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Overlap, beats)
			sb, err := l.create("beats")
			if err == nil {
				err = l.until("a heartbeat came", func() (bool, error) { return fault.count() > 0, nil })
			}
			return seen(errors.Join(err, l.stays(sb), l.hostIs(holdfast.HostReady)), "the host is READY, once")
		}},
		{hop: "H7", message: "heartbeat", cell: Late, does: "an old heartbeat arrives after newer ones", run: func(l *lab) (string, error) {
			kept := l.wire.tape(beats)
			if err := l.until("two heartbeats came", func() (bool, error) { return kept.count() > 1, nil }); err != nil {
				return "", err
			}
			before, err := l.client.ListHosts(l)
			if err != nil {
				return "", err
			}
			if _, _, err := l.wire.again(l, kept, 0); err != nil {
				return "", err
			}
			after, err := l.client.ListHosts(l)
			if err == nil && (len(after) != 1 || after[0].SeenAt.Before(before[0].SeenAt)) {
				err = fmt.Errorf("%d hosts, the last heartbeat of %s instead of %s", len(after), after[0].SeenAt, before[0].SeenAt)
			}
			return seen(errors.Join(err, l.hostIs(holdfast.HostReady)), "nothing changed: one host, READY")
		}},
		{hop: "H7", message: "heartbeat", cell: Never, does: "no heartbeat arrives, and the host answers nothing, for 20 s and then for 6 min", run: silentHost},
	}
}

// silentHost cuts a host off in both directions.
func silentHost(l *lab) (string, error) {
	sb, err := l.create("silent")
	if err != nil {
		return "", err
	}
	rules := []*rule{l.wire.always(transport.Drop, about{path: "/heartbeat"}), l.wire.always(transport.Drop, about{path: "/host/"}),
		l.wire.always(transport.Drop, about{path: "/deliveries/hosts/"})}
	l.clock.forward(20 * time.Second)
	if err := l.hostIs(holdfast.HostSuspect); err != nil {
		return "", err
	}
	l.clock.forward(6 * time.Minute)
	if err := l.hostIs(holdfast.HostLost); err != nil {
		return "", err
	}
	err = l.until("the sandbox shows that its host does not answer", func() (bool, error) {
		is, err := l.client.GetSandbox(l, sb.ID)
		return err == nil && is.HostUnreachable && is.State == holdfast.SandboxReady, err
	})
	for _, r := range rules {
		l.wire.lift(r)
	}
	if err == nil {
		err = l.hostIs(holdfast.HostReady)
	}
	if err == nil {
		err = l.until("the sandbox is as it was", func() (bool, error) {
			is, err := l.client.GetSandbox(l, sb.ID)
			return err == nil && !is.HostUnreachable && is.State == holdfast.SandboxReady, err
		})
	}
	return seen(errors.Join(err, l.once(sb)), "SUSPECT, LOST, the sandbox READY with host_unreachable; READY again with its host, never booted anew")
}

func (l *lab) hostIs(health holdfast.HostHealth) error {
	return l.until("the host is "+string(health), func() (bool, error) {
		hosts, err := l.client.ListHosts(l)
		return err == nil && len(hosts) == 1 && hosts[0].Health == health, err
	})
}

// ends ends an instance behind its host's back, and sees its sandbox FAILED once.
func (l *lab) ends() (string, error) {
	sb, err := l.create("ends")
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := l.machine.kill(l, ref(sb)); err != nil {
		return "", err
	}
	failed, err := l.becomes(sb.ID, holdfast.SandboxFailed)
	if err != nil {
		return "", err
	}
	again, err := l.client.GetSandbox(l, sb.ID)
	if err == nil && again.Generation != failed.Generation {
		err = errors.New("it was changed again")
	}
	return seen(err, "FAILED once, %s after the end, %s", since(began), failed.Failure.Reason)
}

// replacedOnce has a sandbox on its second boot.
func (l *lab) replacedOnce() (holdfast.Sandbox, error) {
	sb, err := l.create("replaced", replaced)
	if err != nil {
		return sb, err
	}
	if err := l.machine.kill(l, ref(sb)); err != nil {
		return sb, err
	}
	return l.lives(sb.ID, 2)
}

// exits are the fleet's word to the orchestrator that an instance ended (H8).
func exits() []experiment {
	exited := about{path: "/deliveries/fleet"}
	return []experiment{
		{hop: "H8", message: "instance.exited", cell: Twice, does: "the fleet's word of an end arrives twice at the same time", run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Overlap, exited)
			saw, err := l.ends()
			return saw, errors.Join(err, l.fired(fault))
		}},
		{hop: "H8", message: "instance.exited", cell: Late, does: "the fleet's word of the first boot's end arrives again when the second runs", run: func(l *lab) (string, error) {
			kept := l.wire.tape(exited)
			sb, err := l.replacedOnce()
			if err == nil {
				err = l.until("the fleet has said so", func() (bool, error) { return kept.count() > 0, nil })
			}
			if err != nil {
				return "", err
			}
			status, _, err := l.wire.again(l, kept, 0)
			return seen(errors.Join(err, l.stays(sb)), "answered %d and ignored: READY, incarnation 2", status)
		}},
		{hop: "H8", message: "instance.exited", cell: Never, does: "the fleet's word of an end is lost, each time", run: func(l *lab) (string, error) {
			fault := l.wire.always(transport.Drop, exited)
			saw, err := l.ends()
			return saw, errors.Join(err, l.fired(fault))
		}},
	}
}
