package fleet

import (
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// contract: C3. Every state of the root's tables, every table of the migrations,
// every delivery kind and every sweep is in the registry, and nothing else is.
func TestC3_TheRegistryIsWhatTheFleetHas(t *testing.T) {
	w := newWorld(t)
	r := Registry()
	for _, gap := range r.Validate() {
		t.Error(gap)
	}
	have := reconcile.Inventory{
		States:     map[string]map[string]bool{"instance": {}, "host": {}, "host-duty": {}},
		Deliveries: []string{string(holdfast.DeliveryObserved), string(holdfast.TelemetryHeartbeat)},
		Sweeps:     w.fleet.sweeps.Names(),
		Hops:       []string{"H2", "H3", "H7", "H8"},
	}
	for s := range holdfast.InstanceTransitions() {
		have.States["instance"][string(s)] = lacks(row{state: s, settled: true})
	}
	for s := range holdfast.HostHealthTransitions() {
		have.States["host"][string(s)] = s == holdfast.HostSuspect
	}
	for s := range holdfast.HostDutyTransitions() {
		have.States["host-duty"][string(s)] = s == holdfast.HostDraining
	}
	for _, m := range Migrations() {
		tables, err := reconcile.TablesOf(m.FS)
		check(t, err)
		have.Tables = append(have.Tables, tables...)
	}
	for _, gap := range r.Compare(have) {
		t.Error(gap)
	}
}
