package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// contract: F1. One process shows all three parties, whole, and soon each of
// their sweeps' last runs.
func TestF1_OneProcessShowsAllThreePartiesAndTheirSweeps(t *testing.T) {
	s, api := start(t, Config{SweepEvery: 50 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var matrix holdfast.AuditMatrix
	ran := func(s holdfast.AuditSweep) bool { return s.LastRun != nil }
	for whole := false; !whole; {
		var err error
		if matrix, err = api.Audit.GetMatrix(ctx, holdfast.Caller{}); err != nil {
			t.Fatalf("%v; the last: %+v", err, matrix)
		}
		whole = len(matrix.Parties) == 3
		for _, p := range matrix.Parties {
			whole = whole && p.Reachable && !slices.ContainsFunc(p.Sweeps, func(s holdfast.AuditSweep) bool { return !ran(s) })
		}
	}
	if faults := matrix.Faults(); len(faults) != 0 {
		t.Errorf("faults: %s", strings.Join(faults, "\n"))
	}
	for i, party := range []string{holdfast.PartyOrchestrator, holdfast.PartyFleet, holdfast.PartyHostAgent} {
		p := matrix.Parties[i]
		if p.Party != party || p.Name == "" || len(p.Hops) == 0 || len(p.Resources) == 0 || len(p.Sweeps) == 0 || len(p.Missing) != 0 {
			t.Errorf("%s: %+v", party, p)
		}
	}
	if got := matrix.Parties[2].Name; got != string(s.host.ID()) {
		t.Errorf("the host is %s, not %s", got, s.host.ID())
	}
	told := map[string]bool{}
	for _, p := range matrix.Parties {
		for _, h := range p.Hops {
			told[h.Name] = true
		}
	}
	for _, hop := range []string{"H1", "H2", "H3", "H4", "H5", "H6", "H7", "H8", "H11"} {
		if !told[hop] {
			t.Errorf("nobody tells about %s", hop)
		}
	}
}
