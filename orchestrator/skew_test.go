package orchestrator

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// skewed are two replicas on one database: the clock of one is days ahead, that of
// the other hours behind. Ids are minted by those clocks too.
func skewed(t *testing.T) (ahead, behind *harness) {
	t.Helper()
	h := newHarness(t)
	replica := func(name string, by time.Duration) *harness {
		clock := func() time.Time { return time.Now().Add(by) }
		return newHarnessOn(t, h.db, h.fleet, func(c *Config) {
			c.Clock, c.Process, c.IDs = clock, name, holdfast.IDs{Now: clock}
		})
	}
	return replica("ahead", holdfast.TombstoneKept+24*time.Hour), replica("behind", -7*time.Hour)
}

var everySweep = []string{SweepOperations, SweepExpiry, SweepInstances, SweepPurge, SweepBoots, SweepInbox, SweepQuotas}

// trap T42; contract: A11: what replicas with wrong clocks make, extend, end and purge
// is right by the database's.
func TestT42_LifetimesAndTombstonesOfReplicasWhoseClocksDifferByDays(t *testing.T) {
	ahead, behind := skewed(t)
	lifetime := func(sb holdfast.Sandbox, least, most time.Duration) {
		t.Helper()
		if left := time.Until(sb.ExpiresAt); left < least || left > most {
			t.Errorf("%s ends in %s, want between %s and %s", sb.ID, left, least, most)
		}
	}
	pairs := [][2]*harness{{ahead, behind}, {behind, ahead}}
	var alive, deleted []holdfast.Sandbox
	for i, pair := range pairs {
		one, other := pair[0], pair[1]
		key := strconv.Itoa(i)
		sb := one.mustCreate("a" + key)
		lifetime(sb, 59*time.Minute, time.Hour)
		if again := other.mustCreate("a" + key); again.ID != sb.ID {
			t.Errorf("a repeat at the other is %s, not %s", again.ID, sb.ID)
		}
		longer, err := other.extend(sb.ID, 2*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		lifetime(longer, 119*time.Minute, 2*time.Hour)
		other.mutateOK(other.SuspendSandbox, sb.ID)
		lifetime(one.get(sb.ID), holdfast.Retention-time.Minute, holdfast.Retention)
		lifetime(one.mutateOK(one.ResumeSandbox, sb.ID), 59*time.Minute, time.Hour)
		if status := other.guestSays("ev", holdfast.DeliveryReady, sb.Instance, 1); status != http.StatusNoContent {
			t.Errorf("the guest's report: %d", status)
		}
		alive = append(alive, sb)
		deleted = append(deleted, other.mutateOK(other.DeleteSandbox, one.mustCreate("d"+key).ID))
	}
	for _, h := range []*harness{ahead, behind} {
		for _, name := range everySweep {
			h.sweep(name)
		}
	}
	for _, sb := range alive {
		if got := behind.get(sb.ID); got.State != holdfast.SandboxReady || got.Operation != nil || got.Incarnation != 1 {
			t.Errorf("after every sweep: %s, %+v", got.State, got.Operation)
		}
	}
	for _, sb := range deleted { // a tombstone of today is no week old, whatever a replica's clock says
		if got := ahead.get(sb.ID); got.State != holdfast.SandboxDeleted || got.Environment == "" {
			t.Errorf("the tombstone: %+v", got)
		}
	}
	for i, sb := range alive { // and what is over by the database's clock ends at either
		ahead.overdue(sb.ID)
		pairs[i][0].sweep(SweepExpiry)
		behind.awaitState(sb.ID, holdfast.SandboxDeleted)
	}
}

// trap T42; contract: A6: a live claim is live to both, and one that is over to both.
func TestT42_ClaimsOfReplicasWhoseClocksDifferByDays(t *testing.T) {
	ahead, behind := skewed(t)
	for i, pair := range [][2]*harness{{ahead, behind}, {behind, ahead}} {
		one, other := pair[0], pair[1]
		sb := one.mustCreate("r" + strconv.Itoa(i))
		entered, leave := make(chan struct{}), make(chan struct{})
		one.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
			if l.Instance != sb.Instance {
				return one.fleet.reach(l)
			}
			close(entered)
			<-leave
			return one.fleet.reach(l)
		})
		done := make(chan error, 1)
		go func() {
			_, err := one.SuspendSandbox(context.WithoutCancel(t.Context()), alice, holdfast.MutateSandbox{ID: sb.ID})
			done <- err
		}()
		<-entered
		_, err := other.ResumeSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID})
		e := holdfast.AsError(err)
		until, parsed := time.Parse(time.RFC3339Nano, e.Details["claim_expires_at"])
		if left := time.Until(until); e.Code != holdfast.Aborted || parsed != nil || left < time.Minute || left > 2*time.Minute ||
			e.RetryAfter <= 0 || e.RetryAfter > 2*time.Minute {
			t.Errorf("a live claim: %v, %s left, retry after %s, %v", err, left, e.RetryAfter, parsed)
		}
		for _, name := range everySweep {
			other.sweep(name)
		}
		if got := other.get(sb.ID); got.Operation == nil || got.Operation.Attempts != 1 {
			t.Errorf("a sweep has been at it: %+v", got.Operation)
		}
		// Its claim ends by the database's clock, as if its holder had slept: the other goes on.
		one.exec(`UPDATE operation SET claim_expires = 1, due_at = 1 WHERE resource_id = $1 AND state = 'PENDING'`, string(sb.ID))
		one.fleet.script(nil)
		if got, err := other.SuspendSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: sb.ID}); err != nil || got.State != holdfast.SandboxSuspended {
			t.Errorf("it is carried on: %s, %v", got.State, err)
		}
		other.mutateOK(other.ResumeSandbox, sb.ID)
		close(leave)
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) && holdfast.CodeOf(err) != holdfast.Aborted {
			t.Errorf("who slept hears %v", err)
		}
		if got := one.awaitState(sb.ID, holdfast.SandboxReady); got.Generation != 3 {
			t.Errorf("generation %d after a suspend and a resume", got.Generation)
		}
	}
}
