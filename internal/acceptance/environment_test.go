package acceptance

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/environment"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func (s *system) environment(yaml string) holdfast.Environment {
	s.t.Helper()
	in, err := environment.Parse([]byte(yaml))
	if err != nil {
		s.t.Fatal(err)
	}
	e, err := s.client.CreateEnvironment(s.t.Context(), in)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// built builds an environment and waits for the end, whichever it is.
func (s *system) built(requestID, name string) (b holdfast.Build, log string) {
	s.t.Helper()
	b, err := s.client.BuildEnvironment(s.t.Context(), holdfast.BuildEnvironment{RequestID: requestID, Environment: name})
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.Log())
	}
	var out strings.Builder
	err = s.client.StreamBuildLog(s.t.Context(), holdfast.BuildLog{ID: b.ID, Follow: true}, func(c holdfast.OutputChunk) error {
		out.Write(c.Data)
		return nil
	})
	if err != nil {
		s.t.Fatalf("log of %s: %v\n%s", b.ID, err, s.Log())
	}
	if !testenv.Eventually(30*time.Second, func() bool {
		b, err = s.client.GetBuild(s.t.Context(), b.ID)
		return err == nil && b.State != holdfast.BuildBuilding
	}) {
		s.t.Fatalf("build %s: %+v %v\n%s", b.ID, b, err, s.Log())
	}
	return b, out.String()
}

// contract: E1. On real containers: the recipe's files are there when the setup runs,
// its log is read live and after, and what is made of the build has what it made.
func TestE1_ASandboxOfABuiltEnvironmentHasWhatItsSetupMade(t *testing.T) {
	s := serve(t)
	s.environment("name: tools\nbase: base\nworkdir: /srv/work\nuser: 4242\nenv: {GREETING: hello}\nfiles:\n- {path: /srv/in/name, content: \"world\"}\n" +
		"setup: |\n  echo \"$GREETING $(cat /srv/in/name)\" | tee /srv/work/out\n  echo to stderr >&2\n  pwd\n")
	b, log := s.built("b1", "tools")
	if b.State != holdfast.BuildReady || log != "hello world\nto stderr\n/srv/work\n" {
		t.Fatalf("%+v %+v, log %q\n%s", b, b.Failure, log, s.Log())
	}
	if !testenv.Eventually(20*time.Second, func() bool {
		sb, err := s.client.GetSandbox(t.Context(), b.Sandbox)
		return err == nil && sb.State == holdfast.SandboxDeleted
	}) {
		t.Error("the builder is still there")
	}
	var kept strings.Builder
	err := s.client.StreamBuildLog(t.Context(), holdfast.BuildLog{ID: b.ID, Offset: 6}, func(c holdfast.OutputChunk) error {
		kept.Write(c.Data)
		return nil
	})
	if err != nil || kept.String() != log[6:] {
		t.Errorf("kept log: %q, %v", kept.String(), err)
	}
	sb, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "s1", Environment: "tools"})
	s.keep(sb.ID)
	if err != nil || sb.State != holdfast.SandboxReady {
		t.Fatalf("%+v %v\n%s", sb, err, s.Log())
	}
	s.wantOutput(sb.ID, "cat /srv/work/out; echo $GREETING; pwd; id -u", "hello world\nhello\n/srv/work\n4242")
}

// contract: E1. A setup that fails, and one that forks without end until its time is
// over, are builds that failed, with the end of their log.
func TestE1_AFailingSetupAndOneThatForksWithoutEndFailTheirBuild(t *testing.T) {
	s := serve(t)
	s.environment("name: broken\nbase: base\nsetup: |\n  echo before\n  no-such-command\n  echo never\n")
	b, _ := s.built("b1", "broken")
	if b.State != holdfast.BuildFailed || b.Failure.Reason != holdfast.ReasonSetupFailed || !strings.Contains(b.Failure.LogTail, "before\n") ||
		strings.Contains(b.Failure.LogTail, "never") {
		t.Errorf("%+v %+v", b, b.Failure)
	}
	s.environment("name: bomb\nbase: base\nresources: {pids: 64}\nbuild: {timeout: 8s}\nsetup: |\n  echo before\n  f() { while :; do sleep 1000 & done; }\n  f\n")
	b, _ = s.built("b2", "bomb")
	if b.State != holdfast.BuildFailed || !strings.Contains(b.Failure.LogTail, "before\n") {
		t.Errorf("%+v %+v", b, b.Failure)
	}
	if sb := s.create("after"); sb.State != holdfast.SandboxReady {
		t.Errorf("%+v", sb)
	}
}

// contract: E1, A15. The server is killed while a setup runs: the setup runs once, and
// its build is READY after.
func TestE1_ABuildGoesOnWhenItsServerIsKilled(t *testing.T) {
	s := serve(t)
	s.environment("name: slow\nbase: base\nsetup: |\n  echo run >>/srv-runs\n  sleep 4\n")
	b, err := s.client.BuildEnvironment(t.Context(), holdfast.BuildEnvironment{RequestID: "b1", Environment: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	if !testenv.Eventually(30*time.Second, func() bool {
		b, err = s.client.GetBuild(t.Context(), b.ID)
		return err == nil && b.Process != ""
	}) {
		t.Fatalf("%+v %v\n%s", b, err, s.Log())
	}
	s.Kill()
	s.Start()
	s.client = s.dial()
	if b, _ = s.built("b1", "slow"); b.State != holdfast.BuildReady {
		t.Fatalf("%+v %+v\n%s", b, b.Failure, s.Log())
	}
	sb, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "s1", Environment: "slow"})
	s.keep(sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	s.wantOutput(sb.ID, "cat /srv-runs", "run")
}
