package interleaving

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/internal/prove"
)

const (
	suspend = holdfast.OperationSuspend
	resume  = holdfast.OperationResume
	remove  = holdfast.OperationDelete
)

func race(actors ...actor) []actor { return actors }

// pairs are races of two, verb against verb and verb against message.
func pairs() []scenario {
	return []scenario{
		// Verb against verb.
		{name: "create twice", traps: "T1 T8", setup: nothing, actors: race(creates(0), creates(1)), check: oneBoot},
		{name: "create again, abandoned", traps: "T1 T38", setup: abandoned, actors: race(creates(0), creates(1)), check: oneBoot},
		{name: "create again, booted", traps: "T1 T49", setup: booted, actors: race(creates(0), creates(1)), check: oneBoot},
		{name: "create against delete", traps: "T38 T39", setup: abandoned, actors: race(creates(0), deletes(1))},
		{name: "create against suspend", setup: abandoned, actors: race(creates(0), suspends(1))},
		{name: "create against extend", setup: abandoned, actors: race(creates(0), extends(1))},
		{name: "suspend twice", setup: isReady, actors: race(suspends(0), suspends(1)), check: ends(holdfast.SandboxSuspended)},
		{name: "suspend against resume", setup: isReady, actors: race(suspends(0), resumes(1))},
		{name: "suspend against delete", setup: isReady, actors: race(suspends(0), deletes(1))},
		{name: "suspend against extend", traps: "T43", setup: isReady, actors: race(suspends(0), extends(1))},
		{name: "resume twice", traps: "T51", setup: isSuspended, actors: race(resumes(0), resumes(1)), check: ends(holdfast.SandboxReady)},
		{name: "resume against suspend", traps: "T51", setup: isSuspended, actors: race(resumes(0), suspends(1))},
		{name: "resume against delete", setup: isSuspended, actors: race(resumes(0), deletes(1))},
		{name: "resume against extend", traps: "T43", setup: isSuspended, actors: race(resumes(0), extends(1))},
		{name: "delete twice", setup: isReady, actors: race(deletes(0), deletes(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "delete against extend", traps: "T43", setup: isReady, actors: race(deletes(0), extends(1))},
		{name: "resume over a pending suspend, against its sweep", traps: "T11", setup: isHalf(isReady, suspend), actors: race(resumes(0), carriesOn(1))},
		{name: "suspend over a pending resume, against its sweep", traps: "T11", setup: isHalf(isSuspended, resume), actors: race(suspends(0), carriesOn(1))},
		{name: "delete over a pending suspend, against its sweep", traps: "T11", setup: isHalf(isReady, suspend), actors: race(deletes(0), carriesOn(1)), check: deletedIf("delete 0")},
		{name: "delete again, against its sweep", setup: isHalf(isReady, remove), actors: race(deletes(0), carriesOn(1)), check: ends(holdfast.SandboxDeleted)},

		// Expiry.
		{name: "expiry against extend", traps: "T43", setup: isOver(isReady), actors: race(expires(0), extends(1)), check: notEvicted},
		{name: "expiry against delete", setup: isOver(isReady), actors: race(expires(0), deletes(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "expiry against suspend", setup: isOver(isReady), actors: race(expires(0), suspends(1))},
		{name: "expiry twice", traps: "T28", setup: isOver(isReady), actors: race(expires(0), expires(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "expiry against a pending suspend's sweep", traps: "T26", setup: isOver(isHalf(isReady, suspend)), actors: race(expires(0), carriesOn(1))},

		// Verb against callback.
		{name: "create against ready", traps: "T21", setup: booted, actors: race(creates(0), saysReady(1)), check: oneBoot},
		{name: "create against failed", traps: "T24", setup: booted, actors: race(creates(0), saysFailed(1))},
		{name: "create against exited", setup: hasEnded(booted), actors: race(creates(0), saysExited(1)), check: ends(holdfast.SandboxFailed)},
		{name: "delete against ready", setup: booted, actors: race(deletes(0), saysReady(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "delete against failed", setup: booted, actors: race(deletes(0), saysFailed(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "delete against exited", setup: hasEnded(isReady), actors: race(deletes(0), saysExited(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "suspend against exited", setup: hasEnded(isReady), actors: race(suspends(0), saysExited(1)), check: ends(holdfast.SandboxFailed)},
		{name: "resume against exited", setup: hasEnded(isSuspended), actors: race(resumes(0), saysExited(1)), check: ends(holdfast.SandboxFailed)},
		{name: "ready against failed", setup: booted, actors: race(saysReady(0), saysFailed(1))},
		{name: "ready twice", traps: "T16", setup: booted, actors: race(saysReady(0), named("again", saysReady(1)))},
		{name: "exited twice", traps: "T16", setup: hasEnded(restarts), actors: race(saysExited(0), named("again", saysExited(1))), check: incarnation(2)},

		// Sweeps.
		{name: "sweep against attempt", traps: "T26", setup: abandoned, actors: race(creates(0), carriesOn(1)), check: oneBoot},
		{name: "sweep twice", traps: "T28", setup: abandoned, actors: race(carriesOn(0), carriesOn(1)), check: oneBoot},
		{name: "sweep against ready", setup: booted, actors: race(carriesOn(0), saysReady(1)), check: oneBoot},
		{name: "comparison against exited", traps: "T28", setup: hasEnded(restarts), actors: race(compares(0), saysExited(1)), check: incarnation(2)},
		{name: "comparison twice", traps: "T28", setup: hasEnded(restarts), actors: race(compares(0), compares(1)), check: incarnation(2)},
		{name: "comparison against suspend", traps: "T27", setup: isReady, actors: race(compares(0), suspends(1)), check: incarnation(1)},
		{name: "comparison against delete", traps: "T26", setup: hasEnded(isReady), actors: race(compares(0), deletes(1)), check: ends(holdfast.SandboxDeleted)},

		// Old against new.
		{name: "an old boot's exit against its replacement", traps: "T37", setup: isReplaced, actors: race(carriesOn(0), saysExited(1)), check: incarnation(2)},
		{name: "an old boot's ready against its replacement", traps: "T37", setup: isReplaced, actors: race(carriesOn(0), saysReady(1)), check: incarnation(2)},
		{name: "delete against a replacement", setup: isReplaced, actors: race(carriesOn(0), deletes(1)), check: deletedIf("delete 1")},
		{name: "a late create against delete", traps: "T38 T39", setup: abandoned, actors: race(late(0), deletes(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "a late suspend against resume", traps: "T36", setup: isHalf(isReady, suspend), actors: race(late(0), resumes(1)), check: ends(holdfast.SandboxReady)},
		{name: "a late delete against delete", traps: "T39", setup: isHalf(isReady, remove), actors: race(late(0), deletes(1)), check: ends(holdfast.SandboxDeleted)},
		// Keys, quotas, the outbox.
		{name: "purge against a repeated create", traps: "T3 T5 T20", setup: longDeleted, actors: race(purges(0), creates(1)), check: noneLives},
		{name: "purge against a repeated delete", traps: "T5", setup: longDeleted, actors: race(purges(0), deletes(1)), check: noneLives},
		{name: "purge twice", traps: "T28", setup: longDeleted, actors: race(purges(0), purges(1)), check: noneLives},
		{name: "the quota's last sandbox", traps: "T53", setup: roomForOne, actors: race(createsNamed(0, "one"), createsNamed(1, "another")), check: oneOf("create one", "create another")},
		{name: "a delete gives the quota's room back to a create", traps: "T53", setup: fullQuota, actors: race(deletes(0), createsNamed(1, "another"))},
		{name: "two dispatchers", traps: "T19 T24", deep: true, setup: hasMail, actors: race(dispatches(0), dispatches(1)), check: sentOnce},
		{name: "a recovered database catches up, against suspend", traps: "T52", setup: isRecovered, wide: true, actors: race(compares(0), suspends(1))},
		{name: "a recovered database catches up, against delete", traps: "T52", setup: isRecovered, wide: true, actors: race(compares(0), deletes(1)), check: deletedIf("delete 1")},
		{name: "a recovered database catches up twice", traps: "T28 T52", setup: isRecovered, wide: true, actors: race(compares(0), compares(1)), check: ends(holdfast.SandboxReady)},
		{name: "extend twice", setup: isReady, actors: race(extends(0), extends(1)), check: ends(holdfast.SandboxReady)},
	}
}

// triples are races of three.
func triples() []scenario {
	return []scenario{
		{name: "create, delete, ready", traps: "T38", setup: booted, actors: race(creates(0), deletes(1), saysReady(1))},
		{name: "create, delete, failed", setup: booted, actors: race(creates(0), deletes(1), saysFailed(1)), check: deletedIf("delete 1")},
		{name: "create, sweep, ready", traps: "T28", setup: booted, actors: race(creates(0), carriesOn(1), saysReady(1)), check: oneBoot},
		{name: "create, its claim runs out, sweep", traps: "T11 T13 T14", setup: abandoned, actors: race(creates(0), passes(), carriesOn(1)), check: oneBoot},
		{name: "create, its claim runs out, delete", traps: "T11 T14 T38", setup: abandoned, actors: race(creates(0), passes(), deletes(1))},
		{name: "delete that is wanted, claim runs out, ready", traps: "T14", setup: wantsDelete, flat: true, actors: race(passes(), saysReady(1), deletes(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "suspend, its claim runs out, resume", traps: "T11 T14 T15", setup: isReady, actors: race(suspends(0), passes(), resumes(1))},
		{name: "suspend, resume, delete", setup: isReady, actors: race(suspends(0), resumes(1), deletes(1))},
		{name: "suspend, the instance ends, comparison", traps: "T27", setup: isReady, actors: race(suspends(0), dies(), compares(1))},
		{name: "resume, the instance ends, exited", setup: isSuspended, actors: race(resumes(0), dies(), named("exited", saidExited()))},
		{name: "expiry, extend, suspend", traps: "T43", setup: isOver(isReady), actors: race(expires(0), extends(1), suspends(1)), check: notEvicted},
		{name: "expiry, extend, sweep", traps: "T43", setup: isOver(isReady), actors: race(expires(0), extends(1), carriesOn(1)), check: notEvicted},
		{name: "delete, exited, comparison", setup: hasEnded(restarts), actors: race(deletes(0), saysExited(1), compares(1)), check: deletedIf("delete 0")},
		{name: "two deletes and a late create", traps: "T39", setup: abandoned, actors: race(deletes(0), deletes(1), late(0)), check: ends(holdfast.SandboxDeleted)},
	}
}

// deeper are races in which the fleet's and the hosts' steps are apart.
func deeper() []scenario {
	return []scenario{
		{name: "deep: create twice", traps: "T1 T8 T49", deep: true, setup: nothing, actors: race(creates(0), creates(1)), check: oneBoot, long: true},
		{name: "deep: create against delete", traps: "T38 T39", deep: true, setup: abandoned, actors: race(creates(0), deletes(1))},
		{name: "deep: a late create against delete", traps: "T38 T39 T40", deep: true, setup: abandoned, actors: race(late(0), deletes(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "deep: a late suspend against resume", traps: "T36", deep: true, setup: isHalf(isReady, suspend), actors: race(late(0), resumes(1)), check: ends(holdfast.SandboxReady)},
		{name: "deep: suspend against delete", traps: "T51", deep: true, setup: isReady, actors: race(suspends(0), deletes(1))},
		{name: "deep: the host's word against suspend", traps: "T34 T36", deep: true, setup: isReady, actors: race(suspends(0), saysRunning(1)), check: ends(holdfast.SandboxSuspended)},
		{name: "deep: the host's word of an end against delete", traps: "T24", deep: true, setup: hasEnded(isReady), actors: race(deletes(0), saysEnded(1)), check: ends(holdfast.SandboxDeleted)},
		{name: "deep: the host's word twice", traps: "T16 T24", deep: true, setup: hasEnded(isReady), actors: race(saysEnded(0), named("again", saysEnded(1))), check: toldOnce},
		{name: "deep: comparison against the host's word", traps: "T28 T34", deep: true, setup: hasEnded(isReady), actors: race(fleetSweeps(fleet.SweepInstances, 0), saysEnded(1)), check: toldOnce},
		{name: "deep: two comparisons", traps: "T28", deep: true, setup: hasEnded(isReady), actors: race(fleetSweeps(fleet.SweepInstances, 0), named("again", fleetSweeps(fleet.SweepInstances, 1))), check: toldOnce},
		{name: "deep: host return against replacement", traps: "T27", deep: true, setup: lostHost, actors: race(fleetSweeps(fleet.SweepReturns, 0), compares(1))},
		{name: "deep: drain against create", deep: true, setup: nothing, actors: race(drains(0), creates(1))},
		{name: "deep: replacement against delete", traps: "T37 T38", deep: true, setup: isReplaced, actors: race(carriesOn(0), deletes(1)), check: deletedIf("delete 1"), long: true},
		{name: "deep: suspend, resume, the host's word", traps: "T34 T36", deep: true, setup: isHalf(isReady, suspend), actors: race(resumes(0), late(1), saysRunning(1)), check: ends(holdfast.SandboxReady), long: true},
	}
}

// TestProveInterleavings runs each race in every order of its durable steps.
// contract: A6, A7, A11, B3, B4, B7, C1, C4, C5; the traps are in the tables.
func TestProveInterleavings_EveryOrderOfEachRaceComesToTheSame(t *testing.T) {
	budget, whole := prove.Budget(t)
	began := time.Now()
	tpl := newTemplates(t)
	all := scenarios()
	var orders, done, broken int64
	for i, sc := range all {
		if !whole && (sc.long || i%prove.Slice(1, 24) != 0) {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			var until time.Time
			if sc.work && !whole {
				until = time.Now().Add(2 * time.Second)
			}
			if whole { // none takes what all the others need
				until = began.Add(budget)
				if share := time.Now().Add(budget / 10); share.Before(until) {
					until = share
				}
			}
			n, err := sc.explore(t, tpl, until)
			orders += int64(n)
			switch {
			case errors.Is(err, errUnfinished):
				t.Logf("%d orders, and more: %v", n, err)
				return
			case err != nil:
				broken++
				t.Errorf("%s %v", sc.traps, err)
				return
			}
			done++
			t.Logf("%d orders %s", n, sc.traps)
		})
	}
	goal := int64(0)
	if whole {
		goal = 40
	}
	prove.Report(t, prove.Figure{Rung: 2, Name: "races explored in every order", Value: done, Goal: goal, Violations: broken, Note: fmt.Sprintf("%d orders", orders)})
	prove.Report(t, prove.Figure{Rung: 2, Name: "orders of their steps", Value: orders})
}

// verbs are how many of the pairs are verb against verb.
const verbs = 20

// scenarios are all races, and those of the orchestrator's steps once more with the
// fleet's and the hosts' steps apart, and with calls that wait for each other.
func scenarios() []scenario {
	all := slices.Concat(pairs(), triples(), deeper(), workRaces())
	for _, sc := range pairs()[:verbs] {
		sc.name, sc.patient = "patient: "+sc.name, true
		all = append(all, sc)
		sc.name, sc.deep = "all steps, "+sc.name, true
		all = append(all, sc)
	}
	for _, sc := range pairs() {
		sc.name, sc.deep, sc.long = "all steps: "+sc.name, true, sc.wide
		all = append(all, sc)
	}
	for _, sc := range triples() {
		if sc.flat {
			continue
		}
		sc.name, sc.deep, sc.long = "all steps: "+sc.name, true, true
		all = append(all, sc)
	}
	return all
}

func named(name string, a actor) actor { return actor{name, a.do} }

// What holds at the end of some.

func (w *world) now() (holdfast.Sandbox, error) {
	return w.orch[0].GetSandbox(context.Background(), alice, w.sandbox)
}

func ends(state holdfast.SandboxState) func(w *world) error {
	return func(w *world) error {
		sb, err := w.now()
		if err == nil && sb.State != state {
			err = fmt.Errorf("it is %s in the end, not %s", sb.State, state)
		}
		return err
	}
}

func incarnation(n int64) func(w *world) error {
	return func(w *world) error {
		sb, err := w.now()
		if err == nil && sb.Incarnation != n {
			err = fmt.Errorf("it is at incarnation %d in the end, not %d", sb.Incarnation, n)
		}
		return err
	}
}

// deletedIf: an accepted or wanted delete comes true.
func deletedIf(who string) func(w *world) error {
	return func(w *world) error {
		if code := holdfast.CodeOf(w.answers[who].err); code == "" || code == holdfast.Aborted && holdfast.AsError(w.answers[who].err).Details["delete_wanted"] != "" {
			return ends(holdfast.SandboxDeleted)(w)
		}
		return nil
	}
}

// oneBoot: the create is READY, on its first boot, which happened once.
func oneBoot(w *world) error {
	n := 0
	for _, h := range w.hosts {
		n += len(h.living())
	}
	if n != 1 {
		return fmt.Errorf("%d instances live", n)
	}
	return errors.Join(ends(holdfast.SandboxReady)(w), incarnation(1)(w))
}

// notEvicted: whoever was told that it was extended finds it alive.
func notEvicted(w *world) error {
	sb, err := w.now()
	if err == nil && w.answers["extend 1"].err == nil && (sb.State == holdfast.SandboxDeleted || sb.State == holdfast.SandboxDeleting) {
		err = fmt.Errorf("it was extended, and it is %s", sb.State)
	}
	return err
}

// toldOnce: the end was enqueued once for the orchestrator.
func toldOnce(w *world) error {
	n, err := w.count(w.fdb, `SELECT COUNT(*) FROM outbox`)
	if err == nil && n != 1 {
		err = fmt.Errorf("the end was enqueued %d times", n)
	}
	return err
}

// How some begin.

// isReplaced is one whose instance was lost, whose replacement is recorded, and of which nothing has arrived.
func isReplaced(ctx context.Context, w *world) error {
	if err := hasEnded(restarts)(ctx, w); err != nil {
		return err
	}
	w.sever(true)
	err := w.fleetSays(as(ctx, "setup"), 0, 1)
	pass(2 * time.Minute)
	w.sever(false)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.levels = w.levels[:1] // what could come late is the first boot's
	return err
}

// wantsDelete is a create whose attempt is held past its claim, with a delete wanted.
func wantsDelete(ctx context.Context, w *world) error {
	if err := booted(ctx, w); err != nil {
		return err
	}
	w.sever(true)
	defer w.sever(false)
	w.sched.opened(false)
	go func() { _, _ = w.create(as(ctx, "the create's attempt"), 0, "") }() // what it is told is not asked
	if err := w.heldAt("the create's attempt: level RUNNING"); err != nil {
		return err
	}
	w.sched.openedBut("the create's attempt")
	_, err := deletes(1).do(as(ctx, "setup"), w)
	if holdfast.CodeOf(err) != holdfast.Aborted {
		return fmt.Errorf("the delete that meets a live attempt: %w", err)
	}
	return nil
}

// lostHost is a sandbox that restarts, whose host was LOST and is heard again.
func lostHost(ctx context.Context, w *world) error {
	if err := restarts(ctx, w); err != nil {
		return err
	}
	h := w.host()
	h.hush(true)
	for range 4 {
		pass(3 * time.Minute)
		if err := w.fleetSweep(ctx, 0, fleet.SweepHosts); err != nil {
			return err
		}
	}
	h.hush(false)
	return w.fleets[0].Heartbeat(ctx, holdfast.Heartbeat{Host: h.id, Life: "life", Name: string(h.id), URL: h.url(), Runtime: "keeper", BootID: "boot",
		Capacity: holdfast.Capacity{CPUMillis: 8000, MemoryBytes: 8 << 30, Instances: 8}, Sequence: 2, At: time.Now()})
}

// More actors.

// saidExited says exited once the instance has ended, if it has by then.
func saidExited() actor {
	return plain("exited", func(ctx context.Context, w *world) error {
		w.sched.step(ctx, "looks at the host")
		o, err := w.host().GetInstance(ctx, w.instance)
		if err != nil || o.State != holdfast.InstanceExited {
			return err
		}
		return w.fleetSays(ctx, 1, 1)
	})
}

func saysRunning(replica int) actor { return says(replica, holdfast.InstanceRunning) }
func saysEnded(replica int) actor   { return says(replica, holdfast.InstanceExited) }

// says is the host's word on the first boot, as of its first level.
func says(replica int, state holdfast.InstanceState) actor {
	return plain(fmt.Sprintf("the host says %s", state), func(ctx context.Context, w *world) error {
		h := w.host()
		o := holdfast.Observation{Instance: w.instance, Incarnation: 1, Generation: 1, State: state, Host: h.id, Life: "life", At: time.Now()}
		return w.hostSays(ctx, replica, h, o)
	})
}

func fleetSweeps(name string, replica int) actor {
	return plain(name, func(ctx context.Context, w *world) error { return w.fleetSweep(ctx, replica, name) })
}

func drains(replica int) actor {
	return plain("drain", func(ctx context.Context, w *world) error {
		_, err := w.fleets[replica].SetHostDuty(ctx, holdfast.SetHostDuty{Host: w.hosts[0].id, Duty: holdfast.HostDraining, Reason: "test"})
		return err
	})
}
