package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// session is a READY session on the small base, which ends with the test.
func (s *system) session(requestID string) holdfast.Session {
	s.t.Helper()
	se, err := s.client.CreateSession(s.t.Context(), holdfast.CreateSession{RequestID: requestID, Environment: "base"})
	if err != nil || se.State != holdfast.SessionReady {
		s.t.Fatalf("%+v, %v\n%s", se, err, s.Log())
	}
	s.endsSession(se.ID)
	return se
}

func (s *system) submit(requestID string, session holdfast.SessionID, script string, limit time.Duration) holdfast.Task {
	s.t.Helper()
	task, err := s.client.SubmitTask(s.t.Context(), holdfast.SubmitTask{RequestID: requestID, Session: session, Command: "sh",
		Args: []string{"-c", script}, Limit: limit})
	if err != nil {
		s.t.Fatalf("submit %s: %v\n%s", requestID, err, s.Log())
	}
	return task
}

// follow reads a task's output from its beginning to its end.
func (s *system) follow(id holdfast.TaskID) (holdfast.Task, string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	task, err := s.client.StreamTaskOutput(ctx, holdfast.TaskOutput{ID: id, Follow: true}, func(c holdfast.OutputChunk) error {
		out.Write(c.Data)
		return nil
	})
	if err != nil {
		s.t.Fatalf("follow %s: %v\n%s", id, err, s.Log())
	}
	return task, out.String()
}

// contract: E3. The server is killed at many moments of tasks: each ran once, each
// ended, its output is whole, and the next began after it.
func TestE3_TasksOutliveTheServerThatIsKilledUnderThem(t *testing.T) {
	s := serve(t)
	se := s.session("s")
	var tasks []holdfast.Task
	for i := range 6 {
		tasks = append(tasks, s.submit(fmt.Sprint("t", i), se.ID, fmt.Sprintf("echo begin %d | tee -a /srv/log; sleep 0.5; echo end %d | tee -a /srv/log; exit %d", i, i, i), 0))
		if i%2 == 1 {
			s.Kill()
			s.Start()
		}
	}
	want := ""
	for i, task := range tasks {
		got, out := s.follow(task.ID)
		whole := fmt.Sprintf("begin %d\nend %d\n", i, i)
		if !got.ProcessEnded || got.ExitCode != i || out != whole || (got.State == holdfast.TaskSucceeded) != (i == 0) || got.Contrary != nil {
			t.Errorf("task %d: %s, code %d, output %q", i, got.State, got.ExitCode, out)
		}
		want += whole
		if again := s.submit(fmt.Sprint("t", i), se.ID, fmt.Sprintf("echo begin %d | tee -a /srv/log; sleep 0.5; echo end %d | tee -a /srv/log; exit %d", i, i, i), 0); again.ID != task.ID {
			t.Errorf("task %d: %s and %s", i, task.ID, again.ID)
		}
	}
	s.wantOutput(se.Sandbox, "cat /srv/log", want[:len(want)-1])
}

// contract: E3, A13
func TestE3_TasksAreCancelledAndHaveALimitAndASuspendWaitsForThem(t *testing.T) {
	s := serve(t)
	se := s.session("s")
	const stubborn = "trap '' TERM; sleep 300 & wait; sleep 300"
	limited := s.submit("limit", se.ID, "sleep 300", time.Second)
	cancelled := s.submit("cancel", se.ID, stubborn, 0)
	if got, _ := s.follow(limited.ID); got.State != holdfast.TaskTimedOut || got.Failure.Reason != holdfast.ReasonTimeLimit {
		t.Errorf("%+v, %+v", got, got.Failure)
	}
	if !testenv.Eventually(20*time.Second, func() bool {
		got, err := s.client.GetTask(t.Context(), cancelled.ID)
		return err == nil && got.Process != ""
	}) {
		t.Fatal("the second task does not start")
	}
	if _, err := s.client.CancelTask(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.follow(cancelled.ID); got.State != holdfast.TaskCancelled || got.ExitCode != 137 {
		t.Errorf("%+v", got)
	}
	last := s.submit("last", se.ID, "sleep 1; echo done", 0)
	suspended, err := s.client.SuspendSession(t.Context(), holdfast.MutateSession{ID: se.ID})
	if err != nil || suspended.State != holdfast.SessionSuspended {
		t.Fatalf("%+v, %v", suspended, err)
	}
	got, out := s.follow(last.ID)
	if got.State != holdfast.TaskSucceeded || out != "done\n" {
		t.Errorf("%+v, %q: the suspend did not wait for it", got, out)
	}
}
