package fleet

import (
	"cmp"
	"context"
	"slices"
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
	}
	if ctx.Err() != nil {
		return holdfast.PartyAudit{}, ctx.Err()
	}
	return holdfast.PartyAudit{Party: holdfast.PartyHostAgent, Name: string(m.id), Reachable: true}, nil
}

// contract: F1. Each host is asked, all at once; one that is silent is listed as
// not reached and delays the answer by no more than its bound.
func TestF1_AnUnreachableHostIsListedAndHangsNothing(t *testing.T) {
	w := newWorld(t)
	w.fleet.limits.AskTimeout = 100 * time.Millisecond
	var hosts []*machine
	for range 4 {
		hosts = append(hosts, w.host(1))
	}
	slices.SortFunc(hosts, func(a, b *machine) int { return cmp.Compare(a.id, b.id) })
	well := hosts[3] // those before it are silent
	for _, m := range hosts[:3] {
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
	refused := slices.IndexFunc(parts, func(p holdfast.PartyAudit) bool { return p.Name == string(m.id) })
	if len(parts) != 3 || refused < 1 || parts[refused].Reachable || !strings.Contains(parts[refused].Problem, string(other.id)) {
		t.Errorf("%+v", parts)
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
