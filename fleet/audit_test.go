package fleet

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// Audit is a host's that is whole, unless it is down, which hangs here: what a
// host that lost its network does.
func (m *machine) Audit(ctx context.Context) (holdfast.PartyAudit, error) {
	m.mu.Lock()
	down := m.down
	m.mu.Unlock()
	if down {
		<-ctx.Done()
		return holdfast.PartyAudit{}, ctx.Err()
	}
	return holdfast.PartyAudit{Party: holdfast.PartyHostAgent, Name: string(m.id), Reachable: true}, nil
}

// contract: F1. Each host is asked, all at once; one that is silent is listed as
// not reached and delays the answer by no more than its bound.
func TestF1_AnUnreachableHostIsListedAndHangsNothing(t *testing.T) {
	w := newWorld(t)
	w.fleet.limits.AskTimeout = 100 * time.Millisecond
	well := w.host(1)
	for range 3 {
		m := w.host(1)
		m.do(func() { m.down = true })
	}
	began := time.Now()
	parts, err := w.fleet.Audit(t.Context())
	check(t, err)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if len(parts) != 5 || parts[0].Party != holdfast.PartyFleet || parts[0].Name != w.fleet.holder || !parts[0].Reachable || len(parts[0].Missing) != 0 {
		t.Fatalf("%+v", parts)
	}
	if len(parts[0].Sweeps) != len(w.fleet.Sweeps()) {
		t.Errorf("%d sweeps are shown, %d run", len(parts[0].Sweeps), len(w.fleet.Sweeps()))
	}
	for _, p := range parts[1:] {
		switch {
		case p.Party != holdfast.PartyHostAgent:
			t.Errorf("no host's: %+v", p)
		case p.Name == string(well.id) && !p.Reachable:
			t.Errorf("the host that answers: %+v", p)
		case p.Name != string(well.id) && (p.Reachable || p.Problem != "no answer within 100ms"):
			t.Errorf("a silent host: %+v", p)
		}
	}
}

// contract: F1. What answers in a host's place is not taken for it.
func TestF1_AnotherAtAHostsAddressIsNotTakenForIt(t *testing.T) {
	w := newWorld(t)
	m, other := w.host(1), w.host(1)
	w.urls["http://"+string(m.id)] = other
	parts, err := w.fleet.Audit(t.Context())
	check(t, err)
	for _, p := range parts[1:] {
		if taken := p.Name == string(m.id); taken == p.Reachable || taken && !strings.Contains(p.Problem, string(other.id)) {
			t.Errorf("%+v", p)
		}
	}
}

// contract: F1. A host that its operators retired is nobody who could answer.
func TestF1_ARetiredHostIsNotAsked(t *testing.T) {
	w := newWorld(t)
	m := w.host(1)
	check(t, w.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE host SET duty = 'RETIRED' WHERE id = $1`, string(m.id))
		return err
	}))
	parts, err := w.fleet.Audit(t.Context())
	check(t, err)
	if len(parts) != 1 {
		t.Errorf("%+v", parts)
	}
}
