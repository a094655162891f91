package hostagent

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// EnsureInstance takes a level and answers with what is observed: at once when it
// is reached or the instance has ended, else after at most level.Wait, which is
// no more than holdfast.MaxLevelWait. A level is recorded before anything is done;
// what is begun goes on when the caller leaves. Its refusals are
// FAILED_PRECONDITION: CLUSTER, STALE_EPOCH (detail "seen"), STALE_GENERATION and STALE_INCARNATION (detail
// "seen"), LEVEL_CONFLICT, TOO_OLD; what may succeed later is UNAVAILABLE.
// contract: A6
func (a *Agent) EnsureInstance(ctx context.Context, level holdfast.Level) (holdfast.Observation, error) {
	if err := checkLevel(level); err != nil {
		return holdfast.Observation{}, err
	}
	if err := a.obey(order{level.Cluster, level.Epoch, string(level.Instance)}); err != nil {
		return holdfast.Observation{}, err
	}
	if !a.open.Load() {
		return holdfast.Observation{}, draining(level.Instance)
	}
	wait := time.NewTimer(min(max(level.Wait, 0), holdfast.MaxLevelWait))
	defer wait.Stop()
	m, mine, err := a.accept(level)
	if err != nil {
		return holdfast.Observation{}, err
	}
	return m.until(ctx, level, mine, wait.C)
}

// accept takes the level and returns the attempt that carries it out, nil if
// there is nothing to do.
func (a *Agent) accept(level holdfast.Level) (*machine, *attempt, error) {
	for {
		m := a.machine(level.Instance)
		m.mu.Lock()
		if m.dropped {
			m.mu.Unlock()
			continue
		}
		at, err := m.accept(level)
		m.mu.Unlock()
		a.drop(m)
		return m, at, err
	}
}

// accept is the same for one machine; m.mu is held.
func (m *machine) accept(level holdfast.Level) (*attempt, error) {
	a := m.agent
	var known *record
	if r, ok := m.records[level.Incarnation]; ok {
		known = &r
	}
	now := a.config.Clock()
	j, err := judge(level, known, m.newest(), now, a.config.Timing.LevelTooOld)
	if err == nil && known == nil && !a.store.knowsAll(level.PlacedAt) {
		j, err = judgeForgotten(level, j, now)
	}
	if err != nil {
		return nil, err
	}
	if j.changed {
		if err := m.write(j.record); err != nil {
			return nil, err
		}
	}
	if known == nil {
		m.verified[level.Incarnation] = true
	}
	if known == nil || wants(*known) != wants(j.record) {
		m.target++
		if m.attempt != nil {
			m.attempt.redirect(errRedirected)
		}
	}
	if o, _ := m.observation(); settled(o, level) && !m.untidy() {
		return m.attempt, nil
	}
	at := m.begin(true)
	if at == nil {
		return nil, draining(m.id)
	}
	return at, nil
}

// wants is what a convergence of the record aims at: when it changes, a step in
// progress is in vain.
func wants(r record) string {
	switch {
	case r.Removing:
		return string(holdfast.DesiredAbsent)
	case r.Ending != nil:
		return string(holdfast.DesiredExited)
	}
	return string(r.Desired)
}

// untidy reports older incarnations that are not gone yet; m.mu is held.
func (m *machine) untidy() bool {
	n := m.newest()
	for i, r := range m.records {
		if i < n && r.State != holdfast.InstanceAbsent {
			return true
		}
	}
	return false
}

// settled reports whether the observation is the level's final answer.
func settled(o holdfast.Observation, level holdfast.Level) bool {
	if o.Stale {
		return false
	}
	return o.Reached(level) || o.State == holdfast.InstanceAbsent ||
		o.State == holdfast.InstanceExited && level.Desired != holdfast.DesiredAbsent
}

// until waits for the level's answer.
func (m *machine) until(ctx context.Context, level holdfast.Level, mine *attempt, wait <-chan time.Time) (holdfast.Observation, error) {
	answered := false
	m.attend()
	defer func() { m.leave(answered) }()
	for expired := false; ; {
		m.mu.Lock()
		o, ok := m.observation()
		changed := m.changed
		done := ok && settled(o, level) && !m.untidy()
		m.mu.Unlock()
		switch {
		case !ok || o.Incarnation > level.Incarnation:
			return o, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "incarnation %d of %s was followed by incarnation %d",
				level.Incarnation, level.Instance, o.Incarnation).On(string(m.id)).With("seen", strconv.FormatInt(o.Incarnation, 10))
		case o.Generation > level.Generation:
			return o, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "generation %d of %s came while %d was waited for",
				o.Generation, level.Instance, level.Generation).On(string(m.id)).With("seen", strconv.FormatInt(o.Generation, 10))
		case done || expired || mine == nil:
			answered = done
			return o, nil
		}
		select {
		case <-mine.done:
			if mine.err != nil {
				return o, mine.err
			}
			expired = true // one try for one call; what it came to is read once more
		case <-changed:
		case <-wait:
			expired = true
		case <-ctx.Done():
			return o, holdfast.AsError(context.Cause(ctx)).On(string(m.id))
		}
	}
}

// GetInstance observes: NOT_FOUND for what was never seen here, ABSENT for a
// tombstone. It never moves anything along (contract: A5).
func (a *Agent) GetInstance(_ context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	if err := holdfast.CheckID("instance", holdfast.PrefixInstance, string(id)); err != nil {
		return holdfast.Observation{}, err
	}
	if !a.recovered.Load() {
		return holdfast.Observation{}, draining(id)
	}
	m := a.find(id)
	if m == nil {
		return holdfast.Observation{}, unknown(id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.observation()
	if !ok {
		return holdfast.Observation{}, unknown(id)
	}
	return o, nil
}

// maxTails bounds the log tails in one list, in bytes; beyond it they are left
// out, and GetInstance has them.
const maxTails = 1 << 20

// ListInstances observes everything that is on this host, by id: what runs, what
// is frozen, and what has ended with its output kept. Tombstones are not on it.
func (a *Agent) ListInstances(context.Context) ([]holdfast.Observation, error) {
	if !a.recovered.Load() {
		return nil, draining("")
	}
	list := []holdfast.Observation{}
	for _, m := range a.all() {
		m.mu.Lock()
		o, ok := m.observation()
		m.mu.Unlock()
		if ok && o.State != holdfast.InstanceAbsent {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(x, y holdfast.Observation) int { return cmp.Compare(x.Instance, y.Instance) })
	tails := 0
	for i, o := range list {
		if o.Failure == nil {
			continue
		}
		if tails += len(o.Failure.LogTail); tails > maxTails {
			short := *o.Failure
			short.LogTail = ""
			list[i].Failure = &short
		}
	}
	return list, nil
}

func unknown(id holdfast.InstanceID) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "instance %s was never seen on this host", id).On(string(id))
}

func draining(id holdfast.InstanceID) *holdfast.Error {
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonDraining, "the host agent is starting or shutting down").On(string(id)).Retry(time.Second)
}
