package acceptance

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func (s *system) createAs(in holdfast.CreateSandbox) holdfast.Sandbox {
	s.t.Helper()
	in.Environment = "base"
	sb, err := s.client.CreateSandbox(s.t.Context(), in)
	s.keep(sb.ID)
	if err != nil || sb.State != holdfast.SandboxReady {
		s.t.Fatalf("create %s: %s %v\n%s", in.RequestID, sb.State, err, s.Log())
	}
	return sb
}

// lifecycle.md, restart: a new container under the next incarnation, the old one
// gone, and nobody is left to think that it is the same.
func TestRestart_ADeadInstanceIsReplacedByAFreshOne(t *testing.T) {
	s := serve(t)
	sb := s.createAs(holdfast.CreateSandbox{RequestID: "r1", Restart: holdfast.RestartFresh})
	s.wantOutput(sb.ID, "echo old > /tmp/mark; cat /tmp/mark", "old")
	if _, err := s.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{RequestID: "p1", Command: "true"}); err != nil {
		t.Fatal(err)
	}
	s.killInstance(sb.ID)
	replaced := func() bool {
		got := s.get(sb.ID)
		return got.State == holdfast.SandboxReady && got.Incarnation == 2
	}
	if !testenv.Eventually(30*time.Second, replaced) {
		t.Fatalf("not replaced: %+v\n%s", s.get(sb.ID), s.Log())
	}
	s.wantOutput(sb.ID, "cat /tmp/mark 2>/dev/null || echo fresh", "fresh")
	if n := s.containers(); n != 1 {
		t.Errorf("%d containers for one sandbox", n)
	}
	_, err := s.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{RequestID: "p1", Command: "true"})
	wantCode(t, "a request id of the old boot", err, holdfast.FailedPrecondition, holdfast.ReasonIncarnation)
	page, err := s.client.ListOperations(t.Context(), holdfast.ListOperations{Resource: string(sb.ID)})
	if err != nil || page.Operations[0].Kind != holdfast.OperationReplace || page.Operations[0].Cause != holdfast.ReasonExited {
		t.Errorf("the journal does not tell: %+v, %v", page.Operations, err)
	}
}

// contract: A11
func TestA11_LifetimesEndOnRealContainers(t *testing.T) {
	s := serve(t)
	kept := s.createAs(holdfast.CreateSandbox{RequestID: "r1", TTL: 3 * time.Second, OnExpiry: holdfast.ExpirySuspend})
	gone := s.createAs(holdfast.CreateSandbox{RequestID: "r2", TTL: 3 * time.Second})
	longer := s.createAs(holdfast.CreateSandbox{RequestID: "r3", TTL: 3 * time.Second})
	if _, err := s.client.ExtendSandbox(t.Context(), holdfast.ExtendSandbox{ID: longer.ID, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	s.awaitState(kept.ID, holdfast.SandboxSuspended, 30*time.Second)
	s.awaitState(gone.ID, holdfast.SandboxDeleted, 30*time.Second)
	if got := s.get(longer.ID); got.State != holdfast.SandboxReady || time.Until(got.ExpiresAt) < 30*time.Minute {
		t.Errorf("the extended one is %s until %s", got.State, got.ExpiresAt)
	}
	if _, err := s.client.SetSandboxLifetime(t.Context(), holdfast.SetSandboxLifetime{ID: kept.ID, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	resumed, err := s.client.ResumeSandbox(t.Context(), holdfast.MutateSandbox{ID: kept.ID})
	if err != nil || time.Until(resumed.ExpiresAt) < 50*time.Minute {
		t.Errorf("resumed until %s, %v", resumed.ExpiresAt, err)
	}
	s.wantOutput(kept.ID, "echo x", "x")
}

// contract: A5, C6: the watcher's connection ends with the server, and it goes on
// with the next one, whatever happened meanwhile.
func TestA5_AWatchSurvivesTheServersDeath(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	var mu sync.Mutex
	var states []holdfast.SandboxState
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	watcher := s.dial(client.WithRandom(func() float64 { return 0.2 }))
	go func() {
		ended <- watcher.WatchSandboxes(ctx, holdfast.WatchSandboxes{}, func(e holdfast.SandboxEvent) error {
			if e.Sandbox != nil && e.Sandbox.ID == sb.ID {
				mu.Lock()
				defer mu.Unlock()
				states = append(states, e.Sandbox.State)
			}
			return nil
		})
	}()
	saw := func(state holdfast.SandboxState) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(states, state)
		}
	}
	if !testenv.Eventually(10*time.Second, saw(holdfast.SandboxReady)) {
		t.Fatal("the watch did not begin")
	}
	s.Kill()
	s.Start()
	s.client = s.dial()
	if _, err := s.client.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
		t.Fatal(err)
	}
	if !testenv.Eventually(20*time.Second, saw(holdfast.SandboxSuspended)) {
		t.Errorf("it saw %v", states)
	}
	stop()
	if err := <-ended; holdfast.CodeOf(err) != holdfast.Cancelled {
		t.Error(err)
	}
}
