package orchestrator

import (
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// begins is where and as whom the processes of a sandbox start by themselves.
func (w *workshop) begins(id holdfast.SandboxID) (workdir, user string) {
	w.t.Helper()
	if _, err := w.StartProcess(w.t.Context(), alice, id, holdfast.StartProcess{Command: "true"}); err != nil {
		w.t.Fatal(err)
	}
	w.guests.mu.Lock()
	defer w.guests.mu.Unlock()
	last := w.guests.asked[len(w.guests.asked)-1]
	return last.Cwd, last.User
}

// contract: E1, E4. A fork starts its processes where, as whom and with the variables
// that its source's environment says; so does a fork of it, and what is booted anew
// from a checkpoint.
func TestE4_AForkKeepsWhereAndAsWhomItsEnvironmentRuns(t *testing.T) {
	w := newWorkshop(t)
	w.environment(holdfast.Recipe{Base: "base", Setup: "make install", Env: map[string]string{"A": "1", "B": "1"}, Workdir: "/srv/app", User: "app"})
	b := w.awaitSetup(w.build("b1").ID)
	if setup := w.guests.asked[0]; setup.User != "0" || setup.Cwd != "/srv/app" {
		t.Errorf("the setup runs as %q in %q", setup.User, setup.Cwd)
	}
	w.guests.end(b.ID, 0)
	w.reports(b, "d1", 0)
	w.awaitBuildState(b.ID, holdfast.BuildReady)
	check := func(what string, sb holdfast.Sandbox, env map[string]string) {
		t.Helper()
		if workdir, user := w.begins(sb.ID); workdir != "/srv/app" || user != "app" || !reflect.DeepEqual(sb.Env, env) {
			t.Errorf("%s runs as %q in %q with %v, want %v", what, user, workdir, sb.Env, env)
		}
	}
	env := map[string]string{"A": "1", "B": "2"}
	source, err := w.CreateSandbox(t.Context(), alice, holdfast.CreateSandbox{RequestID: "s", Environment: "tools", Restart: holdfast.RestartFromCheckpoint,
		Env: map[string]string{"B": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	check("the source", source, env)
	c := w.mustTake("c", source.ID)
	fork := w.mustFork("f", c.ID)
	check("its fork", fork, env)
	again, err := w.fork("g", w.mustTake("d", fork.ID).ID, func(in *holdfast.CreateSandbox) { in.Env = map[string]string{"C": "3"} })
	if err != nil {
		t.Fatal(err)
	}
	check("the fork's fork", again, map[string]string{"A": "1", "B": "2", "C": "3"})

	w.fleet.set(source.Instance, holdfast.InstanceExited)
	w.sweep(SweepInstances)
	is := w.get(source.ID)
	for until := time.Now().Add(10 * time.Second); is.State != holdfast.SandboxReady && time.Now().Before(until); is = w.get(source.ID) {
		w.backoffOver()
		w.sweep(SweepOperations)
	}
	if is.Incarnation != 2 {
		t.Fatalf("it is not booted anew: %+v", is)
	}
	check("what went back to a checkpoint", is, env)

	se := w.mustCreateSession("se", func(in *holdfast.CreateSession) { in.Environment, in.Env = "tools", map[string]string{"B": "2"} })
	check("a session", w.get(se.Sandbox), env)
	cs, err := w.CreateCheckpoint(t.Context(), alice, holdfast.CreateCheckpoint{RequestID: "cs", Source: string(se.ID)})
	if err != nil {
		t.Fatal(err)
	}
	forked := w.mustCreateSession("sf", func(in *holdfast.CreateSession) { in.Environment, in.Source = "", cs.ID })
	check("a session's fork", w.get(forked.Sandbox), env)
}

// contract: E1. A recipe that names no user has its setup run as its base's own.
func TestE1_ASetupRunsAsItsBasesUserUnlessTheRecipeNamesOne(t *testing.T) {
	w := newWorkshop(t)
	w.environment(tools)
	w.awaitSetup(w.build("b1").ID)
	if setup := w.guests.asked[0]; setup.User != "" || setup.Cwd != "" {
		t.Errorf("the setup runs as %q in %q", setup.User, setup.Cwd)
	}
}
