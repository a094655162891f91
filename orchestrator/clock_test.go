package orchestrator

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// contract: A6, A11: the clock of one replica is an hour ahead. Claims and
// lifetimes are judged by the database's: it takes no live claim for ended, ends
// no lifetime early, and gives none that is longer.
func TestA6_AReplicaWhoseClockIsAnHourAheadHarmsNothing(t *testing.T) {
	h := newHarness(t)
	ahead := func() time.Time { return time.Now().Add(time.Hour) }
	fast := newHarnessOn(t, h.db, h.fleet, func(c *Config) {
		c.Clock, c.Process = ahead, "fast"
		c.IDs = holdfast.IDs{Now: ahead}
	})
	lives := h.mustCreate("lives")
	its := fast.mustCreate("its")
	for _, sb := range []holdfast.Sandbox{lives, its} {
		if left := time.Until(sb.ExpiresAt); left < 55*time.Minute || left > 61*time.Minute {
			t.Errorf("%s lives for %s more, want an hour", sb.ID, left)
		}
	}

	// An attempt is under way: its claim has two minutes, not less than nothing.
	entered, leave := make(chan struct{}), make(chan struct{})
	h.fleet.script(func(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
		close(entered)
		<-leave
		return holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, State: holdfast.InstanceSuspended}, nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := h.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: lives.ID})
		done <- err
	}()
	<-entered
	if _, err := fast.ResumeSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: lives.ID}); holdfast.CodeOf(err) != holdfast.Aborted {
		t.Errorf("a call that meets the live claim: %v", err)
	}
	for _, name := range []string{SweepOperations, SweepExpiry, SweepInstances} {
		fast.sweep(name)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Errorf("the attempt: %v", err)
	}
	for id, state := range map[holdfast.SandboxID]holdfast.SandboxState{lives.ID: holdfast.SandboxSuspended, its.ID: holdfast.SandboxReady} {
		if got := h.get(id); got.State != state || got.Operation != nil {
			t.Errorf("%s is %s, want %s: %+v", id, got.State, state, got.Operation)
		}
	}
}
