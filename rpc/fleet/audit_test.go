package fleet_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// Audit answers a part with every kind of field.
func (s *served) Audit(context.Context) ([]holdfast.PartyAudit, error) { return parts(), s.err }

func parts() []holdfast.PartyAudit {
	at := time.Unix(7, 8000).UTC()
	return []holdfast.PartyAudit{{
		Party: holdfast.PartyFleet, Name: "fl-1", Reachable: true, At: at,
		Hops: []holdfast.AuditHop{{Name: "H2", From: "orchestrator", To: "fleet", Message: "m", Twice: "t", Late: "l", Never: "n"}},
		Resources: []holdfast.AuditResource{{Kind: "instance", Tables: []string{"instance"}, Reporter: "host agent",
			FirstContact: holdfast.AuditNotice{Sweep: "s", By: time.Minute},
			States:       []holdfast.AuditState{{Name: "BOOTING", Transitional: true, Deadline: time.Second, Authority: "host", Sweep: "s", Resolution: "r"}}}},
		Deliveries: []holdfast.AuditDelivery{{Kind: "k", From: "f", Sweep: "s"}},
		Tables:     []holdfast.AuditTable{{Name: "outbox", Why: "w"}},
		Sweeps: []holdfast.AuditSweep{{Name: "s", Every: time.Minute, Running: at, Late: true,
			LastRun: &holdfast.AuditRun{Began: at, Took: time.Millisecond, Seen: 3, Acted: 1, Skipped: 1, Failed: 1, Error: "e"}}, {Name: "never"}},
		Missing: []string{"a cell"},
	}, {Party: holdfast.PartyHostAgent, Name: "ho-1", Problem: "no answer"}}
}

// contract: F1
func TestF1_TheAuditCrossesTheHopUnchangedAndToTheOrchestratorAlone(t *testing.T) {
	svc, srv := serve(t)
	got, err := dial(srv, hop.Orchestrator).Audit(t.Context())
	check(t, err)
	if !reflect.DeepEqual(got, parts()) {
		t.Errorf("got %+v", got)
	}
	for _, party := range []string{hop.HostAgent, hop.Fleet} {
		if _, err := dial(srv, party).Audit(t.Context()); holdfast.CodeOf(err) != holdfast.Unauthenticated {
			t.Errorf("the token of %s: %v", party, err)
		}
	}
	svc.err = errors.New("broken")
	if _, err := dial(srv, hop.Orchestrator).Audit(t.Context()); holdfast.CodeOf(err) != holdfast.Internal {
		t.Errorf("a failed audit: %v", err)
	}
}
