package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// buildStep is what is to be done about a build next.
type buildStep string

const (
	stepNothing buildStep = ""        // it has ended
	stepBuilder buildStep = "builder" // wait until its builder is ready
	stepPrepare buildStep = "prepare" // write the recipe's files
	stepStart   buildStep = "start"   // start the setup
	stepSetup   buildStep = "setup"   // wait for the setup's end, and ask for it
	stepCapture buildStep = "copy"    // take what the builder's disk holds
	stepFail    buildStep = "fail"    // the setup failed
	stepExpire  buildStep = "expire"  // its time is over
)

// planBuild decides on a build whose builder is in a state. It is pure.
func planBuild(b buildRow, builder holdfast.SandboxState, now time.Time) buildStep {
	switch {
	case b.State != holdfast.BuildBuilding:
		return stepNothing
	case !b.SetupEnded.IsZero() && b.ExitCode != 0:
		return stepFail
	case !now.Before(b.Deadline):
		return stepExpire
	case !b.SetupEnded.IsZero():
		return stepCapture
	case builder != holdfast.SandboxReady:
		return stepBuilder
	case !b.Prepared:
		return stepPrepare
	case b.Process == "":
		return stepStart
	}
	return stepSetup
}

// buildAttempt is one attempt at a build, under a claim of its operation.
type buildAttempt struct {
	build   buildRow
	recipe  holdfast.Recipe
	builder row
	op      operation.Operation
	claim   *operation.Claim
	asked   bool // the host was asked for the setup
}

// carryOnBuild makes an attempt at a build that is unfinished and unclaimed; anything
// else is no error.
func (s *Service) carryOnBuild(ctx context.Context, id holdfast.BuildID) error {
	var a buildAttempt
	err := s.update(ctx, "carry on a build", func(tx store.Tx, _ time.Time) error {
		a = buildAttempt{}
		b, found, now, err := lockBuild(ctx, tx, id)
		if err != nil || !found || b.State != holdfast.BuildBuilding {
			return err
		}
		pending, has, err := operation.Pending(ctx, tx, b.resource())
		if err != nil || !has || pending.Claimed(now) {
			return err
		}
		op, claim, err := operation.Take(ctx, tx, now, operation.Attempt{
			Operation: pending.ID, Holder: operation.NewHolder(s.config.Process), TTL: s.config.ClaimTTL})
		if errors.Is(err, operation.ErrHeld) {
			return nil
		}
		if err != nil {
			return err
		}
		a.build, a.op, a.claim = b, op, &claim
		a.recipe, err = recipeOf(ctx, tx, b)
		return err
	})
	if err != nil {
		return err
	}
	if a.claim == nil {
		return reconcile.ErrSkipped
	}
	err = s.runner.Do(ctx, *a.claim, func(ctx context.Context) error { return s.driveBuild(ctx, &a) })
	var panicked *operation.PanicError
	if errors.Is(err, operation.ErrNotStarted) || errors.As(err, &panicked) {
		return errors.Join(err, s.releaseBuild(ctx, &a, stepNothing, err))
	}
	return err
}

// carryOnBuildSoon carries a build on in the background, at once.
func (s *Service) carryOnBuildSoon(id holdfast.BuildID) {
	s.background.Go(func() {
		if err := s.carryOnBuild(s.ctx, id); err != nil && !errors.Is(err, reconcile.ErrSkipped) {
			s.config.Logger.Info("a build stays unfinished; a sweep carries it on", "build", id, "error", err)
		}
	})
}

// driveBuild does step after step until there is something to wait for, or the build
// has ended.
func (s *Service) driveBuild(ctx context.Context, a *buildAttempt) error {
	for {
		now, err := s.lookBetween(ctx, a)
		if err != nil {
			return s.lostBuild(err)
		}
		step := planBuild(a.build, a.builder.State, now)
		switch step {
		case stepNothing:
			return nil
		case stepBuilder:
			return s.releaseBuild(ctx, a, step, nil)
		case stepPrepare:
			err = s.prepareBuild(ctx, a)
		case stepStart:
			err = s.startSetup(ctx, a)
		case stepSetup:
			if a.asked {
				return s.releaseBuild(ctx, a, step, nil)
			}
			a.asked = true
			err = s.askForSetup(ctx, a)
		case stepCapture:
			err = s.captureBuild(ctx, a)
		case stepFail, stepExpire:
			err = s.failBuild(ctx, a, step)
		}
		if errors.Is(err, operation.ErrFenced) {
			return s.lostBuild(err)
		}
		if err != nil {
			return s.releaseBuild(ctx, a, step, err)
		}
	}
}

// lostBuild takes the end of the claim for no error: whoever has it now goes on.
func (s *Service) lostBuild(err error) error {
	if errors.Is(err, operation.ErrFenced) {
		return reconcile.ErrSkipped
	}
	return err
}

// lookBetween reads a build and its builder between two steps, if the claim is still ours.
func (s *Service) lookBetween(ctx context.Context, a *buildAttempt) (now time.Time, err error) {
	err = s.view(ctx, "look at a build", func(tx store.Tx, at time.Time) error {
		now = at
		op, err := operation.Get(ctx, tx, a.claim.Operation)
		if err != nil {
			return err
		}
		if op.Claim != a.claim.Number || op.State.Ended() {
			return &operation.FencedError{Claim: *a.claim, Operation: op}
		}
		if a.build, _, err = oneBuild(ctx, tx, a.build.ID, ""); err != nil {
			return err
		}
		a.builder, _, err = oneRow(ctx, tx, `WHERE id = $1`, string(a.build.Sandbox))
		return err
	})
	return now, err
}

// changeBuild is one fenced transaction on a build; what it is about to be is not
// decided here.
func (s *Service) changeBuild(ctx context.Context, a *buildAttempt, change func(b *buildRow, now time.Time)) error {
	return s.update(ctx, "build", func(tx store.Tx, _ time.Time) error {
		b, found, now, err := lockBuild(ctx, tx, a.build.ID)
		if err != nil {
			return err
		}
		if _, err := operation.Check(ctx, tx, now, *a.claim); err != nil {
			return err
		}
		if !found {
			return noBuild(a.build.ID)
		}
		change(&b, now)
		a.build = b
		return b.save(ctx, tx, now)
	})
}

// prepareBuild writes the recipe's files, before the setup can have begun: from then
// on they are its own. Each is written whole, so that doing it again is harmless.
func (s *Service) prepareBuild(ctx context.Context, a *buildAttempt) error {
	caller, sandbox := a.build.caller(), a.build.Sandbox
	if a.recipe.Workdir != "" {
		if _, err := s.MakeDirectory(ctx, caller, sandbox, a.recipe.Workdir, 0o755); err != nil {
			return s.unprepared(ctx, a, "make the directory "+a.recipe.Workdir, err)
		}
	}
	made := map[string]bool{}
	for _, f := range a.recipe.Files {
		if dir := path.Dir(f.Path); !made[dir] {
			if _, err := s.MakeDirectory(ctx, caller, sandbox, dir, 0o755); err != nil {
				return s.unprepared(ctx, a, "make the directory "+dir, err)
			}
			made[dir] = true
		}
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if _, err := s.WriteFile(ctx, caller, sandbox, holdfast.WriteFile{Path: f.Path, Mode: mode}, strings.NewReader(f.Content)); err != nil {
			return s.unprepared(ctx, a, "write the file "+f.Path, err)
		}
	}
	return s.changeBuild(ctx, a, func(b *buildRow, now time.Time) {
		b.Prepared = true
		if a.recipe.Setup == "" {
			b.SetupEnded = now
		}
	})
}

// unprepared ends a build whose guest refused for good what the recipe asks for.
func (s *Service) unprepared(ctx context.Context, a *buildAttempt, what string, err error) error {
	if holdfast.Transient(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	e := holdfast.AsError(err)
	return s.endBuild(ctx, a, buildOutcome{state: holdfast.BuildFailed,
		failure: &holdfast.Failure{Reason: e.Reason, Message: fmt.Sprintf("%s: %s", what, e.Message)}})
}

// setupShell runs the setup so that both its outputs are one log, in order, and its
// first failing command is its end.
const setupShell = `exec /bin/sh -e -c "$0" 2>&1`

// rootUser is who runs the setup of a recipe that names a user, whom the setup may have to
// make first. Else it is the base's own user, as in a Dockerfile.
const rootUser = "0"

// startSetup starts the setup, once: its request id is the build's, and the builder is
// never replaced (contract: A14).
func (s *Service) startSetup(ctx context.Context, a *buildAttempt) error {
	start := holdfast.StartProcess{RequestID: string(a.build.ID), Command: "/bin/sh", Args: []string{"-c", setupShell, a.recipe.Setup},
		Cwd: a.recipe.Workdir, Report: holdfast.ReportSetup}
	if a.recipe.User != "" {
		start.User = rootUser
	}
	p, err := s.StartProcess(ctx, a.build.caller(), a.build.Sandbox, start)
	if err != nil {
		return s.unprepared(ctx, a, "start the setup", err)
	}
	return s.changeBuild(ctx, a, func(b *buildRow, now time.Time) {
		if b.SetupEnded.IsZero() {
			b.Process = p.ID
			b.noteEnd(p, now)
		}
	})
}

// noteEnd records that the setup has ended, if it has; the first word counts.
func (b *buildRow) noteEnd(p holdfast.Process, now time.Time) {
	if p.State != holdfast.ProcessExited || !b.SetupEnded.IsZero() {
		return
	}
	b.SetupEnded, b.ExitCode = now, p.ExitCode
	if p.Lost {
		b.ExitCode = -1
	}
}

// askForSetup asks the host, whose spool outlives the guest, what became of a setup
// that nothing was heard of. Silence only means that it is asked again.
func (s *Service) askForSetup(ctx context.Context, a *buildAttempt) error {
	p, err := s.GetProcess(ctx, a.build.caller(), a.build.Sandbox, a.build.Process)
	if err != nil {
		return err
	}
	if p.State != holdfast.ProcessExited {
		return nil
	}
	return s.changeBuild(ctx, a, func(b *buildRow, now time.Time) { b.noteEnd(p, now) })
}

// captureBuild copies the builder's disk into the blob store, with the log, and makes
// the build READY.
func (s *Service) captureBuild(ctx context.Context, a *buildAttempt) error {
	if err := s.saveLog(ctx, a); err != nil {
		return err
	}
	at := s.lineage.Load()
	for {
		level := holdfast.CheckpointLevel{Cluster: at.Cluster, Epoch: at.Epoch, Checkpoint: a.build.checkpoint(),
			Instance: a.builder.Instance, Incarnation: a.builder.Incarnation, Generation: a.builder.Generation, Claim: a.claim.Number,
			Desired: holdfast.CheckpointPresent, MintedAt: a.build.CreatedAt, Wait: patienceOf(ctx)}
		seen, err := s.config.Fleet.EnsureCheckpoint(ctx, level)
		j := judgeCheckpoint(a.builder.Spec.Layers, level, seen, err)
		if j.outcome == outcomeReached {
			j = s.checkBlob(ctx, seen)
		}
		switch j.outcome {
		case outcomeReached:
			return s.endBuild(ctx, a, buildOutcome{state: holdfast.BuildReady, layers: seen.Layers})
		case outcomeRefused:
			return s.endBuild(ctx, a, buildOutcome{state: holdfast.BuildFailed,
				failure: &holdfast.Failure{Reason: j.err.Reason, Message: j.err.Message, LogTail: a.build.LogTail}})
		case outcomeRaise: // nobody else drives the builder: its row says what is right
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonStaleGeneration, "the copy was asked for at generation %d: %s", level.Generation, j.err.Message)
		case outcomeWait, outcomeRetry:
			return j.err
		}
		if now, err := s.lookBetween(ctx, a); err != nil || planBuild(a.build, a.builder.State, now) != stepCapture {
			return err
		}
		if ctx.Err() != nil {
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonPreparing, "the builder's disk is being copied")
		}
	}
}

// failBuild ends a build whose setup failed, or whose time is over: everything that
// its setup started ends with the builder.
func (s *Service) failBuild(ctx context.Context, a *buildAttempt, step buildStep) error {
	if err := s.saveLog(ctx, a); err != nil && step != stepExpire {
		return err
	}
	return s.endBuild(ctx, a, buildOutcome{state: holdfast.BuildFailed, failure: a.failure(step)})
}

func (a *buildAttempt) failure(step buildStep) *holdfast.Failure {
	b := a.build
	b.Deadline = b.CreatedAt.Add(1) // what it would be at, had it more time
	f := &holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: fmt.Sprintf("the setup ended with exit code %d", b.ExitCode), LogTail: b.LogTail}
	switch {
	case step == stepExpire:
		f.Reason = holdfast.ReasonTimeLimit
		f.Message = fmt.Sprintf("it was not done within %s; it %s", timeoutOf(a.recipe), planBuild(b, a.builder.State, b.CreatedAt).doing())
	case b.ExitCode < 0:
		f.Reason, f.Message = holdfast.ReasonInstanceLost, "the setup ended with the builder's instance"
	}
	return f
}

// doing says what a build is at, for a person who asks why it is not done.
func (s buildStep) doing() string {
	switch s {
	case stepBuilder:
		return "waited for its builder"
	case stepPrepare:
		return "was writing the recipe's files"
	case stepStart:
		return "was starting the setup"
	case stepSetup:
		return "was running the setup"
	}
	return "was copying the builder's disk"
}

// releaseBuild ends the attempt and leaves the build unfinished. What it waited for
// may have come meanwhile: then it goes on at once.
func (s *Service) releaseBuild(ctx context.Context, a *buildAttempt, step buildStep, why error) error {
	ctx, cancel := operation.Closing(ctx, closing)
	defer cancel()
	report := operation.Report{Backoff: backoff(a.op.Attempts)}
	if slices.Contains([]buildStep{stepBuilder, stepSetup, stepCapture}, step) {
		report.WaitsFor = string(step)
	}
	if why != nil {
		report.Failure = recordable(holdfast.AsError(why), nil)
	}
	err := s.update(ctx, "release a build", func(tx store.Tx, _ time.Time) error {
		b, found, now, err := lockBuild(ctx, tx, a.build.ID)
		if err != nil || !found {
			return err
		}
		r, _, err := oneRow(ctx, tx, `WHERE id = $1`, string(b.Sandbox))
		if err != nil {
			return err
		}
		if why == nil {
			report.Backoff = max(min(holdfast.BuildSilence-holdfast.OperationUnclaimedAfter, b.Deadline.Sub(now)), 0)
			if next := planBuild(b, r.State, now); next != step {
				report.Backoff = 0
				tx.(*unit).soon(func() { s.carryOnBuildSoon(b.ID) })
			}
		}
		return operation.Release(ctx, tx, now, *a.claim, report)
	})
	if errors.Is(err, operation.ErrFenced) {
		return nil
	}
	return errors.Join(err, why)
}
