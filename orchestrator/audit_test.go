package orchestrator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/audit"
)

// Audit is a fleet's with one host, both whole.
func (f *fleet) Audit(context.Context) ([]holdfast.PartyAudit, error) {
	return []holdfast.PartyAudit{
		{Party: holdfast.PartyFleet, Name: "fl-1", Reachable: true},
		{Party: holdfast.PartyHostAgent, Name: "ho-1", Reachable: true},
	}, nil
}

// contract: F1. The sweeps' last runs are those of the process that answers.
func TestF1_TheMatrixHasOurOwnRegistryAndLastRunsAndTheFleets(t *testing.T) {
	h := newHarness(t)
	run, err := h.sweeps.RunOnce(t.Context(), SweepInbox)
	if err != nil {
		t.Fatal(err)
	}
	matrix, err := h.GetMatrix(t.Context(), alice)
	if err != nil || len(matrix.Parties) != 3 {
		t.Fatalf("%+v, %v", matrix, err)
	}
	own := matrix.Parties[0]
	if own.Party != holdfast.PartyOrchestrator || !own.Reachable || len(own.Hops) != len(Registry().Hops) || len(own.Missing) != 0 {
		t.Errorf("our own part: %+v", own)
	}
	at := slices.IndexFunc(own.Sweeps, func(s holdfast.AuditSweep) bool { return s.Name == SweepInbox })
	if at < 0 || own.Sweeps[at].LastRun == nil || !own.Sweeps[at].LastRun.Began.Equal(run.Began) {
		t.Errorf("the run that began %s is not shown: %+v", run.Began, own.Sweeps)
	}
	if len(own.Sweeps) != len(h.Sweeps()) {
		t.Errorf("%d sweeps are shown, %d run", len(own.Sweeps), len(h.Sweeps()))
	}
	if matrix.Parties[1].Party != holdfast.PartyFleet || matrix.Parties[2].Name != "ho-1" {
		t.Errorf("the fleet's: %+v", matrix.Parties[1:])
	}
}

// contract: F1. A fleet that is silent or fails is listed; the call never hangs.
func TestF1_AFleetThatDoesNotAnswerIsListedAsSuch(t *testing.T) {
	who := holdfast.PartyAudit{Party: holdfast.PartyFleet}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		parts := audit.Ask(t.Context(), holdfast.AuditWait, who, func(ctx context.Context) ([]holdfast.PartyAudit, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if took := time.Since(began); took != holdfast.AuditWait {
			t.Errorf("it took %s", took)
		}
		if len(parts) != 1 || parts[0].Reachable || parts[0].Party != holdfast.PartyFleet || parts[0].Problem != "no answer within 4s" {
			t.Errorf("%+v", parts)
		}
	})
	down := newHarness(t, func(c *Config) { c.Fleet = failing{newFleet()} })
	matrix, err := down.GetMatrix(t.Context(), alice)
	if err != nil || len(matrix.Parties) != 2 || matrix.Parties[1].Reachable || !strings.Contains(matrix.Parties[1].Problem, "connection refused") {
		t.Fatalf("%+v, %v", matrix.Parties, err)
	}
	faults := strings.Join(matrix.Faults(), "\n")
	for _, want := range []string{"fleet: not reached: connection refused", SweepOperations + " is late"} {
		if !strings.Contains(faults, want) { // nobody runs the sweeps here
			t.Errorf("%q is not said:\n%s", want, faults)
		}
	}
	if strings.Contains(faults, "hostagent") {
		t.Errorf("hosts that nobody could name are missed:\n%s", faults)
	}
}

type failing struct{ *fleet }

func (failing) Audit(context.Context) ([]holdfast.PartyAudit, error) {
	return nil, errors.New("connection refused")
}
