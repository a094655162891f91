package hostagent

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// T27, T49
func TestPlanDecidesTheNextStep(t *testing.T) {
	now := newClock().Now()
	around := surroundings{bootID: "boot-1", now: now, boot: 2 * time.Minute, prepare: 15 * time.Minute, asked: true}
	fresh := record{State: holdfast.InstancePreparing, Desired: holdfast.DesiredRunning, CreatedAt: now}
	started := record{State: holdfast.InstanceBooting, Desired: holdfast.DesiredRunning, Started: true, StartedAt: now, BootID: "boot-1"}
	running := started
	running.State, running.ReadyAt = holdfast.InstanceRunning, now
	frozen := running
	frozen.State, frozen.Desired = holdfast.InstanceSuspended, holdfast.DesiredSuspended
	with := func(r record, change func(*record)) record { change(&r); return r }
	freeze := func(r *record) { r.Desired = holdfast.DesiredSuspended }
	thaw := func(r *record) { r.Desired = holdfast.DesiredRunning }
	elsewhere := func(r *record) { r.BootID = "boot-0" }
	watching := func(a surroundings) surroundings { a.asked = false; return a }
	later := func(a surroundings, d time.Duration) surroundings { a.now = a.now.Add(d); return a }
	survives := func(a surroundings) surroundings { a.survivesHost = true; return a }

	for name, c := range map[string]struct {
		record record
		seen   runtime.Phase
		around surroundings
		want   step
		reason holdfast.Reason
	}{
		"nothing was begun":                    {fresh, runtime.PhaseAbsent, around, stepBoot, ""},
		"half prepared":                        {fresh, runtime.PhasePrepared, around, stepBoot, ""},
		"not started, host rebooted":           {with(fresh, elsewhere), runtime.PhaseAbsent, around, stepBoot, ""},
		"not recorded as started, yet it runs": {fresh, runtime.PhaseRunning, around, stepAwait, ""},
		"not recorded as started, yet it ran":  {fresh, runtime.PhaseExited, around, stepEnd, holdfast.ReasonBootFailed},
		"abandoned while preparing":            {fresh, runtime.PhaseAbsent, later(watching(around), 15*time.Minute), stepEnd, holdfast.ReasonPrepareFailed},
		"preparing late, but asked for":        {fresh, runtime.PhaseAbsent, later(around, 15*time.Minute), stepBoot, ""},
		"start recorded, not begun":            {started, runtime.PhasePrepared, around, stepStart, ""},
		"start recorded, host rebooted":        {with(started, elsewhere), runtime.PhasePrepared, around, stepEnd, holdfast.ReasonHostRebooted},
		"start recorded, nobody came":          {started, runtime.PhasePrepared, later(watching(around), 2*time.Minute), stepEnd, holdfast.ReasonBootTimeout},
		"start recorded, gone":                 {started, runtime.PhaseAbsent, around, stepEnd, holdfast.ReasonInstanceLost},
		"booting":                              {started, runtime.PhaseRunning, around, stepAwait, ""},
		"booting for long: asked once more":    {started, runtime.PhaseRunning, later(watching(around), time.Hour), stepAwait, ""},
		"died while booting":                   {started, runtime.PhaseExited, around, stepEnd, holdfast.ReasonBootFailed},
		"booting, to be frozen":                {with(started, freeze), runtime.PhaseRunning, around, stepAwait, ""},
		"runs":                                 {running, runtime.PhaseRunning, around, stepNone, ""},
		"ended by itself":                      {running, runtime.PhaseExited, around, stepEnd, holdfast.ReasonExited},
		"gone":                                 {running, runtime.PhaseAbsent, around, stepEnd, holdfast.ReasonInstanceLost},
		"host rebooted":                        {with(running, elsewhere), runtime.PhaseAbsent, around, stepEnd, holdfast.ReasonHostRebooted},
		"host rebooted, runtime lies":          {with(running, elsewhere), runtime.PhaseRunning, around, stepEnd, holdfast.ReasonHostRebooted},
		"to be frozen":                         {with(running, freeze), runtime.PhaseRunning, around, stepSuspend, ""},
		"frozen already":                       {with(running, freeze), runtime.PhaseSuspended, around, stepNone, ""},
		"frozen":                               {frozen, runtime.PhaseSuspended, around, stepNone, ""},
		"frozen, host rebooted":                {with(frozen, elsewhere), runtime.PhaseSuspended, around, stepEnd, holdfast.ReasonHostRebooted},
		"saved, host rebooted":                 {with(frozen, elsewhere), runtime.PhaseSuspended, survives(around), stepNone, ""},
		"saved, host rebooted, state gone":     {with(frozen, elsewhere), runtime.PhaseAbsent, survives(around), stepEnd, holdfast.ReasonHostRebooted},
		"frozen state gone":                    {frozen, runtime.PhaseAbsent, around, stepEnd, holdfast.ReasonSavedStateGone},
		"to be thawed":                         {with(frozen, thaw), runtime.PhaseSuspended, around, stepResume, ""},
		"thawed, not recorded":                 {with(frozen, thaw), runtime.PhaseRunning, around, stepAwait, ""},
		"to be removed":                        {with(running, func(r *record) { r.Removing = true }), runtime.PhaseRunning, around, stepRemove, ""},
		"to be removed, ended":                 {with(running, func(r *record) { r.Removing, r.State = true, holdfast.InstanceExited }), runtime.PhaseAbsent, around, stepRemove, ""},
		"ending":                               {with(started, func(r *record) { r.Ending = bootTimeout(time.Minute) }), runtime.PhaseRunning, around, stepEnd, holdfast.ReasonBootTimeout},
		"ended":                                {with(running, func(r *record) { r.State = holdfast.InstanceExited }), runtime.PhaseRunning, around, stepNone, ""},
		"removed":                              {with(running, func(r *record) { r.State = holdfast.InstanceAbsent }), runtime.PhaseRunning, around, stepNone, ""},
	} {
		got := plan(c.record, c.seen, c.around)
		if got.step != c.want {
			t.Errorf("%s: %s, want %s", name, got.step, c.want)
		}
		if got.failure == nil && c.reason != "" || got.failure != nil && got.failure.Reason != c.reason {
			t.Errorf("%s: failure %+v, want %s", name, got.failure, c.reason)
		}
	}
}

// T26, T27, T29
func TestTheInstancesSweepLooksWhereRecordAndRuntimeDiffer(t *testing.T) {
	now, timing := newClock().Now(), Timing{}.withDefaults()
	in := func(s holdfast.InstanceState) record { return record{State: s, CreatedAt: now, TombstoneAt: now} }
	old := record{State: holdfast.InstanceAbsent, TombstoneAt: now.Add(-holdfast.TombstoneKept)}
	late := record{State: holdfast.InstancePreparing, CreatedAt: now.Add(-holdfast.InstancePrepareAfter)}
	removing, ending := in(holdfast.InstanceRunning), in(holdfast.InstanceRunning)
	removing.Removing, ending.Ending = true, bootTimeout(time.Minute)
	for name, c := range map[string]struct {
		swept swept
		want  action
	}{
		"runs":                             {swept{record: in(holdfast.InstanceRunning), verified: true, seen: runtime.PhaseRunning}, actNothing},
		"runs, never looked at":            {swept{record: in(holdfast.InstanceRunning), seen: runtime.PhaseRunning}, actLook},
		"its end was missed":               {swept{record: in(holdfast.InstanceRunning), verified: true, seen: runtime.PhaseExited}, actLook},
		"it is not in the list":            {swept{record: in(holdfast.InstanceRunning), verified: true, seen: runtime.PhaseAbsent}, actLook},
		"the list was not read":            {swept{record: in(holdfast.InstanceRunning), verified: true, seen: runtime.PhaseAbsent, blind: true}, actNothing},
		"an attempt is live":               {swept{record: in(holdfast.InstanceRunning), verified: true, seen: runtime.PhaseAbsent, live: true}, actNothing},
		"frozen":                           {swept{record: in(holdfast.InstanceSuspended), verified: true, seen: runtime.PhaseSuspended}, actNothing},
		"frozen, gone":                     {swept{record: in(holdfast.InstanceSuspended), verified: true, seen: runtime.PhaseAbsent}, actLook},
		"frozen, not read":                 {swept{record: in(holdfast.InstanceSuspended), verified: true, seen: runtime.PhaseAbsent, blind: true}, actNothing},
		"booting, nobody asks it":          {swept{record: in(holdfast.InstanceBooting), verified: true, seen: runtime.PhaseRunning}, actLook},
		"preparing":                        {swept{record: in(holdfast.InstancePreparing), verified: true, seen: runtime.PhaseAbsent}, actNothing},
		"preparing, abandoned":             {swept{record: late, verified: true, seen: runtime.PhasePrepared}, actLook},
		"removing":                         {swept{record: removing, verified: true, seen: runtime.PhaseRunning}, actNothing},
		"ending":                           {swept{record: ending, verified: true, seen: runtime.PhaseRunning}, actLook},
		"ended":                            {swept{record: in(holdfast.InstanceExited), seen: runtime.PhaseAbsent}, actNothing},
		"ended, something is left":         {swept{record: in(holdfast.InstanceExited), seen: runtime.PhaseExited}, actRelease},
		"tombstone":                        {swept{record: in(holdfast.InstanceAbsent), seen: runtime.PhaseAbsent}, actNothing},
		"tombstone, something is left":     {swept{record: in(holdfast.InstanceAbsent), seen: runtime.PhasePrepared}, actRelease},
		"old tombstone":                    {swept{record: old, seen: runtime.PhaseAbsent}, actPurge},
		"old tombstone, something is left": {swept{record: old, seen: runtime.PhaseRunning}, actRelease},
	} {
		if got := planSwept(c.swept, now, timing); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What must be known after a crash of the machine is synced; the rest a reboot
// makes untrue anyway. T49
func TestT49_WhatOutlivesTheMachineIsSynced(t *testing.T) {
	fresh := record{State: holdfast.InstancePreparing}
	booting := record{State: holdfast.InstanceBooting, Started: true}
	running := record{State: holdfast.InstanceRunning, Started: true}
	for name, c := range map[string]struct {
		before, after record
		survives      bool
		want          bool
	}{
		"accepted":              {record{}, fresh, false, false},
		"started":               {fresh, booting, false, true},
		"ready":                 {booting, running, false, false},
		"suspended":             {running, record{State: holdfast.InstanceSuspended, Started: true}, false, false},
		"suspended, saved":      {running, record{State: holdfast.InstanceSuspended, Started: true}, true, true},
		"removal ordered":       {running, record{State: holdfast.InstanceRunning, Started: true, Removing: true}, false, true},
		"ending":                {running, record{State: holdfast.InstanceRunning, Started: true, Ending: bootTimeout(time.Second)}, false, true},
		"tombstone, never seen": {record{}, record{State: holdfast.InstanceAbsent}, false, true},
		"ended":                 {running, record{State: holdfast.InstanceExited, Started: true}, false, true},
	} {
		if got := outlives(c.before, c.after, c.survives); got != c.want {
			t.Errorf("%s: synced %v, want %v", name, got, c.want)
		}
	}
}
