package hostagent

import (
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: F1. A host tells its own registry, whole, and what its sweeps did.
func TestF1_AHostTellsItsOwnRegistryAndLastRuns(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock())
	_, err := b.RunSweep(t.Context(), SweepOrphans)
	must(t, err, "sweep")
	part, err := b.Audit(t.Context())
	must(t, err, "audit")
	if part.Party != holdfast.PartyHostAgent || part.Name != string(b.ID()) || !part.Reachable || len(part.Missing) != 0 {
		t.Errorf("%+v", part)
	}
	ran := map[string]bool{}
	for _, s := range part.Sweeps {
		ran[s.Name] = s.LastRun != nil
	}
	if len(ran) != len(b.Sweeps()) || !ran[SweepOrphans] {
		t.Errorf("sweeps: %+v", part.Sweeps)
	}
}
