package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// setups is the guests of all builders: it keeps what was written, and setups that run
// until they are told to end. It stands for the host's spool too.
type setups struct {
	holdfast.GuestProcesses
	holdfast.GuestFiles
	mu      sync.Mutex
	files   map[string]string
	started map[string]int // by request id
	asked   []holdfast.StartProcess
	running map[string]holdfast.Process
	output  string
	fail    func(what string) error // of any call; nil: none
}

func newSetups() *setups {
	return &setups{files: map[string]string{}, started: map[string]int{}, running: map[string]holdfast.Process{}, output: "one\ntwo\n"}
}

func (g *setups) refuses(what string) error {
	if g.fail == nil {
		return nil
	}
	return g.fail(what)
}

func (g *setups) StartProcess(_ context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, known := g.running[in.RequestID]
	g.asked = append(g.asked, in)
	if !known {
		p = holdfast.Process{ID: holdfast.ProcessID(holdfast.IDs{}.New(holdfast.PrefixProcess)), RequestID: in.RequestID, State: holdfast.ProcessRunning,
			Incarnation: 1, StdoutSize: int64(len(g.output))}
		g.running[in.RequestID] = p
		g.started[in.RequestID]++
	}
	return p, g.refuses("start") // it may have started
}

func (g *setups) GetProcess(_ context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.refuses("get"); err != nil {
		return holdfast.Process{}, err
	}
	for _, p := range g.running {
		if p.ID == id {
			return p, nil
		}
	}
	return holdfast.Process{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such process").On(string(id))
}

func (g *setups) StreamProcessOutput(ctx context.Context, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	for {
		p, err := g.GetProcess(ctx, in.Process)
		if err != nil {
			return p, err
		}
		if !in.Follow || p.State == holdfast.ProcessExited {
			g.mu.Lock()
			rest := g.output[min(int(in.StdoutOffset), len(g.output)):]
			g.mu.Unlock()
			if rest == "" {
				return p, nil
			}
			return p, yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: in.StdoutOffset, Data: []byte(rest)})
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (g *setups) MakeDirectory(context.Context, string, uint32) (holdfast.FileInfo, error) {
	return holdfast.FileInfo{}, nil
}

func (g *setups) WriteFile(_ context.Context, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	body, err := io.ReadAll(content)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files[in.Path] = string(body)
	return holdfast.FileWritten{}, errors.Join(err, g.refuses("write"))
}

// end ends the setup of a build, as the spool then says.
func (g *setups) end(id holdfast.BuildID, code int) holdfast.Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.running[string(id)]
	p.State, p.ExitCode = holdfast.ProcessExited, code
	g.running[string(id)] = p
	return p
}

func (g *setups) refuse(fail func(string) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail = fail
}

// workshop is a harness whose builders have guests.
type workshop struct {
	*harness
	guests *setups
}

func newWorkshop(t *testing.T, change ...func(*Config)) *workshop {
	w := &workshop{guests: newSetups()}
	guest := func(c *Config) {
		c.Guest = func(string, holdfast.InstanceRef) holdfast.Guest {
			return holdfast.Guest{Processes: w.guests, Files: w.guests}
		}
	}
	w.harness = newHarness(t, append([]func(*Config){guest}, change...)...)
	return w
}

var tools = holdfast.Recipe{Base: "base", Setup: "make install", Env: map[string]string{"A": "1"},
	Files: []holdfast.RecipeFile{{Path: "/etc/tools", Content: "x"}}, Resources: holdfast.Resources{CPUMillis: 250}}

func (w *workshop) environment(recipe holdfast.Recipe) holdfast.Environment {
	w.t.Helper()
	e, err := w.CreateEnvironment(w.t.Context(), alice, holdfast.CreateEnvironment{Name: "tools", Recipe: recipe})
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *workshop) build(requestID string) holdfast.Build {
	w.t.Helper()
	b, err := w.BuildEnvironment(w.t.Context(), alice, holdfast.BuildEnvironment{RequestID: requestID, Environment: "tools"})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// awaitBuild waits until a build is as wanted.
func (w *workshop) awaitBuild(id holdfast.BuildID, what string, ok func(holdfast.Build) bool) holdfast.Build {
	w.t.Helper()
	var b holdfast.Build
	var err error
	if !testenv.Eventually(10*time.Second, func() bool {
		if b, err = w.GetBuild(w.t.Context(), alice, id); err != nil {
			w.t.Fatal(err)
		}
		return ok(b)
	}) {
		w.t.Fatalf("build %s never %s: %+v, operation %+v", id, what, b, b.Operation)
	}
	return b
}

func (w *workshop) awaitBuildState(id holdfast.BuildID, state holdfast.BuildState) holdfast.Build {
	w.t.Helper()
	return w.awaitBuild(id, "became "+string(state), func(b holdfast.Build) bool { return b.State == state })
}

// awaitSetup waits until the setup runs and nobody is at the build.
func (w *workshop) awaitSetup(id holdfast.BuildID) holdfast.Build {
	w.t.Helper()
	return w.awaitBuild(id, "ran its setup", func(b holdfast.Build) bool {
		return b.Process != "" && b.Operation != nil && b.Operation.Claim == nil
	})
}

// reports delivers the end of a setup as its guest does.
func (w *workshop) reports(b holdfast.Build, id string, code int) int {
	w.t.Helper()
	sb := w.get(b.Sandbox)
	header := http.Header{holdfast.HeaderInstance: {string(sb.Instance)}, holdfast.HeaderIncarnation: {strconv.FormatInt(sb.Incarnation, 10)}}
	report := holdfast.ProcessReport{Instance: sb.Instance, Incarnation: sb.Incarnation, Process: b.Process, RequestID: string(b.ID), ExitCode: code}
	return w.post("/deliveries/instances", id, holdfast.ReportSetup.Delivery(code), report,
		delivery.InstanceSecret([]byte("key"), string(sb.Instance), sb.Incarnation), header)
}

func (w *workshop) log(id holdfast.BuildID, offset int64) string {
	w.t.Helper()
	var out strings.Builder
	err := w.StreamBuildLog(w.t.Context(), alice, holdfast.BuildLog{ID: id, Offset: offset}, func(c holdfast.OutputChunk) error {
		out.Write(c.Data)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.String()
}

// contract: E1
func TestE1_AnEnvironmentIsVersionedByItsRecipe(t *testing.T) {
	w := newWorkshop(t)
	first := w.environment(tools)
	if again := w.environment(tools); again.ID != first.ID || again.Version != 1 {
		t.Errorf("the same recipe: %+v", again)
	}
	other := tools
	other.Setup = "make all"
	second := w.environment(other)
	if second.ID != first.ID || second.Version != 2 {
		t.Errorf("another recipe: %+v", second)
	}
	old, err := w.GetEnvironment(t.Context(), alice, "tools@1")
	if err != nil || old.Version != 1 || old.Recipe.Setup != tools.Setup {
		t.Errorf("version 1: %+v, %v", old, err)
	}
	if _, err := w.GetEnvironment(t.Context(), alice, "tools@3"); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Error(err)
	}
	if _, err := w.GetEnvironment(t.Context(), holdfast.Caller{Project: "pj-other"}, "tools"); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Error(err)
	}
	if e, err := w.GetEnvironment(t.Context(), alice, "base"); err != nil || e.Recipe.Base != "base" {
		t.Errorf("base: %+v, %v", e, err)
	}
	for range 2 { // deleting it again is success
		gone, err := w.DeleteEnvironment(t.Context(), alice, "tools")
		if err != nil || gone.DeletedAt.IsZero() {
			t.Fatalf("%+v, %v", gone, err)
		}
	}
	_, err = w.BuildEnvironment(t.Context(), alice, holdfast.BuildEnvironment{RequestID: "b1", Environment: "tools"})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	if page, err := w.ListEnvironments(t.Context(), alice, holdfast.ListEnvironments{}); err != nil || len(page.Environments) != 0 {
		t.Errorf("%+v, %v", page, err)
	}
	if back := w.environment(tools); back.Version != 3 || !back.DeletedAt.IsZero() {
		t.Errorf("created again: %+v", back)
	}
}

// contract: E1, E2
func TestE1_ABuildRunsItsSetupAndWhatIsMadeOfItHasItsDisk(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	_, err := w.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "early", Environment: "tools"})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
	b := w.build("b1")
	if again := w.build("b1"); again.ID != b.ID {
		t.Errorf("the same request id made another build")
	}
	_, err = w.BuildEnvironment(t.Context(), alice, holdfast.BuildEnvironment{RequestID: "b1", Environment: "tools@1"})
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	b = w.awaitSetup(b.ID)
	if b.Operation.WaitsFor != "setup" || w.guests.files["/etc/tools"] != "x" {
		t.Errorf("%+v, files %v", b.Operation, w.guests.files)
	}
	_, err = w.DeleteSandbox(t.Context(), alice, holdfast.MutateSandbox{ID: b.Sandbox})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonOwned)
	if got := w.log(b.ID, 4); got != "two\n" {
		t.Errorf("live log: %q", got)
	}
	w.guests.end(b.ID, 0)
	if code := w.reports(b, "d1", 0); code/100 != 2 {
		t.Fatal(code)
	}
	b = w.awaitBuildState(b.ID, holdfast.BuildReady)
	if len(b.Layers) != 1 || b.Operation != nil || b.FinishedAt.IsZero() {
		t.Errorf("%+v", b)
	}
	w.await(b.Sandbox, "was deleted", func(sb holdfast.Sandbox) bool { return sb.State == holdfast.SandboxDeleted })
	if got := w.log(b.ID, 0); got != "one\ntwo\n" {
		t.Errorf("kept log: %q", got)
	}
	sb, err := w.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "s1", Environment: "tools", Env: map[string]string{"B": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	if sb.Environment != "tools@1" || sb.Resources.CPUMillis != 250 || sb.Env["A"] != "1" || sb.Env["B"] != "2" {
		t.Errorf("%+v", sb)
	}
	if of := w.fleet.madeOf[sb.Instance]; len(of) != 1 || of[0] != b.Layers[0] {
		t.Errorf("it is made of %v", of)
	}
	other := tools
	other.Base, other.Setup = "base", "other"
	w.environment(other) // a repeat answers with what was made, whatever the recipe is now
	if again, err := w.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "s1", Environment: "tools", Env: map[string]string{"B": "2"}}); err != nil || again.ID != sb.ID {
		t.Errorf("%+v, %v", again, err)
	}
	e, err := w.GetEnvironment(t.Context(), alice, "tools")
	if err != nil || e.Build != b.ID {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestE1_ARecipeThatDoesNothingIsReadyAtOnce(t *testing.T) {
	w := newWorkshop(t, func(c *Config) {
		c.Pin = func(_ context.Context, ref string) (string, error) { return ref + "@sha256:1", nil }
	})
	w.environment(holdfast.Recipe{Base: "base", Env: map[string]string{"A": "1"}})
	b := w.build("b1")
	if b.State != holdfast.BuildReady || b.Image != "base@sha256:1" || b.Sandbox != "" {
		t.Errorf("%+v", b)
	}
}

// contract: E1. A setup that fails is a build that failed, with the end of its log.
func TestE1_AFailingSetupShowsTheEndOfItsLog(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	w.guests.mu.Lock()
	w.guests.output = strings.Repeat("line\n", 2000) + "no such package\n"
	w.guests.mu.Unlock()
	w.guests.end(b.ID, 7)
	w.reports(b, "d1", 7)
	b = w.awaitBuildState(b.ID, holdfast.BuildFailed)
	if b.Failure.Reason != holdfast.ReasonSetupFailed || !strings.HasSuffix(b.Failure.LogTail, "no such package\n") || len(b.Failure.LogTail) > holdfast.MaxReportTail {
		t.Errorf("%+v", b.Failure)
	}
	_, err := w.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "s1", Environment: "tools"})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonBuildFailed)
	w.awaitState(b.Sandbox, holdfast.SandboxDeleted)
	ops := w.count(`SELECT COUNT(*) FROM operation WHERE resource_id = $1 AND state = 'FAILED'`, string(b.ID))
	if ops != 1 {
		t.Errorf("%d operations failed", ops)
	}
}

// contract: B3, B4, E2. Three times, twice of them at once, and once after the build
// was superseded: it advances once.
func TestB3_EnvironmentReadyCountsOnceHoweverOftenItComes(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	w.guests.end(b.ID, 0)
	var wg sync.WaitGroup
	for _, id := range []string{"d1", "d1", "d2"} { // d2: a sender that minted another id
		wg.Go(func() {
			if code := w.reports(b, id, 0); code/100 != 2 {
				t.Error(code)
			}
		})
	}
	wg.Wait()
	b = w.awaitBuildState(b.ID, holdfast.BuildReady)
	w.reports(b, "d3", 1) // late and contrary
	if again := w.awaitBuildState(b.ID, holdfast.BuildReady); again.UpdatedAt.Before(b.FinishedAt) {
		t.Errorf("%+v", again)
	}
	if n := len(w.fleet.copies); n != 1 {
		t.Errorf("%d copies", n)
	}
	if n := w.count(`SELECT COUNT(*) FROM delivery WHERE outcome = 'applied: the setup ended'`); n != 1 {
		t.Errorf("%d deliveries were applied", n)
	}
}

// contract: E2
func TestE2_ANewerBuildTakesThePlaceOfAnUnfinishedOneAndWhatThatReportsIsIgnored(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	first := w.awaitSetup(w.build("b1").ID)
	second := w.build("b2")
	first = w.awaitBuildState(first.ID, holdfast.BuildSuperseded)
	w.guests.end(first.ID, 0)
	for range 2 {
		if code := w.reports(first, "late", 0); code/100 != 2 {
			t.Error(code)
		}
	}
	w.awaitBuildState(first.ID, holdfast.BuildSuperseded)
	w.awaitState(first.Sandbox, holdfast.SandboxDeleted)
	second = w.awaitSetup(second.ID)
	w.guests.end(second.ID, 0)
	w.reports(second, "d2", 0)
	w.awaitBuildState(second.ID, holdfast.BuildReady)
	if n := w.count(`SELECT COUNT(*) FROM layer_use WHERE used_by = $1`, string(first.ID)); n != 0 {
		t.Errorf("the superseded build needs %d layers", n)
	}
}

// contract: E2. A build of an older version leaves a newer one alone.
func TestE2_ABuildOfAnOlderVersionSupersedesNoNewerOne(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	other := tools
	other.Setup = "other"
	w.environment(other)
	newer := w.awaitSetup(w.build("b1").ID)
	if _, err := w.BuildEnvironment(t.Context(), alice, holdfast.BuildEnvironment{RequestID: "b2", Environment: "tools@1"}); err != nil {
		t.Fatal(err)
	}
	if b := w.awaitBuildState(newer.ID, holdfast.BuildBuilding); b.Version != 2 {
		t.Errorf("%+v", b)
	}
}

// contract: B5, C1. No report ever comes: the host is asked, and silence alone only asks.
func TestC1_AReportThatNeverComesIsAskedFor(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	w.sweepBuilds()
	if b = w.awaitSetup(b.ID); b.State != holdfast.BuildBuilding {
		t.Errorf("silence: %+v", b)
	}
	w.guests.refuse(func(string) error { return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer") })
	w.sweepBuilds()
	w.awaitBuildState(b.ID, holdfast.BuildBuilding)
	w.guests.refuse(nil)
	w.guests.end(b.ID, 0)
	w.sweepBuilds()
	w.awaitBuildState(b.ID, holdfast.BuildReady)
}

// sweepBuilds runs the sweep of builds as if nobody had been at them for long.
func (w *workshop) sweepBuilds() {
	w.t.Helper()
	w.exec(`UPDATE operation SET due_at = 0 WHERE resource_kind = 'build'`)
	w.sweep(SweepBuilds)
}

// contract: C1. A setup that hangs ends with its builder when the build's time is over.
func TestC1_ASetupThatHangsFailsAtItsTimeout(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	w.exec(`UPDATE environment_build SET deadline = 1`)
	w.sweepBuilds()
	b = w.awaitBuildState(b.ID, holdfast.BuildFailed)
	if b.Failure.Reason != holdfast.ReasonTimeLimit || !strings.Contains(b.Failure.Message, "was running the setup") || b.Failure.LogTail == "" {
		t.Errorf("%+v", b.Failure)
	}
	w.awaitState(b.Sandbox, holdfast.SandboxDeleted)
}

// contract: C2. The builder never boots, or dies before its agent, or is lost with its
// host: the build fails in the same transaction, with the reason and the log's tail.
func TestC2_ABuilderThatEndsIsItsBuildsEnd(t *testing.T) {
	for name, stage := range map[string]func(*workshop) holdfast.Build{
		"never boots": func(w *workshop) holdfast.Build {
			w.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
				if l.Desired != holdfast.DesiredRunning {
					return w.fleet.reach(l)
				}
				return holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Generation: l.Generation, State: holdfast.InstanceExited,
					Failure: &holdfast.Failure{Reason: holdfast.ReasonBootTimeout, Message: "it never called", LogTail: "kernel panic\n"}}, nil
			})
			return w.build("b1")
		},
		"dies in its setup": func(w *workshop) holdfast.Build {
			b := w.awaitSetup(w.build("b1").ID)
			sb := w.get(b.Sandbox)
			w.guests.end(b.ID, 0) // what is lost is not a success
			w.fleetSays("x1", holdfast.Observation{Instance: sb.Instance, Incarnation: 1, State: holdfast.InstanceExited,
				Failure: &holdfast.Failure{Reason: holdfast.ReasonBootTimeout, Message: "out of memory", LogTail: "kernel panic\n"}})
			return b
		},
		"lost with its host": func(w *workshop) holdfast.Build {
			b := w.awaitSetup(w.build("b1").ID)
			w.fleet.set(w.get(b.Sandbox).Instance, holdfast.InstanceAbsent)
			w.backdate()
			w.sweep(SweepInstances)
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t)
			w.environment(tools)
			b := w.awaitBuildState(stage(w).ID, holdfast.BuildFailed)
			if !strings.HasPrefix(b.Failure.Message, "the builder ended: ") || b.Failure.Reason == "" {
				t.Errorf("%+v", b.Failure)
			}
			if name != "lost with its host" && b.Failure.LogTail == "" {
				t.Error("no log tail")
			}
			w.fleet.script(nil)
			w.sweep(SweepBuilders)
			w.awaitState(b.Sandbox, holdfast.SandboxDeleted)
			w.awaitBuild(b.ID, "was cleared", func(holdfast.Build) bool {
				return w.count(`SELECT COUNT(*) FROM environment_build WHERE cleared = TRUE`) == 1
			})
			if u := w.usage(holdfast.ProjectDefault); u.Sandboxes != 0 {
				t.Errorf("it still holds %+v", u)
			}
		})
	}
}

// contract: A3, A14. The answer of each call of an attempt is lost once: the files are
// written again before the setup, never after, and the setup starts once.
func TestA14_LostAnswersOfABuildStartItsSetupOnce(t *testing.T) {
	for _, lost := range []string{"write", "start"} {
		t.Run(lost, func(t *testing.T) {
			w := newWorkshop(t)
			w.environment(tools)
			times := 0
			w.guests.refuse(func(what string) error {
				if what == lost && times == 0 {
					times++
					return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "the answer is lost")
				}
				return nil
			})
			b := w.build("b1")
			w.awaitBuild(b.ID, "lost an answer", func(b holdfast.Build) bool {
				return b.Operation != nil && b.Operation.LastError != nil && b.Operation.Claim == nil
			})
			w.sweepBuilds()
			b = w.awaitSetup(b.ID)
			if n := w.guests.started[string(b.ID)]; n != 1 {
				t.Errorf("the setup started %d times", n)
			}
			w.guests.end(b.ID, 0)
			w.reports(b, "d1", 0)
			w.awaitBuildState(b.ID, holdfast.BuildReady)
		})
	}
}

// The setup's files are its own once it may have begun.
func TestE1_FilesAreNeverWrittenOverASetupThatMayHaveBegun(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	w.guests.refuse(func(what string) error {
		if what == "start" {
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "the answer is lost")
		}
		return nil
	})
	b := w.build("b1")
	w.awaitBuild(b.ID, "lost an answer", func(b holdfast.Build) bool {
		return b.Operation != nil && b.Operation.LastError != nil && b.Operation.Claim == nil
	})
	w.guests.mu.Lock()
	w.guests.files["/etc/tools"] = "changed by the setup"
	w.guests.fail = nil
	w.guests.mu.Unlock()
	w.sweepBuilds()
	w.awaitSetup(b.ID)
	if got := w.guests.files["/etc/tools"]; got != "changed by the setup" {
		t.Errorf("it was written over: %q", got)
	}
}

// contract: A6. An attempt that was given up for dead changes nothing when it wakes.
func TestA6_AnAttemptWhoseClaimIsOverEndsNoBuild(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	hold, entered := make(chan struct{}), make(chan struct{}, 8)
	w.fleet.checkpoint = func(_ context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
		entered <- struct{}{}
		<-hold
		return w.fleet.copy(l)
	}
	b := w.awaitSetup(w.build("b1").ID)
	w.guests.end(b.ID, 0)
	w.reports(b, "d1", 0)
	<-entered
	newer := w.build("b2") // the claim is ended by a newer intent
	w.awaitBuildState(b.ID, holdfast.BuildSuperseded)
	close(hold)
	w.awaitSetup(newer.ID)
	if b := w.awaitBuildState(b.ID, holdfast.BuildSuperseded); len(b.Layers) != 0 {
		t.Errorf("%+v", b)
	}
}

// contract: A8. The quota is decided in the recording transaction.
func TestA8_ABuildWithoutQuotaRecordsNothing(t *testing.T) {
	w := newWorkshop(t)
	caller := w.limited(0)
	if _, err := w.CreateEnvironment(t.Context(), caller, holdfast.CreateEnvironment{Name: "tools", Recipe: tools}); err != nil {
		t.Fatal(err)
	}
	_, err := w.BuildEnvironment(t.Context(), caller, holdfast.BuildEnvironment{RequestID: "b1", Environment: "tools"})
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
	if n := w.count(`SELECT (SELECT COUNT(*) FROM environment_build) + (SELECT COUNT(*) FROM request) + (SELECT COUNT(*) FROM operation)`); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestE1_DeletingAnEnvironmentGivesUpWhatIsBeingBuilt(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b1").ID)
	if _, err := w.DeleteEnvironment(t.Context(), alice, "tools"); err != nil {
		t.Fatal(err)
	}
	b = w.awaitBuildState(b.ID, holdfast.BuildFailed)
	if b.Failure.Reason != holdfast.ReasonCancelled {
		t.Errorf("%+v", b.Failure)
	}
	w.awaitState(b.Sandbox, holdfast.SandboxDeleted)
}

// contract: C1. Old builds go with their log, their journal and their layers; the
// newest of each version stays.
func TestC1_OldBuildsArePurgedAndTheNewestOfAVersionStays(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	var ids []holdfast.BuildID
	for i := range 3 {
		b := w.awaitSetup(w.build(fmt.Sprint("b", i)).ID)
		w.guests.end(b.ID, i%2) // the second one fails
		w.reports(b, "d", i%2)
		w.awaitBuild(b.ID, "ended", func(b holdfast.Build) bool { return b.State != holdfast.BuildBuilding })
		w.awaitState(b.Sandbox, holdfast.SandboxDeleted)
		ids = append(ids, b.ID)
	}
	for _, id := range ids[:2] { // a copy of an attempt that died
		w.putBlob(blobPrefix(buildRow{Build: holdfast.Build{ID: id}}.checkpoint()) + "99")
	}
	w.exec(`UPDATE environment_build SET finished_at = 1`)
	w.sweep(SweepBuildPurge)
	if copies, _, err := w.config.Blobs.List(t.Context(), checkpointBlobs, "", 10); err != nil || len(copies) > 1 {
		t.Errorf("%v, %v", copies, err)
	}
	page, err := w.ListBuilds(t.Context(), alice, holdfast.ListBuilds{Environment: "tools"})
	if err != nil || len(page.Builds) != 1 || page.Builds[0].ID != ids[2] {
		t.Fatalf("%+v, %v", page, err)
	}
	if n := w.count(`SELECT COUNT(*) FROM layer_use`); n != 1 {
		t.Errorf("%d layers are in use", n)
	}
	infos, _, err := w.config.Blobs.List(t.Context(), "builds/", "", 10)
	if err != nil || len(infos) != 1 {
		t.Errorf("%v, %v", infos, err)
	}
	if b := w.build("b0"); b.ID != ids[0] || b.State != holdfast.BuildFailed {
		t.Errorf("a purged key: %+v", b)
	}
}

// contract: C4. The copy of a builder's disk that an attempt left which died is removed
// once the build has ended, and not before: what names it may be on its way.
func TestC4_CopiesOfABuildThatLostAreSwept(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	b := w.awaitSetup(w.build("b").ID)
	key := blobPrefix(buildRow{Build: b}.checkpoint()) + "99"
	w.putBlob(key)
	w.sweep(SweepBlobs)
	if _, err := w.config.Blobs.Stat(t.Context(), key); err != nil {
		t.Errorf("while it is BUILDING: %v", err)
	}
	w.guests.end(b.ID, 0)
	w.reports(b, "d", 0)
	b = w.awaitBuildState(b.ID, holdfast.BuildReady)
	w.sweep(SweepBlobs)
	if _, err := w.config.Blobs.Stat(t.Context(), key); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("once it is READY: %v", err)
	}
	if _, err := w.config.Blobs.Stat(t.Context(), b.Layers[0].Key); err != nil {
		t.Errorf("what it is made of: %v", err)
	}
}

// putBlob puts an object of no meaning under a key.
func (w *workshop) putBlob(key string) {
	w.t.Helper()
	if _, err := w.config.Blobs.Put(w.t.Context(), key, strings.NewReader("left")); err != nil {
		w.t.Fatal(err)
	}
}

func TestPlanBuild(t *testing.T) {
	now := time.Unix(1000, 0)
	base := buildRow{Build: holdfast.Build{State: holdfast.BuildBuilding, Deadline: now.Add(time.Minute)}}
	with := func(change func(*buildRow)) buildRow {
		b := base
		change(&b)
		return b
	}
	for _, test := range []struct {
		b       buildRow
		builder holdfast.SandboxState
		want    buildStep
	}{
		{base, holdfast.SandboxCreating, stepBuilder},
		{base, holdfast.SandboxReady, stepPrepare},
		{with(func(b *buildRow) { b.Prepared = true }), holdfast.SandboxReady, stepStart},
		{with(func(b *buildRow) { b.Prepared, b.Process = true, "pr" }), holdfast.SandboxReady, stepSetup},
		{with(func(b *buildRow) { b.Prepared, b.SetupEnded = true, now }), holdfast.SandboxReady, stepCapture},
		{with(func(b *buildRow) { b.SetupEnded, b.ExitCode = now, 1 }), holdfast.SandboxReady, stepFail},
		{with(func(b *buildRow) { b.SetupEnded, b.ExitCode, b.Deadline = now, 1, now }), holdfast.SandboxReady, stepFail},
		{with(func(b *buildRow) { b.SetupEnded, b.Deadline = now, now }), holdfast.SandboxReady, stepExpire},
		{with(func(b *buildRow) { b.Deadline = now }), holdfast.SandboxCreating, stepExpire},
		{with(func(b *buildRow) { b.State = holdfast.BuildSuperseded }), holdfast.SandboxReady, stepNothing},
	} {
		if got := planBuild(test.b, test.builder, now); got != test.want {
			t.Errorf("%+v with a builder %s: %q, want %q", test.b, test.builder, got, test.want)
		}
	}
}
