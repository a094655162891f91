package hostagent

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

// step is what a convergence does next.
type step string

const (
	stepNone    step = "none"    // what is recorded is reached
	stepBoot    step = "boot"    // image, prepare, record the start, start
	stepStart   step = "start"   // the start is recorded, the runtime has not been told
	stepAwait   step = "await"   // ask the guest until it is ready
	stepSuspend step = "suspend" // freeze
	stepResume  step = "resume"  // thaw
	stepEnd     step = "end"     // give everything back but the output
	stepRemove  step = "remove"  // and that too
)

// settling reports whether the step belongs to observing: what an agent does
// without being asked. It never boots, freezes, thaws or removes (traps T22, T26).
func (s step) settling() bool { return s == stepNone || s == stepAwait || s == stepEnd }

// surroundings are what a plan needs to know of the host.
type surroundings struct {
	bootID       string
	survivesHost bool // suspended instances outlive a reboot
	now          time.Time
	boot         time.Duration // deadline from the start to readiness
	prepare      time.Duration // deadline from the first level to the start
	asked        bool          // a level asks; else this only observes
}

// planned is a step, and where it ends the instance, why.
type planned struct {
	step    step
	failure *holdfast.Failure
}

// blind reports a step that needs no look at the runtime: giving back is right
// whatever is left.
func blind(r record) (planned, bool) {
	switch {
	case r.State == holdfast.InstanceAbsent:
		return planned{step: stepNone}, true
	case r.Removing:
		return planned{step: stepRemove}, true
	case r.State == holdfast.InstanceExited:
		return planned{step: stepNone}, true
	case r.Ending != nil:
		return planned{step: stepEnd, failure: r.Ending}, true
	}
	return planned{}, false
}

// plan decides the next step of one incarnation from what is recorded and what
// the runtime says. It is pure.
func plan(r record, seen runtime.Phase, around surroundings) planned {
	if p, ok := blind(r); ok {
		return p
	}
	ran := r.Started || seen == runtime.PhaseRunning || seen == runtime.PhaseSuspended || seen == runtime.PhaseExited
	if !ran {
		if !around.asked && around.now.Sub(r.CreatedAt) >= around.prepare {
			return planned{step: stepEnd, failure: prepareTimeout(around.prepare)}
		}
		return planned{step: stepBoot}
	}
	if gone := lost(r, seen, around); gone != nil {
		return planned{step: stepEnd, failure: gone}
	}
	switch seen {
	case runtime.PhasePrepared:
		if !around.asked && around.now.Sub(r.StartedAt) >= around.boot {
			return planned{step: stepEnd, failure: bootTimeout(around.boot)}
		}
		return planned{step: stepStart}
	case runtime.PhaseSuspended:
		if r.Desired == holdfast.DesiredSuspended {
			return planned{step: stepNone}
		}
		return planned{step: stepResume}
	}
	switch {
	case r.State != holdfast.InstanceRunning:
		return planned{step: stepAwait}
	case r.Desired == holdfast.DesiredSuspended:
		return planned{step: stepSuspend}
	}
	return planned{step: stepNone}
}

// lost says why an incarnation that ran has ended, nil if it has not.
func lost(r record, seen runtime.Phase, around surroundings) *holdfast.Failure {
	saved := seen == runtime.PhaseSuspended && around.survivesHost
	if r.Started && r.BootID != around.bootID && !saved {
		return &holdfast.Failure{Reason: holdfast.ReasonHostRebooted, Message: "the host booted anew; what ran on it is gone"}
	}
	switch {
	case seen == runtime.PhaseExited && r.ReadyAt.IsZero():
		return &holdfast.Failure{Reason: holdfast.ReasonBootFailed, Message: "the guest ended before it was ready"}
	case seen == runtime.PhaseExited:
		return &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "the instance ended by itself"}
	case seen == runtime.PhaseAbsent && r.State == holdfast.InstanceSuspended:
		return &holdfast.Failure{Reason: holdfast.ReasonSavedStateGone, Message: "the suspended instance is gone from the runtime"}
	case seen == runtime.PhaseAbsent:
		return &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "the instance is gone from the runtime"}
	}
	return nil
}

func bootTimeout(after time.Duration) *holdfast.Failure {
	return &holdfast.Failure{Reason: holdfast.ReasonBootTimeout, Message: "the guest was not ready within " + after.String()}
}

func prepareTimeout(after time.Duration) *holdfast.Failure {
	return &holdfast.Failure{Reason: holdfast.ReasonPrepareFailed, Message: "it was not set up within " + after.String()}
}
