package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
)

// watcher follows a service until it is stopped.
type watcher struct {
	events chan holdfast.SandboxEvent
	stop   context.CancelFunc
	ended  chan error
}

func (h *harness) watch(after string) *watcher {
	ctx, stop := context.WithCancel(h.t.Context())
	w := &watcher{events: make(chan holdfast.SandboxEvent), stop: stop, ended: make(chan error, 1)}
	go func() {
		w.ended <- h.WatchSandboxes(ctx, alice, holdfast.WatchSandboxes{After: after}, func(e holdfast.SandboxEvent) error {
			select {
			case w.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	h.t.Cleanup(stop)
	return w
}

// next is the next event; one without a sandbox only where it is wanted.
func (w *watcher) next(t *testing.T) holdfast.SandboxEvent {
	t.Helper()
	select {
	case e := <-w.events:
		return e
	case err := <-w.ended:
		t.Fatalf("the watch ended: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
	}
	return holdfast.SandboxEvent{}
}

// until reads events until one of a sandbox is as it should be, and returns it.
func (w *watcher) until(t *testing.T, id holdfast.SandboxID, ok func(holdfast.Sandbox) bool) holdfast.SandboxEvent {
	t.Helper()
	for {
		if e := w.next(t); e.Sandbox != nil && e.Sandbox.ID == id && ok(*e.Sandbox) {
			return e
		}
	}
}

func in(state holdfast.SandboxState) func(holdfast.Sandbox) bool {
	return func(sb holdfast.Sandbox) bool { return sb.State == state && sb.Operation == nil }
}

// contract: A5
func TestA5_AWatchBeginsWithWhatThereIsThenTellsEveryChange(t *testing.T) {
	h := newHarness(t)
	first, second := h.mustCreate("r1"), h.mustCreate("r2")
	gone := h.mutateOK(h.DeleteSandbox, h.mustCreate("r3").ID)
	w := h.watch("")
	seen := map[holdfast.SandboxID]bool{}
	last := w.next(t)
	for ; last.Sandbox != nil; last = w.next(t) {
		seen[last.Sandbox.ID] = true
	}
	if len(seen) != 2 || !seen[first.ID] || !seen[second.ID] || seen[gone.ID] || last.Version == "" {
		t.Fatalf("it began with %v, then %+v", seen, last)
	}
	h.mutateOK(h.SuspendSandbox, first.ID)
	w.until(t, first.ID, in(holdfast.SandboxSuspended))
	if _, err := h.extend(second.ID, 3*time.Hour); err != nil {
		t.Fatal(err)
	}
	w.until(t, second.ID, func(sb holdfast.Sandbox) bool { return time.Until(sb.ExpiresAt) > 2*time.Hour })
	third := h.mustCreate("r4")
	w.until(t, third.ID, in(holdfast.SandboxReady))
	h.mutateOK(h.DeleteSandbox, second.ID)
	w.until(t, second.ID, in(holdfast.SandboxDeleted))
	w.stop()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	other := 0
	ctx, stop := context.WithCancel(t.Context())
	err := h.WatchSandboxes(ctx, holdfast.Caller{Project: "pj-other"}, holdfast.WatchSandboxes{}, func(e holdfast.SandboxEvent) error {
		if e.Sandbox != nil {
			other++
		}
		stop()
		return nil
	})
	if other != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("another project saw %d, %v", other, err)
	}
}

// contract: A5
func TestA5_AWatchGoesOnAfterAVersionAndMissesNoDeletion(t *testing.T) {
	h := newHarness(t)
	kept, gone, later := h.mustCreate("r1"), h.mustCreate("r2"), h.mustCreate("r3")
	w := h.watch("")
	var version string
	for e := w.next(t); e.Sandbox != nil; e = w.next(t) {
		version = e.Version
	}
	w.stop()
	h.mutateOK(h.DeleteSandbox, gone.ID)
	h.mutateOK(h.SuspendSandbox, later.ID)
	other := newHarnessOn(t, h.db, h.fleet) // the connection breaks, and another replica answers
	w = other.watch(version)
	seen := map[holdfast.SandboxID]holdfast.SandboxState{}
	e := w.next(t)
	for ; e.Sandbox != nil; e = w.next(t) {
		seen[e.Sandbox.ID] = e.Sandbox.State
	}
	if len(seen) != 2 || seen[gone.ID] != holdfast.SandboxDeleted || seen[later.ID] != holdfast.SandboxSuspended {
		t.Fatalf("after %s: %v, without %s", version, seen, kept.ID)
	}
	w.stop()
	if e = h.watch(e.Version).next(t); e.Sandbox != nil {
		t.Fatalf("nothing changed, and %+v came", e.Sandbox)
	}
	for _, nonsense := range []string{"x", "-1", "7x.sb", "7@", "7.sb@x", "7@-1"} {
		err := h.WatchSandboxes(t.Context(), alice, holdfast.WatchSandboxes{After: nonsense}, nil)
		wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
	}
	err := h.WatchSandboxes(t.Context(), alice, holdfast.WatchSandboxes{After: "1000"}, nil)
	wantError(t, err, holdfast.OutOfRange, holdfast.ReasonBeginAnew) // trap T52
}

// contract: A5: what is pending is part of what is watched.
func TestA5_AWatchTellsWhatIsPendingAndWhy(t *testing.T) {
	h := newHarness(t)
	w := h.watch("")
	var answer error
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		w.until(t, holdfast.SandboxID(l.Spec.Owner), func(sb holdfast.Sandbox) bool { return sb.Operation != nil && sb.Operation.Claim != nil })
		if answer != nil {
			return holdfast.Observation{}, answer
		}
		return h.fleet.reach(l)
	})
	answer = holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	_, err := h.create("r1")
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonUnreachable)
	id := holdfast.SandboxID(holdfast.AsError(err).Resource)
	w.until(t, id, func(sb holdfast.Sandbox) bool {
		return sb.Operation != nil && sb.Operation.LastError != nil && sb.Operation.Attempts == 1 && sb.Operation.Claim == nil
	})
	answer = nil
	h.mustCreate("r1")
	w.until(t, id, in(holdfast.SandboxReady))
}

// trap T18: a change that commits after a later one is not behind what was seen.
func TestT18_AChangeThatCommitsLateIsNotSkipped(t *testing.T) {
	h := newHarness(t)
	slow, quick := h.mustCreate("r1"), h.mustCreate("r2")
	w := h.watch("")
	for e := w.next(t); e.Sandbox != nil; e = w.next(t) {
	}
	wrote, passed := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- h.db.Update(t.Context(), func(tx store.Tx) error {
			r, _, now, err := lockRow(t.Context(), tx, slow.ID)
			if err != nil {
				return err
			}
			r.TTL = 7 * time.Hour
			if err := r.save(t.Context(), tx, now); err != nil {
				return err
			}
			if tx.ForUpdate() == "" { // one writer at a time: nothing can overtake
				return nil
			}
			close(wrote)
			select {
			case <-passed:
			case <-time.After(5 * time.Second):
				t.Error("the watch waited for a transaction that is still open")
			}
			return nil
		})
	}()
	if h.locksRows() {
		<-wrote
	}
	if _, err := h.extend(quick.ID, 5*time.Hour); err != nil {
		t.Fatal(err)
	}
	extended := func(sb holdfast.Sandbox) bool { return time.Until(sb.ExpiresAt) > 4*time.Hour }
	changed := func(sb holdfast.Sandbox) bool { return sb.TTL == 7*time.Hour }
	sawSlow, sawQuick := false, false
	for !sawSlow || !sawQuick {
		e := w.next(t)
		if e.Sandbox == nil {
			continue
		}
		sawSlow = sawSlow || e.Sandbox.ID == slow.ID && changed(*e.Sandbox)
		if !sawQuick && e.Sandbox.ID == quick.ID && extended(*e.Sandbox) {
			sawQuick = true
			close(passed) // the watch is past where the slow one would have been
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// contract: A5: a deletion while the first pages are read is not missed, also by a
// watch that breaks off meanwhile and goes on.
func TestA5_WhatIsDeletedWhileAWatchBeginsIsTold(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		h := newHarness(t)
		gone := h.mustCreate("r0")
		before := h.mutateOK(h.DeleteSandbox, h.mustCreate("r-before").ID)
		for i := range watchPage {
			h.mustCreate(fmt.Sprint("r-", i))
		}
		told, shown, after, enough := false, false, "", errors.New("enough")
		take := func(e holdfast.SandboxEvent) error {
			after = e.Version
			switch {
			case e.Sandbox == nil:
				return enough
			case e.Sandbox.ID == before.ID:
				t.Error("what was deleted before is told")
			case e.Sandbox.ID != gone.ID:
			case e.Sandbox.State == holdfast.SandboxDeleted:
				told = true
			case !shown:
				shown = true
				h.mutateOK(h.DeleteSandbox, gone.ID)
				if breaks {
					return enough
				}
			}
			return nil
		}
		for e := enough; after == "" || strings.Contains(after, "@"); {
			if err := h.WatchSandboxes(t.Context(), alice, holdfast.WatchSandboxes{After: after}, take); !errors.Is(err, e) {
				t.Fatal(err)
			}
		}
		if !shown || !told {
			t.Errorf("broken off %v: shown %v, deletion told %v", breaks, shown, told)
		}
	}
}

// trap T18: what is numbered later has a higher number, whoever numbers it.
func TestT18_WhoeverNumbersWaitsForWhoeverDoes(t *testing.T) {
	h := newHarness(t)
	if !h.locksRows() {
		t.Log("one writer at a time: nobody overtakes")
		return
	}
	first, second := h.mustCreate("r1"), h.mustCreate("r2")
	if _, err := h.number(t.Context(), holdfast.ProjectDefault); err != nil {
		t.Fatal(err)
	}
	change := func(id holdfast.SandboxID) {
		if _, err := h.extend(id, 2*time.Hour); err != nil {
			t.Error(err)
		}
	}
	change(first.ID)
	done := make(chan error, 1)
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		n, err := lockNumbers(t.Context(), tx, holdfast.ProjectDefault)
		if err != nil {
			return err
		}
		if _, err := n.give(t.Context(), tx, holdfast.ProjectDefault); err != nil {
			return err
		}
		change(second.ID)
		go func() {
			_, err := h.number(t.Context(), holdfast.ProjectDefault)
			done <- err
		}()
		return awaitWaiter(t, tx)
	})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if n := h.count(`SELECT b.version - a.version FROM sandbox a, sandbox b WHERE a.id = $1 AND b.id = $2`, string(first.ID), string(second.ID)); n != 1 {
		t.Errorf("the second was numbered %d after the first", n)
	}
}

// locksRows reports whether writers can overtake each other.
func (h *harness) locksRows() (locks bool) {
	h.t.Helper()
	err := h.db.Update(h.t.Context(), func(tx store.Tx) error {
		locks = tx.ForUpdate() != ""
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return locks
}

// A watcher that does not take an event in time hears so, and misses nothing.
func TestASlowWatcherIsToldToComeAgain(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.WatchPatience = time.Nanosecond })
	sb := h.mustCreate("r1")
	err := h.WatchSandboxes(t.Context(), alice, holdfast.WatchSandboxes{}, func(holdfast.SandboxEvent) error { return nil })
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonSlow)
	after := holdfast.AsError(err).Details["after"]
	h.mutateOK(h.SuspendSandbox, sb.ID)
	err = h.WatchSandboxes(t.Context(), alice, holdfast.WatchSandboxes{After: after}, func(e holdfast.SandboxEvent) error {
		if e.Sandbox == nil || e.Sandbox.State != holdfast.SandboxSuspended {
			t.Errorf("after %s: %+v", after, e)
		}
		return nil
	})
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonSlow)
}

// More than a page, and more than one number's batch, with what is told once.
func TestAWatchPagesThroughAProjectThatWasNeverWatched(t *testing.T) {
	h := newHarness(t)
	const n = numberBatch + watchPage + 7
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		for i := range n {
			r := h.newRow(alice, holdfast.CreateSandbox{RequestID: fmt.Sprint(i), Environment: "base"}, "base")
			r.CreatedAt, r.MintedAt, r.Generation = time.Now(), time.Now(), 1
			if err := r.insert(t.Context(), tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w := h.watch("")
	seen := map[holdfast.SandboxID]bool{}
	for e := w.next(t); e.Sandbox != nil; e = w.next(t) {
		if seen[e.Sandbox.ID] {
			t.Fatalf("%s came twice", e.Sandbox.ID)
		}
		seen[e.Sandbox.ID] = true
	}
	if len(seen) != n {
		t.Fatalf("%d of %d", len(seen), n)
	}
}

// trap T21: nothing rings for what another process changed.
func TestT21_AWatchSeesChangesOfAnotherProcessWithoutABell(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.WatchPoll = 20 * time.Millisecond })
	other := newHarnessOn(t, h.db, h.fleet)
	w := h.watch("")
	sb := other.mustCreate("r1")
	w.until(t, sb.ID, in(holdfast.SandboxReady))
}

// Writers on two services, watchers that break off at random and go on at either:
// in the end each has the last of every sandbox.
func TestA5_WatchersThatBreakOffMissNothing(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.WatchPoll = 50 * time.Millisecond; c.HeldWait = 5 * time.Second })
	other := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.WatchPoll = 50 * time.Millisecond; c.HeldWait = 5 * time.Second })
	services := []*harness{h, other}
	var ids []holdfast.SandboxID
	for i := range 6 {
		ids = append(ids, h.mustCreate(fmt.Sprint("r", i)).ID)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers, watchers sync.WaitGroup
	finals := make([]*lastSeen, 4)
	for i := range finals {
		finals[i] = &lastSeen{seen: map[holdfast.SandboxID]holdfast.Sandbox{}}
		watchers.Go(func() { finals[i].follow(ctx, t, services, uint64(i)) })
	}
	for i := range 4 {
		writers.Go(func() { change(t, services[i%2], ids, uint64(i)) })
	}
	writers.Wait()
	h.mutateOK(h.DeleteSandbox, ids[0])
	for i, f := range finals {
		ok := testenv.Eventually(20*time.Second, func() bool { return f.agrees(h, ids) })
		if !ok {
			t.Errorf("watcher %d does not have the last of everything after %d connections", i, f.connections)
		}
	}
	stop()
	watchers.Wait()
}

// change makes random changes; whatever is refused or held is no matter here.
func change(t *testing.T, h *harness, ids []holdfast.SandboxID, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2))
	for range 40 {
		id := ids[random.IntN(len(ids))]
		var err error
		switch random.IntN(3) {
		case 0:
			_, err = h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: id})
		case 1:
			_, err = h.ResumeSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: id})
		default:
			_, err = h.SetSandboxLifetime(t.Context(), alice, holdfast.SetSandboxLifetime{ID: id, TTL: time.Duration(1+random.IntN(600)) * time.Minute})
		}
		if code := holdfast.CodeOf(err); err != nil && code != holdfast.Aborted && code != holdfast.FailedPrecondition {
			t.Error(err)
		}
	}
}

// lastSeen is what one watcher knows.
type lastSeen struct {
	mu          sync.Mutex
	seen        map[holdfast.SandboxID]holdfast.Sandbox
	connections int
}

var errBroken = errors.New("the connection broke")

func (l *lastSeen) follow(ctx context.Context, t *testing.T, services []*harness, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	for after := ""; ctx.Err() == nil; {
		lasts := 1 + random.IntN(12)
		err := services[random.IntN(2)].WatchSandboxes(ctx, alice, holdfast.WatchSandboxes{After: after}, func(e holdfast.SandboxEvent) error {
			if lasts--; lasts < 0 && e.Sandbox != nil {
				return errBroken // the event itself is lost
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			after = e.Version
			if e.Sandbox != nil {
				l.seen[e.Sandbox.ID] = *e.Sandbox
			}
			return nil
		})
		if !errors.Is(err, errBroken) && ctx.Err() == nil {
			t.Error(err)
			return
		}
		l.mu.Lock()
		l.connections++
		l.mu.Unlock()
	}
}

func (l *lastSeen) agrees(h *harness, ids []holdfast.SandboxID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		want, got := h.get(id), l.seen[id]
		if got.State != want.State || got.Generation != want.Generation || !got.ExpiresAt.Equal(want.ExpiresAt) || !got.UpdatedAt.Equal(want.UpdatedAt) {
			return false
		}
	}
	return true
}
