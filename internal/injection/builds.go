package injection

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/transport"
)

// Setups that end by themselves, and that are ended. The first lasts until the build
// waits for its guest's word.
const (
	shortSetup = "sleep 1"
	longSetup  = "sleep 60"
)

// setupReports are what guests report of the setups of environments (H5).
func setupReports() []experiment {
	ready, failed := reported(holdfast.DeliverySetupReady), reported(holdfast.DeliverySetupFailed)
	return []experiment{
		{hop: "H5", message: "environment.ready", cell: Twice, does: "the report of a setup's end arrives twice at the same time, and again when its build has ended", run: func(l *lab) (string, error) {
			fault, kept := overlap(l.wire, ready), l.wire.tape(ready)
			b, err := l.build("twice", shortSetup)
			if err == nil {
				b, err = l.buildIs(b.ID, holdfast.BuildReady)
			}
			if err == nil {
				_, err = l.ignored(kept)
			}
			return seen(errors.Join(err, l.fired(fault), l.builtOnce(b)), "READY once, one builder booted once")
		}},
		{hop: "H5", message: "environment.ready", cell: Late, does: "the report of a setup's end arrives when a newer build has taken its place", run: lateReady(ready)},
		{hop: "H5", message: "environment.ready", cell: Never, does: "every report of a setup's end is lost, and 2 min pass", trustHosts: true, run: func(l *lab) (string, error) {
			b, took, err := l.buildsUnheard(ready, shortSetup, holdfast.BuildReady)
			return seen(errors.Join(err, l.builtOnce(b)), "READY %s later, by asking its host; one builder booted once", took)
		}},
		{hop: "H5", message: "environment.failed", cell: Twice, does: "the report of a setup that failed arrives twice at the same time, and again when its build has ended", run: func(l *lab) (string, error) {
			fault, kept := overlap(l.wire, failed), l.wire.tape(failed)
			b, err := l.sets("twice")
			if err == nil {
				err = l.client.SignalProcess(l, b.Sandbox, b.Process, "KILL")
			}
			if err == nil {
				b, err = l.buildIs(b.ID, holdfast.BuildFailed)
			}
			if err == nil {
				_, err = l.ignored(kept)
			}
			return seen(errors.Join(err, l.fired(fault), l.builtOnce(b), b.failedFor(holdfast.ReasonSetupFailed)), "FAILED once, SETUP_FAILED: %s", b.why())
		}},
		{hop: "H5", message: "environment.failed", cell: Late, does: "the report of a setup that failed arrives when its environment is deleted, and its builder with it", run: func(l *lab) (string, error) {
			kept := l.wire.tape(failed)
			l.wire.always(transport.Drop, failed)
			b, err := l.sets("late")
			if err == nil {
				err = l.client.SignalProcess(l, b.Sandbox, b.Process, "KILL")
			}
			if err == nil {
				err = l.until("a report was lost", func() (bool, error) { return kept.count() > 0, nil })
			}
			if err == nil {
				_, err = l.client.DeleteEnvironment(l, b.Name)
			}
			if err = errors.Join(err, l.empty()); err != nil {
				return "", err
			}
			status, err := l.ignored(kept)
			if err == nil {
				b.Build, err = l.client.GetBuild(l, b.ID)
			}
			return seen(errors.Join(err, b.failedFor(holdfast.ReasonCancelled)), "answered %d and ignored: FAILED as before, CANCELLED", status)
		}},
		{hop: "H5", message: "environment.failed", cell: Never, does: "every report of a setup that failed is lost, and 2 min pass", trustHosts: true, run: func(l *lab) (string, error) {
			b, took, err := l.buildsUnheard(failed, longSetup, holdfast.BuildFailed)
			return seen(errors.Join(err, l.builtOnce(b), b.failedFor(holdfast.ReasonSetupFailed)), "FAILED %s later, by asking its host: %s", took, b.why())
		}},
	}
}

// lateReady lets the report of a setup come when its build is superseded.
func lateReady(ready about) func(*lab) (string, error) {
	return func(l *lab) (string, error) {
		kept := l.wire.tape(ready)
		fault := l.wire.always(transport.Drop, ready)
		first, err := l.build("first", shortSetup)
		if err == nil {
			err = l.until("a report was lost", func() (bool, error) { return kept.count() > 0, nil })
		}
		if err != nil {
			return "", err
		}
		second, err := l.build("second", shortSetup+"; true")
		if err != nil {
			return "", err
		}
		l.wire.lift(fault)
		if second, err = l.buildIs(second.ID, holdfast.BuildReady); err != nil {
			return "", err
		}
		status, err := l.ignored(kept)
		if err == nil {
			_, err = l.buildIs(first.ID, holdfast.BuildSuperseded)
		}
		if err != nil {
			return "", err
		}
		e, err := l.client.GetEnvironment(l, first.Name)
		if err == nil && e.Build != second.ID {
			err = fmt.Errorf("the environment is that of %s", e.Build)
		}
		return seen(err, "answered %d and ignored: SUPERSEDED; the environment is the newer build's", status)
	}
}

// built is a build, as experiments judge it.
type built struct{ holdfast.Build }

// why is the reason of a failed build, in words.
func (b built) why() string {
	if b.Failure == nil {
		return ""
	}
	return b.Failure.Message
}

// failedFor holds that a build failed, and for which reason.
func (b built) failedFor(reason holdfast.Reason) error {
	if b.State != holdfast.BuildFailed || b.Failure == nil || b.Failure.Reason != reason {
		return fmt.Errorf("%s is %s: %+v", b.ID, b.State, b.Failure)
	}
	return nil
}

// build begins a build of an environment with a setup.
func (l *lab) build(id, setup string) (built, error) {
	e, err := l.client.CreateEnvironment(l, holdfast.CreateEnvironment{Name: "tools", Recipe: holdfast.Recipe{Base: "base", Setup: setup}})
	if err != nil {
		return built{}, err
	}
	b, err := l.client.BuildEnvironment(l, holdfast.BuildEnvironment{RequestID: id, Environment: e.Name})
	return built{b}, err
}

// sets is a build whose setup runs until it is ended, and that waits for that.
func (l *lab) sets(id string) (built, error) {
	b, err := l.build(id, longSetup)
	if err != nil {
		return b, err
	}
	return l.waits(b)
}

// waits waits until a build waits for the end of its setup.
func (l *lab) waits(b built) (built, error) {
	return b, l.until("the build waits for its setup", func() (bool, error) {
		is, err := l.client.GetBuild(l, b.ID)
		b = built{is}
		return err == nil && (b.State != holdfast.BuildBuilding || b.Process != "" && b.Operation != nil && b.Operation.Claim == nil), err
	})
}

// buildsUnheard lets a setup end whose reports are lost, and 2 min pass.
func (l *lab) buildsUnheard(report about, setup string, end holdfast.BuildState) (built, time.Duration, error) {
	fault := l.wire.always(transport.Drop, report)
	b, err := l.build("never", setup)
	if err == nil {
		b, err = l.waits(b)
	}
	if err == nil && setup == longSetup {
		err = l.client.SignalProcess(l, b.Sandbox, b.Process, "KILL")
	}
	if err == nil {
		err = l.until("a report was lost", func() (bool, error) { return fault.count() > 0, nil })
	}
	if err != nil {
		return b, 0, err
	}
	l.clock.forward(holdfast.BuildSilence)
	began := time.Now()
	b, err = l.buildIs(b.ID, end)
	return b, since(began), err
}

// buildIs waits for a build's state.
func (l *lab) buildIs(id holdfast.BuildID, state holdfast.BuildState) (built, error) {
	var b built
	err := l.until(fmt.Sprintf("%s is %s", id, state), func() (bool, error) {
		is, err := l.client.GetBuild(l, id)
		b = built{is}
		return err == nil && b.State == state, err
	})
	if err != nil {
		err = fmt.Errorf("%w (it is %s: %s)", err, b.State, b.why())
	}
	return b, err
}

// builtOnce holds that a build ended as it did, and that nothing else was built or
// booted.
func (l *lab) builtOnce(was built) error {
	page, err := l.client.ListBuilds(l, holdfast.ListBuilds{})
	if err != nil {
		return err
	}
	if len(page.Builds) != 1 {
		return fmt.Errorf("there are %d builds", len(page.Builds))
	}
	if is := page.Builds[0]; is.State != was.State || !is.FinishedAt.Equal(was.FinishedAt) {
		return fmt.Errorf("it ended again: %s at %s, and %s at %s", was.State, was.FinishedAt, is.State, is.FinishedAt)
	}
	if n := l.machine.bootsInAll(); n != 1 {
		return fmt.Errorf("%d builders booted", n)
	}
	return nil
}

// ignored sends a report again that is to be taken, and to change nothing.
func (l *lab) ignored(kept *rule) (status int, err error) {
	status, answer, err := l.wire.again(l, kept, 0)
	if err == nil && (status < 200 || status > 299) {
		err = fmt.Errorf("answered %d %s", status, answer)
	}
	return status, err
}
