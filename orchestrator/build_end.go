package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// buildOutcome is how a build ends.
type buildOutcome struct {
	state   holdfast.BuildState
	failure *holdfast.Failure // FAILED
	layers  []holdfast.Layer  // READY
}

// endBuild is the final transaction of an attempt, under its claim's number: what
// became of the build, the end of its builder, and all that waited for it (contract:
// E2). Locks: the builder's row, the build's, then the sessions'.
func (s *Service) endBuild(ctx context.Context, a *buildAttempt, end buildOutcome) error {
	ctx, cancel := operation.Closing(ctx, closing)
	defer cancel()
	return s.update(ctx, "end a build", func(tx store.Tx, _ time.Time) error {
		u := tx.(*unit)
		r, there, _, err := lockRow(ctx, tx, a.build.Sandbox)
		if err != nil {
			return err
		}
		b, found, now, err := lockBuild(ctx, tx, a.build.ID)
		if err != nil {
			return err
		}
		outcome := operation.Outcome{State: operation.StateDone}
		if end.failure != nil {
			outcome = operation.Outcome{State: operation.StateFailed, Failure: buildFailure(end.failure)}
		}
		if err := operation.Finish(ctx, tx, now, *a.claim, outcome); err != nil {
			return err
		}
		if !found || b.State != holdfast.BuildBuilding { // only its operation could end it
			return fmt.Errorf("build %s is %q while its operation is pending", a.build.ID, b.State)
		}
		b.State, b.Failure, b.Layers, b.FinishedAt, b.Cleared = end.state, end.failure, end.layers, now, !there
		if err := errors.Join(b.save(ctx, tx, now), useLayers(ctx, tx, string(b.ID), b.Layers)); err != nil {
			return err
		}
		if b.State == holdfast.BuildReady {
			if err := b.outdated(ctx, tx); err != nil {
				return err
			}
		}
		if there {
			if err := s.endBuilder(ctx, u, now, &r); err != nil {
				return err
			}
		}
		return s.advanceWaiting(ctx, u, now, b)
	})
}

func buildFailure(f *holdfast.Failure) *operation.Failure {
	return &operation.Failure{Code: string(holdfast.FailedPrecondition), Reason: string(f.Reason), Message: f.Message}
}

// endBuilder begins the delete of a locked builder, or lets the live attempt on it
// begin that when it ends.
func (s *Service) endBuilder(ctx context.Context, u *unit, now time.Time, r *row) error {
	if r.State == holdfast.SandboxDeleting || r.State == holdfast.SandboxDeleted {
		return nil
	}
	pending, has, err := operation.Pending(ctx, u, r.resource())
	if err != nil {
		return err
	}
	id := r.ID
	if has && pending.Claimed(now) {
		u.soon(func() { s.runner.Stop(pending.ID) })
		r.DeleteWanted = true
		return r.save(ctx, u, now)
	}
	u.soon(func() { s.carryOnSoon(id) })
	return s.begin(ctx, u, now, r, s.intent(holdfast.OperationDelete))
}

// superseding is a build that takes the place of others.
type superseding struct {
	build     buildRow
	operation string // id of its operation
}

// supersedeBuilds ends the unfinished builds of a locked environment that are of the
// same version as a new one, or of an older one.
func (s *Service) supersedeBuilds(ctx context.Context, u *unit, now time.Time, by superseding) error {
	return s.dropBuilds(ctx, u, dropping{environment: by.build.Environment, version: by.build.Version, end: func(b *buildRow) operation.Outcome {
		b.State, b.SupersededBy = holdfast.BuildSuperseded, by.build.ID
		return operation.Outcome{State: operation.StateSuperseded, By: by.operation}
	}})
}

// cancelBuilds ends the unfinished builds of a locked environment that is deleted.
func (s *Service) cancelBuilds(ctx context.Context, u *unit, e holdfast.Environment) error {
	return s.dropBuilds(ctx, u, dropping{environment: e.ID, version: e.Version, end: func(b *buildRow) operation.Outcome {
		b.State, b.Failure = holdfast.BuildFailed, &holdfast.Failure{Reason: holdfast.ReasonCancelled, Message: "its environment was deleted"}
		return operation.Outcome{State: operation.StateFailed, Failure: buildFailure(b.Failure)}
	}})
}

// dropping says which unfinished builds end, and how.
type dropping struct {
	environment holdfast.EnvironmentID
	version     int64 // up to which
	end         func(*buildRow) operation.Outcome
}

// dropBuilds ends unfinished builds whatever is at them, with their builders: whoever
// holds a claim finds it gone.
func (s *Service) dropBuilds(ctx context.Context, u *unit, d dropping) error {
	list, err := gather(ctx, u, scanBuild, `SELECT `+buildColumns+` FROM environment_build
		WHERE environment = $1 AND version <= $2 AND state = 'BUILDING' ORDER BY id`, string(d.environment), d.version)
	if err != nil {
		return err
	}
	for _, was := range list {
		r, there, _, err := lockRow(ctx, u, was.Sandbox)
		if err != nil {
			return err
		}
		b, found, now, err := lockBuild(ctx, u, was.ID)
		if err != nil {
			return err
		}
		if !found || b.State != holdfast.BuildBuilding {
			continue
		}
		if err := s.dropBuild(ctx, u, now, dropped{build: &b, outcome: d.end(&b)}); err != nil {
			return err
		}
		if there {
			if err := s.endBuilder(ctx, u, now, &r); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropped is a locked build with its end.
type dropped struct {
	build   *buildRow
	outcome operation.Outcome
}

// dropBuild records an end that is not an attempt's: it ends the operation whatever
// its claim, and releases all that waited for the build.
func (s *Service) dropBuild(ctx context.Context, u *unit, now time.Time, d dropped) error {
	b := d.build
	pending, has, err := operation.Pending(ctx, u, b.resource())
	if err != nil {
		return err
	}
	if has {
		if _, err := operation.End(ctx, u, now, pending.ID, d.outcome); err != nil {
			return err
		}
		u.soon(func() { s.runner.Stop(pending.ID) })
	}
	b.FinishedAt = now
	if err := b.save(ctx, u, now); err != nil {
		return err
	}
	return s.advanceWaiting(ctx, u, now, *b)
}

// buildFollows lets a build follow its builder, in the transaction that changes it:
// a builder that is ready is worked with at once, and one that ended is the build's
// end, with its reason and the last of its log (contract: C2).
func (s *Service) buildFollows(ctx context.Context, u *unit, _ time.Time, r row) error {
	b, found, now, err := lockBuild(ctx, u, holdfast.BuildID(r.Owner))
	if err != nil || !found {
		return err
	}
	id := b.ID
	if b.State != holdfast.BuildBuilding {
		if r.State != holdfast.SandboxDeleted || b.Cleared {
			return nil
		}
		b.Cleared = true
		return b.save(ctx, u, now)
	}
	switch r.State {
	case holdfast.SandboxReady:
		u.soon(func() { s.carryOnBuildSoon(id) })
		return nil
	case holdfast.SandboxFailed, holdfast.SandboxDeleting, holdfast.SandboxDeleted:
		b.State, b.Failure = holdfast.BuildFailed, builderFailure(b, r)
		b.Cleared = r.State == holdfast.SandboxDeleted
		u.soon(func() { s.clearBuilderSoon(id) })
		return s.dropBuild(ctx, u, now, dropped{build: &b, outcome: operation.Outcome{State: operation.StateFailed, Failure: buildFailure(b.Failure)}})
	}
	return nil
}

// builderFailure is why a build failed whose builder ended.
func builderFailure(b buildRow, r row) *holdfast.Failure {
	f := holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "it was removed"}
	if r.Failure != nil {
		f = *r.Failure
	}
	f.Message = "the builder ended: " + f.Message
	if b.LogTail != "" {
		f.LogTail = b.LogTail
	}
	return &f
}

// clearBuilderSoon removes what is left of a builder in the background.
func (s *Service) clearBuilderSoon(id holdfast.BuildID) {
	s.background.Go(func() {
		if err := s.clearBuilder(s.ctx, id); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
			s.config.Logger.Info("a builder is still there; a sweep removes it", "build", id, "error", err)
		}
	})
}

// clearBuilder begins the delete of the builder of a build that ended without that.
// The log of its setup is kept first, as long as its host's copy is (contract: E1).
func (s *Service) clearBuilder(ctx context.Context, id holdfast.BuildID) error {
	var b buildRow
	var r row
	var found bool
	var late bool
	err := s.view(ctx, "look at a builder", func(tx store.Tx, now time.Time) (err error) {
		if b, found, err = oneBuild(ctx, tx, id, ""); err != nil || !found {
			return err
		}
		late = now.Sub(b.FinishedAt) > holdfast.FailedKept
		r, _, err = oneRow(ctx, tx, `WHERE id = $1`, string(b.Sandbox))
		return err
	})
	if err != nil || !found || b.FinishedAt.IsZero() || b.Cleared {
		return skippedIf(err == nil, err)
	}
	kept, err := s.copyLog(ctx, b, r, 0)
	if err != nil && holdfast.Transient(err) && !late {
		return err
	}
	return s.update(ctx, "clear a builder", func(tx store.Tx, _ time.Time) error {
		r, there, _, err := lockRow(ctx, tx, b.Sandbox)
		if err != nil {
			return err
		}
		b, found, now, err := lockBuild(ctx, tx, id)
		if err != nil || !found {
			return err
		}
		if b.Log.Key == "" {
			b.Log = kept.log
		}
		if b.Failure != nil && kept.tail != "" {
			b.Failure.LogTail = kept.tail
		}
		b.Cleared = !there || r.State == holdfast.SandboxDeleted
		if err := b.save(ctx, tx, now); err != nil || b.Cleared {
			return err
		}
		return s.endBuilder(ctx, tx.(*unit), now, &r)
	})
}
