package hostagent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/runtime"
)

// The sweeps of a host (contract: C1, C4).
const (
	SweepInstances = "host-instances"
	SweepOrphans   = "host-orphans"
	SweepCopies    = "host-checkpoints"
	SweepLayers    = "host-layers"
)

// Sweeps are this agent's; Start runs them, RunSweep runs one at once.
func (a *Agent) Sweeps() []reconcile.Sweep {
	return []reconcile.Sweep{
		{Name: SweepInstances, Every: a.config.Timing.Sweep, First: a.config.Timing.Sweep, Page: a.pageInstances},
		{Name: SweepOrphans, Every: a.config.Timing.Sweep, First: a.config.Timing.Sweep, Page: a.pageOrphans},
		{Name: SweepCopies, Every: a.config.Timing.Sweep, First: a.config.Timing.Sweep, Page: a.pageCopies},
		{Name: SweepLayers, Every: a.config.Timing.Sweep, First: a.config.Timing.Sweep, Page: a.pageLayers},
	}
}

// RunSweep runs one of the Sweeps to its end.
func (a *Agent) RunSweep(ctx context.Context, name string) (reconcile.Report, error) {
	return a.sweeps.RunOnce(ctx, name)
}

// action is what the instances' sweep does about one record.
type action string

const (
	actNothing action = ""
	actLook    action = "look"    // observe it again
	actRelease action = "release" // it has ended, yet the runtime has something of it
	actPurge   action = "purge"   // its tombstone is old enough
)

// swept is one record as the sweep meets it.
type swept struct {
	record   record
	live     bool // an attempt is at it: left alone (trap T26)
	verified bool
	seen     runtime.Phase // what the runtime's list says; ABSENT if it lacks it
	blind    bool          // the list could not be read: nothing follows from seen (trap T27)
}

// planSwept decides about one record. It is pure, and never decides that
// something is gone: the look that it asks for does, with a reading of its own.
func planSwept(s swept, now time.Time, t Timing) action {
	r := s.record
	left := !s.blind && s.seen != runtime.PhaseAbsent
	switch {
	case s.live:
		return actNothing
	case r.final() && left:
		return actRelease
	case r.State == holdfast.InstanceAbsent && now.Sub(r.TombstoneAt) >= t.TombstoneKept:
		return actPurge
	case r.final() || r.Removing: // who ordered the removal orders it again
		return actNothing
	case !s.verified || r.Ending != nil || r.State == holdfast.InstanceBooting:
		return actLook
	}
	switch r.State {
	case holdfast.InstancePreparing:
		if now.Sub(r.CreatedAt) >= t.Prepare {
			return actLook
		}
	case holdfast.InstanceRunning:
		if !s.blind && s.seen != runtime.PhaseRunning {
			return actLook
		}
	case holdfast.InstanceSuspended:
		if !s.blind && s.seen != runtime.PhaseSuspended {
			return actLook
		}
	}
	return actNothing
}

// pageInstances reads the runtime first, the records second, and pages by
// instance (trap T29).
func (a *Agent) pageInstances(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	list, err := a.config.Driver.List(ctx)
	phases := map[holdfast.InstanceRef]runtime.Phase{}
	for _, s := range list {
		phases[s.Ref] = s.Phase
	}
	if err != nil {
		err = fmt.Errorf("list the runtime: %w", err)
	}
	machines := a.all()
	slices.SortFunc(machines, func(x, y *machine) int { return cmp.Compare(x.id, y.id) })
	var items []reconcile.Item
	for i, m := range machines {
		if string(m.id) <= after {
			continue
		}
		items = append(items, m.sweep(phases, err != nil)...)
		if len(items) >= limit && i+1 < len(machines) {
			return items, string(m.id), err
		}
	}
	return items, "", err
}

func (m *machine) sweep(phases map[holdfast.InstanceRef]runtime.Phase, blind bool) []reconcile.Item {
	m.mu.Lock()
	defer m.mu.Unlock()
	var items []reconcile.Item
	newest := m.newest()
	for i, r := range m.records {
		seen, ok := phases[r.Ref]
		if !ok {
			seen = runtime.PhaseAbsent
		}
		do := planSwept(swept{
			record: r, live: m.attempt != nil, verified: m.verified[i] || i != newest, seen: seen, blind: blind,
		}, m.agent.config.Clock(), m.agent.config.Timing)
		if do == actNothing {
			continue
		}
		items = append(items, reconcile.Item{Key: keyOf(r.Ref), Act: func(ctx context.Context) error { return m.act(ctx, i, do) }})
	}
	return items
}

func (m *machine) act(ctx context.Context, incarnation int64, do action) error {
	if do == actPurge {
		return m.purge(incarnation)
	}
	m.mu.Lock()
	if m.attempt != nil {
		m.mu.Unlock()
		return reconcile.ErrSkipped
	}
	if do == actRelease {
		m.leftover[incarnation] = true
	}
	at := m.begin(false)
	m.mu.Unlock()
	return at.wait(ctx)
}

// wait is for the attempt's end.
func (at *attempt) wait(ctx context.Context) error {
	if at == nil {
		return draining("")
	}
	select {
	case <-at.done:
		return at.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// purge forgets a tombstone.
func (m *machine) purge(incarnation int64) error {
	m.mu.Lock()
	r, ok := m.records[incarnation]
	old := m.agent.config.Clock().Sub(r.TombstoneAt) >= m.agent.config.Timing.TombstoneKept
	if !ok || m.attempt != nil || r.State != holdfast.InstanceAbsent || !old {
		m.mu.Unlock()
		return reconcile.ErrSkipped
	}
	err := m.agent.places.purge(r.Ref)
	if err == nil {
		delete(m.records, incarnation)
		delete(m.verified, incarnation)
	}
	m.mu.Unlock()
	m.agent.drop(m)
	return err
}

// orphans remembers since when something is seen that nobody recorded.
type orphans struct {
	mu    sync.Mutex
	since map[holdfast.InstanceRef]time.Time
}

// pageOrphans finds what the runtime has and no record names. It waits for the
// grace, and destroys nothing when it would destroy unusually much: then these
// records are probably not this runtime's (trap T52).
func (a *Agent) pageOrphans(ctx context.Context, _ string, _ int) ([]reconcile.Item, string, error) {
	reading := reconcile.Reading{Began: a.config.Clock()}
	list, err := a.config.Driver.List(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("list the runtime: %w", err)
	}
	reading.Ended, reading.Complete = a.config.Clock(), true
	refs := map[string]holdfast.InstanceRef{}
	a.orphans.mu.Lock()
	defer a.orphans.mu.Unlock()
	seen := map[holdfast.InstanceRef]time.Time{}
	compare := reconcile.Comparison{}
	for _, s := range list {
		if s.Phase == runtime.PhaseAbsent {
			continue
		}
		if a.recorded(s.Ref) {
			compare.Recorded = append(compare.Recorded, reconcile.Recorded{Key: keyOf(s.Ref)})
		} else {
			since, ok := a.orphans.since[s.Ref]
			if !ok {
				since = reading.Began
			}
			seen[s.Ref] = since
		}
		refs[keyOf(s.Ref)] = s.Ref
		reading.Observed = append(reading.Observed, reconcile.Observed{Key: keyOf(s.Ref), Since: seen[s.Ref]})
	}
	a.orphans.since = seen
	compare.Reading, compare.RecordedAt = reading, a.config.Clock()
	actions := reconcile.Plan(compare, a.config.Clock(), reconcile.Limits{Grace: a.config.Timing.OrphanGrace})
	var items []reconcile.Item
	for _, key := range actions.Destroy {
		items = append(items, reconcile.Item{Key: key, Act: func(ctx context.Context) error { return a.destroyOrphan(ctx, refs[key]) }})
	}
	return items, "", actions.Alarm
}

func (a *Agent) recorded(ref holdfast.InstanceRef) bool {
	m := a.find(ref.Instance)
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.records[ref.Incarnation]
	return ok
}

// destroyOrphan records it as removed before it removes it: a late RUNNING finds
// a tombstone and boots nothing a second time.
func (a *Agent) destroyOrphan(ctx context.Context, ref holdfast.InstanceRef) error {
	if err := holdfast.CheckID("instance", holdfast.PrefixInstance, string(ref.Instance)); err != nil {
		return fmt.Errorf("an orphan that is not ours is left alone: %w", err)
	}
	m := a.machine(ref.Instance)
	m.mu.Lock()
	if _, ok := m.records[ref.Incarnation]; ok || m.dropped {
		m.mu.Unlock()
		return reconcile.ErrSkipped
	}
	a.log.Warn("destroying an instance that nobody recorded", "instance", ref.Instance, "incarnation", ref.Incarnation)
	err := m.write(record{
		Ref: ref, State: holdfast.InstanceStopping, Desired: holdfast.DesiredAbsent, Removing: true, Orphan: true,
		Started: true, CreatedAt: a.config.Clock(),
	})
	if err != nil {
		m.mu.Unlock()
		a.drop(m)
		return err
	}
	at := m.begin(true)
	m.mu.Unlock()
	return at.wait(ctx)
}

func keyOf(ref holdfast.InstanceRef) string {
	return string(ref.Instance) + "/" + strconv.FormatInt(ref.Incarnation, 10)
}
