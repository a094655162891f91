package hostagent

import (
	"slices"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: C3
func TestC3_TheRegistryLeavesNoCellEmpty(t *testing.T) {
	r := Registry()
	for _, missing := range r.Validate() {
		t.Error(missing)
	}
	b := build(t, newWorld(), t.TempDir(), newClock())
	named := map[string]bool{}
	for _, s := range r.Resources[0].States {
		named[s.Name] = true
		if !slices.Contains(b.sweeps.Names(), s.Sweep) {
			t.Errorf("state %s: sweep %q does not run", s.Name, s.Sweep)
		}
	}
	for s := range holdfast.InstanceTransitions() {
		fleets := s == holdfast.InstancePlaced || s == holdfast.InstanceUnknown
		if named[string(s)] == fleets {
			t.Errorf("state %s: registered %v; a host never sees it: %v", s, named[string(s)], fleets)
		}
	}
}
