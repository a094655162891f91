// Package audit shows one party's registry, and what its sweeps did last, in the
// words that the parties and operators exchange (contract: F1). Package reconcile
// knows no noun of ours and the root imports nothing, so the two meet here.
package audit

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// Of is the part of the party that has this registry and runs these sweeps, in
// the process or on the host of that name. Where the two types of a row have the
// same fields it is converted whole, so that one which only one of them has
// breaks the build.
func Of(registry reconcile.Registry, sweeps *reconcile.Runner, name string) holdfast.PartyAudit {
	at, running := sweeps.Status()
	out := holdfast.PartyAudit{Party: registry.Party, Name: name, Reachable: true, At: at}
	for _, h := range registry.Hops {
		out.Hops = append(out.Hops, holdfast.AuditHop(h))
	}
	for _, r := range registry.Resources {
		out.Resources = append(out.Resources, resource(r))
	}
	for _, d := range registry.Deliveries {
		out.Deliveries = append(out.Deliveries, holdfast.AuditDelivery(d))
	}
	for _, t := range registry.Tables {
		out.Tables = append(out.Tables, holdfast.AuditTable(t))
	}
	var names []string
	for _, s := range running {
		names = append(names, s.Name)
		out.Sweeps = append(out.Sweeps, holdfast.AuditSweep{Name: s.Name, Every: s.Every, Running: s.Running, Late: s.Late(at), LastRun: run(s.Last)})
	}
	for _, m := range append(registry.Validate(), registry.Running(names)...) {
		out.Missing = append(out.Missing, m.String())
	}
	return out
}

func resource(r reconcile.Resource) holdfast.AuditResource {
	out := holdfast.AuditResource{Kind: r.Kind, Tables: r.Tables, Reporter: r.Reporter,
		FirstContact: holdfast.AuditNotice(r.FirstContact), Lifetime: holdfast.AuditNotice(r.Lifetime)}
	for _, s := range r.States {
		out.States = append(out.States, holdfast.AuditState(s))
	}
	return out
}

func run(r *reconcile.Report) *holdfast.AuditRun {
	if r == nil {
		return nil
	}
	out := &holdfast.AuditRun{Began: r.Began, Took: r.Took, Seen: r.Seen, Acted: r.Acted, Skipped: r.Skipped, Failed: r.Failed}
	if len(r.Errors) > 0 {
		out.Error = r.Errors[0].Error()
	}
	return out
}

// Ask is one party's part by another's question, or its part as not reached when
// it fails or does not answer in time. The question ends with its context.
func Ask(ctx context.Context, most time.Duration, who holdfast.PartyAudit, question func(context.Context) ([]holdfast.PartyAudit, error)) []holdfast.PartyAudit {
	asking, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	parts, err := question(asking)
	switch {
	case err == nil:
		return parts
	case asking.Err() != nil:
		who.Problem = "no answer within " + most.String()
	default:
		who.Problem = err.Error()
	}
	who.Reachable = false
	return []holdfast.PartyAudit{who}
}
