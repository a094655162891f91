package fleet

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// The level rules of lifecycle.md, "Downward: levels".
func TestALevelIsJudgedByWhatWasSeen(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	spec := &holdfast.InstanceSpec{Owner: "sb-1", Image: "base"}
	other := &holdfast.InstanceSpec{Owner: "sb-1", Image: "debian"}
	known := func(state holdfast.InstanceState, desired holdfast.Desired) *row {
		hash, err := hashSpec(spec)
		check(t, err)
		return &row{id: "in-1", incarnation: 2, generation: 5, observed: 5, desired: desired, spec: spec, specHash: hash,
			host: "ho-1", held: !final(state), state: state, known: state}
	}
	level := func(incarnation, generation int64, desired holdfast.Desired, spec *holdfast.InstanceSpec) holdfast.Level {
		return holdfast.Level{Instance: "in-1", Incarnation: incarnation, Generation: generation, Desired: desired, Spec: spec, MintedAt: now}
	}
	old := level(1, 1, holdfast.DesiredRunning, spec)
	old.MintedAt = now.Add(-holdfast.LevelTooOldAfter - time.Second)
	oldKnown := level(2, 6, holdfast.DesiredRunning, spec)
	oldKnown.MintedAt = old.MintedAt
	neverRan := known(holdfast.InstanceExited, holdfast.DesiredExited)
	neverRan.host = ""
	running, r := holdfast.InstanceRunning, holdfast.DesiredRunning

	for _, tc := range []struct {
		name               string
		cur                *row
		level              holdfast.Level
		reason             holdfast.Reason
		write, place, call bool
		state              holdfast.InstanceState
		left               bool
	}{
		{name: "unknown RUNNING is placed", level: level(1, 1, r, spec), write: true, place: true, call: true, state: holdfast.InstancePlaced},
		{name: "unknown RUNNING needs a spec", level: level(1, 1, r, nil), reason: holdfast.ReasonBadField},
		{name: "T40 unknown and minted long ago", level: old, reason: holdfast.ReasonTooOld},
		{name: "known and minted long ago", cur: known(running, r), level: oldKnown, write: true, call: true, state: running},
		{name: "T39 unknown ABSENT leaves a tombstone", level: level(1, 1, holdfast.DesiredAbsent, nil), write: true, state: holdfast.InstanceAbsent},
		{name: "unknown EXITED is recorded", level: level(1, 1, holdfast.DesiredExited, nil), write: true, state: holdfast.InstanceExited},
		{name: "unknown SUSPENDED", level: level(1, 1, holdfast.DesiredSuspended, spec), reason: holdfast.ReasonState},
		{name: "older incarnation", cur: known(running, r), level: level(1, 9, r, spec), reason: holdfast.ReasonStaleIncarnation},
		{name: "lower generation", cur: known(running, r), level: level(2, 4, r, spec), reason: holdfast.ReasonStaleGeneration},
		{name: "newer incarnation, lower generation", cur: known(running, r), level: level(3, 4, r, spec), reason: holdfast.ReasonStaleGeneration},
		{name: "same level joins", cur: known(running, r), level: level(2, 5, r, spec), call: true, state: running},
		{name: "same level without its spec joins", cur: known(running, r), level: level(2, 5, r, nil), call: true, state: running},
		{name: "same generation, other desired", cur: known(running, r), level: level(2, 5, holdfast.DesiredAbsent, spec), reason: holdfast.ReasonLevelConflict},
		{name: "same generation, other spec", cur: known(running, r), level: level(2, 5, r, other), reason: holdfast.ReasonLevelConflict},
		{name: "another spec for an incarnation", cur: known(running, r), level: level(2, 6, r, other), reason: holdfast.ReasonLevelConflict},
		{name: "higher generation", cur: known(running, r), level: level(2, 6, holdfast.DesiredSuspended, spec), write: true, call: true, state: running},
		{name: "T49 RUNNING for what exited", cur: known(holdfast.InstanceExited, r), level: level(2, 6, r, spec), write: true, state: holdfast.InstanceExited},
		{name: "same level for what exited", cur: known(holdfast.InstanceExited, r), level: level(2, 5, r, spec), state: holdfast.InstanceExited},
		{name: "ABSENT for what exited", cur: known(holdfast.InstanceExited, r), level: level(2, 6, holdfast.DesiredAbsent, nil), write: true, call: true, state: holdfast.InstanceExited},
		{name: "ABSENT for what never was anywhere", cur: neverRan, level: level(2, 6, holdfast.DesiredAbsent, nil), write: true, state: holdfast.InstanceAbsent},
		{name: "T39 RUNNING for a tombstone", cur: known(holdfast.InstanceAbsent, holdfast.DesiredAbsent), level: level(2, 6, r, spec), write: true, state: holdfast.InstanceAbsent},
		{name: "ABSENT again", cur: known(holdfast.InstanceAbsent, holdfast.DesiredAbsent), level: level(2, 5, holdfast.DesiredAbsent, nil), state: holdfast.InstanceAbsent},
		{name: "T38 newer incarnation", cur: known(running, r), level: level(3, 6, r, spec), write: true, place: true, call: true, state: holdfast.InstancePlaced, left: true},
		{name: "newer incarnation of what exited", cur: known(holdfast.InstanceExited, r), level: level(3, 6, r, other), write: true, place: true, call: true, state: holdfast.InstancePlaced},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hash, err := hashSpec(tc.level.Spec)
			check(t, err)
			got, err := judge(tc.cur, tc.level, hash, clock{now: now, tooOld: holdfast.LevelTooOldAfter})
			if tc.reason != "" {
				wantReason(t, err, tc.reason)
				return
			}
			check(t, err)
			if got.write != tc.write || got.place != tc.place || got.call != tc.call || (got.left != nil) != tc.left {
				t.Errorf("write %v place %v call %v left %v, want %v %v %v %v", got.write, got.place, got.call, got.left != nil, tc.write, tc.place, tc.call, tc.left)
			}
			if got.next.state != tc.state {
				t.Errorf("state %s, want %s", got.next.state, tc.state)
			}
			if !got.call && !final(got.next.state) {
				t.Errorf("answered %s without the host, which alone knows", got.next.state)
			}
			if !got.call && got.next.observation().Generation < tc.level.Generation {
				t.Errorf("the answer's generation %d does not answer %d", got.next.observation().Generation, tc.level.Generation)
			}
		})
	}
}
