package acceptance

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// endsSession lets a session be deleted with the test.
func (s *system) endsSession(id holdfast.SessionID) {
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := s.client.DeleteSession(ctx, holdfast.MutateSession{ID: id, Force: true}); err != nil {
			s.t.Errorf("clean up %s: %v\n%s", id, err, s.Log())
		}
	})
}

// contract: A13, E2, E3, E4. On real containers: a session waits for its environment,
// which is being built, and is READY when that is; its hooks run in the guest, in their
// place; what was in its files and its processes survives a suspend; a fork of it goes
// its own way; and its end leaves nothing behind.
func TestE3_ASessionWaitsForItsEnvironmentAndRunsItsHooks(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if _, err := s.client.CreateEnvironment(ctx, holdfast.CreateEnvironment{Name: "work", Recipe: holdfast.Recipe{
		Base: "base", Setup: "echo made >/srv/made && sleep 2", Env: map[string]string{"COLOUR": "green"},
		Hooks: holdfast.Hooks{OnSuspend: "echo suspended >>/srv/log", OnResume: "echo resumed >>/srv/log", OnDelete: "exit 3"},
	}}); err != nil {
		t.Fatal(err)
	}
	built := make(chan error, 1)
	go func() {
		_, err := s.client.BuildEnvironment(ctx, holdfast.BuildEnvironment{RequestID: "b", Environment: "work"})
		built <- err
	}()
	// Before there is a build at all a session is refused; then it waits.
	var se holdfast.Session
	var err error
	for {
		if se, err = s.client.CreateSession(ctx, holdfast.CreateSession{RequestID: "s", Environment: "work"}); holdfast.CodeOf(err) != holdfast.FailedPrecondition {
			break
		}
	}
	if err != nil || se.State != holdfast.SessionReady {
		t.Fatalf("%+v, %v\n%s", se, err, s.Log())
	}
	if err := <-built; err != nil {
		t.Fatal(err)
	}
	s.endsSession(se.ID)
	s.wantOutput(se.Sandbox, "cat /srv/made; echo $COLOUR", "made\ngreen")

	to := holdfast.MutateSession{ID: se.ID}
	if se, err = s.client.SuspendSession(ctx, to); err != nil || se.State != holdfast.SessionSuspended {
		t.Fatalf("suspend: %+v, %v", se, err)
	}
	if se, err = s.client.ResumeSession(ctx, to); err != nil || se.State != holdfast.SessionReady || se.HookFailure != nil {
		t.Fatalf("resume: %+v, %v", se, err)
	}
	s.wantOutput(se.Sandbox, "cat /srv/log", "suspended\nresumed")

	fork, err := s.client.ForkSession(ctx, se.ID, holdfast.CreateSession{RequestID: "f"})
	if err != nil || fork.State != holdfast.SessionReady || fork.ID == se.ID {
		t.Fatalf("fork: %+v, %v", fork, err)
	}
	s.endsSession(fork.ID)
	s.wantOutput(fork.Sandbox, "cat /srv/log; echo own >>/srv/log", "suspended\nresumed")
	s.wantOutput(se.Sandbox, "cat /srv/log", "suspended\nresumed")

	for _, id := range []holdfast.SessionID{se.ID, fork.ID, se.ID} {
		gone, err := s.client.DeleteSession(ctx, holdfast.MutateSession{ID: id})
		if err != nil || gone.State != holdfast.SessionDeleted || gone.HookFailure == nil || gone.HookFailure.Reason != holdfast.ReasonExitCode {
			t.Fatalf("delete: %+v, %v; want DELETED, and that its hook failed", gone, err)
		}
	}
	if n := s.containers(); n != 0 {
		t.Errorf("%d containers are left", n)
	}
}
