package architecture

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/hostagent"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// party is one party's registry beside what its code really has.
type party struct {
	registry reconcile.Registry
	have     reconcile.Inventory
}

// transitional lists the states that are meant to be left (lifecycle.md). It is
// kept apart from the registries, so that one cannot excuse itself.
func transitional(kind string) []string {
	switch kind {
	case "sandbox":
		return []string{string(holdfast.SandboxCreating), string(holdfast.SandboxDeleting)}
	case "session":
		return []string{string(holdfast.SessionWaiting), string(holdfast.SessionCreating), string(holdfast.SessionDeleting)}
	case "task":
		return []string{string(holdfast.TaskQueued), string(holdfast.TaskRunning)}
	case "checkpoint":
		return []string{string(holdfast.CheckpointCreating), string(holdfast.CheckpointDeleting)}
	case "hook-action":
		return []string{string(holdfast.HookActionPending)}
	case "build":
		return []string{string(holdfast.BuildBuilding)}
	case "operation":
		return []string{string(holdfast.OperationPending)}
	case "instance":
		return []string{string(holdfast.InstancePlaced), string(holdfast.InstancePreparing), string(holdfast.InstanceBooting),
			string(holdfast.InstanceStopping), string(holdfast.InstanceUnknown)}
	case "host":
		return []string{string(holdfast.HostSuspect)}
	case "host-duty":
		return []string{string(holdfast.HostDraining)}
	case "checkpoint-copy":
		return []string{string(holdfast.CopyCopying)}
	}
	return nil
}

// owners says which party answers for which of the root's state tables.
func owners(t *testing.T, kinds ...string) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	for _, m := range machines() {
		if !slices.Contains(kinds, m.name) {
			continue
		}
		out[m.name] = map[string]bool{}
		for state := range m.follows {
			out[m.name][state] = slices.Contains(transitional(m.name), state)
		}
	}
	if len(out) != len(kinds) {
		t.Fatalf("state tables for %v: found %d", kinds, len(out))
	}
	return out
}

// deliveries says who receives each kind of the root's delivery.go.
func deliveries(to string) []string {
	kinds := map[holdfast.DeliveryKind]string{
		holdfast.DeliveryReady:        "orchestrator",
		holdfast.DeliveryFailed:       "orchestrator",
		holdfast.DeliveryExited:       "orchestrator",
		holdfast.DeliveryTaskComplete: "orchestrator",
		holdfast.DeliverySetupReady:   "orchestrator",
		holdfast.DeliverySetupFailed:  "orchestrator",
		holdfast.TelemetryGuest:       "orchestrator",
		holdfast.DeliveryObserved:     "fleet",
		holdfast.TelemetryHeartbeat:   "fleet",
	}
	var out []string
	for kind, receiver := range kinds {
		if receiver == to {
			out = append(out, string(kind))
		}
	}
	return out
}

func parties(t *testing.T) []party {
	t.Helper()
	return []party{
		{orchestrator.Registry(), reconcile.Inventory{
			States: owners(t, "sandbox", "build", "checkpoint", "session", "task", "operation", "hook-action"), Tables: tables(t, orchestrator.Migrations()), Deliveries: deliveries("orchestrator"),
			Sweeps: names((&orchestrator.Service{}).Sweeps()), Hops: []string{"H1", "H2", "H5", "H6", "H8", "H9", "H10", "H11"},
		}},
		{fleet.Registry(), reconcile.Inventory{
			States: owners(t, "instance", "host", "host-duty"), Tables: tables(t, fleet.Migrations()), Deliveries: deliveries("fleet"),
			Sweeps: names((&fleet.Service{}).Sweeps()), Hops: []string{"H2", "H3", "H7", "H8"},
		}},
		{hostagent.Registry(), reconcile.Inventory{
			States: hostStates(t), // Files: a host has no database.
			Tables: []string{"instances/INSTANCE/INCARNATION/record.json", "checkpoints/CHECKPOINT/record.json", "layers/LAYER/image.json"},
			Sweeps: names((&hostagent.Agent{}).Sweeps()), Hops: []string{"H3", "H4", "H5", "H6", "H7", "H11"},
		}},
	}
}

// hostStates are the instance states that a host itself can be in: PLACED and
// UNKNOWN are a fleet's words. ORPHAN is what its runtime has and no record names,
// UNUSED a layer that none does.
func hostStates(t *testing.T) map[string]map[string]bool {
	t.Helper()
	states := owners(t, "instance", "checkpoint-copy")
	delete(states["instance"], string(holdfast.InstancePlaced))
	delete(states["instance"], string(holdfast.InstanceUnknown))
	states["instance"]["ORPHAN"] = true
	states["layer"] = map[string]bool{"UNUSED": true}
	return states
}

func tables(t *testing.T, all []store.Migrations) []string {
	t.Helper()
	var out []string
	for _, m := range all {
		names, err := reconcile.TablesOf(m.FS)
		if err != nil {
			t.Fatal(err)
		}
		if len(names) == 0 {
			t.Errorf("the migrations %s make no table: are they read?", m.Name)
		}
		out = append(out, names...)
	}
	return out
}

func names(sweeps []reconcile.Sweep) []string {
	var out []string
	for _, s := range sweeps {
		out = append(out, s.Name)
	}
	return out
}

// contract: C3
func TestC3_EveryPartysRegistryIsWholeAndTrueOfTheCode(t *testing.T) {
	for _, p := range parties(t) {
		for _, m := range p.registry.Validate() {
			t.Errorf("%s: %s", p.registry.Party, m)
		}
		for _, m := range p.registry.Compare(p.have) {
			t.Errorf("%s: %s", p.registry.Party, m)
		}
		for _, name := range p.have.Sweeps {
			if !slices.Contains(named(p.registry), name) {
				t.Errorf("%s: the sweep %s runs, and no row says what for", p.registry.Party, name)
			}
		}
	}
}

// named lists the sweeps that a registry names.
func named(r reconcile.Registry) []string {
	var out []string
	for _, res := range r.Resources {
		out = append(out, res.FirstContact.Sweep, res.Lifetime.Sweep)
		for _, s := range res.States {
			out = append(out, s.Sweep)
		}
	}
	for _, d := range r.Deliveries {
		out = append(out, d.Sweep)
	}
	for _, table := range r.Tables {
		out = append(out, table.Sweep)
	}
	return out
}

// contract: C3. Every state table and every delivery kind of the root is
// somebody's.
func TestC3_NoStateTableAndNoDeliveryIsNobodys(t *testing.T) {
	var kinds, delivered []string
	for _, p := range parties(t) {
		for _, res := range p.registry.Resources {
			kinds = append(kinds, res.Kind)
		}
		for _, d := range p.registry.Deliveries {
			delivered = append(delivered, d.Kind)
		}
	}
	for _, m := range machines() {
		if !slices.Contains(kinds, m.name) {
			t.Errorf("no party answers for %s", m.name)
		}
	}
	for _, kind := range declared(t)["DeliveryKind"] {
		if !slices.Contains(delivered, kind) {
			t.Errorf("no party receives %s", kind)
		}
	}
}

// contract: C3. A registry that lacks one sweep, row or hop is found out: the
// test above would fail.
func TestC3_WhateverIsTakenOutOfARegistryIsMissed(t *testing.T) {
	for _, p := range parties(t) {
		for what, broken := range mutations(p.registry) {
			if missing := append(broken.Validate(), broken.Compare(p.have)...); len(missing) == 0 {
				t.Errorf("%s: without %s the registry passes", p.registry.Party, what)
			}
		}
		for i, name := range p.have.Sweeps {
			have := p.have
			have.Sweeps = slices.Delete(slices.Clone(p.have.Sweeps), i, i+1)
			if len(p.registry.Compare(have)) == 0 {
				t.Errorf("%s: the sweep %s could stop running, and nobody would notice", p.registry.Party, name)
			}
		}
	}
}

// mutations are the registry with one thing taken out, each.
func mutations(r reconcile.Registry) map[string]reconcile.Registry {
	out := map[string]reconcile.Registry{}
	for i, res := range r.Resources {
		out["resource "+res.Kind] = withResources(r, slices.Delete(slices.Clone(r.Resources), i, i+1))
		for j, s := range res.States {
			changed := res
			changed.States = slices.Delete(slices.Clone(res.States), j, j+1)
			out["state "+res.Kind+" "+s.Name] = withResources(r, replaced(r.Resources, i, changed))
			if s.Sweep == "" {
				continue
			}
			changed.States = slices.Clone(res.States)
			changed.States[j].Sweep = ""
			out["the sweep of "+res.Kind+" "+s.Name] = withResources(r, replaced(r.Resources, i, changed))
		}
	}
	for i, d := range r.Deliveries {
		less := r
		less.Deliveries = slices.Delete(slices.Clone(r.Deliveries), i, i+1)
		out["delivery "+d.Kind] = less
	}
	for i, h := range r.Hops {
		less := r
		less.Hops = slices.Delete(slices.Clone(r.Hops), i, i+1)
		out["hop "+h.Name] = less
	}
	for i, table := range r.Tables {
		less := r
		less.Tables = slices.Delete(slices.Clone(r.Tables), i, i+1)
		out["table "+table.Name] = less
	}
	return out
}

func withResources(r reconcile.Registry, all []reconcile.Resource) reconcile.Registry {
	r.Resources = all
	return r
}

func replaced(all []reconcile.Resource, i int, with reconcile.Resource) []reconcile.Resource {
	out := slices.Clone(all)
	out[i] = with
	return out
}

// contract: F1. Two parties of one hop may say different things about it, each
// its own side; but both say something, and about the same message.
func TestF1_BothSidesOfAHopNameTheSameParties(t *testing.T) {
	sides := map[string]string{}
	for _, p := range parties(t) {
		for _, h := range p.registry.Hops {
			side := strings.Join([]string{h.From, h.To}, " → ")
			if other, ok := sides[h.Name]; ok && other != side {
				t.Errorf("%s is %s in one registry and %s in another", h.Name, other, side)
			}
			sides[h.Name] = side
		}
	}
}
