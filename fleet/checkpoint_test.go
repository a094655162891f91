package fleet

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

func (w *world) copyOf(id holdfast.InstanceID, desired holdfast.CheckpointDesired) holdfast.CheckpointLevel {
	return holdfast.CheckpointLevel{Cluster: cluster, Checkpoint: holdfast.CheckpointID(w.ids.New(holdfast.PrefixCheckpoint)), Instance: id,
		Incarnation: 1, Generation: 2, Claim: 1, Desired: desired, MintedAt: w.clock.Now()}
}

// contract: E4
func TestE4_ACheckpointGoesToTheHostOfItsInstance(t *testing.T) {
	w := newWorld(t)
	w.host(1)
	w.host(1)
	at := w.row(w.running())
	for _, desired := range []holdfast.CheckpointDesired{holdfast.CheckpointPresent, holdfast.CheckpointAbsent} {
		l := w.copyOf(at.id, desired)
		l.Wait = time.Hour
		o, err := w.fleet.EnsureCheckpoint(t.Context(), l)
		check(t, err)
		if o.Checkpoint != l.Checkpoint || o.State != holdfast.CopyState(desired) {
			t.Errorf("answered %+v", o)
		}
	}
	for _, m := range w.urls {
		want := 0
		if m.id == at.host {
			want = 2
		}
		if len(m.copies) != want {
			t.Errorf("%s was told %d times, want %d", m.id, len(m.copies), want)
		}
		for _, l := range m.copies {
			if l.Cluster != cluster || l.Wait != holdfast.MaxLevelWait || l.MintedAt.IsZero() || l.Claim != 1 {
				t.Errorf("told %+v", l)
			}
		}
	}
}

// contract: E4; traps T32, T36, T37
func TestE4_WhatCannotBeCopiedIsRefusedAndSilenceIsNoAnswer(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.running()
	w.ensure(w.level(id, 5, holdfast.DesiredSuspended))
	refused := func(l holdfast.CheckpointLevel, want holdfast.Reason) {
		t.Helper()
		_, err := w.fleet.EnsureCheckpoint(t.Context(), l)
		wantReason(t, err, want)
	}
	l := w.copyOf(id, holdfast.CheckpointPresent)
	refused(l, holdfast.ReasonStaleGeneration)
	l.Generation, l.Incarnation = 6, 2
	refused(l, holdfast.ReasonBehind)
	refused(w.copyOf(w.instance(), holdfast.CheckpointPresent), holdfast.ReasonUnknown)
	for _, spoil := range []func(*holdfast.CheckpointLevel){
		func(l *holdfast.CheckpointLevel) { l.Checkpoint = "sb-1" }, func(l *holdfast.CheckpointLevel) { l.Instance = "" },
		func(l *holdfast.CheckpointLevel) { l.Incarnation = 0 }, func(l *holdfast.CheckpointLevel) { l.Generation = 0 },
		func(l *holdfast.CheckpointLevel) { l.Desired = "RUNNING" },
	} {
		l := w.copyOf(id, holdfast.CheckpointPresent)
		spoil(&l)
		refused(l, holdfast.ReasonBadField)
	}
	l = w.copyOf(id, holdfast.CheckpointAbsent)
	l.Cluster = "another"
	refused(l, holdfast.ReasonCluster)
	if len(m.copies) != 0 {
		t.Errorf("the host was told %+v", m.copies)
	}
	absent, present := w.copyOf(id, holdfast.CheckpointAbsent), w.copyOf(id, holdfast.CheckpointPresent)
	present.Generation = 6
	m.do(func() { m.down = true })
	refused(present, holdfast.ReasonHostUnreachable)
	refused(absent, holdfast.ReasonHostUnreachable)
	m.do(func() { m.down, m.elsewhere = false, true })
	refused(absent, holdfast.ReasonHostUnreachable)
	m.do(func() { m.elsewhere = false })
	if o, err := w.fleet.EnsureCheckpoint(t.Context(), absent); err != nil || o.State != holdfast.CopyAbsent { // of an older generation: the end is the end
		t.Errorf("answered %+v, %v", o, err)
	}
	w.ensure(w.level(id, 7, holdfast.DesiredAbsent))
	present.Generation = 8
	refused(present, holdfast.ReasonExited)
}

// contract: E4. ABSENT without a host's word only where nobody is left to copy.
func TestE4_AbsentIsAnsweredForWhatIsGone(t *testing.T) {
	w := newWorld(t)
	m := w.host(4)
	id := w.running()
	w.ensure(w.level(id, 2, holdfast.DesiredAbsent))
	m.do(func() { m.down = true })
	for _, gone := range []holdfast.InstanceID{id, w.instance()} {
		o, err := w.fleet.EnsureCheckpoint(t.Context(), w.copyOf(gone, holdfast.CheckpointAbsent))
		if err != nil || o.State != holdfast.CopyAbsent || o.Instance != gone {
			t.Errorf("answered %+v, %v", o, err)
		}
	}
	if len(m.copies) != 0 {
		t.Errorf("the host was told %+v", m.copies)
	}
}

func TestARouteIsDecidedByWhatIsRecordedAlone(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const asking = time.Minute
	recovered := lineage.Lineage{RecoveredAt: now.Add(-time.Second)}
	runs := row{id: "in-1", incarnation: 2, generation: 3, host: "ho-1", state: holdfast.InstanceRunning}
	gone := runs
	gone.hostGone = true
	exited := runs
	exited.state = holdfast.InstanceExited
	for name, c := range map[string]struct {
		at      whereabouts
		desired holdfast.CheckpointDesired
		boot    int64
		host    holdfast.HostID
		refused holdfast.Reason
	}{
		"it runs":                          {at: whereabouts{instance: &runs}, desired: holdfast.CheckpointPresent, boot: 2, host: "ho-1"},
		"its host is given up":             {at: whereabouts{instance: &gone}, desired: holdfast.CheckpointPresent, boot: 2, refused: holdfast.ReasonInstanceLost},
		"its host is given up, end":        {at: whereabouts{instance: &gone}, desired: holdfast.CheckpointAbsent, boot: 2},
		"it ended, and its host has it":    {at: whereabouts{instance: &exited}, desired: holdfast.CheckpointAbsent, boot: 2, host: "ho-1"},
		"an earlier boot":                  {at: whereabouts{instance: &runs}, desired: holdfast.CheckpointPresent, boot: 1, refused: holdfast.ReasonStaleIncarnation},
		"an earlier boot, ended":           {at: whereabouts{instance: &runs}, desired: holdfast.CheckpointAbsent, boot: 1},
		"an earlier boot, not known ended": {at: whereabouts{instance: &runs, left: &leftover{host: "ho-0"}}, desired: holdfast.CheckpointAbsent, boot: 1, host: "ho-0"},
		"a later boot":                     {at: whereabouts{instance: &runs}, desired: holdfast.CheckpointAbsent, boot: 3, refused: holdfast.ReasonBehind},
		"unknown, hosts are being asked":   {at: whereabouts{lineage: recovered}, desired: holdfast.CheckpointAbsent, boot: 1, refused: holdfast.ReasonBehind},
		"unknown":                          {desired: holdfast.CheckpointAbsent, boot: 1},
	} {
		l := holdfast.CheckpointLevel{Instance: "in-1", Incarnation: c.boot, Generation: 4, Desired: c.desired, MintedAt: now.Add(-time.Hour)}
		host, err := route(c.at, l, asking, now)
		if got := holdfast.ReasonOf(err); got != c.refused && (err != nil || c.refused != "") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (host == nil && c.host != "" || host != nil && host.host != c.host) {
			t.Errorf("%s: routed to %+v", name, host)
		}
	}
}
