package rpc

import (
	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

func matrixToWire(m holdfast.AuditMatrix) *v1.AuditMatrix {
	return &v1.AuditMatrix{Parties: each(m.Parties, partToWire)}
}

func matrixFromWire(m *v1.AuditMatrix) holdfast.AuditMatrix {
	return holdfast.AuditMatrix{Parties: each(m.GetParties(), partFromWire)}
}

func partToWire(p holdfast.PartyAudit) *v1.PartyAudit {
	return &v1.PartyAudit{
		Party: text(p.Party), Name: text(p.Name), Reachable: p.Reachable, Problem: text(p.Problem), At: stamp(p.At),
		Hops: each(p.Hops, hopToWire), Resources: each(p.Resources, resourceToWire), Deliveries: each(p.Deliveries, deliveryToWire),
		Tables: each(p.Tables, tableToWire), Sweeps: each(p.Sweeps, sweepToWire), Missing: each(p.Missing, text),
	}
}

func partFromWire(p *v1.PartyAudit) holdfast.PartyAudit {
	return holdfast.PartyAudit{
		Party: p.GetParty(), Name: p.GetName(), Reachable: p.GetReachable(), Problem: p.GetProblem(), At: instant(p.GetAt()),
		Hops: each(p.GetHops(), hopFromWire), Resources: each(p.GetResources(), resourceFromWire),
		Deliveries: each(p.GetDeliveries(), deliveryFromWire), Tables: each(p.GetTables(), tableFromWire),
		Sweeps: each(p.GetSweeps(), sweepFromWire), Missing: p.GetMissing(),
	}
}

func hopToWire(h holdfast.AuditHop) *v1.AuditHop {
	return &v1.AuditHop{Name: text(h.Name), From: text(h.From), To: text(h.To), Message: text(h.Message),
		Twice: text(h.Twice), Late: text(h.Late), Never: text(h.Never)}
}

func hopFromWire(h *v1.AuditHop) holdfast.AuditHop {
	return holdfast.AuditHop{Name: h.GetName(), From: h.GetFrom(), To: h.GetTo(), Message: h.GetMessage(),
		Twice: h.GetTwice(), Late: h.GetLate(), Never: h.GetNever()}
}

func resourceToWire(r holdfast.AuditResource) *v1.AuditResource {
	return &v1.AuditResource{Kind: text(r.Kind), Tables: each(r.Tables, text), States: each(r.States, stateToWire), Reporter: text(r.Reporter),
		FirstContact: noticeToWire(r.FirstContact), Lifetime: noticeToWire(r.Lifetime)}
}

func resourceFromWire(r *v1.AuditResource) holdfast.AuditResource {
	return holdfast.AuditResource{Kind: r.GetKind(), Tables: r.GetTables(), States: each(r.GetStates(), stateFromWire), Reporter: r.GetReporter(),
		FirstContact: noticeFromWire(r.GetFirstContact()), Lifetime: noticeFromWire(r.GetLifetime())}
}

func noticeToWire(n holdfast.AuditNotice) *v1.AuditNotice {
	if n == (holdfast.AuditNotice{}) {
		return nil
	}
	return &v1.AuditNotice{Sweep: text(n.Sweep), By: span(n.By)}
}

func noticeFromWire(n *v1.AuditNotice) holdfast.AuditNotice {
	return holdfast.AuditNotice{Sweep: n.GetSweep(), By: n.GetBy().AsDuration()}
}

func stateToWire(s holdfast.AuditState) *v1.AuditState {
	return &v1.AuditState{Name: text(s.Name), Transitional: s.Transitional, Contradictable: s.Contradictable, Deadline: span(s.Deadline),
		Authority: text(s.Authority), Sweep: text(s.Sweep), Resolution: text(s.Resolution)}
}

func stateFromWire(s *v1.AuditState) holdfast.AuditState {
	return holdfast.AuditState{Name: s.GetName(), Transitional: s.GetTransitional(), Contradictable: s.GetContradictable(),
		Deadline: s.GetDeadline().AsDuration(), Authority: s.GetAuthority(), Sweep: s.GetSweep(), Resolution: s.GetResolution()}
}

func deliveryToWire(d holdfast.AuditDelivery) *v1.AuditDelivery {
	return &v1.AuditDelivery{Kind: text(d.Kind), From: text(d.From), Sweep: text(d.Sweep)}
}

func deliveryFromWire(d *v1.AuditDelivery) holdfast.AuditDelivery {
	return holdfast.AuditDelivery{Kind: d.GetKind(), From: d.GetFrom(), Sweep: d.GetSweep()}
}

func tableToWire(t holdfast.AuditTable) *v1.AuditTable {
	return &v1.AuditTable{Name: text(t.Name), Sweep: text(t.Sweep), Why: text(t.Why)}
}

func tableFromWire(t *v1.AuditTable) holdfast.AuditTable {
	return holdfast.AuditTable{Name: t.GetName(), Sweep: t.GetSweep(), Why: t.GetWhy()}
}

func sweepToWire(s holdfast.AuditSweep) *v1.AuditSweep {
	out := &v1.AuditSweep{Name: text(s.Name), Every: span(s.Every), Running: stamp(s.Running), Late: s.Late}
	if r := s.LastRun; r != nil {
		out.LastRun = &v1.AuditRun{Began: stamp(r.Began), Took: span(r.Took), Seen: int64(r.Seen), Acted: int64(r.Acted),
			Skipped: int64(r.Skipped), Failed: int64(r.Failed), Error: text(r.Error)}
	}
	return out
}

func sweepFromWire(s *v1.AuditSweep) holdfast.AuditSweep {
	out := holdfast.AuditSweep{Name: s.GetName(), Every: s.GetEvery().AsDuration(), Running: instant(s.GetRunning()), Late: s.GetLate()}
	if r := s.GetLastRun(); r != nil {
		out.LastRun = &holdfast.AuditRun{Began: instant(r.GetBegan()), Took: r.GetTook().AsDuration(), Seen: int(r.GetSeen()), Acted: int(r.GetActed()),
			Skipped: int(r.GetSkipped()), Failed: int(r.GetFailed()), Error: r.GetError()}
	}
	return out
}
