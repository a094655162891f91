package audit_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/audit"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// idle is a runner of sweeps that find nothing.
func idle(t *rapid.T, names ...string) *reconcile.Runner {
	var sweeps []reconcile.Sweep
	for _, name := range names {
		sweeps = append(sweeps, reconcile.Sweep{Name: name, Every: time.Minute,
			Page: func(context.Context, string, int) ([]reconcile.Item, string, error) { return nil, "", nil }})
	}
	r, err := reconcile.NewRunner(reconcile.Config{}, sweeps...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// cells fills every field of a value with words and numbers of its own, and
// returns them.
func cells(t *rapid.T, v reflect.Value, next *int) (out []string) {
	*next++
	switch v.Kind() { //nolint:exhaustive // the kinds of a registry
	case reflect.String:
		v.SetString(fmt.Sprintf("cell-%d", *next))
		return []string{v.String()}
	case reflect.Int64:
		v.SetInt(int64(*next) * int64(time.Second))
		return []string{time.Duration(v.Int()).String()}
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "flag"))
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "rows")
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			out = append(out, cells(t, v.Index(i), next)...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			out = append(out, cells(t, v.Field(i), next)...)
		}
	default:
		t.Fatalf("a registry has a %s: fill it here", v.Kind())
	}
	return out
}

// contract: F1. Whatever a registry holds is in the audit, each cell.
func TestF1_NoCellIsLostOnTheWayIntoTheAudit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var registry reconcile.Registry
		n := 0
		want := cells(t, reflect.ValueOf(&registry).Elem(), &n)
		part := audit.Of(registry, idle(t), "p-1")
		text := fmt.Sprintf("%+v", part)
		for _, cell := range want {
			if !slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" :{}[]", r) }), cell) {
				t.Fatalf("%s is not in %s", cell, text)
			}
		}
		flags := func(r any) int { return strings.Count(fmt.Sprintf("%+v", r), ":true") }
		if got, want := flags(part.Resources), flags(registry.Resources); got != want {
			t.Fatalf("%d flags are set, of %d", got, want)
		}
		if len(part.Missing) != len(registry.Sweeps())+len(registry.Validate()) { // none runs
			t.Fatalf("%d missing of %d", len(part.Missing), len(registry.Sweeps()))
		}
	})
}

func whole() reconcile.Registry {
	return reconcile.Registry{
		Party: "fleet",
		Resources: []reconcile.Resource{{Kind: "instance", Tables: []string{"instance"}, Reporter: "host agent",
			FirstContact: reconcile.Notice{Sweep: "overdue", By: time.Minute},
			States:       []reconcile.State{{Name: "BOOTING", Transitional: true, Deadline: time.Minute, Authority: "host", Sweep: "overdue", Resolution: "asked"}}}},
		Deliveries: []reconcile.Delivery{{Kind: "observed", From: "host agent", Sweep: "overdue"}},
		Hops:       []reconcile.Hop{{Name: "H3", From: "fleet", To: "host agent", Message: "level", Twice: "joined", Late: "refused", Never: "asked"}},
		Tables:     []reconcile.Table{{Name: "delivery", Sweep: "purge"}},
	}
}

// contract: C3, F1. An empty cell, a sweep that is named and does not run, and
// one that runs for nothing are each said in words.
func TestF1_WhatIsMissingIsSaidInWords(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*reconcile.Registry)
		sweeps []string
		want   string
	}{
		"whole":         {func(*reconcile.Registry) {}, []string{"overdue", "purge"}, ""},
		"no answer":     {func(r *reconcile.Registry) { r.Hops[0].Never = "" }, []string{"overdue", "purge"}, "hop H3: no answer to never"},
		"no deadline":   {func(r *reconcile.Registry) { r.Resources[0].States[0].Deadline = 0 }, []string{"overdue", "purge"}, "state instance BOOTING: no deadline"},
		"does not run":  {func(*reconcile.Registry) {}, []string{"overdue"}, "sweep purge: is named, and does not run"},
		"runs for none": {func(*reconcile.Registry) {}, []string{"overdue", "purge", "x"}, "sweep x: runs, and no row says what for"},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				registry := whole()
				c.change(&registry)
				if got := strings.Join(audit.Of(registry, idle(t, c.sweeps...), "p").Missing, "\n"); got != c.want {
					t.Fatalf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}

// contract: F1. What a sweep did last is shown as it was.
func TestF1_ALastRunIsShownAsItWas(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	act := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	runner, err := reconcile.NewRunner(reconcile.Config{Clock: func() time.Time { return now }}, reconcile.Sweep{Name: "overdue", Every: time.Minute,
		Page: func(context.Context, string, int) ([]reconcile.Item, string, error) {
			return []reconcile.Item{{Key: "a", Act: act(nil)}, {Key: "b", Act: act(errors.New("no route"))}, {Key: "c", Act: act(reconcile.ErrSkipped)}}, "", nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	before := audit.Of(whole(), runner, "p")
	if len(before.Sweeps) != 1 || before.Sweeps[0].LastRun != nil || !before.Sweeps[0].Late || before.Sweeps[0].Every != time.Minute {
		t.Errorf("before a run: %+v", before.Sweeps)
	}
	if _, err := runner.RunOnce(t.Context(), "overdue"); err != nil {
		t.Fatal(err)
	}
	after := audit.Of(whole(), runner, "p")
	run := after.Sweeps[0].LastRun
	if run == nil || !run.Began.Equal(now) || run.Seen != 3 || run.Acted != 1 || run.Skipped != 1 || run.Failed != 1 || run.Error != "item b: no route" {
		t.Errorf("after a run: %+v", run)
	}
	if after.Sweeps[0].Late || !after.At.Equal(now) {
		t.Errorf("after a run: %+v", after)
	}
}
