package reconcile_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/reconcile"
)

func wholeRegistry() reconcile.Registry {
	return reconcile.Registry{
		Party: "orchestrator",
		Resources: []reconcile.Resource{{
			Kind: "sandbox", Tables: []string{"sandbox"}, Reporter: "guest",
			FirstContact: reconcile.Notice{Sweep: "operations", By: 2 * time.Minute},
			States: []reconcile.State{
				{Name: "CREATING", Transitional: true, Deadline: time.Minute, Authority: "fleet", Sweep: "operations", Resolution: "carried on, or failed"},
				{Name: "READY", Contradictable: true, Authority: "host", Sweep: "gone"},
				{Name: "DELETED"},
			},
		}},
		Deliveries: []reconcile.Delivery{{Kind: "ready", From: "guest", Sweep: "operations"}},
		Hops: []reconcile.Hop{{Name: "H5", From: "guest", To: "orchestrator", Message: "ready",
			Twice: "deduped", Late: "judged by its incarnation", Never: "the create asks"}},
		Tables: []reconcile.Table{{Name: "request", Why: "kept as long as the project"}, {Name: "delivery", Sweep: "purge"}},
	}
}

func wholeInventory() reconcile.Inventory {
	return reconcile.Inventory{
		States:     map[string]map[string]bool{"sandbox": {"CREATING": true, "READY": false, "DELETED": false}},
		Tables:     []string{"sandbox", "request", "delivery"},
		Deliveries: []string{"ready"},
		Sweeps:     []string{"operations", "gone", "purge", "one that nothing needs"},
		Hops:       []string{"H5"},
	}
}

func lines(missing []reconcile.Missing) string {
	out := make([]string, 0, len(missing))
	for _, m := range missing {
		out = append(out, m.String())
	}
	return strings.Join(out, "\n")
}

// contract: C3
func TestC3_EveryEmptyCellIsFound(t *testing.T) {
	if got := wholeRegistry().Validate(); len(got) != 0 {
		t.Fatalf("a whole registry: %s", lines(got))
	}
	cases := []struct {
		spoil func(r *reconcile.Registry)
		want  string
	}{
		{func(r *reconcile.Registry) { r.Party = "" }, "registry: no party"},
		{func(r *reconcile.Registry) { r.Resources[0].Tables = nil }, "resource sandbox: no table"},
		{func(r *reconcile.Registry) { r.Resources[0].States = nil }, "resource sandbox: no states"},
		{func(r *reconcile.Registry) { r.Resources[0].FirstContact.Sweep = "" }, "resource sandbox: nobody notices that its reporter died before first contact"},
		{func(r *reconcile.Registry) { r.Resources[0].FirstContact.By = 0 }, "resource sandbox: no time by which a death before first contact is noticed"},
		{func(r *reconcile.Registry) { r.Resources[0].States[0].Deadline = 0 }, "state sandbox CREATING: no deadline"},
		{func(r *reconcile.Registry) { r.Resources[0].States[0].Authority = "" }, "state sandbox CREATING: no authority"},
		{func(r *reconcile.Registry) { r.Resources[0].States[0].Sweep = "" }, "state sandbox CREATING: no sweep"},
		{func(r *reconcile.Registry) { r.Resources[0].States[0].Resolution = "" }, "state sandbox CREATING: no resolution"},
		{func(r *reconcile.Registry) { r.Resources[0].States[1].Authority = "" }, "state sandbox READY: no authority"},
		{func(r *reconcile.Registry) { r.Resources[0].States[1].Sweep = "" }, "state sandbox READY: no sweep"},
		{func(r *reconcile.Registry) { r.Deliveries[0].Sweep = "" }, "delivery ready: no sweep finds it when it never comes"},
		{func(r *reconcile.Registry) { r.Deliveries[0].From = "" }, "delivery ready: no sender"},
		{func(r *reconcile.Registry) { r.Hops[0].To = "" }, "hop H5: no parties"},
		{func(r *reconcile.Registry) { r.Hops[0].Message = "" }, "hop H5: no message"},
		{func(r *reconcile.Registry) { r.Hops[0].Twice = "" }, "hop H5: no answer to twice"},
		{func(r *reconcile.Registry) { r.Hops[0].Late = "" }, "hop H5: no answer to late"},
		{func(r *reconcile.Registry) { r.Hops[0].Never = "" }, "hop H5: no answer to never"},
		{func(r *reconcile.Registry) { r.Tables[0].Why = "" }, "table request: neither a sweep nor why it needs none"},
	}
	for _, c := range cases {
		r := wholeRegistry()
		c.spoil(&r)
		if got := lines(r.Validate()); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// contract: C3
func TestC3_WhatTheCodeHasAndTheRegistryLacksIsFoundAndTheReverse(t *testing.T) {
	if got := wholeRegistry().Compare(wholeInventory()); len(got) != 0 {
		t.Fatalf("a whole registry: %s", lines(got))
	}
	cases := []struct {
		change func(i *reconcile.Inventory)
		want   string
	}{
		{func(i *reconcile.Inventory) { i.States["session"] = map[string]bool{"WAITING": true} }, "resource session: is not registered"},
		{func(i *reconcile.Inventory) { i.States["sandbox"]["DELETING"] = true }, "state sandbox DELETING: is not registered"},
		{func(i *reconcile.Inventory) { i.States["sandbox"]["READY"] = true }, "state sandbox READY: transitional false in the registry, true in the state table"},
		{func(i *reconcile.Inventory) { delete(i.States["sandbox"], "DELETED") }, "state sandbox DELETED: is registered, and does not exist"},
		{func(i *reconcile.Inventory) { i.Tables = append(i.Tables, "task") }, "table task: is not registered"},
		{func(i *reconcile.Inventory) { i.Tables = i.Tables[:2] }, "table delivery: is registered, and does not exist"},
		{func(i *reconcile.Inventory) { i.Deliveries = append(i.Deliveries, "failed") }, "delivery failed: is not registered"},
		{func(i *reconcile.Inventory) { i.Hops = append(i.Hops, "H8") }, "hop H8: is not registered"},
		{func(i *reconcile.Inventory) { i.Sweeps = i.Sweeps[1:] }, "sweep operations: is named, and does not run"},
	}
	for _, c := range cases {
		i := wholeInventory()
		c.change(&i)
		if got := lines(wholeRegistry().Compare(i)); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestC3_TablesAreReadFromTheMigrations(t *testing.T) {
	got, err := reconcile.TablesOf(fstest.MapFS{
		"00001_first.sql": {Data: []byte("-- +goose Up\nCREATE TABLE sandbox (\n id TEXT);\ncreate table if not exists \"task\" (id TEXT);\n" +
			"CREATE TABLE old (id TEXT);\n-- +goose Down\nDROP TABLE sandbox;\n")},
		"00002_second.sql": {Data: []byte("-- +goose Up\nDROP TABLE IF EXISTS old;\nCREATE INDEX i ON sandbox (id);\n-- +goose Down\nCREATE TABLE old (id TEXT);\n")},
		"notes.txt":        {Data: []byte("CREATE TABLE nothing (id TEXT);")},
	})
	if err != nil || !slices.Equal(got, []string{"sandbox", "task"}) {
		t.Errorf("%v, %v", got, cmp.Diff([]string{"sandbox", "task"}, got))
	}
}
